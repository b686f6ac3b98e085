"""Floor and ceiling of a game: what random play reaches, and what nobody can exceed.

A success rate means little without the two numbers that it must lie between, computed for the
*same* world, action budget, turns and actions a turn. Several actions in one answer are played
blind: the player plans them from the state it sees and looks again only at the next turn. In a
world of luck that costs a lot.

An environment with few states gets floor, ceiling and oracle by publishing its tables
(`tabular_world()`, see `envs.tabular`); one that knows a better way publishes `success_bounds`.
What neither gives is played: the floor by random episodes, with an interval, the ceiling by an
optimal oracle in a world without luck. On the command line:
`python -m envs.solvers frozenlake --max-actions 10`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium
import numpy as np

import envs
from envs import bounds_cache
from envs.base import TextEnv
from envs.tabular import HasTables, best_success, random_success

NUM_EPISODES = 64
"""Random episodes a puzzle where the floor isn't known exactly."""
_Z = 1.959964
"""Standard normal deviations that hold 95%."""
_RANDOM_PLAY = 29
"""Keeps the draws of simulated play apart from those of a puzzle with the same seed."""


class Budget(NamedTuple):
    """How long an episode may last; None is no limit."""

    max_actions: int
    max_turns: int | None = None
    max_actions_per_turn: int | None = None

    @property
    def playable(self) -> int:
        """Actions of a player who fills every turn."""
        if self.max_turns is None:
            return self.max_actions
        return min(
            self.max_actions, self.max_turns * (self.max_actions_per_turn or self.max_actions)
        )


class Bounds(NamedTuple):
    """Success probability of uniformly random and of optimal play; None where it isn't known."""

    floor: float | None
    ceiling: float | None


@runtime_checkable
class HasBounds(Protocol):
    """An environment that computes its own bounds."""

    def success_bounds(self, budget: Budget) -> Bounds:
        """Exact bounds of the present episode, from its initial state."""


class PuzzleBounds(NamedTuple):
    """What is known of one puzzle."""

    floor: float | None
    """Exact; None where it was played."""
    ceiling: float | None
    """Exact, or None."""
    wins: int = 0
    episodes: int = 0
    """Random ones; none played and no floor: the game draws no action."""

    @property
    def chance(self) -> float | None:
        """Of random play, as far as it is known."""
        if self.floor is not None:
            return self.floor
        return self.wins / self.episodes if self.episodes else None


def floor_and_ceiling(
    env_id: str,
    max_actions: int,
    seeds: Iterable[int],
    max_turns: int | None = None,
    max_actions_per_turn: int | None = None,
    *,
    num_episodes: int = NUM_EPISODES,
    cache: Path | None = None,
    **kwargs: Any,
) -> dict[str, float | None]:
    """Mean success of random and of optimal play over the puzzles of `seeds`.

    `floor` lies in [`floor_low`, `floor_high`] with 95% confidence: the three are equal where
    `floor_exact`, and else `num_episodes` random episodes a puzzle were played. The interval is
    that of the simulation, on these very puzzles; all three are None where the game draws no
    action. `ceiling` is exact, or None (`ceiling_exact` is False) where a puzzle has no exact
    solver. Random play fills every turn.

    `cache` is a directory for results (`bounds_cache.cache_directory()` is the user's own), None
    for none. `kwargs` go to `envs.make`. Raises `EnvironmentConfigError` for a budget below 1 or
    no seeds.
    """
    budget = Budget(max_actions, max_turns, max_actions_per_turn)
    return summary(
        bounds_of_puzzles(env_id, budget, seeds, num_episodes=num_episodes, cache=cache, **kwargs)
    )


