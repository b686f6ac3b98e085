"""A run as one JSON file: a finished one, one that failed on the way, and one that isn't there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steps.orchestration import export

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("selfplay_generate", "filter_format", "sft_train", "ppo_train", "evaluate")
HEAD = """
from metaflow import FlowSpec, Parameter, step


class SPAFlow(FlowSpec):
    fail = Parameter("fail", default="")

    @step
    def start(self):
        self.settings = {"envs": {"a": {"seed": 3}, "b": {"seed": 3}}, "start": {},
                         "request": {"override": "tracking.uri=http://me:secret@host"}}
        self.environments = ["a", "b"]
        self.next(self.selfplay_generate, foreach="environments")
"""
STAGE = """
    @step
    def {step}(self):
        {set_env}
        assert self.fail != f"{step} {{self.env_id}}"
        self.{artifact} = {{"of": self.env_id, "rate": 0.5}}
        self.next(self.{following})
"""
TAIL = """
    @step
    def join(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    SPAFlow()
"""


def flow_source() -> str:
    """A flow with the real one's steps and artifacts, which computes nothing."""
    steps = [
        STAGE.format(
            step=step,
            set_env="self.env_id = self.input" if step == STAGES[0] else "pass",
            artifact=export.ARTIFACTS[step],
            following=following,
        )
        for step, following in zip(STAGES, (*STAGES[1:], "join"), strict=True)
    ]
    return HEAD + "".join(steps) + TAIL


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "USER": "tester"}
    line = [sys.executable, *words]
    return subprocess.run(
        line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280
    )


def export_of(*words: str, cwd: Path) -> dict[str, Any]:
    done = call("-m", "steps.orchestration.export", *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def run(tmp_path: Path, *words: str) -> str:
    (tmp_path / "flow.py").write_text(flow_source())
    done = call("flow.py", "--no-pylint", "run", *words, cwd=tmp_path)
    found = re.search(r"run-id (\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    return found[1]


@pytest.mark.slow
def test_a_finished_run_and_one_that_failed(tmp_path: Path) -> None:
    finished = run(tmp_path)
    found = export_of(finished, cwd=tmp_path)
    assert (found["schema"], found["run"], found["finished"]) == (1, f"SPAFlow/{finished}", True)
    assert found["seconds"] > 0
    assert found["settings"]["envs"]["b"] == {"seed": 3}
    assert found["settings"]["request"]["override"] == "tracking.uri=http://host"
    assert sorted(found["environments"]) == ["a", "b"]
    for env_id, stages in found["environments"].items():
        assert stages == {step: {"of": env_id, "rate": 0.5} for step in STAGES}

    failed = run(tmp_path, "--fail", "sft_train b", "--max-workers", "1")
    done = call(
        "-m", "steps.orchestration.export", f"SPAFlow/{failed}", "--out", "results/b.json",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    half = json.loads((tmp_path / "results" / "b.json").read_text())
    assert half["finished"] is False
    assert half["seconds"] is None
    assert list(half["environments"]["b"]) == ["selfplay_generate", "filter_format"]


def test_a_run_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = call("-m", "steps.orchestration.export", "12", cwd=tmp_path)
    assert done.returncode == 2
    assert "no run SPAFlow/12 in this datastore" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("place", [".", "file/b.json"])
def test_a_place_that_cant_be_written_is_refused_before_the_run_is_read(
    place: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = call("-m", "steps.orchestration.export", "12", "--out", place, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"--out {place} can't be written: ")
    assert len(done.stderr.splitlines()) == 1


def test_the_artifacts_are_those_of_the_flow() -> None:
    """Each step of the flow has its stage's result put under that name."""
    source = (ROOT / "flows" / "spa_flow.py").read_text("utf-8")
    for step, artifact in export.ARTIFACTS.items():
        body = source.split(f"    def {step}(self)")[1].split("    @card")[0]
        assert f'run_stage(self, "{artifact}", ' in body, step


def test_a_run_in_which_the_clock_was_set_back_has_no_length() -> None:
    began = datetime(2026, 11, 28, 12)
    for hours, expected in ((1, 3600.0), (-23, None)):
        run = SimpleNamespace(created_at=began, finished_at=began + timedelta(hours=hours))
        assert export._seconds(run) == expected
