"""What a turn could lead to, and the true prediction of it.

The world is asked before the actions are played: afterwards it can't tell. A prediction is of the
state after all of a turn's actions, or (`PromptSettings.predicts_each`) of those after each.
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

    def outcome(self, played: Played, present: str) -> tuple[str, dict[str, float]]:
        """The true prediction, and `Turn.possible_next`.

        `present` is the state after the turn, in the prediction's format.
        """
        transitions, teller = played.transitions, self.teller
        if not self.is_wanted:
            return present, {}
        if not transitions:
            return present, {present: 1.0}
        if not teller.settings.predicts_each or len(self.reached) == 1:
            # Where luck ended the game early it might have gone on: the whole plan counts. A time
            # limit, of which the world knows nothing, cuts the plan whatever happens.
            cut_short = transitions[-1].truncated and not transitions[-1].terminated
            possible = self.reached[len(transitions) - 1 if cut_short else -1]
            return present, teller.told(possible, teller.num_played)
        truth = join_states(played.states, teller.settings.separator)
        steps = self.reached[: len(transitions)]
        if all(len(step) == 1 for step in steps):
            return truth, {teller.likeliest_path(steps, teller.num_played - len(steps)): 1.0}
        return truth, {truth: played.chance}

    def likeliest(self, possible_next: Mapping[str, float], num_played: int) -> str:
        """The likeliest of what the turn's `num_played` actions could have led to."""
        if not self.teller.settings.predicts_each or num_played == 0:
            return likeliest(possible_next)
        steps, before = self.reached[:num_played], self.teller.num_played - num_played
        return self.teller.likeliest_path(steps, before)
