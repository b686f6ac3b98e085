"""Runs of the flow over stages that take no time, for several test files."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("selfplay_generate", "filter_format", "sft_train", "ppo_train", "evaluate")
QUIET = "tracking.enabled=false"
Done = subprocess.CompletedProcess[str]


def planted(tmp_path: Path) -> Runs:
    """A tree with fake stages, and an empty directory to run it in."""
    path = Path(__file__).with_name("fake_stages.py")
    spec = importlib.util.spec_from_file_location("fake_stages", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plant: Callable[[Path, Path], Path] = module.plant
    (tmp_path / "work").mkdir()
    return Runs(plant(ROOT, tmp_path / "tree"), tmp_path / "work")


class Runs:
    """Runs of one flow in one directory."""

    def __init__(self, flow: Path, work: Path) -> None:
        self.flow, self.work = flow, work

    def __call__(self, *words: str, override: str = QUIET) -> Done:
        line = [sys.executable, str(self.flow), "run", "--override", override, *words]
        return subprocess.run(line, cwd=self.work, capture_output=True, text=True, timeout=600)

    def computed(self) -> list[str]:
        """Stages whose functions were called since this was asked last."""
        trace = self.work / "trace.jsonl"
        lines = trace.read_text().splitlines() if trace.exists() else []
        trace.unlink(missing_ok=True)
        return [json.loads(line)["stage"] for line in lines]

    def command(self, *words: str, module: str = "stage_cache") -> Done:
        line = [sys.executable, "-m", f"steps.orchestration.{module}", *words]
        environment = {**os.environ, "PYTHONPATH": str(self.flow.parents[1])}
        return subprocess.run(line, cwd=self.work, env=environment, capture_output=True, text=True)

    def artifacts(self, run_id: str, step: str) -> tuple[str | None, str]:
        code = (
            "import json, sys; from metaflow import Step, namespace; namespace(None); "
            "data = Step(f'SPAFlow/{sys.argv[1]}/{sys.argv[2]}').task.data; "
            "print(json.dumps([data.cache_hit, data.fingerprint]))"
        )
        line = [sys.executable, "-c", code, run_id, step]
        done = subprocess.run(line, cwd=self.work, capture_output=True, text=True, check=True)
        hit, fingerprint = json.loads(done.stdout)
        return hit, fingerprint


def run_id_of(done: Done) -> str:
    found = re.search(r"run-id (\d+)", done.stdout)
    assert found and done.returncode == 0, done.stdout + done.stderr
    return found[1]
