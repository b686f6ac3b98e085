"""Floors and ceilings that were computed before: one small JSON file each.

A file's name is a digest of everything that the numbers depend on, the source text included, so
nothing ever has to be thrown away by hand. A file that can't be read is as good as none, and a
directory that can't be written keeps nothing; neither is an error.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from envs.base import TextEnv

_FOREIGN = ("abc", "builtins", "gymnasium", "typing")
"""Roots of modules whose text says nothing about a game."""


def cache_directory() -> Path:
    """`spa-agents/bounds` in the user's cache directory (`XDG_CACHE_HOME`, else `~/.cache`)."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or "")
    root = chosen if chosen.is_absolute() else Path(os.path.expanduser("~")) / ".cache"
    return root / "spa-agents" / "bounds"


def file_name(game: TextEnv, settings: Mapping[str, Any]) -> str | None:
    """The file of a game's bounds under these settings; None where its source can't be read."""
    texts = source_texts(type(game))
    if texts is None:
        return None
    facts = {
        "game": f"{type(game).__module__}:{type(game).__qualname__}",
        "settings": dict(settings),
        "versions": [sys.version_info[:2], np.__version__, gymnasium.__version__],
        "sources": {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()},
    }
    said = json.dumps(facts, sort_keys=True, default=repr)
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest() + ".json"


def source_texts(game: type[TextEnv]) -> dict[str, bytes] | None:
    """File name -> text of all that a game may be made of: its package's modules and ours.

    Of a module outside of any package those count that are loaded from its folder. None where a
    class has no source file.
    """
    files = set(Path(__file__).parent.glob("*.py"))
    for cls in game.__mro__:
        if cls.__module__.partition(".")[0] in _FOREIGN:
            continue
        module = sys.modules.get(cls.__module__)
        source = getattr(module, "__file__", None)
        if module is None or source is None or inspect.getmodulename(source) is None:
            return None
        near = set(Path(source).parent.glob("*.py"))
        files |= near if module.__package__ else near & _loaded() | {Path(source)}
    try:
        return {f"{file.parent.name}/{file.name}": file.read_bytes() for file in sorted(files)}
    except OSError:
        return None


def _loaded() -> set[Path]:
    """Files of the modules that this process has imported."""
    found = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    return {Path(name) for name in found if name}


def read(file: Path, *, rows: int, width: int) -> list[list[Any]] | None:
    """What is kept in `file`; None where that isn't `rows` lists of `width` numbers or nulls."""
    try:
        kept = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(kept, list) or len(kept) != rows:
        return None
    is_sound = all(isinstance(row, list) and len(row) == width for row in kept) and all(
        value is None or isinstance(value, (int, float)) for row in kept for value in row
    )
    return kept if is_sound else None


def write(file: Path, rows: Sequence[Sequence[float | None]]) -> None:
    """Keep `rows`, whole or not at all."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w") as stream:
                json.dump(rows, stream)
            os.replace(scratch, file)
        except BaseException:
            os.unlink(scratch)
            raise
