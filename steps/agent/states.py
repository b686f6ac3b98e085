"""Reads states in words: the board's cells, the entities and their places. Takes any text.

Two kinds of text are understood, alone or one below the other. A board is two or more lines of one
length, or one line in which strokes open the rows: `| . 1 | 2 . `. Coordinates are clauses such as
`Player (P) is at (2,1); holes (O) are at (0,1), (3,3).`: a name, perhaps its symbol, and one or
more places. Where a state has coordinates, its entities are theirs; of a bare board they are the
symbols that are neither floor nor wall. A stroked board's symbols always count: what stands below
it names the empty cells alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

Entities = Counter[tuple[str, int, int]]
"""(name, row, column) -> how often."""

PLACE = re.compile(r"\(\s*(\d{1,6})\s*,\s*(\d{1,6})\s*\)")
BACKGROUND = frozenset("_.# |")
"""Floor, wall and what stands between cells: they never move, and they outnumber all else."""
_STROKED = re.compile(r"(?:\|(?: [^\s|])+ ?){2,}")
_CLAUSE_END = re.compile(r"[;\n]|\.(?:\s|$)")
_SYMBOL = re.compile(r"\(([^\s()\d,])\)")
_PLURAL = re.compile(r"((?<=x)e)?s$")
_NAME_END = re.compile(r"[\s:]*(?:\b(?:is|are))?\s*(?:\bat)?\s*$")


def join_states(states: Iterable[str], separator: str) -> str:
    """Several states in one text, a line that holds the separator between each two."""
    return f"\n{separator.strip()}\n".join(states)


def split_states(text: str, separator: str) -> list[str]:
    """The states of such a text, stripped; without a separator the text is one state."""
    parts: list[list[str]] = [[]]
    for line in text.strip().split("\n"):
        if separator and line.strip() == separator.strip():
            parts.append([])
        else:
            parts[-1].append(line)
    return ["\n".join(part).strip() for part in parts]


def board_rows(state: str) -> tuple[str, ...]:
    """The rows of the board that a state begins with; empty where it begins with none.

    They stand before the first line with a parenthesis: in all state formats the coordinates
    follow the board and are the first to have one. Those of a stroked board hold no blanks.
    """
    lines = _before_coordinates(state)
    rows = _between_strokes(lines) if _is_stroked(lines) else [line.rstrip() for line in lines]
    return tuple(rows) if len(rows) > 1 and len(set(map(len, rows))) == 1 else ()


@lru_cache(maxsize=8192)
def right_cells(guess: str, truth: str) -> float | None:
    """Share of the board's cells (its non-blank characters) that the guess has in their place.

    None where the truth begins with no board.
    """
    rows = board_rows(truth)
    if not rows:
        return None
    right = total = 0
    lines = guess.strip().split("\n")
    if _is_stroked(_before_coordinates(truth)):
        lines = _between_strokes(lines)
    for index, row in enumerate(rows):
        line = lines[index] if index < len(lines) else ""
        for column, symbol in enumerate(row):
            if symbol != " ":
                total += 1
                right += column < len(line) and line[column] == symbol
    return right / total if total else 0.0


@lru_cache(maxsize=8192)
def right_entities(guess: str, truth: str) -> float | None:
    """Share of entities that are right: common ones, of the longer of the two lists.

    So an entity that is missing, made up or misplaced costs as much. None where the truth names
    no entity.
    """
    true, stroked = named_entities(truth), _is_stroked(_before_coordinates(truth))
    found = named_entities(guess) if true else Counter()
    if stroked or (not true and board_rows(truth)):
        true = true + board_entities(truth, stroked)
        found = found + board_entities(guess, stroked)
    if not true:
        return None
    return (true & found).total() / max(true.total(), found.total())


@lru_cache(maxsize=4096)
def named_entities(state: str) -> Entities:
    """Entities by their coordinates. Not to be changed: the same object is given out again.

    An entity is named by its symbol, so that `box` and `boxes` are one kind; by its words, without
    their plural, where it has none.
    """
    found: Entities = Counter()
    for clause in _CLAUSE_END.split(state):
        places = list(PLACE.finditer(clause))
        if not places:
            continue
        head = clause[: places[0].start()]
        symbol = _SYMBOL.search(head)
        name = symbol[1] if symbol else _words(head)
        found.update((name, int(place[1]), int(place[2])) for place in places)
    return found


@lru_cache(maxsize=4096)
def board_entities(state: str, stroked: bool = False) -> Entities:
    """Symbols of the lines before the coordinates. Not to be changed, as above."""
    lines = _before_coordinates(state)
    return Counter(
        (symbol, row, column)
        for row, line in enumerate(_between_strokes(lines) if stroked else lines)
        for column, symbol in enumerate(line)
        if symbol not in BACKGROUND
    )


def _before_coordinates(state: str) -> Sequence[str]:
    lines = state.strip().split("\n")
    end = next((index for index, line in enumerate(lines) if "(" in line), len(lines))
    return lines[:end]


def _is_stroked(lines: Sequence[str]) -> bool:
    """Whether they are a board on one line."""
    return len(lines) == 1 and _STROKED.fullmatch(lines[0].rstrip()) is not None


def _between_strokes(lines: Sequence[str]) -> list[str]:
    """The rows on the first line, without blanks; what stands before the first stroke is one."""
    rows = ["".join(row.split()) for line in lines[:1] for row in line.split("|")]
    return rows[1:] if rows and not rows[0] else rows


def _words(head: str) -> str:
    """`Empty positions to be filled are at ` -> `empty position to be filled`."""
    return " ".join(_PLURAL.sub("", word) for word in _NAME_END.sub("", head).lower().split())
