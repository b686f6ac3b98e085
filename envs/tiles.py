"""Boards as pictures: flat tiles drawn with numpy alone, at any size.

A tile is a stack of coloured shapes in the unit square. It's sampled at `_FINE` by `_FINE` points
a pixel and averaged, which smooths edges; straight edges lie on sixteenths, so that they fall on
whole pixels at 16, 32 and 48 pixels a cell. On a board nothing is told apart by colour alone: each
tile has a shape of its own, in colours that colour-blind readers keep apart (Okabe and Ito, 2008).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from envs.errors import EnvironmentConfigError, unknown_name

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Shape = Callable[[NDArray[np.float64], NDArray[np.float64]], Mask]
"""Which points (x, y) of the unit square belong to it; y points down."""
Layers = tuple[tuple[str, Shape], ...]
"""Colour and shape, the lowest first."""

SMALLEST, LARGEST = 8, 256
"""Pixels a cell."""
_FINE = 4

_SAND, _SAND_EDGE = "#f3eee3", "#e2dac9"
_BRICK, _MORTAR = "#5b6472", "#454c58"
_WOOD, _PLANK, _WOOD_EDGE = "#e69f00", "#f3c35c", "#8a5a00"
_DONE, _DONE_EDGE, _WHITE = "#009e73", "#00543d", "#ffffff"
_ICE, _GLINT, _ICE_EDGE = "#d9eef9", "#ffffff", "#bfdcec"
_DEEP, _RIM = "#16283c", "#7fb2d1"
_RED, _POLE = "#d55e00", "#4a4a4a"
_BLUE, _SKIN, _INK = "#0072b2", "#f7d3b0", "#1d1d1f"
_PAPER, _GIVEN, _LINE = "#ffffff", "#e4e6ea", "#a9aeb8"
_START = "#8d7bbd"

_FONT = {
    "1": "..#.. .##.. ..#.. ..#.. ..#.. ..#.. .###.",
    "2": ".###. #...# ....# ...#. ..#.. .#... #####",
    "3": ".###. #...# ....# ..##. ....# #...# .###.",
    "4": "...#. ..##. .#.#. #..#. ##### ...#. ...#.",
    "5": "##### #.... ####. ....# ....# #...# .###.",
    "6": "..##. .#... #.... ####. #...# #...# .###.",
    "7": "##### ....# ...#. ...#. ..#.. ..#.. ..#..",
    "8": ".###. #...# #...# .###. #...# #...# .###.",
    "9": ".###. #...# #...# .#### ....# ...#. .##..",
}
"""Rows of a digit, top down, five dots wide."""


def picture(rows: Sequence[str], tiles: Mapping[str, str], cell: int = 32) -> Pixels:
    """The board as red, green and blue, `(rows * cell, columns * cell, 3)`.

    `tiles` maps each symbol of `rows` to a name of `NAMES`. Raises `EnvironmentConfigError` for a
    name or symbol that isn't known, rows of different lengths, and a cell below 8 or above 256.
    """
    if type(cell) is not int or not SMALLEST <= cell <= LARGEST:
        message = f"picture: cell is {cell!r}; it must be a whole number from 8 to 256."
        raise EnvironmentConfigError(message)
    lengths = {len(row) for row in rows}
    if len(lengths) != 1 or 0 in lengths:
        message = (
            f"picture: rows of lengths {sorted(lengths)} are no board; make them equally long."
        )
        raise EnvironmentConfigError(message)
    drawn = {symbol: _tile(_name(symbol, tiles), cell) for symbol in dict.fromkeys("".join(rows))}
    return np.concatenate([np.concatenate([drawn[each] for each in row], axis=1) for row in rows])


def _name(symbol: str, tiles: Mapping[str, str]) -> str:
    if symbol not in tiles:
        message = f"picture: symbol {symbol!r} has no tile; tiles knows {''.join(tiles)!r}."
        raise EnvironmentConfigError(message)
    if tiles[symbol] not in NAMES:
        raise EnvironmentConfigError(unknown_name("tile", tiles[symbol], NAMES))
    return tiles[symbol]


@lru_cache(maxsize=256)
def _tile(name: str, cell: int) -> Pixels:
    """One cell. Read-only, since every picture shares it."""
    kind, _, digit = name.partition("_")
    pixels = _paint(_LAYERS[kind if digit in _FONT else name], cell)
    if digit in _FONT:
        _write_digit(pixels, digit, _INK if kind == "given" else _BLUE)
    pixels.setflags(write=False)
    return pixels


def _paint(layers: Layers, cell: int) -> Pixels:
    side = cell * _FINE
    middles = (np.arange(side) + 0.5) / side
    x, y = np.meshgrid(middles, middles)
    canvas = np.zeros((side, side, 3))
    for colour, shape in layers:
        canvas[shape(x, y)] = _rgb(colour)
    blocks = canvas.reshape(cell, _FINE, cell, _FINE, 3)
    pixels: Pixels = blocks.mean(axis=(1, 3)).round().astype(np.uint8)
    return pixels


def _write_digit(pixels: Pixels, digit: str, colour: str) -> None:
    """In the middle; a dot is a whole number of pixels."""
    dots = np.array([[dot == "#" for dot in row] for row in _FONT[digit].split()])
    cell = len(pixels)
    size = max(1, round(cell / 10))
    mask = dots.repeat(size, axis=0).repeat(size, axis=1)
    top, left = (cell - mask.shape[0] + 1) // 2, (cell - mask.shape[1] + 1) // 2
    pixels[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = _rgb(colour)


def _rgb(colour: str) -> tuple[int, int, int]:
    """`#d55e00` -> (213, 94, 0)."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _everywhere() -> Shape:
    return lambda x, y: np.ones_like(x, dtype=np.bool_)


