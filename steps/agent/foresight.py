"""What a turn could lead to, and the true prediction of it.

The world is asked before the actions are played: afterwards it can't tell. A prediction is of the
state after all of a turn's actions, or (`PromptSettings.predicts_each`) of those after each, as
many as the answer has actions: where play ends before its plan, the last state stands for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steps.agent.records import Transition
from steps.agent.splice import likeliest
from steps.agent.states import join_states
from steps.agent.telling import Teller


class Played(NamedTuple):
    """What a turn's actions did."""

    transitions: tuple[Transition, ...]
    states: tuple[str, ...]
    """After each action in the prediction's format, where each step is predicted."""
    chance: float
    """Of those states together."""


class Foresight:
    """What could come of each beginning of one turn's plan; made before the plan is played."""

    def __init__(self, teller: Teller, planned: Sequence[str], *, is_wanted: bool = True) -> None:
        """Where it isn't wanted the world isn't asked, and `possible_next` is empty."""
        self.teller, self.is_wanted = teller, is_wanted
        lengths = range(1, len(planned) + 1) if is_wanted else ()
        self.reached = [teller.reached(planned[:length]) for length in lengths]
        self.predicts_each = teller.settings.predicts_each and len(self.reached) > 1

    def outcome(self, played: Played, present: str) -> tuple[str, dict[str, float]]:
        """The true prediction, and `Turn.possible_next`.

        `present` is the state after the turn, in the prediction's format.
        """
        transitions, teller = played.transitions, self.teller
        if not self.is_wanted:
            return present, {}
        if not transitions:
            return present, {present: 1.0}
        steps = self._steps(transitions)
        if not self.predicts_each:
            return present, teller.told(steps[-1], teller.num_played)
        states = [*played.states, *played.states[-1:] * (len(steps) - len(transitions))]
        truth = join_states(states, teller.settings.separator)
        if all(len(step) == 1 for step in steps):
            return truth, {self._likeliest_path(transitions): 1.0}
        return truth, {truth: played.chance}

    def likeliest(self, possible_next: Mapping[str, float], played: Played) -> str:
        """The likeliest of what the turn's actions could have led to."""
        if not self.predicts_each or not played.transitions:
            return likeliest(possible_next)
        return self._likeliest_path(played.transitions)

    def _steps(self, transitions: Sequence[Transition]) -> Sequence[Mapping[str, float]]:
        """What could come of each beginning of the plan.

        Where luck ended the game early it might have gone on: the whole plan counts. A time limit,
        of which the world knows nothing, cuts the plan whatever happens.
        """
        is_cut = transitions[-1].truncated and not transitions[-1].terminated
        end = len(transitions) if is_cut else len(self.reached)
        return self.reached[:end] + [self.reached[end - 1]] * (len(self.reached) - end)

    def _likeliest_path(self, transitions: Sequence[Transition]) -> str:
        now = self.teller.num_played
        return self.teller.likeliest_path(self._steps(transitions), now - len(transitions), now)
