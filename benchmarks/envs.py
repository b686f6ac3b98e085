"""Times the environments: one process, one core, each line the best of several repeats.

`turn` is what an episode's turn costs the rollout: one step, the state in the two formats that the
prompt and the answer use, and what could have come next. Run by `make bench`, or as a module
(`python -m benchmarks.envs`): as a script this file would hide the package of the same name.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable

import envs
from envs.base import GRID, GRID_COORDS, TextEnv


def best_of(repeats: int, work: Callable[[], int]) -> float:
    """Seconds for one of the units that `work` says it did, in the fastest repeat."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        units = work()
        seconds.append((time.perf_counter() - start) / units)
    return min(seconds)


def resets(env: TextEnv, count: int) -> int:
    """Reset to `count` puzzles."""
    for seed in range(count):
        env.reset(seed=seed)
    return count


def turns(env: TextEnv, count: int) -> int:
    """Play at least `count` random turns, as a rollout does; resets aren't counted but timed."""
    done = 0
    for seed in range(count):
        env.reset(seed=seed)
        for _ in range(10):
            action = env.sample_action(env.np_random)
            env.describe(GRID)
            env.describe(GRID_COORDS)
            env.possible_next((action,), GRID)
            _, _, terminated, truncated, _ = env.step(action)
            done += 1
            if terminated or truncated:
                break
        if done >= count:
            break
    return done


def main() -> None:
    """Print microseconds a reset and a turn for each environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", action="append", help="an id; may be repeated; default: all")
    parser.add_argument("--count", type=int, default=5000, help="resets and turns a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"load average {os.getloadavg()[0]:.1f}; microseconds, best of {options.repeats}")
    print(f"{'environment':<26}{'reset':>10}{'turn with resets':>18}")
    for env_id in options.env or envs.list_ids():
        env = envs.make(env_id).unwrapped
        assert isinstance(env, TextEnv)
        reset = best_of(options.repeats, lambda env=env: resets(env, options.count))
        turn = best_of(options.repeats, lambda env=env: turns(env, options.count))
        print(f"{env_id:<26}{reset * 1e6:>10.1f}{turn * 1e6:>18.1f}")


if __name__ == "__main__":
    main()
