"""The flow's self-play is killed between batches: on retry, `resume` and a new run it goes on."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from steps.storage import file_digest
from tests.flows.fake_runs import QUIET, ROOT, Done, planted, run_id_of

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


class Flow:
    """The flow with its own self-play and stand-ins for the other stages."""

    def __init__(self, tmp_path: Path) -> None:
        runs = planted(tmp_path)
        self.work, self.file = runs.work, runs.flow
        tree = runs.flow.parents[1]
        shutil.copy(ROOT / "steps" / "selfplay_generate.py", tree / "steps")
        store = tree / "steps" / "orchestration" / "batch_store.py"
        store.write_text(store.read_text() + KILL)
        filtering = tree / "steps" / "filter_format.py"
        text = filtering.read_text()
        filtering.write_text(text.replace("trajectories[0].read_text()", "trajectories[0].name"))

    def __call__(self, *words: str) -> Done:
        line = [sys.executable, str(self.file), *words]
        return subprocess.run(
            line,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=600,
            start_new_session=True,
        )

    def run(self, *words: str) -> Done:
        return self("run", "--override", f"{QUIET} {SMALL}", *words)

    def played(self, run_id: str) -> str:
        """Digest of the trajectories of a run."""
        place = self.work / ".metaflow" / "spa.store" / "SPAFlow" / run_id / "frozenlake"
        files = sorted((place / "selfplay_generate").glob("attempt_*/trajectories.parquet"))
        return file_digest(files[-1])

    def batches(self) -> list[Path]:
        return list((self.work / ".metaflow" / "spa.store").rglob("batch_0*"))


BATCH = re.compile(r"self-play batch (\d)/4( \(kept by an earlier attempt\))?:")


def said(done: Done) -> list[tuple[str, bool]]:
    """Number of each batch, and whether it was found rather than played."""
    return [(number, bool(kept)) for number, kept in BATCH.findall(done.stdout + done.stderr)]


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    return Flow(tmp_path)


def undisturbed(flow: Flow) -> str:
    done = flow.run("--cache", "off")
    assert said(done) == [(number, False) for number in "1234"], done.stdout + done.stderr
    assert flow.batches() == []
    return flow.played(run_id_of(done))


def test_a_retry_goes_on_with_the_third_batch(flow: Flow) -> None:
    whole = undisturbed(flow)
    (flow.work / "kill_once").write_text("task")
    done = flow.run()
    lines = said(done)
    assert lines[-4:] == [("1", True), ("2", True), ("3", False), ("4", False)]
    assert ("3", False) not in lines[:-4]
    assert flow.played(run_id_of(done)) == whole
    assert flow.batches() == []


@pytest.mark.parametrize("way", ["resume", "a new run"])
def test_a_killed_flow_is_taken_up_with_the_third_batch(flow: Flow, way: str) -> None:
    whole = undisturbed(flow)
    (flow.work / "kill_once").write_text("flow")
    killed = flow.run()
    assert killed.returncode == -signal.SIGKILL
    assert len(flow.batches()) == 2
    other = flow.run("--seed", "1")
    assert said(other) == [(number, False) for number in "1234"]
    run_id = re.search(r"run-id (\d+)", killed.stdout)
    assert run_id is not None
    done = flow("resume", "--origin-run-id", run_id[1]) if way == "resume" else flow.run()
    assert said(done) == [("1", True), ("2", True), ("3", False), ("4", False)]
    assert flow.played(run_id_of(done)) == whole
    assert flow.batches() == []
