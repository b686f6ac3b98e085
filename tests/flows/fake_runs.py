"""Runs of the flow over stages that take no time, for several test files."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.flows.fake_stages import plant

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("selfplay_generate", "filter_format", "sft_train", "ppo_train", "evaluate")
QUIET = "tracking.enabled=false"
CARDS = """
import sys
from metaflow import Run, namespace
from metaflow.cards import get_cards
namespace(None)
run = Run(f"SPAFlow/{sys.argv[1]}")
for step in sys.argv[2:]:
    (card,) = get_cards(run[step].task)
    assert "</html>" in card.get(), step
"""
"""A program: each step that is named has a card."""
PATIENCE_S = 600
Done = subprocess.CompletedProcess[str]
_LOOK = """
import json, sys
from metaflow import Run, namespace
namespace(None)
run = Run(f"SPAFlow/{sys.argv[1]}")
found = {}
for step, names in json.loads(sys.argv[2]).items():
    task = run[step].task
    found[step] = {"task": task.pathspec, **{name: task[name].data for name in names}}
print(json.dumps(found))
"""


def artifacts(
    work: Path, run_id: str, wanted: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Step -> its artifacts of these names, and `task`; read in a process of its own."""
    line = [sys.executable, "-c", _LOOK, run_id, json.dumps(wanted)]
    done = subprocess.run(line, cwd=work, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def planted(tmp_path: Path) -> Runs:
    """A tree with fake stages, and an empty directory to run it in."""
    (tmp_path / "work").mkdir()
    return Runs(plant(ROOT, tmp_path / "tree"), tmp_path / "work")


class Runs:
    """Runs of one flow in one directory."""

    def __init__(self, flow: Path, work: Path) -> None:
        self.flow, self.work = flow, work

    def __call__(self, *words: str, override: str = QUIET) -> Done:
        return self.spa("run", "--override", override, *words)

    def spa(self, *words: str) -> Done:
        """The flow's command line, in a session of its own."""
        return subprocess.run(
            [sys.executable, str(self.flow), *words],
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            start_new_session=True,
        )

    def waiting(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a run in its own process group; returns when its PPO waits to be killed."""
        (self.work / "wait").touch()
        line = [sys.executable, str(self.flow), "run", "--override", QUIET, *words]
        with (self.work / "out").open("w") as out:
            process = subprocess.Popen(
                line, cwd=self.work, stdout=out, stderr=out, start_new_session=True
            )
        deadline = time.monotonic() + PATIENCE_S
        while not (self.work / "waiting").exists():
            assert time.monotonic() < deadline, (self.work / "out").read_text()
            assert process.poll() is None, (self.work / "out").read_text()
            time.sleep(0.05)
        return process

    def killed(self, *words: str) -> str:
        """Kill such a run with all its tasks; the run's id."""
        process = self.waiting(*words)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for name in ("wait", "waiting"):
            (self.work / name).unlink()
        return (self.work / ".metaflow" / "SPAFlow" / "latest_run").read_text()

    def copied(self, work: Path) -> Runs:
        """The same flow in a copy of the directory with all that was run there."""
        shutil.copytree(self.work, work, symlinks=True)
        return Runs(self.flow, work)

    def trace(self, stage: str) -> list[dict[str, Any]]:
        """What the calls of a stage's function noted since `computed` was asked last."""
        return [line for line in self._traced() if line["stage"] == stage]

    def computed(self) -> list[str]:
        """Stages whose functions were called since this was asked last."""
        lines = self._traced()
        (self.work / "trace.jsonl").unlink(missing_ok=True)
        return [line["stage"] for line in lines]

    def _traced(self) -> list[dict[str, Any]]:
        trace = self.work / "trace.jsonl"
        lines = trace.read_text().splitlines() if trace.exists() else []
        return [json.loads(line) for line in lines]

    def command(self, *words: str, module: str = "stage_cache") -> Done:
        line = [sys.executable, "-m", f"steps.orchestration.{module}", *words]
        environment = {**os.environ, "PYTHONPATH": str(self.flow.parents[1])}
        return subprocess.run(line, cwd=self.work, env=environment, capture_output=True, text=True)

    def artifacts(
        self, run_id: str, wanted: Mapping[str, Sequence[str]]
    ) -> dict[str, dict[str, Any]]:
        return artifacts(self.work, run_id, wanted)


def run_id_of(done: Done) -> str:
    """The id of a run that ended well."""
    assert done.returncode == 0, done.stdout + done.stderr
    return begun(done)


def begun(done: Done) -> str:
    """The id of a run, however it ended."""
    found = re.search(r"run-id (\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    return found[1]
