"""Exact play of worlds of few states, by tables: optimal, uniformly random, and blind in each turn.

Several actions in one answer are played blind: the player plans them from the state it sees and
looks again only at the next turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TIE = 1e-12
"""Values nearer than this are equal; far above rounding, far below any real difference."""
_PRUNE_ABOVE = 1024
"""Below this number of blind plans it is quicker to keep them all than to compare them."""


class TabularWorld(NamedTuple):
    """A world as tables: A actions, S states. Once an episode is over its state keeps itself."""

    transition_ASS: Floats
    """`[a, s, t]`: probability that action a leads from s to t."""
    success_S: NDArray[np.bool_]
    """States that count as success; absorbing."""
    start: int


@runtime_checkable
class HasTables(Protocol):
    """An environment small enough to write its whole world down."""

    def tabular_world(self) -> TabularWorld:
        """The world of the present episode."""


class Plan(NamedTuple):
    """Optimal play; H is the horizon, the first axis counts the actions that are left."""

    value_HS: Floats
    """Probability of success."""
    action_HS: NDArray[np.int64]
    """Best action; among equals the one that gets there sooner. Row 0 means nothing."""


def solve(world: TabularWorld, horizon: int) -> Plan:
    """Backward induction for a player who sees every state."""
    value_S = world.success_S.astype(np.float64)
    values, actions = [value_S], [np.zeros(len(value_S), dtype=np.int64)]
    haste_AS = np.zeros(world.transition_ASS.shape[:2])
    for _ in range(horizon):
        quality_AS = world.transition_ASS @ value_S
        haste_AS += quality_AS
        value_S = quality_AS.max(axis=0)
        is_best_AS = quality_AS >= value_S - _TIE
        actions.append(np.where(is_best_AS, haste_AS, -1.0).argmax(axis=0))
        values.append(value_S)
    return Plan(np.array(values), np.array(actions))


def random_success(world: TabularWorld, num_actions: int) -> float:
    """Success probability of uniformly random actions."""
    step_SS = world.transition_ASS.mean(axis=0)
    value_S = world.success_S.astype(np.float64)
    for _ in range(num_actions):
        value_S = step_SS @ value_S
    return float(value_S[world.start])


def best_success(
    world: TabularWorld,
    max_actions: int,
    *,
    max_turns: int | None = None,
    max_actions_per_turn: int | None = None,
) -> float:
    """Success probability of the best player under the budget; None is no limit."""
    if max_turns is None or max_turns >= max_actions:
        return float(solve(world, max_actions).value_HS[-1, world.start])
    play = BlindPlay(world, max_actions_per_turn or max_actions)
    return float(play.values(max_actions, max_turns)[-1, world.start])


class BlindPlay:
    """Optimal play of several actions a turn, planned from the state that the turn begins with."""

    def __init__(self, world: TabularWorld, per_turn: int) -> None:
        self.world, self.per_turn = world, per_turn
        self._values_TBS: list[Floats] = []
        """For 0, 1, .. turns; B counts the actions that are left."""

    def values(self, max_actions: int, turns: int) -> Floats:
        """Success probability for up to `max_actions` actions (B) in so many turns."""
        known = self._values_TBS
        if not known or len(known[0]) <= max_actions:
            won_S = self.world.success_S.astype(np.float64)
            known[:] = [np.tile(won_S, (max_actions + 1, 1))]
        while len(known) <= turns:
            known.append(self._with_one_more_turn(known[-1]))
        return known[turns][: max_actions + 1]

    def plan(self, state: int, actions_left: int, turns_left: int) -> tuple[int, ...]:
        """The best actions for the turn that begins here: 1 to `per_turn` of them, at least one.

        Among equals the plan after which fewer turns suffice, then the shorter one.
        """
        self.values(actions_left, turns_left)
        tables_TBS = self._values_TBS[:turns_left]
        best: tuple[float, float, tuple[int, ...]] = (-1.0, -1.0, ())
        for length in range(1, min(self.per_turn, actions_left) + 1):
            later_TS = [table_BS[actions_left - length] for table_BS in tables_TBS]
            for value, haste, actions in self._plans(state, later_TS, length):
                is_better = value > best[0] + _TIE
                if is_better or (value >= best[0] - _TIE and haste > best[1] + _TIE):
                    best = value, haste, actions
        return best[2]

    def _plans(
        self, state: int, later_TS: list[Floats], length: int
    ) -> Iterator[tuple[float, float, tuple[int, ...]]]:
        """Value with the turns that are left, sum of those with fewer, and the actions."""
        transition_ASS, num_actions = self.world.transition_ASS, len(self.world.transition_ASS)
        later_S, haste_S = later_TS[-1], np.sum(later_TS, axis=0)
        reached_NS = np.eye(len(later_S))[state][None]
        plans: list[tuple[int, ...]] = [()]
        for _ in range(length):
            ahead = np.concatenate([reached_NS @ step_SS for step_SS in transition_ASS])
            longer = [(*plan, action) for action in range(num_actions) for plan in plans]
            # Plans that lead to the same chances are one plan: far fewer than all are different.
            _, kept = np.unique(ahead.round(12), axis=0, return_index=True)
            reached_NS, plans = ahead[kept], [longer[index] for index in kept]
        yield from zip(
            (reached_NS @ later_S).tolist(), (reached_NS @ haste_S).tolist(), plans, strict=True
        )

    def _with_one_more_turn(self, value_BS: Floats) -> Floats:
        """Values with one more turn to go; a turn may also use fewer actions."""
        longest = len(value_BS) - 1
        more_BS = value_BS.copy()
        for kept, later_S in enumerate(value_BS):
            length = min(self.per_turn, longest - kept)
            plays = _blind_values(self.world.transition_ASS, later_S, length)
            for played, value_S in enumerate(plays, start=1):
                np.maximum(more_BS[kept + played], value_S, out=more_BS[kept + played])
        return more_BS


def _blind_values(transition_ASS: Floats, later_S: Floats, length: int) -> Iterator[Floats]:
    """For 1, 2, .. `length` actions played blind: the best value of each state."""
    plans_NS = later_S[None]
    for _ in range(length):
        if len(plans_NS) > _PRUNE_ABOVE:
            plans_NS = _undominated(plans_NS)
        plans_NS = (transition_ASS @ plans_NS.T).transpose(0, 2, 1).reshape(-1, len(later_S))
        yield plans_NS.max(axis=0)


def _undominated(plans_NS: Floats) -> Floats:
    """Without the plans that another one equals or beats in every state: none of their
    extensions can be the best, since an extension is a mean with non-negative weights."""
    plans_NS = plans_NS[np.argsort(-plans_NS.sum(axis=1), kind="stable")]
    index = 0
    while index < len(plans_NS):
        rest_NS = plans_NS[index + 1 :]
        is_kept_N = (rest_NS > plans_NS[index] + _TIE).any(axis=1)
        plans_NS = np.concatenate([plans_NS[: index + 1], rest_NS[is_kept_N]])
        index += 1
    return plans_NS
