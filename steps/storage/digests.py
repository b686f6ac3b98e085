"""JSON files, SHA-256 digests and manifests: what ties a result to the bytes it came from."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from steps.errors import DataError

SCHEMA_VERSION = 2
"""Rises whenever a column is added, removed, renamed or changes its meaning."""
MANIFEST = "manifest.json"
"""Written last into a directory: its presence says that the directory is complete."""


def atomic_write_json(path: Path, value: Any) -> None:
    """Write plain values; a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def read_json(path: Path) -> Any:
    """The value of a JSON file; a missing or broken one is a DataError."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing; run the step that writes it again.") from None
    except ValueError as error:
        raise DataError(
            f"{path} is no JSON ({error}); run the step that writes it again."
        ) from None


def json_digest(value: Any) -> str:
    """SHA-256 of plain values, whatever the order of their keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def directory_digest(directory: Path) -> str:
    """SHA-256 over the names and contents of all files below; empty folders don't count.

    A manifest counts as little: it is written after the digest is known.
    """
    return _digest_of(_digests(directory))


def model_digest(directory: Path) -> str:
    """The same of a model, whichever version of transformers wrote its configurations."""
    digests = _digests(directory)
    for name in digests:
        if name.endswith("config.json"):
            value = read_json(directory / name)
            if isinstance(value, dict) and value.pop("transformers_version", None):
                digests[name] = json_digest(value)
    return _digest_of(digests)


def write_manifest(directory: Path, **facts: Any) -> dict[str, Any]:
    """Write `manifest.json`, last: size and digest of each file, and plain `facts`."""
    digests = _digests(directory)
    files = {
        name: {"sha256": digest, "bytes": (directory / name).stat().st_size}
        for name, digest in digests.items()
    }
    manifest = {
        **facts,
        "schema_version": SCHEMA_VERSION,
        "git_commit": git_commit(),
        "digest": _digest_of(digests),
        "files": files,
    }
    atomic_write_json(directory / MANIFEST, manifest)
    return manifest


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a directory; a DataError where a name in it leads out of the directory."""
    manifest: dict[str, Any] = read_json(directory / MANIFEST)
    for name in manifest["files"]:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise DataError(
                f"{directory / MANIFEST} names {name!r}, which lies outside of its directory: it "
                "isn't a manifest that was written there; run the step that writes it again."
            )
    return manifest


def check_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a directory whose files are all there and unchanged, else a DataError."""
    manifest = read_manifest(directory)
    for name, expected in manifest["files"].items():
        path = directory / name
        if not path.is_file():
            raise DataError(f"{path} is missing; the manifest beside it lists it.")
        if path.stat().st_size != expected["bytes"] or file_digest(path) != expected["sha256"]:
            raise DataError(
                f"{path} is not the file that was written there (size or SHA-256 differs from "
                f"{MANIFEST}); restore it, or run its step again."
            )
    return manifest


@lru_cache(maxsize=1)
def git_commit() -> str:
    """Commit of this source tree, `-dirty` after it when files differ; `unknown` without git."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return "unknown"
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return "unknown"
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if changed else commit


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _digests(directory: Path) -> dict[str, str]:
    """Relative POSIX name -> SHA-256, sorted by name."""
    if not directory.is_dir():
        raise DataError(f"{directory} is no directory; run the step that writes it again.")
    names = sorted(
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    )
    return {name: file_digest(directory / name) for name in names if name != MANIFEST}


def _digest_of(digests: Mapping[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    return hashlib.sha256(lines.encode()).hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, moved there at the end; removed on an exception."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
