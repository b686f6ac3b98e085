"""Questions with answers, read from Parquet, JSON or JSON Lines, or from the Hugging Face hub.

Rows are those of the data set MetaMathQA: `query`, and a `response` that ends in `The answer is: `
and the answer. A source is read once a process.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from envs.errors import EnvironmentConfigError

SAMPLE = Path(__file__).parent / "data" / "metamathqa_sample.jsonl"
"""Seventy easy problems, written for this project."""
HUB = "hub:"
PUBLISHED = "meta-math/MetaMathQA"
PUBLISHED_REVISION = "aa4f34d3d2d3231299b5b03d9b3e5a20da45aa18"
"""The repository's head in 2025 and on 2026-08-11; its card names the MIT licence."""
MAX_ANSWER = 300

_COLUMNS = ("query", "response")
_ANSWER = re.compile(r"The answer is:\s*(\S.*?)\s*\Z", re.DOTALL)
_SUFFIXES = (".parquet", ".jsonl", ".json")
_COMMIT = re.compile("[0-9a-f]{40}")


class Item(NamedTuple):
    """A question and its stored answer."""

    question: str
    answer: str


class Questions(NamedTuple):
    """A source, read."""

    items: tuple[Item, ...]
    """Each question once, in the source's order."""
    rows: int
    skipped: int
    """Rows without a question or a usable answer."""


def read_questions(data: str | os.PathLike[str] | None, revision: str | None) -> Questions:
    """The questions of a file, a directory, `hub:owner/name`, or (None) our own sample.

    Raises `EnvironmentConfigError` where there is nothing to read or a column is missing.
    """
    name = os.fspath(SAMPLE if data is None else data)
    if name.startswith(HUB):
        name = _downloaded(name.removeprefix(HUB), revision)
    elif revision is not None:
        raise _error(f"revision {revision!r} goes with data='{HUB}owner/name', not with {name!r}.")
    files = tuple((str(file), file.stat().st_mtime_ns) for file in _files(Path(name)))
    return _read(files)


def answer_of(response: Any) -> str | None:
    """What stands after the last `The answer is: `, in one line; None without it."""
    if not isinstance(response, str):
        return None
    found = _ANSWER.search(response[response.rfind("The answer is:") :])
    return one_line(found[1]) if found else None


def one_line(text: str) -> str | None:
    """A text with single spaces; None where it is empty, long, or holds what can't be printed."""
    text = " ".join(text.split())
    return text if 0 < len(text) <= MAX_ANSWER and text.isprintable() else None


def _error(problem: str) -> EnvironmentConfigError:
    return EnvironmentConfigError(f"metamathqa: {problem}")


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise _error(f"data {str(place)!r} is no file and no directory.")
    files = [file for file in sorted(place.rglob("*")) if file.suffix in _SUFFIXES]
    if not files:
        raise _error(f"data {str(place)!r} holds no file that ends in {', '.join(_SUFFIXES)}.")
    return files


@lru_cache(maxsize=4)
def _read(files: tuple[tuple[str, int], ...]) -> Questions:
    """Files with their times of change, which make a changed file a new one."""
    answers: dict[str, str] = {}
    rows = skipped = 0
    for file, _ in files:
        for row in _rows(Path(file)):
            question, answer = row["query"], answer_of(row["response"])
            rows += 1
            if answer is None or not isinstance(question, str) or not question.strip():
                skipped += 1
            else:
                answers.setdefault(question.strip(), answer)
    names = ", ".join(Path(file).name for file, _ in files[:3])
    if not rows:
        raise _error(f"{names} holds no rows.")
    if not answers:
        raise _error(
            f"none of the {rows} rows of {names} ends in 'The answer is: ' and an answer of at "
            f"most {MAX_ANSWER} characters."
        )
    items = tuple(Item(question, answer) for question, answer in answers.items())
    return Questions(items, rows, skipped)


def _rows(file: Path) -> Iterator[Mapping[str, Any]]:
    """Rows that have the columns."""
    try:
        if file.suffix == ".parquet":
            yield from _parquet_rows(file)
        elif file.suffix == ".json":
            yield from _checked(json.loads(file.read_text(encoding="utf-8")), file)
        else:
            with file.open(encoding="utf-8") as lines:
                yield from _checked((json.loads(line) for line in lines if line.strip()), file)
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise _error(f"{file.name} can't be read: {error}.") from error


def _checked(rows: Any, file: Path) -> Iterator[Mapping[str, Any]]:
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise _error(
            f"{file.name} holds no list of rows, but one value of type {type(rows).__name__}."
        )
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise _error(
                f"row {number} of {file.name} is no object, but of type {type(row).__name__}."
            )
        _check_columns(row, f"row {number} of {file.name}")
        yield row


def _check_columns(seen: Iterable[str], place: str) -> None:
    missing = [column for column in _COLUMNS if column not in seen]
    if missing:
        raise _error(
            f"{place} has no {' and no '.join(missing)}; it needs {' and '.join(_COLUMNS)}, and "
            f"has {', '.join(map(str, seen)) or 'nothing'}."
        )


def _parquet_rows(file: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            _check_columns(table.schema_arrow.names, file.name)
            for batch in table.iter_batches(columns=list(_COLUMNS)):
                yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise _error(f"{file.name} can't be read: {str(error).splitlines()[0]}") from error


def _downloaded(name: str, revision: str | None) -> str:
    """Directory with a snapshot of a data set; from the local cache where it lies there."""
    revision = revision or (PUBLISHED_REVISION if name == PUBLISHED else None)
    if revision is None or not _COMMIT.fullmatch(revision):
        seen = "none is given" if revision is None else f"it is {revision!r}"
        raise _error(
            f"data '{HUB}{name}' needs a revision of 40 hexadecimal digits, since a branch moves; "
            f"{seen}."
        )
    try:
        from huggingface_hub import snapshot_download

        patterns = [f"*{suffix}" for suffix in _SUFFIXES]
        return str(
            snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=patterns)
        )
    except Exception as error:  # whatever the hub and the network between raise
        raise _error(
            f"data '{HUB}{name}' at revision {revision} can't be fetched: "
            f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0]}"
        ) from error
