"""The sliding puzzle, a whole game in one file: eight tiles and a gap, to be put in order.

    python -m envs.testing examples.sliding_tiles:SlidingTiles
    python flows/spa_flow.py run --env examples.sliding_tiles:SlidingTiles

A state is a text of nine letters, the board in reading order; what a move does to it is one swap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from envs.base import COORDS, GRID, GRID_COORDS, STATE_FORMATS, DataSheet, TextEnv, TextSpace
from envs.errors import EnvironmentConfigError, unknown_name
from envs.solvers import Bounds, Budget

GAP, ORDERED = "_", "12345678_"
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
"""Where the gap goes: (rows, columns)."""


class SlidingTiles(TextEnv):
    """Put tiles 1 to 8 in order. Actions: `Left`, `Down`, `Right`, `Up`, where the gap goes."""

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    tiles = {GAP: "floor"} | {digit: f"given_{digit}" for digit in "12345678"}
    sheet: ClassVar[DataSheet | None] = DataSheet(
        title="Sliding tiles",
        summary="Slide eight tiles around a gap until they are in order.",
        state="Three rows of digits and `_`, the gap. Coordinates are (row,column) and count from "
        "0; they name the gap, and the tiles that aren't where they belong, in order.",
        actions="`Left`, `Down`, `Right`, `Up`, in any case: the gap changes places with the tile "
        "there; at the edge nothing happens. Any other text changes nothing.",
        reward="1 when the tiles are in order, else 0.",
        end="When the tiles are in order, which is success.",
        puzzles="The seed draws how many moves the gap makes from the ordered board, 1 to `moves`, "
        "and which, none of them the way back. A puzzle is the board that comes of it.",
        solver="Exact: breadth-first search over all 181,440 boards from the ordered one; random "
        "play is followed along every way that it may take.",
        source="The 15 puzzle of Noyes Chapman (1874), made smaller.",
    )
    instruction = (
        "Eight tiles lie on a board of three rows and three columns; _ is the gap. A move takes "
        "the gap to the left, down, to the right or up, and the tile that was there takes its "
        "place. At the edge nothing moves. Coordinates are written (row,column) and count from 0. "
        "Put the tiles in order: 123 in the first row, 456 in the second, 78_ in the last."
    )
    action_names = ("Left", "Down", "Right", "Up")

    def __init__(self, moves: int = 12, render_mode: str | None = None) -> None:
        """`moves` is how far from the ordered board the hardest puzzle may be, at most."""
        if type(moves) is not int or not 1 <= moves <= 31:
            raise EnvironmentConfigError(f"sliding tiles: moves is {moves!r}; give 1 to 31.")
        self.moves, self.render_mode = moves, render_mode
        self.action_space = TextSpace(self.action_names)
        self.observation_space = TextSpace()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Walk away from the ordered board; a walk that leads back to it is drawn again."""
        super().reset(seed=seed)
        self.board = ORDERED
        while self.board == ORDERED:
            before = ""
            for _ in range(int(self.np_random.integers(self.moves)) + 1):
                ways = [board for board in _neighbours(self.board) if board != before]
                before, self.board = self.board, ways[int(self.np_random.integers(len(ways)))]
        self.start = self.board
        info = {"success": False, "action_is_valid": False, "action_is_effective": False}
        return self.describe(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Move the gap. After the end nothing moves any more."""
        before, self.board = self.board, _after(self.board, action)
        is_ordered, is_effective = self.board == ORDERED, self.board != before
        info = {
            "success": is_ordered,
            "action_is_valid": action.strip().lower() in MOVES,
            "action_is_effective": is_effective,
        }
        return self.describe(), float(is_ordered and is_effective), is_ordered, False, info

    def describe(self, state_format: str = GRID_COORDS) -> str:
        """See `TextEnv`."""
        return _text(self.board, state_format)

    def state_key(self) -> str:
        """See `TextEnv`."""
        return "sliding_tiles\n" + _text(self.start, GRID)

    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        """See `TextEnv`; nothing is left to luck."""
        board = self.board
        for action in actions:
            board = _after(board, action)
        return {_text(board, state_format): 1.0}

    def oracle(self, actions_left: int | None = None) -> str | None:
        """A move after which the ordered board is one move nearer."""
        away = _moves_to_order()
        return min(self.action_names, key=lambda name: away[_after(self.board, name)])

    def success_bounds(self, budget: Budget) -> Bounds:
        """Exact floor and ceiling; without luck only the number of actions counts."""
        chances = {self.start: 1.0}
        for _ in range(budget.playable):
            ahead = {ORDERED: chances.pop(ORDERED, 0.0)}
            for board, chance in chances.items():
                for name in self.action_names:
                    after = _after(board, name)
                    ahead[after] = ahead.get(after, 0.0) + chance / len(self.action_names)
            chances = ahead
        is_near = _moves_to_order()[self.start] <= budget.playable
        return Bounds(chances.get(ORDERED, 0.0), float(is_near))


def _after(board: str, action: str) -> str:
    """The board after a text, which is the same one where the text is no move or all is done."""
    step = MOVES.get(action.strip().lower())
    if step is None or board == ORDERED:
        return board
    return _moved(board, step)


def _moved(board: str, step: tuple[int, int]) -> str:
    gap = board.index(GAP)
    row, column = gap // 3 + step[0], gap % 3 + step[1]
    if not (0 <= row < 3 and 0 <= column < 3):
        return board
    tile = board[row * 3 + column]
    return board.translate({ord(GAP): tile, ord(tile): GAP})


def _neighbours(board: str) -> list[str]:
    """Boards that are one move away, also from the ordered one."""
    return [after for step in MOVES.values() if (after := _moved(board, step)) != board]


def _text(board: str, state_format: str) -> str:
    grid = "\n".join((board[:3], board[3:6], board[6:]))
    places = {tile: f"({place // 3},{place % 3})" for place, tile in enumerate(board)}
    wrong = [f"{tile} at {places[tile]}" for tile, now in zip(ORDERED, board, strict=True)
             if tile not in (now, GAP)]  # fmt: skip
    coords = f"Gap (_) is at {places[GAP]}; out of place: {', '.join(wrong) or 'none'}."
    texts = {GRID: grid, COORDS: coords, GRID_COORDS: f"{grid}\n{coords}"}
    if state_format not in texts:
        raise EnvironmentConfigError(unknown_name("state format", state_format, STATE_FORMATS))
    return texts[state_format]


@cache
def _moves_to_order() -> dict[str, int]:
    """Every board that can be reached -> fewest moves to the ordered one; takes a second, once."""
    away, frontier = {ORDERED: 0}, [ORDERED]
    for board in frontier:
        for after in _neighbours(board):
            if after not in away:
                away[after] = away[board] + 1
                frontier.append(after)
    return away
