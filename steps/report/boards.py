"""An episode's boards as a picture: what was shown, observed, predicted, and what happened.

A board is drawn with its world's tiles (`TextEnv.tiles`) where every symbol on it has one, else
with its letters: so what a model writes stays readable, whatever it is.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import envs
from envs.tiles import picture
from steps.report.figures import FAINT, INK, canvas, png

Turn = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class _BoardRow:
    name: str
    key: str
    truth: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Script:
    """How a world's boards are written."""

    rows: Callable[[str], Sequence[str]]
    tiles: Mapping[str, str]
    """Empty where letters are all there is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Limit:
    """Cells that are drawn at most."""

    across: int
    down: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Board:
    rows: Sequence[str]
    wrong: Sequence[tuple[int, int]] = ()
    """Cells (column, row) that the truth has otherwise."""
    colour: str = ""
    """Of the wrong cells."""


_BOARD_ROWS = (
    _BoardRow(name="shown", key="state"),
    _BoardRow(name="observed", key="observation", truth="observation_truth"),
    _BoardRow(name="predicted", key="prediction", truth="prediction_truth"),
    _BoardRow(name="happened", key="prediction_truth"),
)
_CELL = 0.215
"""Inches a cell."""
_PIXELS = 64
"""Of a tile, before it is made smaller."""
_MAX_WIDTH = 24
"""Cells of a line that are drawn at most."""
_BEYOND = 3
"""Cells beyond the board that are drawn: a model may write any number."""
_GAP_ACROSS, _GAP_DOWN = 1.2, 0.9
"""Cells between two boards."""
_HEAD = 2.4
"""Cells above the boards for the title and what was played."""
_ROW_LABEL = 4.6
"""Cells left of the boards for the names of the rows."""
_TITLE_SHARE = 0.45
"""Cells that a letter of the title takes."""
_RED, _AMBER = "#cf222e", "#e8a200"
_INSET = 0.06
"""Of the frame of a wrong cell, so that it isn't taken for its neighbour's."""
_PAPER, _EDGE = "#eef3f8", "#a9aeb8"
"""Behind a letter, and around tiles."""


def has_boards(episode: Mapping[str, Any], *, env_kwargs: Mapping[str, Any] | None = None) -> bool:
    """Whether every state of a transcript begins with a board: rows of one length.

    A single row is a board only where tiles tell it from a sentence.
    """
    script = _script(episode, env_kwargs)
    states = [_rows(turn["state"], script) for turn in episode["turns"]]
    return bool(states) and all(_is_board(rows, script) for rows in states)


def boards(
    episode: Mapping[str, Any],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    max_turns: int = 10,
    title: str = "",
) -> bytes:
    """A transcript's boards, a column a turn and a row for each of `_BOARD_ROWS`.

    `episode` is of `transcripts.transcript`; `env_kwargs` are the arguments of its environment. A
    cell that differs from the truth has a red frame; in a prediction that was possible and only
    wasn't drawn, it is amber. Rows that no turn has are left out; of a prediction of several states
    the last is drawn. Raises ValueError where `has_boards` is false.
    """
    if not has_boards(episode, env_kwargs=env_kwargs):
        raise ValueError(f"episode {episode['trajectory_id']} shows no board; print its text")
    script = _script(episode, env_kwargs)
    line = str(episode.get("prediction_separator", ""))
    turns = [{**turn, **_last_states(turn, line)} for turn in episode["turns"][:max_turns]]
    kinds = [kind for kind in _BOARD_ROWS if any(turn[kind.key] is not None for turn in turns)]
    limit = _limit(turns, script)
    columns = [[_board(turn, kind, script, limit) for kind in kinds] for turn in turns]
    return _picture(turns, [kind.name for kind in kinds], columns, script.tiles, title)


def _picture(
    turns: Sequence[Turn],
    names: Sequence[str],
    columns: Sequence[Sequence[_Board]],
    tiles: Mapping[str, str],
    title: str,
) -> bytes:
    drawn = [board for column in columns for board in column]
    width = max(len(row) for board in drawn for row in board.rows)
    height = max(len(board.rows) for board in drawn)
    across, down = width + _GAP_ACROSS, height + _GAP_DOWN
    room = max(len(turns) * across, _TITLE_SHARE * len(title) - _ROW_LABEL)
    figure, axes = _sheet(room, len(names) * down)
    _write(axes, -_ROW_LABEL, 0.5 - _HEAD, title, fontweight="bold", ha="left")
    for index, name in enumerate(names):
        middle = index * down + len(drawn[0].rows) / 2
        _write(axes, -0.6, middle, name, ha="right", color=FAINT)
    for number, (turn, column) in enumerate(zip(turns, columns, strict=True)):
        played = " ".join(turn["actions"]) or "no action"
        middle = number * across + len(column[0].rows[0]) / 2
        _write(axes, middle, -0.75, played, fontsize=8.5, fontweight="bold")
        for index, board in enumerate(column):
            _draw(axes, number * across, index * down, board, tiles)
    return png(figure)


def _sheet(room: float, depth: float) -> tuple[Any, Any]:
    """Figure and axes, whose unit is a cell, with the boards' corner at (0, 0)."""
    figure, axes = canvas(((room + _ROW_LABEL) * _CELL, (depth + _HEAD) * _CELL))
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-_ROW_LABEL, room)
    axes.set_ylim(depth, -_HEAD)
    return figure, axes


def _script(episode: Mapping[str, Any], env_kwargs: Mapping[str, Any] | None) -> _Script:
    kwargs = json.dumps(dict(env_kwargs or {}), sort_keys=True, default=repr)
    return _script_of(str(episode.get("env_id", "")), kwargs)


