"""What the bad days are told by, and what spoils a file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos import bad_days, scene
from tests.chaos.bad_days import Row


def test_a_cut_file_is_shorter_by_at_least_two_bytes_and_keeps_its_beginning(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.parquet"
    for seed in range(20):
        file.write_bytes(b"0123456789")
        said = scene.cut(file, random.Random(seed))
        left = file.read_bytes()
        assert len(left) < 9 and b"0123456789".startswith(left)
        assert said == f"`rows.parquet` at byte {len(left)} of 10"


def test_what_the_user_saw_is_told_without_times_places_and_run_ids(tmp_path: Path) -> None:
    run_id = "1795850767185189"
    text = (
        f"2026-11-28 07:25:16.005 [{run_id}/ppo_train/5 (pid 12)] PPO step 1/3\n"
        f"2026-11-28 07:25:17.005 [{run_id}/ppo_train/5 (pid 12)] lake, ppo_train: DataError: "
        f"{tmp_path}/.metaflow/spa.store/SPAFlow/{run_id}/lake/sft_train/attempt_0/model/a is cut. "
        f"`resume sft_train --origin-run-id {run_id}`\n"
    )
    assert scene.Ended(1, text, run_id).line("DataError", tmp_path) == (
        "lake, ppo_train: DataError: .../sft_train/attempt_0/model/a is cut. "
        "`resume sft_train --origin-run-id RUN`"
    )


def test_durations_are_found_by_name_at_any_depth() -> None:
    value = {"seconds": 2, "curve": [{"timing_s/probe": 0.5, "loss": -1.0}], "seconds_of": "text"}
    assert list(scene.durations(value)) == [("seconds", 2.0), ("timing_s/probe", 0.5)]


def test_the_table_goes_between_its_marks_and_nowhere_else(tmp_path: Path) -> None:
    document = tmp_path / "reliability.md"
    document.write_text(f"before\n{bad_days.BEGIN}\nold\n{bad_days.END}\nafter\n")
    row = Row("disk full", "PPO", "no room", "made room", None)
    bad_days.write(bad_days.table([row]), document)
    assert document.read_text() == (
        f"before\n{bad_days.BEGIN}\n"
        "| bad day | where | what the user saw | then | results equal |\n|---|---|---|---|---|\n"
        "| disk full | PPO | no room | made room | not run |\n"
        f"{bad_days.END}\nafter\n"
    )
    document.write_text("no marks")
    with pytest.raises(SystemExit, match="no lines"):
        bad_days.write("table", document)
