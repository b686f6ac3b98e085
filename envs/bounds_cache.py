"""Floors and ceilings that were computed before: one small JSON file each.

A file's name is a digest of everything that the numbers depend on, the code included, so nothing
ever has to be thrown away by hand. A file that can't be read is as good as none, and a directory
that can't be written keeps nothing; neither is an error.
"""

from __future__ import annotations

import hashlib
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

from envs import sources


def cache_directory() -> Path:
    """`spa-agents/bounds` in the user's cache directory (`XDG_CACHE_HOME`, else `~/.cache`)."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or "")
    root = chosen if chosen.is_absolute() else Path(os.path.expanduser("~")) / ".cache"
    return root / "spa-agents" / "bounds"


def file_name(env_id: str, env: gymnasium.Env[Any, Any], settings: Mapping[str, Any]) -> str | None:
    """The file of an environment's bounds under these settings; None where its code has no file."""
    try:
        files = sources.files_of([*sources.names_of(env_id, env), "envs.solvers"])
        code = {name: sources.code_digest(path) for name, path in files.items()}
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    game = type(env.unwrapped)
    facts = {
        "game": f"{game.__module__}:{game.__qualname__}",
        "settings": dict(settings),
        "versions": [sys.version_info[:2], np.__version__, gymnasium.__version__],
        "libraries": {name: sources.version_of(name) for name in sources.libraries_of(files)},
        "code": code,
    }
    said = json.dumps(facts, sort_keys=True, default=repr)
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest() + ".json"


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
