"""Steps many games at once, against Gymnasium's own vector environment, and says where time goes.

All contenders play the same games with the same actions in one process, by turns, so that the load
of the machine touches them alike; each number is the best of several repeats. A part's time is the
difference between two ways to play, not a profiler's guess. Run as a module:
`python -m benchmarks.vector`.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

import envs
from envs.base import TextEnv
from envs.vector import TextVectorEnv

Env = gymnasium.Env[str, str]
Plan = Sequence[tuple[str, ...]]
"""Step -> an action for each game."""


def plan(env_id: str, num_envs: int, num_steps: int) -> Plan:
    """Actions drawn once, the same for each contender."""
    game = bare(envs.make(env_id))
    game.reset(seed=0)
    rng = np.random.default_rng(0)
    return [tuple(game.sample_action(rng) for _ in range(num_envs)) for _ in range(num_steps)]


def bare(env: Env) -> TextEnv:
    """The game without Gymnasium's wrappers."""
    game = env.unwrapped
    assert isinstance(game, TextEnv)
    return game


def play_vector(vector: VectorEnv[Any, Any, Any], actions: Plan) -> float:
    """Seconds for all steps, resets of ended games included."""
    vector.reset(seed=0)
    start = time.perf_counter()
    for each in actions:
        vector.step(each)
    return time.perf_counter() - start


def play_one_by_one(games: Sequence[Env], actions: Plan) -> float:
    """The same, with nothing gathered."""
    for seed, game in enumerate(games):
        game.reset(seed=seed)
    is_over = [False] * len(games)
    start = time.perf_counter()
    for each in actions:
        for index, game in enumerate(games):
            if is_over[index]:
                game.reset()
                is_over[index] = False
            else:
                _, _, terminated, truncated, _ = game.step(each[index])
                is_over[index] = terminated or truncated
    return time.perf_counter() - start


def repeat(calls: Sequence[Callable[[], object]], count: int) -> float:
    """Seconds for `count` rounds of calls."""
    start = time.perf_counter()
    for _ in range(count):
        for call in calls:
            call()
    return time.perf_counter() - start


def measure(env_id: str, num_envs: int, num_steps: int, repeats: int) -> dict[str, float]:
    """Microseconds a game's step, for each way to play."""
    make = partial(envs.make, env_id)
    ours, theirs = TextVectorEnv(make, num_envs), SyncVectorEnv([make] * num_envs)
    wrapped = [make() for _ in range(num_envs)]
    games = [bare(env) for env in wrapped]
    actions = plan(env_id, num_envs, num_steps)
    ways: dict[str, Callable[[], float]] = {
        "ours": lambda: play_vector(ours, actions),
        "theirs": lambda: play_vector(theirs, actions),
        "wrapped": lambda: play_one_by_one(wrapped, actions),
        "bare": lambda: play_one_by_one(games, actions),
        "describe": lambda: repeat([game.describe for game in games], num_steps),
        "draw": lambda: repeat([game.np_random.random for game in games], num_steps),
    }
    times = [{name: way() for name, way in ways.items()} for _ in range(repeats)]
    scale = 1e6 / (num_envs * num_steps)
    return {name: scale * min(each[name] for each in times) for name in ways}


def main() -> None:
    """Print steps a second of both, their ratio, and where ours spends its time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", action="append", help="an id; may be repeated")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"load average {os.getloadavg()[0]:.1f}; best of {options.repeats}")
    print(f"{options.num_envs} games, {options.steps} steps each, resets included")
    for env_id in options.env or ("frozenlake", "sokoban"):
        us = measure(env_id, options.num_envs, options.steps, options.repeats)
        print(
            f"\n{env_id}: {1e6 / us['ours']:,.0f} steps/s ({us['ours']:.2f} us); SyncVectorEnv "
            f"{1e6 / us['theirs']:,.0f} steps/s; {us['theirs'] / us['ours']:.1f} times as fast"
        )
        parts = {
            "the game's step and reset, without": us["bare"] - us["describe"],
            "  the text of the state": us["describe"],
            "Gymnasium's wrappers": us["wrapped"] - us["bare"],
            "gathering into tuples and arrays": us["ours"] - us["wrapped"],
        }
        for part, each in parts.items():
            print(f"  {part:<36}{each:>6.2f} us{each / us['ours']:>7.0%}")
        print(f"  (one draw of np_random: {us['draw']:.2f} us)")


if __name__ == "__main__":
    main()
