"""Puzzles that take long to draw, remembered by the random stream that they are drawn from.

Every member of a group plays the same puzzle, and a split's seeds are looked at before they are
played; a seed's stream gives the same puzzle each time. From memory the stream is left where
drawing would have left it, so that nothing that follows can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
MAX_DRAWN = 20_000
"""Puzzles that are kept; the oldest go."""

_drawn: dict[Hashable, tuple[Any, Any]] = {}
"""Puzzle, and the stream's state after it."""


def drawn(rng: np.random.Generator, how: Hashable, draw: Callable[[], T]) -> T:
    """`draw()`, which draws from `rng` alone and returns what can't be changed.

    `how` names everything else that the result depends on, the game included.
    """
    before = rng.bit_generator.state
    key = how, repr(before)
    if key not in _drawn:
        puzzle = draw()
        if len(_drawn) >= MAX_DRAWN:
            del _drawn[next(iter(_drawn))]
        _drawn[key] = puzzle, rng.bit_generator.state
        return puzzle
    known, rng.bit_generator.state = _drawn[key]
    return known  # type: ignore[no-any-return]


def forget() -> None:
    """Draw everything anew from here on, as a benchmark of drawing must."""
    _drawn.clear()
