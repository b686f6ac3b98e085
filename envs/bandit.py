"""Bandit: two arms, one pull, and nothing to go by but their names.

RAGEN's smallest game. One arm pays little for certain, the other more on average: its success rate
says whether a model dares to pull the better one, and the second pair of names whether that was
learned of the game or of the names.

Deviations from the published environment
1. The state after the pull names the arms again, so that it stands for itself.
2. The pull's luck comes from the episode's seed alone; the published one adds a counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from envs.base import GRID, GRID_COORDS, STATE_FORMATS, DataSheet, TextEnv, TextSpace
from envs.errors import EnvironmentConfigError, unknown_name
from envs.solvers import Bounds, Budget


class Arms(NamedTuple):
    """Names of the two arms."""

    low: str
    high: str


ARMS = {"train": Arms("Phoenix", "Dragon"), "test": Arms("Trader", "Librarian")}
LOW_REWARD = 0.1
HIGH_REWARD, HIGH_REWARD_PROB = 1.0, 0.25
"""RAGEN's numbers: 0.1 for certain, or 1 with probability 0.25 and else nothing."""


class Bandit(TextEnv):
    """Two arms, of which one may be pulled once.

    Actions: the names of the arms, in any case. Reward: what the arm pays. End: a pull; success is
    the high arm, whatever it paid.
    Ids: `bandit` (Phoenix and Dragon), `bandit_test` (Trader and Librarian).
    """

    few_puzzles = True
    sheet = DataSheet(
        title="Bandit",
        summary="Two arms with telling names, one pull. One pays 0.1 for certain; the other pays "
        "1 with probability 0.25, which is more on average.",
        state="One line: the two arms in the order of the episode, and after the pull which one it "
        "was and what it paid. There's no board, so `grid`, `coords` and `grid_coords` are the "
        "same text.",
        actions="The name of an arm, in any case and with white space around it. Other texts are "
        "no action and leave the pull unused.",
        reward="What the arm pays: 0.1 (low), or 1 with probability 0.25, else 0 (high).",
        end="With the first pull. Success is to have pulled the high arm, whatever it paid.",
        puzzles="A seed draws the order in which the state names the arms, and what the high arm "
        "pays. With two orders there are too few states to divide, so each seed is a puzzle: the "
        "splits share the states and differ in the luck.",
        solver="Exact: a random pull succeeds with probability 0.5, the high arm with 1. The "
        "oracle knows which arm is high; a player has to learn it.",
        source="RAGEN, `ragen/env/bandit`, in the version of 2025.",
        deviations=(
            "One pair of names an id, as in the version that SPA builds on; later ones draw among "
            "twelve pairs for training and eight for test.",
            "The state after the pull names both arms again; the published one says only which "
            "arm was pulled and what it paid.",
            "What the high arm pays is fixed by the episode's seed alone; the published one adds "
            "the number of the environment object to the seed.",
            "The list of actions doesn't follow the seed. It has the low arm first in `bandit` "
            "and the high arm first in `bandit_test`, so that a habit of taking the second one "
            "doesn't pass for skill.",
        ),
        variants={
            "bandit": "Phoenix (low) and Dragon (high).",
            "bandit_test": "Trader (low) and Librarian (high): names that a model hasn't "
            "practised with, and whose sound misleads.",
        },
    )
    instruction = (
        "You stand before two arms of a gambling machine and may pull one of them, once.\n"
        "Each arm pays in its own way, and its name hints at how. Pull the one that you expect to "
        "pay more on average.\n"
        "An action is the name of an arm. The game ends with your pull."
    )

    def __init__(self, arms: str = "train", render_mode: str | None = None) -> None:
        """`arms` chooses the names: train or test."""
        _check_arms(arms)
        self.arms = ARMS[arms]
        self.render_mode = render_mode
        names = tuple(self.arms) if arms == "train" else tuple(reversed(self.arms))
        self.action_names = names
        self.action_space = TextSpace(names)
        self.observation_space = TextSpace()
        self._by_key = {name.lower(): name for name in names}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Draw the order of the arms."""
        super().reset(seed=seed)
        first, second = self.arms if self.np_random.random() < 0.5 else reversed(self.arms)
        self._start = f"The arms are {first} and {second}."
        self._pulled: str | None = None
        self._paid = 0.0
        info = {"success": False, "action_is_valid": False, "action_is_effective": False}
        return self.describe(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pull an arm, if none has been pulled."""
        name = self._name(action)
        is_effective = name is not None and self._pulled is None
        if is_effective:
            self._pulled, self._paid = name, self._pay(name)
        info = {
            "success": self._pulled == self.arms.high,
            "action_is_valid": name is not None,
            "action_is_effective": is_effective,
        }
        reward = self._paid if is_effective else 0.0
        return self.describe(), reward, self._pulled is not None, False, info

    def render(self) -> str:
        """The state's text."""
        return self.describe(GRID)

    def describe(self, state_format: str = GRID_COORDS) -> str:
        """See `TextEnv`. The same text in every format."""
        _check_format(state_format)
        return self._describe(self._pulled, self._paid)

    def state_key(self) -> str:
        """The arms in the order that the state names them."""
        return f"bandit\n{self._start}"

    def oracle(self, actions_left: int | None = None) -> str:
        """The high arm."""
        return self.arms.high

    def success_bounds(self, budget: Budget) -> Bounds:
        """The same for every episode and budget."""
        return Bounds(0.5, 1.0)

    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        """See `TextEnv`. The first arm among `actions` is the one that is pulled."""
        _check_format(state_format)
        pulled = next(filter(None, map(self._name, actions)), None)
        if pulled is None or self._pulled is not None:
            return {self._describe(self._pulled, self._paid): 1.0}
        if pulled == self.arms.low:
            return {self._describe(pulled, LOW_REWARD): 1.0}
        return {
            self._describe(pulled, HIGH_REWARD): HIGH_REWARD_PROB,
            self._describe(pulled, 0.0): 1.0 - HIGH_REWARD_PROB,
        }

    def _name(self, action: str) -> str | None:
        """The arm that a text names."""
        return self._by_key.get(action.strip().lower())

    def _pay(self, name: str | None) -> float:
        if name == self.arms.low:
            return LOW_REWARD
        return HIGH_REWARD if self.np_random.random() < HIGH_REWARD_PROB else 0.0

    def _describe(self, pulled: str | None, paid: float) -> str:
        if pulled is None:
            return f"{self._start} None has been pulled."
        return f"{self._start} {pulled} was pulled and paid {paid}."


def _check_arms(arms: Any) -> None:
    if not isinstance(arms, str) or arms not in ARMS:
        raise EnvironmentConfigError(f"bandit: {unknown_name('arms', str(arms), ARMS)}")


def _check_format(state_format: str) -> None:
    if state_format not in STATE_FORMATS:
        raise EnvironmentConfigError(unknown_name("state format", state_format, STATE_FORMATS))
