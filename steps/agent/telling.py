"""Puts the states of one episode into words, as the prompt's settings ask.

With `random_coords` (the paper's figure 5) every `(r,c)` is drawn anew at each step, anywhere on
the board, and the board itself stays true. A draw depends on the episode, on how many actions were
executed and on which entity it is for, and on nothing else. So the state that is shown, the one
that is to be observed, the one that the turn before was to predict and what later prompts replay of
it agree, and finetuning and reinforcement learning see the same kind of text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from envs.base import COORDS, GRID, TextEnv
from steps.agent.prompts import PromptSettings
from steps.agent.splice import likeliest
from steps.agent.states import PLACE, join_states

_SENTENCE_END = re.compile(r"\.\s")


class Extent(NamedTuple):
    """Where places may be."""

    rows: int
    columns: int
    first: int
    """0 or 1: what the world's coordinates count from."""


class Teller:
    """The words of one episode; `num_played` is the count of its executed actions."""

    def __init__(self, world: TextEnv, settings: PromptSettings, seed: int) -> None:
        self.world, self.settings, self.seed = world, settings, seed
        self.num_played = 0
        self.extent: Extent | None = None
        if settings.random_coords:
            rows = world.board_rows(world.describe(GRID))
            self.extent = extent_of(rows, world.describe(COORDS))

    def state(self, state_format: str) -> str:
        """The present state."""
        return self._told(self.world.describe(state_format), self.num_played)

    def reached(self, actions: Sequence[str]) -> dict[str, float]:
        """`possible_next` of the present state in the prediction's format, true coordinates."""
        return self.world.possible_next(actions, self.settings.prediction.value)

    def told(self, reached: Mapping[str, float], num_played: int) -> dict[str, float]:
        """Such states as they are written after `num_played` actions of the episode.

        Where only coordinates told two states apart, they become one.
        """
        if self.extent is None:
            return dict(reached)
        merged: dict[str, float] = {}
        for text, chance in reached.items():
            told = self._told(text, num_played)
            merged[told] = merged.get(told, 0.0) + chance
        return merged

    def predict(self, actions: Sequence[str]) -> dict[str, float]:
        """Predictions that could come true -> probability; what the baselines write.

        A prediction of each step in a world of chance is one entry, the likeliest state after each
        action: the marginal chances don't say which paths there are.
        """
        if not self.settings.predicts_each:
            return self.told(self.reached(actions), self.num_played + len(actions))
        steps = [self.reached(actions[: index + 1]) for index in range(len(actions))]
        return {self.likeliest_path(steps, self.num_played): 1.0}

    def likeliest_path(
        self, steps: Sequence[Mapping[str, float]], num_played: int, end: int | None = None
    ) -> str:
        """The likeliest state after each of some actions, as one text.

        `end` is the count of executed actions after which play was over, if it is known: the
        coordinates of later states are those of that one.
        """
        counts = (num_played + 1 + index for index in range(len(steps)))
        played = (count if end is None else min(count, end) for count in counts)
        told = (self.told(step, count) for step, count in zip(steps, played, strict=True))
        return join_states(map(likeliest, told), self.settings.separator)

    def _told(self, text: str, num_played: int) -> str:
        if self.extent is None:
            return text
        return redrawn(text, self.extent, (self.seed, num_played))


def extent_of(rows: Sequence[str], words: str) -> Extent:
    """Size of a world from the rows of its board and the places in one of its states.

    Where the rows are no board (fewer than two, or of several lengths) the places themselves say
    how far they reach.
    """
    places = [(int(match[1]), int(match[2])) for match in PLACE.finditer(words)]
    row, column = (max((place[axis] for place in places), default=0) for axis in (0, 1))
    if len(rows) < 2 or len(set(map(len, rows))) > 1:
        return Extent(row + 1, column + 1, 0)
    height, width = len(rows), sum(symbol not in " |" for symbol in rows[0])
    return Extent(height, width, int(row >= height or column >= width))


def redrawn(text: str, extent: Extent, seed: Sequence[int]) -> str:
    """The text with each `(r,c)` replaced by a uniform draw; equal seeds give equal draws.

    The last sentence with places has the first draws, in their order, the one before it the next:
    a format that says more of the same state says it ahead of what all formats have in common.
    """
    rng = np.random.default_rng(list(seed))
    sentences: list[list[re.Match[str]]] = []
    end = 0
    for match in PLACE.finditer(text):
        if not sentences or _SENTENCE_END.search(text, end, match.start()):
            sentences.append([])
        sentences[-1].append(match)
        end = match.end()
    draws: dict[int, str] = {}
    for match in (match for sentence in reversed(sentences) for match in sentence):
        row, column = (int(rng.integers(size)) for size in (extent.rows, extent.columns))
        draws[match.start()] = f"({row + extent.first},{column + extent.first})"
    return PLACE.sub(lambda match: draws[match.start()], text)
