"""Several environments in one run, over stages that take no time: one fails, the others finish."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.flows.fake_runs import STAGES, Runs, planted, run_id_of

pytestmark = pytest.mark.timeout(900)  # several runs each, which a busy machine makes slow


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return planted(tmp_path)


def check_what_is_told(runs: Runs, run_id: str, done: list[str]) -> None:
    """A failed branch has the stages `done` alone, for whoever reads the run."""
    exported = json.loads(runs.command(run_id, module="export").stdout)["environments"]
    assert list(exported["frozenlake_deterministic"]) == done
    assert list(exported["frozenlake"]) == list(STAGES)
    told = runs.command(run_id, module="lineage")
    assert told.returncode == 0, told.stderr
    assert told.stdout.count(": unchanged, written by code") == len(done) + len(STAGES)
    refused = runs("--env", "frozenlake_deterministic", "--start-from", run_id)
    assert f"has no model of sft_train on frozenlake_deterministic: finished there is "\
           f"{', '.join(done)}. " in refused.stderr  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "step", "said", "attempts", "cache"),
    [
        ("starve", "filter_format", "StageError: 0 of 9 rows survived the filter", 0, "auto"),
        ("crash", "sft_train", "ZeroDivisionError: a defect", 2, "refresh"),
        ("crash", "sft_train", "ZeroDivisionError: a defect", 2, "off"),
    ],
)
def test_one_environments_failure_leaves_the_others_to_finish(
    runs: Runs, file: str, step: str, said: str, attempts: int, cache: str
) -> None:
    """A user's mistake isn't tried again, a crash is, once; the next run computes the rest."""
    lakes = ("--env", "frozenlake,frozenlake_deterministic", "--cache", cache)
    (runs.work / file).write_text("frozenlake_deterministic")
    done = runs(*lakes)
    assert done.returncode != 0
    assert len(runs.trace("crash")) == attempts
    assert [each["env"] for each in runs.trace("evaluate")] == ["frozenlake"]
    printed = done.stdout + done.stderr
    assert "1 of 2 environments failed:" in printed
    assert f"frozenlake_deterministic failed in {step}: {said}" in printed
    found = re.search(rf"resume {step} --origin-run-id (\d+)", printed)
    assert found, printed
    check_what_is_told(runs, found[1], list(STAGES[: STAGES.index(step)]))
    (runs.work / file).unlink()
    runs.computed()
    again = runs.spa("resume", step, "--origin-run-id", found[1])
    run_id_of(again)
    assert runs.computed() == list(STAGES[STAGES.index(step) :])
    if cache != "auto":
        run_id_of(runs(*lakes))
        assert sorted(runs.computed()) == sorted(2 * STAGES)  # a new run reuses nothing
    assert "frozenlake_deterministic" in again.stdout.split("measured on unseen puzzles")[0]


UNOPENED = """

_workspace = DirectoryStore.workspace


def _on_a_full_disk(self, key):
    if "/frozenlake_deterministic/sft_train/" in key:
        raise OSError(28, "No space left on device", key)
    return _workspace(self, key)


DirectoryStore.workspace = _on_a_full_disk
"""


@pytest.mark.slow
def test_a_stage_that_cannot_be_opened_is_a_failure_of_its_branch_alone(runs: Runs) -> None:
    """Its place can't be made: no stage has begun, and the other environment finishes."""
    store = runs.flow.parents[1] / "steps" / "orchestration" / "directory_store.py"
    store.write_text(store.read_text() + UNOPENED)
    done = runs("--env", "frozenlake,frozenlake_deterministic")
    assert done.returncode != 0
    printed = done.stdout + done.stderr
    assert "didn't yield" not in printed
    assert [each["env"] for each in runs.trace("evaluate")] == ["frozenlake"]
    assert "1 of 2 environments failed:" in printed
    assert "frozenlake_deterministic failed in sft_train: StorageError" in printed
    assert re.search(r"resume sft_train --origin-run-id \d+", printed)


@pytest.mark.slow
def test_two_sigkills_end_the_other_branches_too_and_resume_takes_all_of_them_up(
    runs: Runs,
) -> None:
    """A process can't note that it was killed: Metaflow ends the run, and nothing done is lost."""
    lakes = ("--env", "frozenlake,frozenlake_deterministic")
    (runs.work / "kill_always").write_text("frozenlake_deterministic")
    (runs.work / "linger").write_text("frozenlake")
    done = runs(*lakes)
    assert done.returncode != 0
    assert done.stdout.count("ppo_train") and "Task failed" in done.stdout
    ppo = runs.trace("ppo_train")
    starts = [each["start"] for each in ppo if each["env"] == "frozenlake_deterministic"]
    assert starts == [0, 2]  # its retry went on from the checkpoint, and was killed, too
    found = re.findall(r"resume --origin-run-id (\d+)", done.stdout)
    assert found, done.stdout
    for name in ("kill_always", "linger"):
        (runs.work / name).unlink()
    runs.computed()
    again = runs.spa("resume", "--origin-run-id", found[-1])
    run_id_of(again)
    computed = runs.computed()
    assert sorted(computed) == ["evaluate", "evaluate", "ppo_train"]
    assert "optimal play" in again.stdout