def _box(left: float, top: float, right: float, bottom: float) -> Shape:
    return lambda x, y: (x >= left) & (x < right) & (y >= top) & (y < bottom)


def _frame(width: float, inset: float = 0.0) -> Shape:
    """The square's border, `inset` from the edge."""
    far, near = 0.5 - inset, 0.5 - inset - width

    def shape(x: NDArray[np.float64], y: NDArray[np.float64]) -> Mask:
        reach = np.maximum(abs(x - 0.5), abs(y - 0.5))
        return (reach < far) & (reach >= near)

    return shape


def _oval(x0: float, y0: float, wide: float, high: float) -> Shape:
    """Radii `wide` and `high`."""
    return lambda x, y: ((x - x0) / wide) ** 2 + ((y - y0) / high) ** 2 < 1.0


def _ring(x0: float, y0: float, outer: float, inner: float) -> Shape:
    def shape(x: NDArray[np.float64], y: NDArray[np.float64]) -> Mask:
        reach = np.hypot(x - x0, y - y0)
        return (reach < outer) & (reach >= inner)

    return shape


def _stroke(x0: float, y0: float, x1: float, y1: float, width: float) -> Shape:
    """A line with round ends."""

    def shape(x: NDArray[np.float64], y: NDArray[np.float64]) -> Mask:
        dx, dy = x1 - x0, y1 - y0
        along = (((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy)).clip(0.0, 1.0)
        return np.hypot(x - x0 - along * dx, y - y0 - along * dy) < width / 2

    return shape


def _bricks(x: NDArray[np.float64], y: NDArray[np.float64]) -> Mask:
    """Four courses of bricks, every other one moved by half a brick; the mortar is left out."""
    course = np.floor(y * 4)
    place = (x + np.where(course % 2 == 0, 0.0, 0.25)) % 0.5
    return (place >= 1 / 16) & (y % 0.25 >= 1 / 16)


def _above(limit: float, whole: Shape) -> Shape:
    """The part of a shape that is above y = `limit`."""
    return lambda x, y: whole(x, y) & (y < limit)


def _placed(layers: Layers, size: float, left: float, top: float) -> Layers:
    """The same tile drawn smaller, with its corner at (left, top)."""

    def placed(shape: Shape) -> Shape:
        return lambda x, y: shape((x - left) / size, (y - top) / size)

    return tuple((colour, placed(shape)) for colour, shape in layers)


def _pennant(x: NDArray[np.float64], y: NDArray[np.float64]) -> Mask:
    """A triangle that points away from its pole."""
    return (x >= 0.4375) & (abs(y - 0.3125) < (0.84 - x) * 0.47)


_FLOOR: Layers = ((_SAND_EDGE, _everywhere()), (_SAND, _box(0, 0, 15 / 16, 15 / 16)))
_TARGET: Layers = ((_RED, _ring(0.5, 0.5, 0.34, 0.24)), (_RED, _oval(0.5, 0.5, 0.1, 0.1)))
_AROUND: Layers = ((_RED, _ring(0.469, 0.469, 0.455, 0.365)),)
_SURFACE: Layers = ((_ICE_EDGE, _everywhere()), (_ICE, _box(0, 0, 15 / 16, 15 / 16)))
_GLINTS: Layers = (
    (_GLINT, _stroke(0.2, 0.44, 0.44, 0.2, 0.07)),
    (_GLINT, _stroke(0.56, 0.76, 0.74, 0.58, 0.07)),
)
_WATER: Layers = ((_RIM, _oval(0.47, 0.47, 0.42, 0.42)), (_DEEP, _oval(0.47, 0.5, 0.36, 0.35)))
_FLAG: Layers = (
    (_POLE, _oval(0.41, 0.85, 0.2, 0.06)),
    (_POLE, _box(0.375, 0.125, 0.4375, 0.875)),
    (_RED, _pennant),
)
_PERSON: Layers = (
    (_WHITE, _above(15 / 16, _oval(0.5, 0.99, 0.38, 0.5))),
    (_WHITE, _oval(0.5, 0.32, 0.24, 0.24)),
    (_BLUE, _above(15 / 16, _oval(0.5, 0.99, 0.32, 0.44))),
    (_SKIN, _oval(0.5, 0.32, 0.19, 0.19)),
    (_BLUE, _above(0.25, _oval(0.5, 0.32, 0.19, 0.19))),
    (_INK, _oval(0.43, 0.35, 0.035, 0.045)),
    (_INK, _oval(0.57, 0.35, 0.035, 0.045)),
)
_SUNK: Layers = (
    (_SKIN, _oval(0.47, 0.5, 0.19, 0.19)),
    (_BLUE, _above(0.43, _oval(0.47, 0.5, 0.19, 0.19))),
    (_INK, _stroke(0.37, 0.48, 0.43, 0.54, 0.03)),
    (_INK, _stroke(0.43, 0.48, 0.37, 0.54, 0.03)),
    (_INK, _stroke(0.51, 0.48, 0.57, 0.54, 0.03)),
    (_INK, _stroke(0.57, 0.48, 0.51, 0.54, 0.03)),
    (_DEEP, _box(0.25, 0.6, 0.69, 0.72)),
    (_RIM, _box(0.22, 0.58, 0.72, 0.63)),
)


def _crate(wood: str, plank: str, edge: str) -> Layers:
    return (
        (edge, _box(1 / 16, 1 / 16, 15 / 16, 15 / 16)),
        (wood, _box(2 / 16, 2 / 16, 14 / 16, 14 / 16)),
        (edge, _box(4 / 16, 4 / 16, 12 / 16, 12 / 16)),
        (plank, _box(5 / 16, 5 / 16, 11 / 16, 11 / 16)),
    )


_CROSS: Layers = (
    (_WOOD_EDGE, _stroke(0.32, 0.32, 0.68, 0.68, 0.07)),
    (_WOOD_EDGE, _stroke(0.68, 0.32, 0.32, 0.68, 0.07)),
)
_TICK: Layers = (
    (_WHITE, _stroke(0.28, 0.52, 0.44, 0.68, 0.13)),
    (_WHITE, _stroke(0.44, 0.68, 0.74, 0.32, 0.13)),
)
_LAYERS: dict[str, Layers] = {
    "floor": _FLOOR,
    "wall": ((_MORTAR, _everywhere()), (_BRICK, _bricks)),
    "target": _FLOOR + _TARGET,
    "box": _FLOOR + _crate(_WOOD, _PLANK, _WOOD_EDGE) + _CROSS,
    "box_on_target": _FLOOR + _crate(_DONE, _DONE, _DONE_EDGE) + _TICK,
    "player": _FLOOR + _PERSON,
    "player_on_target": _FLOOR + _AROUND + _placed(_PERSON, 0.75, 0.125, 0.125),
    "ice": _SURFACE + _GLINTS,
    "hole": _SURFACE + _WATER,
    "goal": _SURFACE + _FLAG,
    "player_in_hole": _SURFACE + _WATER + _SUNK,
    "player_on_ice": _SURFACE + _PERSON,
    "player_on_goal": _SURFACE + _placed(_FLAG, 0.9, 0.16, 0.02) + _placed(_PERSON, 0.7, 0, 0.28),
    "start": (*_SURFACE, (_START, _frame(1 / 16, 3 / 16))),
    "blank": ((_LINE, _everywhere()), (_PAPER, _box(0, 0, 15 / 16, 15 / 16))),
    "digit": ((_LINE, _everywhere()), (_PAPER, _box(0, 0, 15 / 16, 15 / 16))),
    "given": ((_LINE, _everywhere()), (_GIVEN, _box(0, 0, 15 / 16, 15 / 16))),
}
_NUMBERED = ("digit", "given")
NAMES = (
    *(name for name in _LAYERS if name not in _NUMBERED),
    *(f"{kind}_{digit}" for kind in _NUMBERED for digit in _FONT),
)
"""Every tile."""
