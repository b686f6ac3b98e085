"""FrozenLake: cross the ice to the goal, don't fall into a hole, and mind that you may slip.

Maps are drawn as RAGEN draws them: every cell is ice with probability `frozen_prob`, start and
goal are two random cells, and the draw is repeated until a path joins them. Moves are those of
Gymnasium's FrozenLake-v1, with its order of random outcomes, so that one stream gives one walk.

Deviations from the published environment
1. Slipping is an argument, `intended_prob`: an optimal player with ten actions wins about half of
   the games at the published 1/3 and about nine in ten at the default 0.8.
2. The state is written with coordinates, which the paper uses and its code leaves out.
3. The generator that draws the map goes on to draw the slips, and nothing depends on Python's
   string hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from envs.base import (
    COORDS,
    GRID,
    GRID_COORDS,
    STATE_FORMATS,
    DataSheet,
    TextEnv,
    TextSpace,
)
from envs.errors import EnvironmentConfigError, unknown_name
from envs.tabular import BlindPlay, TabularWorld, solve

ACTIONS = ("Left", "Down", "Right", "Up")
"""In Gymnasium's order, where the two neighbours of an action are perpendicular to it."""
_DIRECTIONS = {name.lower(): index for index, name in enumerate(ACTIONS)}
_STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))

PLAYER, ICE, HOLE, GOAL, PLAYER_IN_HOLE, PLAYER_ON_GOAL = "P_OGX√"
_PLAYER_ON = {ICE: PLAYER, HOLE: PLAYER_IN_HOLE, GOAL: PLAYER_ON_GOAL}
_REMARK = {ICE: "", HOLE: ", in a hole", GOAL: ", on the goal"}
_FROM_GYMNASIUM = str.maketrans("SFH", PLAYER + ICE + HOLE)

_LONG = 128
"""Actions that `oracle` plans for when no number is given; more change nothing on small lakes."""


class Lake(NamedTuple):
    """What stays the same through an episode. A cell is its index in the text `ice`."""

    ice: str
    """Rows joined by newlines, without the player."""
    start: int
    stride: int
    """Length of a row and its newline."""
    moves: tuple[tuple[int, ...], ...]
    """Cell -> the cells that Left, Down, Right and Up lead to, itself at the edge."""
    landmarks: str
    """Goal and holes in words: the coordinates' text after the player."""