def bounds_of_puzzles(
    env_id: str,
    budget: Budget,
    seeds: Iterable[int],
    *,
    num_episodes: int = NUM_EPISODES,
    cache: Path | None = None,
    **kwargs: Any,
) -> list[PuzzleBounds]:
    """Those of each seed's puzzle, in order; the arguments are those of `floor_and_ceiling`."""
    seeds = list(seeds)
    _check_budget(budget, num_seeds=len(seeds), num_episodes=num_episodes)
    file = None
    with closing(envs.make(env_id, **kwargs)) as env:
        if cache is not None:
            file = _cache_file(env, cache, env_id, budget, seeds, num_episodes)
        width = len(PuzzleBounds._fields)
        kept = None if file is None else bounds_cache.read(file, rows=len(seeds), width=width)
        if kept is not None:
            return [PuzzleBounds(*row) for row in kept]
        found = [_puzzle_bounds(env, seed, budget, num_episodes) for seed in seeds]
    if file is not None:
        bounds_cache.write(file, found)
    return found


def _cache_file(
    env: gymnasium.Env[Any, Any],
    cache: Path,
    env_id: str,
    budget: Budget,
    seeds: Sequence[int],
    num_episodes: int,
) -> Path | None:
    """Puzzles' hashes and the data's digest are part of the key: what a game reads may change."""
    game = _game(env)
    puzzles = []
    for seed in seeds:
        env.reset(seed=seed)
        puzzles.append(game.puzzle_hash())
    settings = {
        "arguments": envs.spec_of(env_id) | (env.spec.kwargs if env.spec else {}),
        "budget": budget,
        "seeds": seeds,
        "puzzles": puzzles,
        "data": game.data_digest(),
        "num_episodes": num_episodes,
    }
    name = bounds_cache.file_name(env_id, env, settings)
    return None if name is None else cache / name


def _game(env: gymnasium.Env[Any, Any]) -> TextEnv:
    game = env.unwrapped
    assert isinstance(game, TextEnv), game
    return game


def _puzzle_bounds(
    env: gymnasium.Env[Any, Any], seed: int, budget: Budget, num_episodes: int
) -> PuzzleBounds:
    env.reset(seed=seed)
    floor, ceiling = _published(_game(env), budget)
    if ceiling is None:
        ceiling = oracle_success(env, seed, budget.playable)
    if floor is not None:
        return PuzzleBounds(floor, ceiling)
    try:
        wins = sum(_random_win(env, seed, each, budget.playable) for each in range(num_episodes))
    except NotImplementedError:
        return PuzzleBounds(None, ceiling)
    return PuzzleBounds(None, ceiling, wins, num_episodes)


def _published(game: TextEnv, budget: Budget) -> Bounds:
    """What the game itself knows of the present puzzle."""
    if isinstance(game, HasBounds):
        return game.success_bounds(budget)
    if isinstance(game, HasTables):
        world = game.tabular_world()
        best = best_success(
            world,
            budget.max_actions,
            max_turns=budget.max_turns,
            max_actions_per_turn=budget.max_actions_per_turn,
        )
        return Bounds(random_success(world, budget.playable), best)
    return Bounds(None, None)


def oracle_success(env: gymnasium.Env[Any, Any], seed: int, num_actions: int) -> float | None:
    """0 or 1 as an optimal oracle loses or wins; None where luck has a say, or there's no such."""
    game = _game(env)
    if not game.oracle_is_optimal:
        return None
    env.reset(seed=seed)
    for left in range(num_actions, 0, -1):
        action = game.oracle(left)
        if action is None or len(game.possible_next([action])) > 1:
            return None
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    return float(info["success"])


def _random_win(env: gymnasium.Env[Any, Any], seed: int, episode: int, num_actions: int) -> bool:
    """Whether one episode of uniformly drawn actions is won; its luck is its own."""
    game = _game(env)
    env.reset(seed=seed)
    choices, luck = np.random.default_rng([_RANDOM_PLAY, seed, episode]).spawn(2)
    game.np_random = luck
    for _ in range(num_actions):
        _, _, terminated, truncated, info = env.step(game.sample_action(choices))
        if terminated or truncated:
            break
    return bool(info["success"])


def summary(found: Sequence[PuzzleBounds]) -> dict[str, float | None]:
    """What `floor_and_ceiling` says of these puzzles."""
    ceilings = [each.ceiling for each in found if each.ceiling is not None]
    has_ceiling = len(ceilings) == len(found)
    floor, low, high = _mean_floor(found)
    return {
        "floor": floor,
        "floor_low": low,
        "floor_high": high,
        "floor_exact": all(each.floor is not None for each in found),
        "ceiling": math.fsum(ceilings) / len(found) if has_ceiling else None,
        "ceiling_exact": has_ceiling,
    }


