"""`TextEnv`: an ordinary Gymnasium environment whose observations and actions are text.

An environment knows its game and nothing else: no tags, turns, action budgets, format penalties,
chat templates or tokenizers (those live in `steps.agent`). Besides Gymnasium's interface it
publishes what world-model training needs: the true state in words, a canonical key of the puzzle,
what the world would do next, and an optimal move.
"""

from __future__ import annotations

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

GRID, COORDS, GRID_COORDS = "grid", "coords", "grid_coords"
STATE_FORMATS = (GRID, COORDS, GRID_COORDS)


class TextSpace(gymnasium.Space[str]):
    """Every string. `sample` draws from `examples`.

    Gymnasium's own `Text` space bounds characters and length, and its checker then raises on `_`,
    a newline or `√`; here an answer of a model is always a member, and the game judges it.
    """

    def __init__(self, examples: Iterable[str] = ("",), seed: int | None = None) -> None:
        self.examples = tuple(examples)
        super().__init__(None, str, seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """One of the examples, uniformly."""
        return self.examples[int(self.np_random.integers(len(self.examples)))]

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string."""
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        """Strings have no fixed size."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.examples == other.examples

    def __hash__(self) -> int:
        return hash(self.examples)

    def __repr__(self) -> str:
        return f"TextSpace({len(self.examples)} examples)"


def digest_of(items: Iterable[object]) -> str:
    """16 hexadecimal digits of SHA-256 over the items' `repr`, one a line, in their order."""
    found = hashlib.sha256()
    for item in items:
        found.update(f"{item!r}\n".encode())
    return found.hexdigest()[:16]


class DataSheet(NamedTuple):
    """What a reader must know of a game before believing a number; docs/environments.md prints it.

    Sentences in plain Markdown. What differs between the ids of one class stands in `variants`.
    """

    title: str
    summary: str
    """The game in one or two sentences."""
    state: str
    """How the state is written: symbols, coordinates and where they count from."""
    actions: str
    """Which texts are actions, and what any other text does."""
    reward: str
    end: str
    """When an episode ends, and what counts as success."""
    puzzles: str
    """How a seed becomes a puzzle, and what makes two puzzles the same."""
    solver: str
    """Where floor, ceiling and oracle come from, and whether they are exact."""
    source: str
    """Who published the game, and where."""
    deviations: tuple[str, ...] = ()
    """Where this one differs from the published game, and why."""
    variants: dict[str, str] = {}  # noqa: RUF012
    """Registered id -> what sets it apart."""


STEP = "(observation, reward, terminated, truncated, info)"
FLAGS = ("success", "action_is_valid", "action_is_effective")
"""What `info` holds."""


def fault_of_step(result: Any) -> str:
    """What is wrong with the values of a `step`, after "step() returned"; empty for nothing."""
    if not isinstance(result, tuple) or len(result) != 5:
        seen = f"{len(result)} values" if isinstance(result, tuple) else repr(result)
        return f"{seen}, not {STEP}"
    _, reward, terminated, truncated, info = result
    if not isinstance(reward, int | float | np.number) or not math.isfinite(reward):
        return f"reward={reward!r}, not a finite number"
    if not isinstance(info, Mapping):
        return f"info={info!r}, not a dict"
    flags = {"terminated": terminated, "truncated": truncated}
    for name in FLAGS:
        if name not in info:
            return f"an info without {name!r}: {dict(info)!r}"
        flags[f"info[{name!r}]"] = info[name]
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            return f"{name}={flag!r}, not a bool"
    return ""


class TextEnv(gymnasium.Env[str, str], ABC):
    """A game in text.

    `reset` and `step` follow Gymnasium. `info` holds `success` (a fact of the game),
    `action_is_valid` (the text is an action) and `action_is_effective` (it changed the state), as
    builtin `bool`. A text that is no action changes nothing, costs nothing but the step, and never
    raises. Only `self.np_random` draws: one seed is one board and one stream of dynamics.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012
    render_mode: str | None = None
    instruction: str = ""
    """The rules, for the model's first message."""
    action_names: tuple[str, ...] | None = None
    """Every action, where they are few; None where any text may be one."""
    sheet: ClassVar[DataSheet | None] = None
    oracle_is_optimal: bool = True
    """Whether nobody beats `oracle`; a heuristic says False, and is then no ceiling."""
    few_puzzles: bool = False
    """A world of a handful of puzzles, where each seed counts as one: see `puzzle_hash`. Tests are
    then on new seeds, whose starts may be those of training, and reports say so."""
    tiles: Mapping[str, str] | None = None
    """Symbol of `board_rows` -> name of `envs.tiles`, for pictures; None where there's no board,
    or there are no tiles for it."""

    _reset_seed = -1
    _num_unseeded = 0
    """Resets without a seed since the last one that had one."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Seed the generator. A game calls this first, and then draws its puzzle."""
        nothing = super().reset(seed=seed, options=options)
        self._num_unseeded = 0 if seed is not None else self._num_unseeded + 1
        self._reset_seed = self.np_random_seed
        return nothing

    @abstractmethod
    def describe(self, state_format: str = GRID_COORDS) -> str:
        """The true state in words; grid formats hold the board, coordinate formats every entity."""

    @abstractmethod
    def state_key(self) -> str:
        """Canonical text of the *initial* state of this episode: equal keys, equal puzzles."""

    @abstractmethod
    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        """Description -> probability after `actions`, played blind from the present state.

        One entry where the world is deterministic; of equally probable ones what was meant comes
        first, before what luck may bring (`selfplay.prediction=likeliest`). The environment's own
        state and random stream stay untouched. Play stops where the game ends; texts that are no
        action change nothing.
        """

    def oracle(self, actions_left: int | None = None) -> str | None:
        """An optimal next action with `actions_left` actions to go; None where no solver exists."""
        return None

    def oracle_plan(self, actions_left: int, turns_left: int, per_turn: int) -> tuple[str, ...]:
        """An optimal answer for a player who sees the state once a turn; empty without an oracle.

        One action where the turns suffice for all that are left. Else as many of the oracle's as a
        turn may hold, played ahead on a copy of the game as far as nothing is left to luck; a game
        of luck overrides this where it knows the best plan to play blind.
        """
        playable = min(actions_left, turns_left * per_turn)
        action = self.oracle(playable)
        if action is None:
            return ()
        plan = [action]
        if turns_left >= actions_left:
            return (action,)
        ahead = copy.deepcopy(self)
        while len(plan) < min(per_turn, playable) and len(ahead.possible_next(plan[-1:])) == 1:
            _, _, terminated, truncated, _ = ahead.step(plan[-1])
            if terminated or truncated:
                break
            action = ahead.oracle(playable - len(plan))
            if action is None:
                break
            plan.append(action)
        return tuple(plan)

    def legal_actions(self) -> tuple[str, ...] | None:
        """The texts that are actions in the next turn, where they are few enough to be listed.

        Constrained answers choose from them. By default `action_names`.
        """
        return self.action_names

    def puzzle_hash(self) -> str:
        """16 hexadecimal digits of SHA-256 over `state_key`: the same in every process.

        With `few_puzzles` the text goes on with the seed of the reset: `<key>\\nseed 7`, and after
        that `<key>\\nseed 7, reset 1` for the first reset without one. Each seed is then a puzzle
        of its own: splits share states and differ in luck, and intervals are over seeds. To take
        another generator afterwards, as the rollout does, changes nothing.
        """
        key = self.state_key()
        if self.few_puzzles:
            later = f", reset {self._num_unseeded}" if self._num_unseeded else ""
            key = f"{key}\nseed {self._reset_seed}{later}"
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    def data_digest(self) -> str:
        """Digest of the data that the game was made of; empty where its code is all there is.

        Stored answers, prices and the like aren't in `state_key`; floors and results of stages
        that were computed with others are told apart by this. See `digest_of`.
        """
        return ""

    def board_rows(self, text: str) -> Sequence[str]:
        """The rows of a `grid` text, a character a cell; by default its lines.

        Pictures read states with it, and what a model writes for one: then rows may differ in
        length and hold anything, and nothing raises.
        """
        return text.split("\n")

    def render(self) -> str | NDArray[np.uint8]:
        """The grid, as text or, where `render_mode` is "rgb_array", drawn with `tiles`."""
        grid = self.describe(GRID)
        if self.render_mode != "rgb_array" or self.tiles is None:
            return grid
        from envs.tiles import picture

        return picture(self.board_rows(grid), self.tiles)

    def sample_action(self, rng: np.random.Generator) -> str:
        """A uniformly drawn action; games without an action list override this."""
        if self.action_names is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no action list and draws no action: override "
                "sample_action(rng)."
            )
        return self.action_names[int(rng.integers(len(self.action_names)))]