@lru_cache(maxsize=64)
def _script_of(env_id: str, kwargs: str) -> _Script:
    """Of an environment; letters where it can't be made here and now."""
    try:
        game = envs.make(env_id, **json.loads(kwargs)).unwrapped
    except (envs.EnvironmentIdError, envs.EnvironmentConfigError):
        return _Script(rows=lambda text: text.split("\n"), tiles={})
    assert isinstance(game, envs.TextEnv), game
    return _Script(rows=game.board_rows, tiles=game.tiles or {})


def _last_states(turn: Turn, separator: str) -> dict[str, str | None]:
    """What follows the last separator line: of a prediction of several states the last one."""
    found: dict[str, str | None] = {}
    for key in ("prediction", "prediction_truth"):
        lines = (turn[key] or "").split("\n")
        ends = [
            index for index, line in enumerate(lines) if separator and line.strip() == separator
        ]
        found[key] = None if turn[key] is None else "\n".join(lines[ends[-1] + 1 if ends else 0 :])
    return found


def _rows(text: str | None, script: _Script, limit: _Limit | None = None) -> list[str]:
    """The board before the coordinates, which begin with the first line that has a parenthesis."""
    lines = (text or "").strip().split("\n")
    grid = "\n".join(itertools.takewhile(lambda line: "(" not in line, lines))
    rows = script.rows(grid)
    return [*rows] if limit is None else [row[: limit.across] for row in rows[: limit.down]]


def _is_board(rows: Sequence[str], script: _Script) -> bool:
    is_even = len({len(row) for row in rows}) == 1 and rows[0] != ""
    return is_even and (len(rows) > 1 or _has_tiles(rows, script.tiles))


def _has_tiles(rows: Sequence[str], tiles: Mapping[str, str]) -> bool:
    return set("".join(rows)) <= tiles.keys()


def _limit(turns: Sequence[Turn], script: _Script) -> _Limit:
    """The true boards and a few cells of what a model wrote beyond them."""
    shown = [_rows(turn["state"], script) for turn in turns]
    return _Limit(
        across=min(max(len(rows[0]) for rows in shown) + _BEYOND, _MAX_WIDTH),
        down=max(map(len, shown)) + _BEYOND,
    )


def _board(turn: Turn, kind: _BoardRow, script: _Script, limit: _Limit) -> _Board:
    rows = _rows(turn[kind.key], script, limit)
    if kind.truth is None or turn[kind.key] is None:
        return _Board(rows=rows)
    truth = _rows(turn[kind.truth], script, limit)
    colour = _AMBER if kind.key == "prediction" and turn["chance"] else _RED
    return _Board(rows=rows, wrong=_differences(rows, truth), colour=colour)


def _differences(rows: Sequence[str], truth: Sequence[str]) -> list[tuple[int, int]]:
    """Cells (column, row) that only one of them has, or that hold different symbols."""
    return [
        (x, y)
        for y, (row, true) in enumerate(itertools.zip_longest(rows, truth, fillvalue=""))
        for x, (symbol, right) in enumerate(itertools.zip_longest(row, true, fillvalue=" "))
        if symbol != right
    ]


def _draw(axes: Any, left: float, top: float, board: _Board, tiles: Mapping[str, str]) -> None:
    if _has_tiles(board.rows, tiles):
        _draw_tiles(axes, left, top, board.rows, tiles)
    else:
        _draw_letters(axes, left, top, board.rows)
    for x, y in board.wrong:
        for colour, width in (("white", 2.5), (board.colour, 1.6)):
            style = {"facecolor": "none", "edgecolor": colour, "linewidth": width}
            _square(axes, left + x, top + y, inset=_INSET, **style)


def _draw_tiles(
    axes: Any, left: float, top: float, rows: Sequence[str], tiles: Mapping[str, str]
) -> None:
    """As one image, white where a row is shorter than others."""
    width = max(map(len, rows), default=0)
    if not width:
        return
    pixels = np.full((len(rows) * _PIXELS, width * _PIXELS, 3), 255, dtype=np.uint8)
    for y, row in enumerate(rows):
        if row:
            drawn = picture([row], tiles, _PIXELS)
            pixels[y * _PIXELS : (y + 1) * _PIXELS, : drawn.shape[1]] = drawn
    bottom, right = top + len(rows), left + width
    axes.imshow(pixels, extent=(left, right, bottom, top))
    if all(len(row) == width for row in rows):
        corners = (left, right, right, left), (top, top, bottom, bottom)
        axes.fill(*corners, facecolor="none", edgecolor=_EDGE, linewidth=0.8)


def _draw_letters(axes: Any, left: float, top: float, rows: Sequence[str]) -> None:
    for y, row in enumerate(rows):
        for x, symbol in enumerate(row):
            if symbol == " ":
                continue
            _square(axes, left + x, top + y, facecolor=_PAPER, edgecolor="white")
            if symbol != "_":
                _write(axes, left + x + 0.5, top + y + 0.52, symbol, fontsize=8)


def _square(axes: Any, left: float, top: float, *, inset: float = 0.0, **style: Any) -> None:
    near, far = inset, 1 - inset
    across = (left + near, left + far, left + far, left + near)
    axes.fill(across, (top + near, top + near, top + far, top + far), **style)


def _write(axes: Any, x: float, y: float, text: str, **style: Any) -> None:
    usual: dict[str, Any] = {"fontsize": 9, "color": INK, "ha": "center", "va": "center"}
    axes.text(x, y, text, **(usual | style))
