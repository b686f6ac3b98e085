"""Times the environments: one process, one core, each number the best of several repeats.

`reset` is a new puzzle. `turn` is what an episode's turn costs the rollout: one step, the state in
the two formats that the prompt and the answer use, and what could have come next, resets spread
over the turns. At the end stands FrozenLake against Gymnasium's own on maps of the same size, by
turns in the same process: bare steps with a new map for each episode. Run by `make bench`, or as a
module (`python -m benchmarks.envs`): as a script this file would hide the package of the same name.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

import envs
from envs.base import GRID, GRID_COORDS, TextEnv
from envs.drawn import forget
from envs.frozenlake import ACTIONS, FrozenLake

EPISODE = 10
"""Steps of an episode at most."""


def seconds_a_unit(work: Callable[[], int]) -> float:
    """Seconds for one of the units that `work` says it did; puzzles are drawn, not remembered."""
    forget()
    start = time.perf_counter()
    units = work()
    return (time.perf_counter() - start) / units


def best_of(repeats: int, *works: Callable[[], int]) -> list[float]:
    """The fastest repeat of each; they take turns, so that load touches them alike."""
    rounds = [[seconds_a_unit(work) for work in works] for _ in range(repeats)]
    return [min(column) for column in zip(*rounds, strict=True)]


def until(deadline_s: float, count: int, play: Callable[[int], int]) -> int:
    """Units that `play(0)`, `play(1)`, .. did, until there are `count` or the time is up."""
    stop, done, index = time.perf_counter() + deadline_s, 0, 0
    while done < count and time.perf_counter() < stop:
        done += play(index)
        index += 1
    return done


def reset(env: TextEnv, seed: int) -> int:
    """One new puzzle."""
    env.reset(seed=seed)
    return 1


def turns(env: TextEnv, seed: int) -> int:
    """Turns of one random episode, as a rollout plays it."""
    env.reset(seed=seed)
    played, is_over = 0, False
    while not is_over and played < EPISODE:
        action = env.sample_action(env.np_random)
        env.describe(GRID)
        env.describe(GRID_COORDS)
        env.possible_next((action,), GRID)
        _, _, terminated, truncated, _ = env.step(action)
        is_over = terminated or truncated
        played += 1
    return played


def our_lake(game: FrozenLake, seed: int, moves: Sequence[int]) -> int:
    """Steps of one episode on a new map."""
    game.reset(seed=seed)
    for played, move in enumerate(moves, start=1):
        if game.step(ACTIONS[move])[2]:
            return played
    return len(moves)


def gymnasiums_lake(size: int, intended_prob: float, seed: int, moves: Sequence[int]) -> int:
    """The same of Gymnasium's, which takes a new map by being made anew, and has no text."""
    lake = FrozenLakeEnv(desc=generate_random_map(size=size, seed=seed), success_rate=intended_prob)
    lake.reset(seed=seed)
    for played, move in enumerate(moves, start=1):
        if lake.step(move)[2]:  # type: ignore[no-untyped-call]
            return played
    return len(moves)


def compare_lakes(size: int, count: int, repeats: int) -> list[float]:
    """Seconds a step with resets, ours and Gymnasium's."""
    game = FrozenLake(size=size)
    moves = np.random.default_rng(0).integers(4, size=(997, EPISODE)).tolist()
    return best_of(
        repeats,
        lambda: until(2.0, count, lambda seed: our_lake(game, seed, moves[seed % 997])),
        lambda: until(
            2.0,
            count,
            lambda seed: gymnasiums_lake(size, game.intended_prob, seed, moves[seed % 997]),
        ),
    )


def main() -> None:
    """Print microseconds a reset and a turn for each environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", action="append", help="an id; may be repeated; default: all")
    parser.add_argument("--count", type=int, default=5000, help="resets and turns a repeat")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a repeat at most")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"load average {os.getloadavg()[0]:.1f}; microseconds, best of {options.repeats}")
    print(f"{'environment':<26}{'reset':>10}{'turn with resets':>18}{'turns/s':>12}")
    for env_id in options.env or envs.list_ids():
        try:
            env = envs.make(env_id).unwrapped
        except (envs.EnvironmentIdError, envs.EnvironmentConfigError) as error:
            print(f"{env_id:<26}  {error}")
            continue
        assert isinstance(env, TextEnv)
        limits = (options.seconds, options.count)
        each_reset, each_turn = best_of(
            options.repeats,
            partial(until, *limits, partial(reset, env)),
            partial(until, *limits, partial(turns, env)),
        )
        numbers = f"{each_reset * 1e6:>10.1f}{each_turn * 1e6:>18.1f}{1 / each_turn:>12,.0f}"
        print(f"{env_id:<26}{numbers}")
    print(f"\n{'steps/s with resets, in turns':<32}{'ours':>12}{'Gymnasium':>12}{'ratio':>8}")
    for size in (4, 6, 8):
        ours, theirs = compare_lakes(size, options.count, options.repeats)
        name = f"frozenlake {size}x{size}, text / no text"
        print(f"{name:<32}{1 / ours:>12,.0f}{1 / theirs:>12,.0f}{theirs / ours:>8.1f}")


if __name__ == "__main__":
    main()