class FrozenLake(TextEnv):
    """A player on a frozen lake.

    Actions: `Left`, `Down`, `Right`, `Up`, in any case. A move goes where it is meant with
    `intended_prob` and to each side with half of the rest; the edge holds the player back.
    Reward: 1 for reaching the goal, else 0. End: on the goal (success) or in a hole.
    Symbols: `P` player, `_` ice, `O` hole, `G` goal, `X` player in a hole, `√` player on the goal.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    tiles = {  # noqa: RUF012
        PLAYER: "player_on_ice",
        ICE: "ice",
        HOLE: "hole",
        GOAL: "goal",
        PLAYER_IN_HOLE: "player_in_hole",
        PLAYER_ON_GOAL: "player_on_goal",
    }
    sheet: ClassVar[DataSheet | None] = DataSheet(
        title="FrozenLake",
        summary="Cross a frozen lake from start to goal without falling into a hole. The ice may "
        "be slippery: then a move sometimes goes to the side.",
        state="A square of `P` (player), `_` (ice), `O` (hole), `G` (goal), `X` (player in a hole) "
        "and `√` (player on the goal), one row a line. Coordinates are (row,column), count from 0 "
        "at the top left, and name the player, the goal and every hole in reading order.",
        actions="`Left`, `Down`, `Right` and `Up`, in any case. A move goes where it is meant with "
        "`intended_prob` and to each side with half of the rest; at the edge the player stays. Any "
        "other text changes nothing and draws nothing.",
        reward="1 on reaching the goal, else 0.",
        end="On the goal, which is success, or in a hole, which isn't. There is no step "
        "limit of its own.",
        puzzles="Every cell is ice with `frozen_prob`, else a hole; start and goal are two random "
        "cells; the draw is repeated until a path joins them. A puzzle is its map with the start: "
        "the slip isn't part of it, so the same map is the same puzzle under every id of its size.",
        solver="Exact: the lake is a table of cells, the floor its random walk, the ceiling "
        "backward induction, with several moves an answer played blind. `oracle` is that plan.",
        source="RAGEN's FrozenLake, which SPA trains on, over the moves of Gymnasium's "
        "FrozenLake-v1.",
        deviations=(
            "Slipping is an argument. As published (1/3 for the intended direction) an optimal "
            "player wins about half of the 4x4 games within ten actions, so the success that "
            "papers report can't have been measured there.",
            "The state can be written with coordinates, which the SPA paper uses and its published "
            "code leaves out.",
            "One generator draws map and slips; nothing depends on Python's string hashes.",
            "A fixed `map` must be square, as the published maps are.",
        ),
        variants={
            "frozenlake": "4x4, intended direction with probability 0.8",
            "frozenlake_deterministic": "4x4, no slip",
            "frozenlake_upstream": "4x4, each of the three directions with 1/3, as published",
            "frozenlake_6x6": "6x6, intended direction with probability 0.8",
            "frozenlake_6x6_upstream": "6x6, each of the three directions with 1/3",
        },
    )

    def __init__(
        self,
        size: int = 4,
        frozen_prob: float = 0.8,
        intended_prob: float = 0.8,
        map: Sequence[str] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """`map` holds the rows of a fixed square lake, in our symbols or Gymnasium's `SFHG`.

        It sets the size, and `size` and `frozen_prob` then mean nothing. `render_mode` is None or
        "ansi" for text and "rgb_array" for pixels.
        """
        _check_numbers(size, frozen_prob, intended_prob)
        _check_render_mode(render_mode, self.metadata["render_modes"])
        self.size, self.frozen_prob, self.intended_prob = size, frozen_prob, intended_prob
        self.render_mode = render_mode
        self.action_names = ACTIONS
        self.action_space = TextSpace(ACTIONS)
        self.observation_space = TextSpace()
        side_prob = (1.0 - intended_prob) / 2.0
        self._below, self._above = side_prob, side_prob + intended_prob
        # What was meant comes first: where all are as likely (1/3), it is the likeliest.
        chances = ((0, intended_prob), (-1, side_prob), (1, side_prob))
        self._chances = tuple((turn, chance) for turn, chance in chances if chance > 0.0)
        self._fixed = None if map is None else _lake_from_rows(map)
        if map is not None:
            self.size = len(map)
        self.instruction = _instruction(self.size, intended_prob, side_prob)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Draw a lake, or go back to the start of the fixed one."""
        super().reset(seed=seed)
        self._lake = self._fixed or _draw_lake(self.size, self.frozen_prob, self.np_random)
        self._cell = self._lake.start
        self._texts: dict[tuple[int, str], str] = {}
        info = {"success": False, "action_is_valid": False, "action_is_effective": False}
        return self.describe(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Move, perhaps not where it was meant. After the end nothing moves any more."""
        direction = _direction(action)
        before, (ice, _, _, moves, _) = self._cell, self._lake
        if direction is not None and ice[before] == ICE:
            draw = self.np_random.random()
            if draw < self._below:
                direction -= 1
            elif draw >= self._above:
                direction += 1
            self._cell = moves[before][direction & 3]
        is_effective = self._cell != before
        ground = ice[self._cell]
        info = {
            "success": ground == GOAL,
            "action_is_valid": direction is not None,
            "action_is_effective": is_effective,
        }
        reward = 1.0 if is_effective and ground == GOAL else 0.0
        return self.describe(), reward, ground != ICE, False, info

    def describe(self, state_format: str = GRID_COORDS) -> str:
        """See `TextEnv`. Coordinates are (row,column), count from 0, in reading order."""
        return self._text(self._cell, state_format)

    def _text(self, cell: int, state_format: str) -> str:
        """The state with the player in this cell; it is asked for several times a turn."""
        text = self._texts.get((cell, state_format))
        if text is None:
            text = self._texts[cell, state_format] = _describe(self._lake, cell, state_format)
        return text

    def state_key(self) -> str:
        """Slipping isn't part of the puzzle: the same map is the same puzzle under every id."""
        return "frozenlake\n" + _describe(self._lake, self._lake.start, GRID)

    def oracle(self, actions_left: int | None = None) -> str | None:
        """The action most likely to end on the goal; among equals the quickest way."""
        horizon = _LONG if actions_left is None else max(actions_left, 1)
        planned = max(16, 1 << (horizon - 1).bit_length())
        return ACTIONS[_best_actions(self._lake, self._chances, planned)[horizon][self._cell]]

    def oracle_plan(self, actions_left: int, turns_left: int, per_turn: int) -> tuple[str, ...]:
        """See `TextEnv`; on slippery ice the plan whose value is the ceiling."""
        if per_turn == 1 or turns_left >= actions_left or len(self._chances) == 1:
            return super().oracle_plan(actions_left, turns_left, per_turn)
        play = _blind_play(self._lake, self._chances, per_turn)
        return tuple(ACTIONS[index] for index in play.plan(self._cell, actions_left, turns_left))

    def tabular_world(self) -> TabularWorld:
        """The lake as tables; a state is a cell."""
        return _tabulate(self._lake, self._chances)

    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        """See `TextEnv`."""
        reached = {self._cell: 1.0}
        for action in actions:
            direction = _direction(action)
            if direction is not None:
                reached = self._spread(reached, direction)
        return {self._text(cell, state_format): mass for cell, mass in reached.items()}

    def _spread(self, reached: dict[int, float], direction: int) -> dict[int, float]:
        """One action played from each of the cells that the player may be in."""
        ahead: dict[int, float] = {}
        ice, moves = self._lake.ice, self._lake.moves
        for cell, mass in reached.items():
            if ice[cell] != ICE:
                ahead[cell] = ahead.get(cell, 0.0) + mass
                continue
            for turn, chance in self._chances:
                target = moves[cell][(direction + turn) & 3]
                ahead[target] = ahead.get(target, 0.0) + mass * chance
        return ahead


def _direction(action: str) -> int | None:
    """Index of an action, None for any other text."""
    return _DIRECTIONS.get(action.strip().lower())


def _describe(lake: Lake, cell: int, state_format: str) -> str:
    ice, _, stride, _, landmarks = lake
    ground = ice[cell]
    player = _PLAYER_ON[ground]
    grid = f"{ice[:cell]}{player}{ice[cell + 1 :]}"
    if state_format == GRID:
        return grid
    row, column = divmod(cell, stride)
    coords = f"Player ({player}) is at ({row},{column}){_REMARK[ground]}{landmarks}"
    if state_format == COORDS:
        return coords
    if state_format == GRID_COORDS:
        return f"{grid}\n{coords}"
    raise EnvironmentConfigError(unknown_name("state format", state_format, STATE_FORMATS))


def _draw_lake(size: int, frozen_prob: float, rng: np.random.Generator) -> Lake:
    """Draw until start and goal are joined; neighbours always are, so this ends."""
    cells = size * size
    while True:
        draws = rng.random(cells + 2).tolist()
        start, goal = int(draws[-2] * cells), int(draws[-1] * (cells - 1))
        goal += goal >= start
        ground = [ICE if draw < frozen_prob else HOLE for draw in draws[:cells]]
        ground[start], ground[goal] = ICE, GOAL
        rows = ["".join(ground[cell : cell + size]) for cell in range(0, cells, size)]
        lake = _lake("\n".join(rows), start + start // size, size)
        if _has_path(lake):
            return lake


def _lake(ice: str, start: int, width: int) -> Lake:
    stride = width + 1
    holes = [divmod(cell, stride) for cell, ground in enumerate(ice) if ground == HOLE]
    row, column = divmod(ice.index(GOAL), stride)
    landmarks = f"; goal (G) is at ({row},{column})"
    if holes:
        places = ", ".join([f"({row},{column})" for row, column in holes])
        landmarks += f"; {'hole (O) is' if len(holes) == 1 else 'holes (O) are'} at {places}"
    return Lake(ice, start, stride, _moves((len(ice) + 1) // stride, width), landmarks + ".")


@lru_cache(maxsize=64)
def _moves(height: int, width: int) -> tuple[tuple[int, ...], ...]:
    """Where each direction leads from each cell; the newline after a row leads nowhere."""

    def target(cell: int, step: tuple[int, int]) -> int:
        row, column = cell // (width + 1) + step[0], cell % (width + 1) + step[1]
        inside = 0 <= row < height and 0 <= column < width
        return row * (width + 1) + column if inside else cell

    return tuple(
        tuple(target(cell, step) for step in _STEPS) if cell % (width + 1) < width else ()
        for cell in range(height * (width + 1))
    )


def _has_path(lake: Lake) -> bool:
    ice, moves = lake.ice, lake.moves
    seen, frontier = {lake.start}, [lake.start]
    while frontier:
        for cell in moves[frontier.pop()]:
            if ice[cell] == GOAL:
                return True
            if ice[cell] == ICE and cell not in seen:
                seen.add(cell)
                frontier.append(cell)
    return False


def _tabulate(lake: Lake, chances: Sequence[tuple[int, float]]) -> TabularWorld:
    """Newlines are cells that nothing leads to: wasted, but cells keep their numbers."""
    states = len(lake.moves)
    transition = np.zeros((len(ACTIONS), states, states))
    for cell, ways in enumerate(lake.moves):
        if not ways or lake.ice[cell] != ICE:
            transition[:, cell, cell] = 1.0
            continue
        for action in range(len(ACTIONS)):
            for turn, chance in chances:
                transition[action, cell, ways[(action + turn) & 3]] += chance
    success = np.zeros(states, dtype=np.bool_)
    success[lake.ice.index(GOAL)] = True
    return TabularWorld(transition, success, lake.start)


@lru_cache(maxsize=1024)
def _best_actions(
    lake: Lake, chances: Sequence[tuple[int, float]], horizon: int
) -> list[list[int]]:
    """[actions left][cell] -> index of the best action."""
    actions: list[list[int]] = solve(_tabulate(lake, chances), horizon).action_HS.tolist()
    return actions


@lru_cache(maxsize=256)
def _blind_play(lake: Lake, chances: Sequence[tuple[int, float]], per_turn: int) -> BlindPlay:
    return BlindPlay(_tabulate(lake, chances), per_turn)


def _lake_from_rows(rows: Sequence[str]) -> Lake:
    """A fixed lake; refuses rows that make none."""
    text = "" if isinstance(rows, str) else "\n".join(map(str, rows)).translate(_FROM_GYMNASIUM)
    problem = ""
    if not text or {len(row) for row in text.split("\n")} != {len(rows)}:
        problem = "it must be a square: a list of rows as long as the list"
    elif set(text) - set(PLAYER + ICE + HOLE + GOAL + "\n"):
        problem = "it may hold P _ O G only (or Gymnasium's S F H G)"
    elif text.count(PLAYER) != 1 or text.count(GOAL) != 1:
        problem = "it needs one player (P) and one goal (G)"
    if not problem:
        lake = _lake(text.replace(PLAYER, ICE), text.index(PLAYER), len(rows[0]))
        if _has_path(lake):
            return lake
        problem = "no path leads from the player to the goal"
    raise EnvironmentConfigError(f"frozenlake: map {rows!r} can't be played: {problem}.")


def _check_render_mode(render_mode: str | None, known: Sequence[str]) -> None:
    if render_mode is not None and render_mode not in known:
        raise EnvironmentConfigError(unknown_name("render mode", str(render_mode), known))


def _check_numbers(size: Any, frozen_prob: Any, intended_prob: Any) -> None:
    if type(size) is not int or size < 2:
        message = f"frozenlake: size is {size!r}; it must be a whole number, at least 2."
        raise EnvironmentConfigError(message)
    for name, value in (("frozen_prob", frozen_prob), ("intended_prob", intended_prob)):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0.0 <= value <= 1.0:
            message = f"frozenlake: {name} is {value!r}; it must be a number between 0 and 1."
            raise EnvironmentConfigError(message)


def _instruction(size: int, intended_prob: float, side_prob: float) -> str:
    slip = (
        f"The ice is slippery: a move goes where you want with probability {intended_prob:.3g}, "
        f"and to each of the two sides with probability {side_prob:.3g}."
        if side_prob > 0.0
        else "The ice isn't slippery: a move goes where you want."
    )
    return (
        "You stand on a frozen lake and want to reach the goal without falling into a hole.\n"
        f"The lake is a grid of {size} rows and {size} columns. P is you, _ is ice, O is a hole,"
        " G is the goal, X is you in a hole and √ is you on the goal.\n"
        "Coordinates are written (row,column) and count from 0: (0,0) is the top left cell and "
        f"({size - 1},{size - 1}) the bottom right one.\n"
        "A move takes you one cell to the left, down, to the right or up; at the edge of the lake "
        f"you stay where you are. {slip}\n"
        "The game ends when you reach the goal, which is worth 1, or fall into a hole, which is "
        "worth nothing."
    )
