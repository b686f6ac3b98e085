"""The errors a user can cause, each also the standard library's kind.

A message has three parts: what was seen, where, and what to do. `unknown_name` writes the
commonest of them. Our own mistakes are assertions, and a bad answer of a model is data
(`steps.agent.records.ParseStatus`), never an exception.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SPAError(Exception):
    """Base of every error that the user can mend."""


class ConfigError(SPAError, ValueError):
    """A setting is unknown, of the wrong type, out of range or contradicts another."""


class EnvironmentIdError(SPAError, LookupError):
    """An environment id is not registered, or its entry point can't be imported."""


class DataError(SPAError, ValueError):
    """A file of data is missing, truncated, of another schema, or holds nothing of use."""


class ModelError(SPAError, ValueError):
    """A directory holds no usable Hugging Face model, or one that can't do what is asked."""


class StorageError(SPAError, OSError):
    """A place can't be written: its disk is full or read-only, or a limit is reached."""


class CheckpointError(SPAError, RuntimeError):
    """A checkpoint is damaged or belongs to another run, and no earlier one can serve."""


class StageError(SPAError, RuntimeError):
    """A stage ran, but its result may not be used (nothing survived the filter, steps lack)."""


class GameError(SPAError, RuntimeError):
    """A game's own code raised while it was played; the same seed will raise again."""


def unknown_name(kind: str, name: str, known: Iterable[str], *, also: str = "") -> str:
    """The message for a name that isn't known: the nearest known one first, then all of them.

    That of `envs.errors`, which would load the games' libraries with every command line.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    tail = f" or {also}" if also else ""
    return f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}{tail}."
