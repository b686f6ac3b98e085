"""`ConfigError` of the settings layer, which may import neither `steps` nor `envs`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from conf.credentials import without_credentials

MAX_LISTED = 20
"""More names than this aren't listed beside a near match."""


class ConfigError(ValueError):
    """A setting is unknown, of the wrong type, out of range or contradicts another.

    The message may quote what was typed; addresses in it lose user and password.
    """

    def __init__(self, message: str) -> None:
        super().__init__(without_credentials(message))


def unknown(kind: str, name: str, known: Iterable[str], *, also: str = "") -> ConfigError:
    """The error for a name that isn't known: the nearest known one, and all of them if few."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    seen = f"unknown {kind} {name!r}"
    if close and len(names) > MAX_LISTED:
        return ConfigError(f"{seen}; did you mean {close[0]!r}?")
    hint = f"; did you mean {close[0]!r}?" if close else "."
    tail = f" or {also}" if also else ""
    return ConfigError(f"{seen}{hint} Known: {', '.join(names)}{tail}.")
