"""The README's commands exist, its names are real, and its example game works.

Every line of its `bash` blocks is looked at: one that this test doesn't understand fails, so that
none goes unread. What takes minutes (the runs themselves) is run by the flow's own tests.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import envs
from conf.compose import compose

ROOT = Path(__file__).resolve().parents[1]
FLOW = str(ROOT / "flows" / "spa_flow.py")
TEXTS = ("README.md", "CONTRIBUTING.md")
PLACEHOLDERS = ("RUN_ID", "RUN_ID/evaluate/TASK_ID")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands() -> Iterator[str]:
    for name in TEXTS:
        for block in blocks((ROOT / name).read_text(encoding="utf-8"), "bash"):
            for line in block.splitlines():
                if words := shlex.split(line, comments=True):
                    yield shlex.join(words)


COMMANDS = list(dict.fromkeys(commands()))
README = (ROOT / "README.md").read_text(encoding="utf-8")
GAME = next(block for block in blocks(README, "python") if "class Corridor" in block)


@cache
def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z]+):", text, flags=re.MULTILINE))


@cache
def help_of(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def said_by_resume() -> str:
    """Metaflow gives no help on `resume` where nothing has run, but says what it wants."""
    with tempfile.TemporaryDirectory() as nothing:
        command = [sys.executable, FLOW, "resume"]
        done = subprocess.run(command, cwd=nothing, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


@pytest.fixture
def corridor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "corridor.py").write_text(GAME, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "corridor:Corridor"
    sys.modules.pop("corridor", None)


def options_of(words: list[str]) -> dict[str, str]:
    """Long options and their values; the README writes `--name value`."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {word: value for word, value in pairs if word.startswith("--")}


def check_flow_command(words: list[str]) -> None:
    subcommands = []
    for word in words:
        if word.startswith("-") or word in PLACEHOLDERS:
            break
        subcommands.append(word)
    text = said_by_resume() if subcommands == ["resume"] else help_of(FLOW, *subcommands)
    options = options_of(words[len(subcommands) :])
    for option in options:
        assert option == "--help" or re.search(rf"{option}\b", text), f"no option {option}"
    for env_id in options.get("--env", "").split(","):
        assert not env_id or ":" in env_id or env_id in envs.list_ids()
    if subcommands == ["run"]:
        compose(
            profile=options.get("--profile"),
            model=options.get("--model"),
            experiment=options.get("--experiment", "spa"),
            seed=int(options.get("--seed", "0")),
            overrides=options.get("--override", "").split(),
        )


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command_exists(command: str) -> None:
    words = shlex.split(command)
    match words:
        case ["make", target, *settings]:
            assert target in make_targets()
            assert all(re.match(r"[A-Z]+=", setting) for setting in settings)
        case ["python", "flows/spa_flow.py", *rest]:
            check_flow_command(rest)
        case ["python", "-m", module, *rest]:
            assert importlib.util.find_spec(module) is not None
            text = help_of("-m", module, *(word for word in rest[:1] if word[0] != "-"))
            assert all(option in text for option in options_of(rest))
        case ["python", "-c", code]:
            assert "corridor:Corridor" in code  # run by the test of the example game
        case ["source", ".venv/bin/activate"]:
            assert "VENV ?= .venv" in (ROOT / "Makefile").read_text(encoding="utf-8")
        case _:
            raise AssertionError(f"teach this test the command {command!r}")


def test_links_within_the_repository_lead_somewhere() -> None:
    for name in (*TEXTS, "docs/architecture.md", "CHANGELOG.md", "infra/README.md"):
        path = ROOT / name
        for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (path.parent / target).exists(), target


def test_keys_in_the_text_are_settings() -> None:
    keys = re.findall(r"`((?:ppo|sft|selfplay|filter|evaluation)\.\w+(?:=\w+)?)`", README)
    assert len(keys) >= 3
    for key in keys:
        section, _, name = key.partition("=")[0].partition(".")
        assert hasattr(getattr(compose(), section), name), key
        if "=" in key:
            compose(overrides=[key])


def test_example_game_passes_the_checker_by_the_readmes_line(tmp_path: Path) -> None:
    (tmp_path / "corridor.py").write_text(GAME, encoding="utf-8")
    (code,) = [shlex.split(line)[2] for line in COMMANDS if line.startswith("python -c")]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_example_game_plays_as_it_says(corridor: str) -> None:
    env = envs.make(corridor, length=3)
    env.reset(seed=0)
    game = env.unwrapped
    game.start = game.player = 0
    game.goal = 2
    assert game.describe("grid") == "P_G"
    assert env.step("jump")[1:4] == (0.0, False, False)
    assert env.step("Right")[0] == "_PG\nPlayer (P) is at 1; goal (G) is at 2."
    assert env.step(" right ")[1:] == (
        1.0,
        True,
        False,
        {"success": True, "action_is_valid": True, "action_is_effective": True},
    )
    assert game.describe("grid") == "__√"