def _mean_floor(
    found: Sequence[PuzzleBounds],
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Mean over the puzzles and its interval, which covers only the part that was played."""
    exact = [each.floor for each in found if each.floor is not None]
    played = [each for each in found if each.floor is None]
    if any(not each.episodes for each in played):
        return None, None, None
    wins, episodes = sum(each.wins for each in played), sum(each.episodes for each in played)
    rates = (wins / episodes, *wilson_interval(wins, episodes)) if episodes else (0.0, 0.0, 0.0)
    rate, low, high = ((math.fsum(exact) + each * len(played)) / len(found) for each in rates)
    return rate, low, high


def wilson_interval(wins: int, episodes: int) -> tuple[float, float]:
    """Wilson's 95% interval of a success rate (1927); never empty, and within [0, 1].

    Wins pooled from puzzles of different difficulty vary less than it allows for.
    """
    rate, share = wins / episodes, _Z**2 / episodes
    middle = (rate + share / 2) / (1 + share)
    reach = math.sqrt(rate * (1 - rate) * share + share**2 / 4) / (1 + share)
    return max(0.0, min(rate, middle - reach)), min(1.0, max(rate, middle + reach))


def _check_budget(budget: Budget, **counts: int) -> None:
    for name, value in {**budget._asdict(), **counts}.items():
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


def shown(bounds: dict[str, float | None], num_episodes: int = NUM_EPISODES) -> tuple[str, str]:
    """Floor and ceiling in words: `0.195 (exact)`, `0.043 [0.038, 0.049] by ..`, `unknown`."""
    floor, ceiling = (
        "unknown" if bounds[key] is None else f"{rate_text(bounds[key])} (exact)"
        for key in ("floor", "ceiling")
    )
    if bounds["floor"] is not None and not bounds["floor_exact"]:
        rate, low, high = (rate_text(bounds[key]) for key in ("floor", "floor_low", "floor_high"))
        floor = f"{rate} [{low}, {high}] by {num_episodes} random episodes a puzzle"
    return floor, ceiling


def rate_text(rate: float | None) -> str:
    """Three decimals, or one digit of what would vanish: `0.195`, `0.0004`, `9e-05`."""
    if rate is None:
        return "–"
    return f"{rate:.3f}" if rate == 0.0 or rate >= 0.0005 else f"{rate:.1g}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envs.solvers", description=main.__doc__)
    parser.add_argument("env_id", help="a registered id or module:Class")
    parser.add_argument("--max-actions", type=int, default=10)
    parser.add_argument("--max-turns", type=int)
    parser.add_argument("--max-actions-per-turn", type=int)
    parser.add_argument("--puzzles", type=int, default=512, help="number of seeds (default 512)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--episodes",
        type=int,
        default=NUM_EPISODES,
        help=f"random episodes a puzzle where the floor isn't exact (default {NUM_EPISODES})",
    )
    parser.add_argument("--no-cache", action="store_true", help="compute anew, keep nothing")
    parser.add_argument("--set", type=_argument, nargs="*", default=[], metavar="NAME=VALUE")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Print floor and ceiling of an environment."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        bounds = floor_and_ceiling(
            options.env_id,
            options.max_actions,
            range(options.first_seed, options.first_seed + options.puzzles),
            options.max_turns,
            options.max_actions_per_turn,
            num_episodes=options.episodes,
            cache=None if options.no_cache else bounds_cache.cache_directory(),
            **dict(options.set),
        )
    except (envs.EnvironmentIdError, envs.EnvironmentConfigError) as error:
        parser.exit(2, f"{error}\n")
    for name, words in zip(("floor", "ceiling"), shown(bounds, options.episodes), strict=True):
        print(f"{name:8}{words}")  # noqa: T201


if __name__ == "__main__":
    main()
