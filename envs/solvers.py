"""Exact play of small worlds: what random play reaches, and what nobody can exceed.

A success rate means little without the two numbers that it must lie between, computed for the
*same* world, action budget, turns and actions a turn. Several actions in one answer are played
blind: the player plans them from the state it sees and looks again only at the next turn. In a
world of luck that costs a lot.

Everything here takes a `TabularWorld`, so any environment with few states gets floor, ceiling and
oracle by publishing one (`tabular_world()`). On the command line:
`python -m envs.solvers frozenlake --max-actions 10`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

import envs

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
    per_turn = min(max_actions_per_turn or max_actions, max_actions)
    value_BS = np.tile(world.success_S.astype(np.float64), (max_actions + 1, 1))
    for _ in range(max_turns):
        value_BS = _with_one_more_turn(world, value_BS, per_turn)
    return float(value_BS[-1, world.start])


def _with_one_more_turn(world: TabularWorld, value_BS: Floats, per_turn: int) -> Floats:
    """Values (B: actions left) with one more turn to go; a turn may also use fewer actions."""
    longest = len(value_BS) - 1
    more_BS = value_BS.copy()
    for kept, later_S in enumerate(value_BS):
        plays = _blind_values(world.transition_ASS, later_S, min(per_turn, longest - kept))
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


def floor_and_ceiling(
    env_id: str,
    max_actions: int,
    seeds: Iterable[int],
    max_turns: int | None = None,
    max_actions_per_turn: int | None = None,
    **kwargs: Any,
) -> dict[str, float | None]:
    """Mean success of random and of optimal play over the puzzles of `seeds`, exactly.

    Random play fills every turn. Both are None where the environment has no tables. `kwargs` go to
    `envs.make`. Raises `EnvironmentConfigError` for a budget below 1 or no seeds.
    """
    seeds = list(seeds)
    _check_budget(max_actions, max_turns, max_actions_per_turn, num_seeds=len(seeds))
    env = envs.make(env_id, **kwargs)
    game = env.unwrapped
    if not isinstance(game, HasTables):
        return {"floor": None, "ceiling": None}
    playable = max_actions
    if max_turns is not None:
        playable = min(max_actions, max_turns * (max_actions_per_turn or max_actions))
    floors, ceilings = [], []
    for seed in seeds:
        env.reset(seed=seed)
        world = game.tabular_world()
        floors.append(random_success(world, playable))
        ceilings.append(
            best_success(
                world, max_actions, max_turns=max_turns, max_actions_per_turn=max_actions_per_turn
            )
        )
    return {"floor": float(np.mean(floors)), "ceiling": float(np.mean(ceilings))}


def _check_budget(
    max_actions: int, max_turns: int | None, max_actions_per_turn: int | None, *, num_seeds: int
) -> None:
    limits = {
        "max_actions": max_actions,
        "max_turns": max_turns,
        "max_actions_per_turn": max_actions_per_turn,
        "number of seeds": num_seeds,
    }
    for name, value in limits.items():
        if value is not None and value < 1:
            raise envs.EnvironmentConfigError(
                f"floor_and_ceiling: {name} is {value}; it must be at least 1."
            )


def _argument(text: str) -> tuple[str, Any]:
    """`size=6` -> ("size", 6)."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def main(arguments: Sequence[str] | None = None) -> None:
    """Print floor and ceiling of an environment."""
    parser = argparse.ArgumentParser(prog="python -m envs.solvers", description=main.__doc__)
    parser.add_argument("env_id", help="a registered id or module:Class")
    parser.add_argument("--max-actions", type=int, default=10)
    parser.add_argument("--max-turns", type=int)
    parser.add_argument("--max-actions-per-turn", type=int)
    parser.add_argument("--puzzles", type=int, default=512, help="number of seeds (default 512)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", type=_argument, nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args(arguments)
    try:
        bounds = floor_and_ceiling(
            options.env_id,
            options.max_actions,
            range(options.first_seed, options.first_seed + options.puzzles),
            options.max_turns,
            options.max_actions_per_turn,
            **dict(options.set),
        )
    except (envs.EnvironmentIdError, envs.EnvironmentConfigError) as error:
        parser.exit(2, f"{error}\n")
    for name, value in bounds.items():
        print(f"{name:8}{'unknown' if value is None else f'{value:.4f}'}")  # noqa: T201


if __name__ == "__main__":
    main()
