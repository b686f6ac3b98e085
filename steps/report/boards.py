"""An episode's boards as a picture: what was shown, observed, predicted, and what happened."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steps.report.figures import FAINT, INK, canvas, png


@dataclass(frozen=True, kw_only=True, slots=True)
class _BoardRow:
    name: str
    key: str
    truth: str | None = None


_BOARD_ROWS = (
    _BoardRow(name="shown", key="state"),
    _BoardRow(name="observed", key="observation", truth="observation_truth"),
    _BoardRow(name="predicted", key="prediction", truth="prediction_truth"),
    _BoardRow(name="happened", key="prediction_truth"),
)
_CELL = 0.215
"""Inches a cell."""
_MAX_WIDTH = 24
"""Cells of a line that are drawn at most."""
_BEYOND = 3
"""Cells beyond the board that are drawn: a model may write any number."""
_ROW_LABEL = 4.6
"""Cells left of the boards for the names of the rows."""
_TITLE_SHARE = 0.45
"""Cells that a letter of the title takes."""
_RED, _AMBER = "#f2b8b5", "#f8dfa3"


def has_boards(episode: Mapping[str, Any]) -> bool:
    """Whether every state of a transcript begins with two or more lines of a board."""
    turns = episode["turns"]
    return bool(turns) and all(len(_board_lines(turn["state"])) > 1 for turn in turns)


def boards(episode: Mapping[str, Any], *, max_turns: int = 10, title: str = "") -> bytes:
    """A transcript's boards, a column a turn and a row for each of `_BOARD_ROWS`.

    `episode` is of `transcripts.transcript`. A cell that differs from the truth is red; in a
    prediction that was possible and only wasn't drawn, it is amber. Rows that no turn has are left
    out; of a prediction of several states the last is drawn. Raises ValueError where `has_boards`
    is false.
    """
    if not has_boards(episode):
        raise ValueError(f"episode {episode['trajectory_id']} shows no board; print its text")
    turns = episode["turns"][:max_turns]
    rows = [row for row in _BOARD_ROWS if any(turn[row.key] is not None for turn in turns)]
    widest = _widest_truth(turns)
    line = str(episode.get("prediction_separator", ""))
    turns = [{**turn, **_last_states(turn, line)} for turn in turns] if line else turns
    texts = [[_board_lines(turn[row.key], widest) for row in rows] for turn in turns]
    width = max((len(line) for column in texts for lines in column for line in lines), default=1)
    height = max((len(lines) for column in texts for lines in column), default=1)
    across, down = width + 1.2, height + 0.9
    room = max(len(turns) * across, _TITLE_SHARE * len(title) - _ROW_LABEL)
    size = (room + _ROW_LABEL, len(rows) * down + 2.4)
    figure, axes = canvas((size[0] * _CELL, size[1] * _CELL))
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-_ROW_LABEL, room)
    axes.set_ylim(len(rows) * down, -2.4)
    _write(axes, -_ROW_LABEL, -1.9, title, fontweight="bold", ha="left")
    for index, row in enumerate(rows):
        _write(axes, -0.6, index * down + height / 2, row.name, ha="right", color=FAINT)
    for column, (turn, lines) in enumerate(zip(turns, texts, strict=True)):
        left = column * across
        heading = " ".join(turn["actions"]) or "no action"
        _write(axes, left + width / 2, -0.75, heading, fontsize=8.5, fontweight="bold")
        for index, row in enumerate(rows):
            truth = None if row.truth is None else _board_lines(turn[row.truth], widest)
            colour = _AMBER if row.key == "prediction" and turn["chance"] else _RED
            _board(axes, left, index * down, lines[index], truth, colour)
    return png(figure)


def _last_states(turn: Mapping[str, Any], separator: str) -> dict[str, str | None]:
    """What follows the last separator line: of a prediction of several states the last one."""
    found: dict[str, str | None] = {}
    for key in ("prediction", "prediction_truth"):
        lines = (turn[key] or "").split("\n")
        ends = [index for index, line in enumerate(lines) if line.strip() == separator]
        found[key] = None if turn[key] is None else "\n".join(lines[ends[-1] + 1 if ends else 0 :])
    return found


def _board_lines(text: str | None, width: int = _MAX_WIDTH) -> list[str]:
    """The lines before the coordinates, which are the first to have a parenthesis."""
    lines = (text or "").strip().split("\n")
    return [line[:width] for line in itertools.takewhile(lambda line: "(" not in line, lines)]


def _widest_truth(turns: Sequence[Mapping[str, Any]]) -> int:
    """Cells of a line that are drawn: the board's own and a few of what a model wrote beyond it."""
    lines = [line for turn in turns for line in _board_lines(turn["state"])]
    return min(max(map(len, lines)) + _BEYOND, _MAX_WIDTH)


def _board(
    axes: Any, left: float, top: float, lines: list[str], truth: list[str] | None, wrong: str
) -> None:
    for y, line in enumerate(lines):
        for x, symbol in enumerate(line):
            if symbol == " ":
                continue
            is_right = truth is None or (y < len(truth) and truth[y][x : x + 1] == symbol)
            colour = "#eef3f8" if is_right else wrong
            across = (left + x, left + x + 1, left + x + 1, left + x)
            down = (top + y, top + y, top + y + 1, top + y + 1)
            axes.fill(across, down, facecolor=colour, edgecolor="white")
            if symbol != "_":
                _write(axes, left + x + 0.5, top + y + 0.52, symbol, fontsize=8)


def _write(axes: Any, x: float, y: float, text: str, **style: Any) -> None:
    usual: dict[str, Any] = {"fontsize": 9, "color": INK, "ha": "center", "va": "center"}
    axes.text(x, y, text, **(usual | style))
