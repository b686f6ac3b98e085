"""Sokoban: push every box onto a target; boxes can't be pulled, and a corner keeps what it gets.

Moves and rewards are gym_sokoban's (0.0.6), the room comes from `envs.sokoban_rooms`, its words
from `envs.sokoban_words`, shortest solutions and what random play reaches from
`envs.sokoban_solver`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, ClassVar

from envs.base import GRID, GRID_COORDS, DataSheet, TextEnv, TextSpace
from envs.drawn import drawn
from envs.errors import EnvironmentConfigError, unknown_name
from envs.sokoban_rooms import (
    REVERSE_PLAYS,
    SEARCH_DEPTH,
    SYMBOLS,
    TARGET,
    Boxes,
    Room,
    Symbols,
    draw_room,
    room_of,
    steps_of,
)
from envs.sokoban_solver import moved, random_success, shortest_plan
from envs.sokoban_words import DIRECTIONS, look_of, room_text, rules_text
from envs.solvers import Bounds, Budget

_TILES = Symbols("wall", "floor", "target", "box_on_target", "box", "player", "player_on_target")
_SMALLEST = 5
"""A box, a player and a cell to pull it to need three cells in a row inside the walls."""
_MAX_ROOMS = 1000
"""Rooms drawn for a solution between `min_moves` and `max_moves`."""

_STEP, _BOX, _WIN = -0.1, 1.0, 10.0


class Sokoban(TextEnv):
    """A player who pushes boxes onto targets.

    Actions: `labels`, in any case: the texts of Up, Down, Left and Right, in this order. Reward:
    -0.1 a step, 1 for a box pushed onto a target, -1 for one pushed off, 10 for the last one. End:
    all boxes on targets (success). Ids: see `sheet`.
    """

    sheet: ClassVar[DataSheet] = DataSheet(
        title="Sokoban",
        summary=(
            "A player in a small warehouse pushes boxes onto targets. Nothing is random after the "
            "room is drawn, but a wrong push can't be undone: a box in a corner stays there."
        ),
        state=(
            "Rows of symbols: `#` wall, `_` empty, `O` target, `√` box on a target, `X` box, `P` "
            "player, `S` player on a target. Below them every entity in reading order, (row,column)"
            " from 0: `Player (P) is at (2,4); box (X) is at (2,3); target (O) is at (3,1).` "
            "Boxes on targets are `√` and listed on their own; a target is listed as long as no box"
            " is on it; `Player (S) is at (3,1), on a target`. What there is none of is left out."
        ),
        actions=(
            "`Up`, `Down`, `Left`, `Right`, in any case. A move into a box pushes it one cell on; "
            "a wall or a second box behind it holds both. Any other text is a step that changes "
            "nothing."
        ),
        reward=(
            "-0.1 for every step, +1 for a box pushed onto a target, -1 for one pushed off it, +10 "
            "when all are on targets: a last push that wins is worth 10.9."
        ),
        end=(
            "All boxes on targets, which is success. There is no limit of steps, and a box that is "
            "stuck ends nothing: the action budget does."
        ),
        puzzles=(
            "Floor is dug by a random walk (int(1.7 (height + width)) steps, a turn with "
            "probability 0.35, five 3x3 stamps), player and targets are drawn, and reverse play "
            "pulls the boxes away to the highest box swaps x displacement. Then the player walks "
            "up to three cells off (probability 0.5, or 0.8 with displacement 1). Every room can "
            "be solved. Two puzzles are the same when walls, targets, boxes and player are; "
            "symbols and action names don't count."
        ),
        solver=(
            "Ceiling and oracle are exact (A* for the fewest moves). The floor is exact where at "
            "most 20,000 states lie within the action budget, else it's played."
        ),
        source=(
            "gym_sokoban 0.0.6 (Schrader, 2018, MIT) after Racanière et al., 2017; the ids are "
            "those of RAGEN and SPA (arXiv 2510.15047)."
        ),
        deviations=(
            "No limit of 100 steps (RAGEN's `max_steps`): the budget belongs to the pipeline, and "
            "is 10 actions.",
            "RAGEN's reverse play differs from gym_sokoban's: it never leaves a box without "
            "pulling it and counts changes of the pulled box instead of pulls. We follow "
            'gym_sokoban, and RAGEN with `reverse_play="ragen"`. In rooms of 6x6 with one box '
            "solutions are equally long under both.",
            "A text that is no action costs the 0.1 of a step.",
            "The coordinates' text of several boxes, boxes on targets and a player on a target is "
            "ours; the published code has none, its data shows the plain case, and that is kept.",
            "A room that can't be drawn is drawn again from the same random stream, not from a "
            "hash that differs between processes.",
        ),
        variants={
            "sokoban": "6x6, one box",
            "sokoban_2boxes": "6x6, two boxes, reverse play to depth 30",
            "sokoban_larger": "8x8, two boxes, reverse play to depth 10: boxes near their targets",
            "sokoban_harder": "10x10, two boxes",
            "sokoban_grid_vocab": (
                "6x6, one box, depth 30; `W` wall, `.` empty, `G` target, `C` box on target, `B` "
                "box, `A` player, `@` player on target"
            ),
            "sokoban_action_vocab": (
                "6x6, one box, depth 30; the action names are permuted: `Left` moves up, `Right` "
                "moves down, `Up` moves left, `Down` moves right"
            ),
            "sokoban_visual": "6x6, one box; `render()` is a picture, the state is still text",
        },
    )
    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
    }

    def __init__(
        self,
        size: int = 6,
        num_boxes: int = 1,
        symbols: str = "".join(SYMBOLS),
        labels: Sequence[str] = DIRECTIONS,
        search_depth: int = SEARCH_DEPTH,
        reverse_play: str = REVERSE_PLAYS[0],
        min_moves: int | None = None,
        max_moves: int | None = None,
        map: Sequence[str] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """`min_moves` and `max_moves` bound the shortest solution of the rooms that are drawn.

        `map` holds the rows of a fixed room, in `symbols`; the other arguments about rooms then
        mean nothing. Where no room meets the arguments, `reset` raises `EnvironmentConfigError`.
        """
        _check_numbers(size, num_boxes, search_depth, min_moves, max_moves)
        _check_words(symbols, labels, reverse_play, render_mode)
        self.size, self.num_boxes, self.symbols = size, num_boxes, Symbols(*symbols)
        self.tiles = dict(zip(symbols, _TILES, strict=True))
        self.search_depth, self.reverse_play = search_depth, reverse_play
        self._least, self._most = min_moves, max_moves
        self._how = "sokoban", size, num_boxes, search_depth, reverse_play, min_moves, max_moves
        self.render_mode = render_mode
        self.action_names = self.labels = tuple(labels)
        self._direction = {label.lower(): number for number, label in enumerate(labels)}
        self.action_space = TextSpace(self.labels)
        self.observation_space = TextSpace()
        self._fixed = None if map is None else _fixed_room(map, self.symbols)
        height, width = (size, size) if map is None else (len(map), len(map[0]))
        self.instruction = rules_text(height, width, self.symbols, self.labels)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Draw a room, or go back to the start of the fixed one."""
        super().reset(seed=seed)
        self._room = room = self._fixed or drawn(self.np_random, self._how, self._draw)
        self._steps = steps_of(room.stride)
        self._look = look_of(room, self.symbols)
        self._player, self._boxes = room.player, room.boxes
        self._texts: dict[tuple[int, Boxes, str], str] = {}
        self._is_solved = self._is_lost = False
        self._advice: dict[tuple[int, Boxes], int] = {}
        info = {"success": False, "action_is_valid": False, "action_is_effective": False}
        return self.describe(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Move and push. After the end nothing moves or pays any more."""
        direction = self._direction.get(action.strip().lower())
        before, reward = self._player, 0.0
        if not self._is_solved:
            reward = _STEP
            if direction is not None:
                reward += self._move(self._steps[direction])
        info = {
            "success": self._is_solved,
            "action_is_valid": direction is not None,
            "action_is_effective": self._player != before,
        }
        return self.describe(), reward, self._is_solved, False, info

    def _move(self, step: int) -> float:
        """Play one move; what it pays besides the step."""
        ground, targets = self._room.ground, self._room.targets
        before = self._boxes
        player, boxes = self._player, self._boxes = moved(ground, self._player, before, step)
        if boxes is before:
            return 0.0
        self._is_solved = boxes == targets
        gained = (ground[player + step] == TARGET) - (ground[player] == TARGET)
        return gained * _BOX + self._is_solved * _WIN

    def describe(self, state_format: str = GRID_COORDS) -> str:
        """See `TextEnv`. Coordinates are (row,column), count from 0, in reading order."""
        return self._text(self._player, self._boxes, state_format)

    def _text(self, player: int, boxes: Boxes, state_format: str) -> str:
        """A state in words; it is asked for several times a turn."""
        key = player, boxes, state_format
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = room_text(self._look, *key)
        return text

    def state_key(self) -> str:
        """In the published symbols: the words of a room aren't part of the puzzle."""
        room = self._room
        return "sokoban\n" + room_text(look_of(room, SYMBOLS), room.player, room.boxes, GRID)

    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        """See `TextEnv`."""
        ground, targets = self._room.ground, self._room.targets
        player, boxes = self._player, self._boxes
        for action in actions:
            direction = self._direction.get(action.strip().lower())
            if direction is not None and boxes != targets:
                player, boxes = moved(ground, player, boxes, self._steps[direction])
        return {self._text(player, boxes, state_format): 1.0}

    def oracle(self, actions_left: int | None = None) -> str | None:
        """First action of a shortest solution; the first name where nothing is left to win."""
        state = (self._player, self._boxes)
        if state not in self._advice and not self._is_lost:
            self._plan(*state)
        return self.labels[self._advice.get(state, 0)]

    def _plan(self, player: int, boxes: Boxes) -> None:
        """Note what to do in each state from here to the end, or that there is no way to it."""
        room = self._room._replace(player=player, boxes=boxes)
        plan = shortest_plan(room)
        self._is_lost = plan is None
        for direction in plan or ():
            self._advice[player, boxes] = direction
            player, boxes = moved(room.ground, player, boxes, self._steps[direction])

    def min_moves(self) -> int:
        """Length of the shortest solution from the initial state."""
        plan = shortest_plan(self._room)
        assert plan is not None, self._room
        return len(plan)

    def success_bounds(self, budget: Budget) -> Bounds:
        """See `envs.solvers.HasBounds`: without luck only the number of actions counts."""
        ceiling = float(self.min_moves() <= budget.playable)
        return Bounds(random_success(self._room, budget.playable), ceiling)

    def _draw(self) -> Room:
        """A room whose shortest solution is as long as asked for."""
        least, most = self._least or 1, self._most
        for _ in range(_MAX_ROOMS):
            room = draw_room(
                self.size,
                self.num_boxes,
                self.np_random,
                search_depth=self.search_depth,
                reverse_play=self.reverse_play,
            )
            if room is None:
                raise EnvironmentConfigError(
                    f"sokoban: no room of size {self.size} with {self.num_boxes} boxes came up; "
                    "ask for fewer boxes or a larger room."
                )
            if (self._least, most) == (None, None):
                return room
            plan = shortest_plan(room)
            if plan is not None and least <= len(plan) <= (most or len(plan)):
                return room
        raise EnvironmentConfigError(
            f"sokoban: none of {_MAX_ROOMS} rooms has a shortest solution of at least {least} and "
            f"at most {most or 'any number of'} moves; widen min_moves and max_moves."
        )


def _fixed_room(rows: Sequence[str], symbols: Symbols) -> Room:
    room = room_of(rows, symbols)
    if shortest_plan(room) is None:
        raise EnvironmentConfigError(
            f"sokoban: map {list(rows)!r} can't be played: no moves push all boxes onto targets."
        )
    return room


def _check_numbers(
    size: Any, num_boxes: Any, search_depth: Any, min_moves: Any, max_moves: Any
) -> None:
    for name, value, least in (
        ("size", size, _SMALLEST),
        ("num_boxes", num_boxes, 1),
        ("search_depth", search_depth, 3),
        ("min_moves", 1 if min_moves is None else min_moves, 1),
        ("max_moves", 1 if max_moves is None else max_moves, 1),
    ):
        if type(value) is not int or value < least:
            raise EnvironmentConfigError(
                f"sokoban: {name} is {value!r}; it must be a whole number, at least {least}."
            )
    if search_depth < num_boxes + 2:
        raise EnvironmentConfigError(
            f"sokoban: search_depth is {search_depth}; to pull {num_boxes} boxes off their targets "
            f"takes at least {num_boxes + 2}."
        )
    cells = (size - 2) ** 2
    if 2 * num_boxes + 1 > cells:
        raise EnvironmentConfigError(
            f"sokoban: num_boxes is {num_boxes}; a room of size {size} has {cells} cells inside "
            f"its walls, for at most {(cells - 1) // 2} boxes, as many targets and a player."
        )
    if min_moves is not None and max_moves is not None and min_moves > max_moves:
        raise EnvironmentConfigError(
            f"sokoban: min_moves is {min_moves} and max_moves {max_moves}; no solution is both."
        )


def _check_words(symbols: Any, labels: Any, reverse_play: Any, render_mode: Any) -> None:
    is_text = isinstance(symbols, str) and len(set(symbols)) == len(symbols) == len(SYMBOLS)
    if not is_text or any(unicodedata.category(symbol)[0] not in "LNPS" for symbol in symbols):
        raise EnvironmentConfigError(
            f"sokoban: symbols is {symbols!r}; it must be a text of 7 different visible "
            "characters, for wall, empty, target, box on target, box, player and player on target."
        )
    names = [] if isinstance(labels, str) or not isinstance(labels, Sequence) else [*labels]
    is_tidy = all(
        isinstance(name, str) and name.isprintable() and name == name.strip() for name in names
    )
    is_four = is_tidy and len(names) == len({name.lower() for name in names} - {""}) == 4
    if not is_four:
        raise EnvironmentConfigError(
            f"sokoban: labels is {labels!r}; it must be a list of 4 different names, for "
            f"{', '.join(DIRECTIONS)} in this order."
        )
    if reverse_play not in REVERSE_PLAYS:
        message = unknown_name("sokoban reverse_play", str(reverse_play), REVERSE_PLAYS)
        raise EnvironmentConfigError(message)
    modes = Sokoban.metadata["render_modes"]
    if render_mode is not None and render_mode not in modes:
        message = unknown_name("sokoban render_mode", str(render_mode), modes)
        raise EnvironmentConfigError(message)
