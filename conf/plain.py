"""`Config` to and from plain values (what an artifact or a JSON file can hold), and its digest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, get_type_hints

from conf.schema import Config
from conf.suggest import unknown_setting


def to_plain(config: Config) -> dict[str, Any]:
    """Nested dicts and lists of builtin values, in the schema's order."""
    return dataclasses.asdict(config)


def from_plain(plain: Mapping[str, Any]) -> Config:
    """The inverse of `to_plain`. Missing keys take the schema's defaults; unknown ones raise."""
    config = _build(Config, plain, "")
    assert isinstance(config, Config)
    return config


def digest(config: Config) -> str:
    """16 hexadecimal digits of SHA-256 over every setting: the same in every process."""
    text = json.dumps(to_plain(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _build(kind: Any, plain: Mapping[str, Any], prefix: str) -> Any:
    hints = get_type_hints(kind)
    for key in plain:
        if key not in hints:
            raise unknown_setting(f"{prefix}{key}", [f"{prefix}{name}" for name in hints])
    values = {key: _value(hints[key], value, f"{prefix}{key}.") for key, value in plain.items()}
    return kind(**values)


def _value(hint: Any, value: Any, prefix: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, prefix)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, list | tuple) else value
