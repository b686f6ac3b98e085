"""What a caller of `envs` can get wrong. A message says what was seen, where, and what to do.

`envs` stands alone and imports nothing of the pipeline; the flow turns these into its own errors.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EnvironmentIdError(LookupError):
    """An environment id is not registered, or what it points to can't be imported."""


class EnvironmentConfigError(ValueError):
    """An environment's argument is unknown, out of range, or leaves nothing to play."""


def unknown_name(kind: str, name: str, known: Iterable[str], *, also: str = "") -> str:
    """The message for a name that isn't known: the nearest known one first, then all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    tail = f" or {also}" if also else ""
    return f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}{tail}."
