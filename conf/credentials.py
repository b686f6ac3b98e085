"""Addresses without the user and password that may stand in them, for what others may read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s]*@")


def without_credentials(text: str) -> str:
    """An address, or a text with some, without user and password."""
    return _CREDENTIALS.sub("", text)


def shown(plain: Any) -> Any:
    """Plain values with every text of them `without_credentials`."""
    if isinstance(plain, str):
        return without_credentials(plain)
    if isinstance(plain, Mapping):
        return {key: shown(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [shown(value) for value in plain]
    return plain
