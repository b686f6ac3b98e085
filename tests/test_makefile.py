"""The Makefile's targets: what they call, and what they say when they can't."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make isn't installed")


def make(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = ["make", "-f", str(ROOT / "Makefile"), *words]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A place that has what the installing targets depend on, and no virtual environment."""
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_run_calls_the_flow_with_the_arguments_given() -> None:
    done = make("--dry-run", "-o", ".venv/.installed", "run", "ARGS=--seed 1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        ".venv/bin/python flows/spa_flow.py run --env frozenlake --seed 1"
    )


def test_another_environment_takes_the_place_of_the_lake() -> None:
    done = make("--dry-run", "-o", ".venv/.installed", "run", "ARGS=--env sokoban")
    assert done.stdout.split()[1:] == ["flows/spa_flow.py", "run", "--env", "sokoban"]


def test_an_interpreter_that_does_not_fit_is_refused_in_one_line(clone: Path) -> None:
    done = make("run", "PYTHON=no-such-python", cwd=clone)
    assert done.returncode == 2
    first = done.stderr.splitlines()[0]
    assert "no-such-python isn't Python 3.11 or 3.12" in first
    assert not (clone / ".venv").exists()


def test_no_interpreter_at_all_is_one_line(clone: Path) -> None:
    done = make("run", "PYTHON=", cwd=clone)
    assert done.returncode == 2
    assert "no Python 3.11 or 3.12" in done.stderr.splitlines()[0]


def test_ui_says_when_its_port_is_in_use(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        settings = (f"PY={sys.executable}", f"PORT={port}")
        done = make("ui", "-o", ".venv/.installed", *settings, cwd=tmp_path)
    assert done.returncode == 2
    assert f"can't listen on 127.0.0.1:{port}" in done.stderr.splitlines()[0]
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_target() -> None:
    phony = next(
        line.split(":")[1].split()
        for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
        if line.startswith(".PHONY:")
    )
    listed = [line.split()[1] for line in make("help").stdout.splitlines() if line[:5] == "make "]
    assert sorted(listed) == sorted(phony)
