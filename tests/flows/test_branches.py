"""Several environments in one run, over stages that take no time: one fails, the others finish."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.fake_runs import STAGES, Runs, planted

pytestmark = pytest.mark.timeout(900)  # several runs each, which a busy machine makes slow


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return planted(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "step", "said", "attempts"),
    [
        ("starve", "filter_format", "StageError: 0 of 9 rows survived the filter", 0),
        ("crash", "sft_train", "ZeroDivisionError: a defect", 2),
    ],
)
def test_one_environments_failure_leaves_the_others_to_finish(
    runs: Runs, file: str, step: str, said: str, attempts: int
) -> None:
    """A user's mistake isn't tried again, a crash is, once; the next run computes the rest."""
    lakes = ("--env", "frozenlake,frozenlake_deterministic")
    (runs.work / file).write_text("frozenlake_deterministic")
    done = runs(*lakes)
    assert done.returncode != 0
    trace = [json.loads(line) for line in (runs.work / "trace.jsonl").read_text().splitlines()]
    assert sum(line["stage"] == "crash" for line in trace) == attempts
    assert [line["env"] for line in trace if line["stage"] == "evaluate"] == ["frozenlake"]
    printed = done.stdout + done.stderr
    assert "1 of 2 environments failed:" in printed
    assert f"frozenlake_deterministic failed in {step}: {said}" in printed
    found = re.search(rf"resume {step} --origin-run-id (\d+)", printed)
    assert found, printed
    (runs.work / file).unlink()
    runs.computed()
    line = [sys.executable, str(runs.flow), "resume", step, "--origin-run-id", found[1]]
    again = subprocess.run(line, cwd=runs.work, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stdout + again.stderr
    assert runs.computed() == list(STAGES[STAGES.index(step) :])
    assert "frozenlake_deterministic" in again.stdout.split("measured on unseen puzzles")[0]


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
    trace = [json.loads(line) for line in (runs.work / "trace.jsonl").read_text().splitlines()]
    ppo = [line["start"] for line in trace if line["stage"] == "ppo_train"
           and line["env"] == "frozenlake_deterministic"]  # fmt: skip
    assert ppo == [0, 2]  # its retry went on from the checkpoint, and was killed, too
    found = re.findall(r"resume --origin-run-id (\d+)", done.stdout)
    assert found, done.stdout
    for name in ("kill_always", "linger"):
        (runs.work / name).unlink()
    runs.computed()
    line = [sys.executable, str(runs.flow), "resume", "--origin-run-id", found[-1]]
    again = subprocess.run(line, cwd=runs.work, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stdout + again.stderr
    computed = runs.computed()
    assert sorted(computed) == ["evaluate", "evaluate", "ppo_train"]
    assert "optimal play" in again.stdout
