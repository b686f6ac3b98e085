"""A setting that nothing reads is a promise that isn't kept."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import conf
from conf.schema import Config

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = {
    field.name: type(getattr(Config(), field.name)).__name__
    for field in dataclasses.fields(Config)
    if dataclasses.is_dataclass(getattr(Config(), field.name))
}
"""Section -> its class."""


def reads(tree: ast.AST) -> Iterator[str]:
    """`section.name` of the settings that a module reads, and the bare name of any attribute.

    A section is known as an attribute (`config.ppo.lr`), by a name that it was given in the same
    function (`ppo = config.ppo`), and by the class of a parameter (`section: PPOSection`).
    """
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for scope in (tree, *functions):
        names = dict(_named(scope))
        for node in ast.walk(scope):
            if isinstance(node, ast.Attribute):
                yield node.attr
                section = _section(node.value) or names.get(ast.unparse(node.value), "")
                yield f"{section}.{node.attr}"


def _section(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) and node.attr in SECTIONS else ""


def _named(scope: ast.AST) -> Iterator[tuple[str, str]]:
    """Names of a function's sections."""
    if not isinstance(scope, ast.FunctionDef):
        return
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=True))
            for name, given in pairs:
                yield ast.unparse(name), _section(given)
        elif isinstance(node, ast.arg) and node.annotation is not None:
            written = ast.unparse(node.annotation).rpartition(".")[2]
            yield node.arg, next((name for name, cls in SECTIONS.items() if cls == written), "")


def test_every_setting_is_read_somewhere() -> None:
    found = {
        read
        for place in ("envs", "flows", "steps")
        for file in (ROOT / place).rglob("*.py")
        for read in reads(ast.parse(file.read_text("utf-8")))
    }
    # Those of `resources` are taken by the name of a step.
    wanted = {
        key: key.rpartition(".")[2] if key.startswith("resources.") else key
        for key in conf.flat(Config())
    }
    assert {key for key, read in wanted.items() if read not in found} == set()


@pytest.mark.parametrize(
    "text",
    [
        "gamma = config.filter.gamma",
        "def f(config):\n    section = config.filter\n    return section.gamma",
        "def f(config):\n    ppo, section = config.ppo, config.filter\n    return section.gamma",
        "def f(section: FilterSection):\n    return section.gamma",
    ],
)
def test_a_name_is_read_in_its_own_section_alone(text: str) -> None:
    found = set(reads(ast.parse(text)))
    assert "filter.gamma" in found and "ppo.gamma" not in found
