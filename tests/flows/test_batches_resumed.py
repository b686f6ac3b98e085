"""The flow's self-play is killed between batches: on retry, `resume` and a new run it goes on."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from steps.storage import file_digest
from tests.flows.fake_runs import QUIET, ROOT, Done, Runs, begun, planted, run_id_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SMALL = "selfplay.batches=4 selfplay.env_groups=2 selfplay.group_size=2 selfplay.policy=random"
KILL = '''

_save = MetaflowBatches.save


def _killing(self, directory, *, index, fingerprint):
    """Kill the task, or all of the flow, once the second batch is kept."""
    import os, signal
    _save(self, directory, index=index, fingerprint=fingerprint)
    asked = Path("kill_once")
    if index == 1 and asked.exists():
        whole = asked.read_text() == "flow"
        asked.unlink()
        (os.killpg if whole else os.kill)(os.getpgrp() if whole else os.getpid(), signal.SIGKILL)


MetaflowBatches.save = _killing
'''


def self_playing(tmp_path: Path) -> Runs:
    """The flow with its own self-play and stand-ins for the other stages."""
    runs = planted(tmp_path)
    tree = runs.flow.parents[1]
    shutil.copy(ROOT / "steps" / "selfplay_generate.py", tree / "steps")
    store = tree / "steps" / "orchestration" / "batch_store.py"
    store.write_text(store.read_text() + KILL)
    filtering = tree / "steps" / "filter_format.py"
    text = filtering.read_text()
    filtering.write_text(text.replace("trajectories[0].read_text()", "trajectories[0].name"))
    return runs


def play(runs: Runs, *words: str) -> Done:
    return runs(*words, override=f"{QUIET} {SMALL}")


def played(runs: Runs, run_id: str) -> str:
    """Digest of the trajectories of a run."""
    place = runs.work / ".metaflow" / "spa.store" / "SPAFlow" / run_id / "frozenlake"
    files = sorted((place / "selfplay_generate").glob("attempt_*/trajectories.parquet"))
    return file_digest(files[-1])


def batches(runs: Runs) -> list[Path]:
    return list((runs.work / ".metaflow" / "spa.store").rglob("batch_0*"))


BATCH = re.compile(r"self-play batch (\d)/4( \(kept by an earlier attempt\))?:")


def said(done: Done) -> list[tuple[str, bool]]:
    """Number of each batch, and whether it was found rather than played."""
    return [(number, bool(kept)) for number, kept in BATCH.findall(done.stdout + done.stderr)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, str]:
    """A run that nothing disturbed and that is in no index, and the digest of what it played."""
    runs = self_playing(tmp_path_factory.mktemp("undisturbed"))
    done = play(runs, "--cache", "off")
    assert said(done) == [(number, False) for number in "1234"], done.stdout + done.stderr
    assert batches(runs) == []
    return runs, played(runs, run_id_of(done))


@pytest.fixture(scope="module")
def killed(
    undisturbed: tuple[Runs, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Runs, str]:
    """A run killed with two batches kept, which another seed's run leaves there; and its id."""
    runs = undisturbed[0].copied(tmp_path_factory.mktemp("killed") / "work")
    (runs.work / "kill_once").write_text("flow")
    done = play(runs)
    assert done.returncode == -signal.SIGKILL
    assert len(batches(runs)) == 2
    other = play(runs, "--seed", "1")
    assert said(other) == [(number, False) for number in "1234"]
    return runs, begun(done)


def test_a_retry_goes_on_with_the_third_batch(
    undisturbed: tuple[Runs, str], tmp_path: Path
) -> None:
    runs = undisturbed[0].copied(tmp_path / "work")
    (runs.work / "kill_once").write_text("task")
    done = play(runs)
    lines = said(done)
    assert lines[-4:] == [("1", True), ("2", True), ("3", False), ("4", False)]
    assert ("3", False) not in lines[:-4]
    assert played(runs, run_id_of(done)) == undisturbed[1]
    assert batches(runs) == []


@pytest.mark.parametrize("way", ["resume", "a new run"])
def test_a_killed_flow_is_taken_up_with_the_third_batch(
    undisturbed: tuple[Runs, str], killed: tuple[Runs, str], tmp_path: Path, way: str
) -> None:
    runs = killed[0].copied(tmp_path / "work")
    assert len(batches(runs)) == 2
    if way == "resume":
        done = runs.spa("resume", "--origin-run-id", killed[1])
    else:
        done = play(runs)
    assert said(done) == [("1", True), ("2", True), ("3", False), ("4", False)]
    assert played(runs, run_id_of(done)) == undisturbed[1]
    assert batches(runs) == []
