"""A setting that nothing reads is a promise that isn't kept."""

from __future__ import annotations

import ast
from pathlib import Path

import conf
from conf.schema import Config

ROOT = Path(__file__).resolve().parents[2]


def test_every_setting_is_read_somewhere() -> None:
    read = {
        node.attr
        for place in ("envs", "flows", "steps")
        for file in (ROOT / place).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
    }
    unread = {key for key in conf.flat(Config()) if key.split(".")[-1] not in read}
    assert unread == set()
