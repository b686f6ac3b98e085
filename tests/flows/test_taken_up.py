"""A run that was killed in PPO is taken up at its checkpoint: by `resume`, and by a new run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.flows.fake_runs import QUIET, STAGES, Runs, planted, run_id_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, str]:
    """Such a run, in a directory of which every test has a copy, and its id."""
    runs = planted(tmp_path_factory.mktemp("killed"))
    return runs, runs.killed()


@pytest.fixture
def runs(killed: tuple[Runs, str], tmp_path: Path) -> Runs:
    return killed[0].copied(tmp_path / "work")


def starts(runs: Runs) -> list[int]:
    return [each["start"] for each in runs.trace("ppo_train")]


def test_resume_goes_on_at_the_checkpoint(runs: Runs, killed: tuple[Runs, str]) -> None:
    done = runs.spa("resume", "--origin-run-id", killed[1])
    run_id = run_id_of(done)
    assert starts(runs) == [0, 2]
    for stage in ("selfplay_generate", "filter_format", "sft_train", "evaluate"):
        assert len(runs.trace(stage)) == 1, stage
    ppo = runs.artifacts(run_id, {"ppo_train": ["ppo"]})["ppo_train"]["ppo"]
    assert (ppo["start"], ppo["steps"], ppo["model"]) == (2, 5, "model")
    assert "optimal play" in done.stdout


def test_so_does_a_new_run_unless_its_settings_are_others(runs: Runs) -> None:
    runs.computed()
    run_id_of(runs(override=f"{QUIET} ppo.lr=0.5"))
    assert starts(runs) == [0]
    runs.computed()
    run_id_of(runs())
    assert starts(runs) == [2]
    assert runs.computed() == list(STAGES[3:])


def test_a_result_of_old_and_mended_code_is_reused_by_no_other_run(
    runs: Runs, killed: tuple[Runs, str], tmp_path: Path
) -> None:
    tree = shutil.copytree(runs.flow.parents[1], tmp_path / "mended")
    mended = Runs(tree / "flows" / "spa_flow.py", runs.work)
    stage = tree / "steps" / "ppo_train.py"
    stage.write_text(stage.read_text() + "\nMENDED = True\n")
    runs.computed()
    done = mended.spa("resume", "--origin-run-id", killed[1])
    mixed = run_id_of(done)
    assert starts(mended) == [2], "the origin's checkpoint counts, whatever the code"
    assert done.stdout.count("this result mixes them with the present ones") == 1
    assert mended.computed() == list(STAGES[3:])
    new = run_id_of(mended())
    assert starts(mended) == [0]
    assert mended.computed() == list(STAGES[3:]), "nor is the evaluation of the mixed model"
    wanted = dict.fromkeys(STAGES[3:], ("fingerprint", "cache_hit"))
    ours, theirs = (mended.artifacts(each, wanted) for each in (new, mixed))
    for step in STAGES[3:]:
        assert ours[step]["cache_hit"] is None is theirs[step]["cache_hit"]
        assert ours[step]["fingerprint"] != theirs[step]["fingerprint"]
    run_id_of(mended())
    assert mended.computed() == []
