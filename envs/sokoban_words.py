"""Sokoban in words: a room as symbols and coordinates, and the rules as the player reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from envs.base import COORDS, GRID, GRID_COORDS, STATE_FORMATS
from envs.errors import EnvironmentConfigError, unknown_name
from envs.sokoban_rooms import SYMBOLS, Boxes, Room, Symbols

DIRECTIONS = ("Up", "Down", "Left", "Right")


class Look(NamedTuple):
    """How a room is written."""

    symbols: Symbols
    ground: str
    """As in `Room`, in these symbols."""
    places: tuple[str, ...]
    """Cell -> `(row,column)`."""
    targets: Boxes


@lru_cache(maxsize=64)
def _places(num_cells: int, stride: int) -> tuple[str, ...]:
    return tuple(f"({cell // stride},{cell % stride})" for cell in range(num_cells))


def look_of(room: Room, symbols: Symbols) -> Look:
    """What stays the same while a room is played."""
    ground = room.ground
    if symbols != SYMBOLS:
        ground = ground.translate(str.maketrans("".join(SYMBOLS), "".join(symbols)))
    return Look(symbols, ground, _places(len(ground), room.stride), room.targets)


def room_text(look: Look, player: int, boxes: Boxes, state_format: str) -> str:
    """The room with its player and boxes in one of `STATE_FORMATS`."""
    if state_format == GRID:
        return _grid(look, player, boxes)
    if state_format == COORDS:
        return _coords(look, player, boxes)
    if state_format == GRID_COORDS:
        return f"{_grid(look, player, boxes)}\n{_coords(look, player, boxes)}"
    raise EnvironmentConfigError(unknown_name("state format", state_format, STATE_FORMATS))


def _grid(look: Look, player: int, boxes: Boxes) -> str:
    symbols, ground, _, targets = look
    cells = list(ground)
    cells[player] = symbols.player_on_target if player in targets else symbols.player
    for cell in boxes:
        cells[cell] = symbols.box_on_target if cell in targets else symbols.box
    return "".join(cells)


def _coords(look: Look, player: int, boxes: Boxes) -> str:
    symbols, _, places, targets = look
    if player in targets:
        text = f"Player ({symbols.player_on_target}) is at {places[player]}, on a target"
    else:
        text = f"Player ({symbols.player}) is at {places[player]}"
    loose = [cell for cell in boxes if cell not in targets]
    free = [cell for cell in targets if cell not in boxes]
    if loose:
        text += _listed("box", "boxes", symbols.box, loose, places)
    if len(loose) < len(boxes):
        placed = [cell for cell in boxes if cell in targets]
        text += _listed("box on target", "boxes on targets", symbols.box_on_target, placed, places)
    if free:
        text += _listed("target", "targets", symbols.target, free, places)
    return text + "."


def _listed(
    one: str, several: str, symbol: str, cells: Sequence[int], places: Sequence[str]
) -> str:
    if len(cells) == 1:
        return f"; {one} ({symbol}) is at {places[cells[0]]}"
    return f"; {several} ({symbol}) are at {', '.join([places[cell] for cell in cells])}"


def rules_text(height: int, width: int, symbols: Symbols, labels: Sequence[str]) -> str:
    """The rules in words; `labels` are the names of Up, Down, Left and Right."""
    wall, empty, target, box_on_target, box, player, player_on_target = symbols
    up, down, left, right = labels
    names = (
        f"{up}, {down}, {left} and {right} move you one cell that way."
        if tuple(label.title() for label in labels) == DIRECTIONS
        else f"Mind what the names of the moves do here: {up} moves you one cell up, {down} moves "
        f"you one cell down, {left} moves you one cell to the left and {right} moves you one cell "
        "to the right."
    )
    return (
        "You are in a warehouse and push every box onto a target.\n"
        f"The room is a grid of {height} rows and {width} columns. {wall} is a wall, {empty} is "
        f"empty floor, {target} is a target, {box_on_target} is a box on a target, {box} is a box, "
        f"{player} is you and {player_on_target} is you on a target.\n"
        "Coordinates are written (row,column) and count from 0: (0,0) is the top left cell and "
        f"({height - 1},{width - 1}) the bottom right one.\n"
        f"{names} If a box stands there, you push it one cell further the same way. A wall or a "
        "second box behind it holds it, and then nothing moves. You can't pull a box.\n"
        "Each action costs 0.1. A box pushed onto a target is worth 1, a box pushed off a target "
        "costs 1, and the game ends with another 10 when all boxes are on targets."
    )
