"""A run's command line: what it starts, and the lines that a reader types next."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import conf

STARTING = ("run", "resume")
"""Commands that start a run."""
FLAGS = (
    "--quiet",
    "--not-quiet",
    "--pylint",
    "--no-pylint",
    "--force-rebuild-environments",
    "--no-force-rebuild-environments",
    "--help",
)
"""Metaflow's options before the command that take no value; any other there takes one."""
OF_TWO_VALUES = ("--config", "--config-value")
"""But for these."""


def is_starting(argv: Sequence[str]) -> bool:
    """Whether a command line starts a run (and isn't a task of one, or a question about one)."""
    return command_of(argv) in STARTING and "--help" not in argv


def command_of(argv: Sequence[str]) -> str:
    """Metaflow's command in a command line; empty where there is none."""
    return "".join(argv[command_index(argv) :][:1])


def command_index(argv: Sequence[str]) -> int:
    """Where the command stands: the first word that is no option and no option's value."""
    index = 1
    while index < len(argv) and argv[index].startswith("-"):
        name, equals, _ = argv[index].partition("=")
        num_values = 0 if name in FLAGS else 2 if name in OF_TWO_VALUES else 1
        index += 1 + max(0, num_values - len(equals))
    return index


def shown_line(argv: Sequence[str]) -> list[str]:
    """A command line with no password in its overrides: what Metaflow may keep of it."""
    return [
        conf.without_credentials(word) if "--override" in (before, word.split("=")[0]) else word
        for before, word in zip(["", *argv], argv, strict=False)
    ]


def resume_line(argv: Sequence[str], run_id: str, step: str = "") -> str:
    """The command that takes up `run_id`, as it must be typed where `argv` was typed.

    Metaflow goes on where nothing has finished; `step` has it do that step again, and all after it.
    """
    return _command(argv, "resume", *([step] if step else []), "--origin-run-id", run_id)


def run_line(argv: Sequence[str]) -> str:
    """A run as it was typed, to be changed and typed again; of a `resume` its beginning alone."""
    if command_of(argv) != "run":
        return f"{_command(argv, 'run')} ..."
    return _command(argv, *shown_line(argv)[command_index(argv) :])


def card_line(argv: Sequence[str], run_id: str, step: str) -> str:
    """The command that opens a step's card in the browser."""
    return _command(argv, "card", "view", f"{run_id}/{step}")


def module_line(module: str, *words: str) -> str:
    """The command that runs a module of this project."""
    return shlex.join([_python(), "-m", module, *words])


def near(path: Path) -> str:
    """A path as a person types it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _command(argv: Sequence[str], *command: str) -> str:
    before = argv[1 : command_index(argv)] if is_starting(argv) else ()
    return shlex.join([_python(), argv[0], *before, *command])


def _python() -> str:
    """The interpreter as a person types it."""
    found = shutil.which("python")
    if found and Path(found).absolute() == Path(sys.executable).absolute():
        return "python"
    return near(Path(sys.executable))
