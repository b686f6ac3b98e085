"""`check_text_env`: does an environment keep the promises that the pipeline relies on?

Run it in the tests of your own game, `check_text_env("my_package.my_game:MyGame")`, or from a
shell, `python -m envs.testing my_package.my_game:MyGame`. It plays a few dozen short episodes and
raises an `AssertionError` that names the promise, the seed and what was seen. Passing it doesn't
prove that the game is right, only that it behaves.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

import envs
from envs import splits
from envs.base import FLAGS, STATE_FORMATS, TextEnv, fault_of_step
from envs.solvers import Bounds, Budget, HasBounds, oracle_success
from envs.tiles import NAMES

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]

NONSENSE = (
    "", " ", "\n", "jump", "-1", "None", "√_#.", r"\1 \g<0>", "Left || Up", "<answer>Up</answer>",
    "{'a': 1}", "%s {} {0}", "\x00", "\ud800", "🐟", "x" * 100_000, " " * 100_000, "9**9**9",
)  # fmt: skip
"""Texts that hardly any game takes as an action."""

SEPARATOR = "||"
TAGS = re.compile(r"</?(?:think|observation|prediction|answer)>")
"""What answers are made of: an action or state that holds them can't be written in one."""
PUZZLES = {"test": (8, 2_000_000), "validation": (4, 1_000_000)}
"""Split -> distinct puzzles that the smallest profile of a run asks for, and its first seed."""

_MAX_STEPS = 30
_ORACLE_STEPS = 100
_BUDGETS = (1, 2, 4, 8)
"""Actions of the budgets that published bounds are compared under."""


def check_text_env(id_or_factory: str | MakeEnv, seeds: Sequence[int] = range(8)) -> None:
    """Raise `AssertionError` where the environment breaks a promise of `TextEnv`.

    Takes an id for `envs.make` or a function that makes the (wrapped or bare) environment.
    """
    make = _factory(id_or_factory)

    def check(promise: Callable[..., None], *given: Any) -> None:
        with closing(make()) as env:
            promise(_game(env), *given)

    with closing(make()) as env:
        _check_members(_game(env))
        _check_first_step(_game(env), seeds[0])
        _check_gymnasium(_game(env))
    for seed in seeds:
        _check_same_seed_same_episode(make, seed)
        for promise in (_check_descriptions, _check_steps, _check_nonsense, _check_bounds):
            check(promise, seed)
    check(_check_legal_actions, seeds[0])
    check(_check_keys, seeds)
    check(_check_oracle, seeds)
    check(_check_pictures, seeds[0])


def _factory(id_or_factory: str | MakeEnv) -> MakeEnv:
    if isinstance(id_or_factory, str):
        return lambda: envs.make(id_or_factory)
    return id_or_factory


def _game(env: gymnasium.Env[Any, Any]) -> TextEnv:
    game = env.unwrapped
    if not isinstance(game, TextEnv):
        raise AssertionError(f"{type(game).__name__} is not a TextEnv")
    return game


def _require(is_kept: bool, promise: str, *, seed: int | None = None) -> None:
    if not is_kept:
        raise AssertionError(promise if seed is None else f"{promise} (seed {seed})")


def _check_members(game: TextEnv) -> None:
    _require(bool(game.instruction.strip()), "instruction holds the rules, it is empty")
    if game.spec is not None:  # Gymnasium made it, and makes it again for each render mode
        parameters = inspect.signature(type(game)).parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        takes = takes_any or "render_mode" in parameters
        _require(takes, "__init__ takes render_mode: str | None = None, as Gymnasium hands it one")
    for space in (game.observation_space, game.action_space):
        _require("√_\n" in space, f"spaces take any text, {space} doesn't; use envs.base.TextSpace")
    names = game.action_names
    if names is not None:
        is_list = len(names) > 0 and len(set(names)) == len(names)
        _require(is_list, f"action_names are distinct names or None, not {names!r}")
    _check_writable(names or ())
    for symbol, name in (game.tiles or {}).items():
        _require(len(symbol) == 1, f"tiles are by symbols of one character, not {symbol!r}")
        _require(name in NAMES, f"tiles name tiles of envs.tiles, {name!r} ({symbol!r}) is none")


def _check_writable(actions: Sequence[str]) -> None:
    """An answer is `<answer>Left || Up</answer>`: what is read back must be what was written."""
    for action in actions:
        is_read = bool(action.strip()) and SEPARATOR not in action and not TAGS.search(action)
        message = f"an action holds neither {SEPARATOR!r} nor a tag of the answer: {action!r}"
        _require(is_read, message)


def _check_no_tag(text: str, *, seed: int) -> None:
    _require(isinstance(text, str), f"describe gives a text, not {text!r}", seed=seed)
    _require(not TAGS.search(text), f"a state holds no tag of the answer: {text!r}", seed=seed)


def _check_first_step(game: TextEnv, seed: int) -> None:
    """Said in our words: Gymnasium's checker fails somewhere in its own code."""
    game.reset(seed=seed)
    for state_format in STATE_FORMATS:
        _check_no_tag(game.describe(state_format), seed=seed)
    fault = fault_of_step(game.step(_action(game, np.random.default_rng(seed))))
    _require(not fault, f"step() returned {fault}", seed=seed)


def _check_gymnasium(game: TextEnv) -> None:
    """Gymnasium's own checker; its advice on wrapped and unregistered environments is no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(game)


def _action(game: TextEnv, rng: np.random.Generator) -> str:
    action = game.sample_action(rng)
    _require(isinstance(action, str), f"sample_action gives a text, not {action!r}")
    return action


def _episode(env: gymnasium.Env[Any, Any], seed: int) -> list[Any]:
    """Everything that can be seen of one random episode."""
    game = _game(env)
    rng = np.random.default_rng(seed)
    seen: list[Any] = [env.reset(seed=seed), game.state_key(), game.puzzle_hash()]
    for _ in range(_MAX_STEPS):
        result = env.step(_action(game, rng))
        seen.append(result)
        if result[2] or result[3]:
            break
    return seen


def _check_same_seed_same_episode(make: MakeEnv, seed: int) -> None:
    with closing(make()) as used:
        _episode(used, seed + 1)
        with closing(make()) as fresh:
            first = _episode(fresh, seed)
        with closing(make()) as other:
            message = "one seed is one episode, but two fresh ones differ"
            _require(first == _episode(other, seed), message, seed=seed)
        message = "reset forgets the episode before, but it shows"
        _require(first == _episode(used, seed), message, seed=seed)


def _check_descriptions(game: TextEnv, seed: int) -> None:
    observation, _ = game.reset(seed=seed)
    _require(observation == game.describe(), "reset returns describe()", seed=seed)
    for state_format in STATE_FORMATS:
        text = game.describe(state_format)
        _require(bool(text), f"describe({state_format!r}) is empty", seed=seed)
        _require(text == game.describe(state_format), "describe changes nothing", seed=seed)
        _check_no_tag(text, seed=seed)
    _require(observation == game.describe(), "describe changes nothing", seed=seed)


def _check_steps(game: TextEnv, seed: int) -> None:
    """Random play: the step's types, and what `possible_next` said before it."""
    game.reset(seed=seed)
    rng, key = np.random.default_rng(seed), game.state_key()
    for _ in range(_MAX_STEPS):
        before, action = game.describe(), _action(game, rng)
        further = [action, *(_action(game, rng) for _ in range(2))]
        for state_format in STATE_FORMATS:
            _check_possible_next(game, further, state_format, seed=seed)
        expected = game.possible_next([action])
        after, reward, terminated, truncated, info = game.step(action)
        _check_result(reward, terminated, truncated, info, seed=seed)
        _require(after == game.describe(), "step returns describe()", seed=seed)
        message = f"possible_next({[action]!r}) leaves out what happened: {after!r}"
        _require(after in expected, message, seed=seed)
        message = "action_is_effective says whether the state changed"
        _require(info["action_is_effective"] == (after != before), message, seed=seed)
        _require(game.state_key() == key, "state_key is of the initial state", seed=seed)
        if terminated or truncated:
            break


def _check_result(
    reward: Any, terminated: Any, truncated: Any, info: dict[str, Any], *, seed: int
) -> None:
    fault = fault_of_step(("", reward, terminated, truncated, info))
    _require(not fault, f"step() returned {fault}", seed=seed)
    flags = {"terminated": terminated, "truncated": truncated}
    flags |= {f"info[{name!r}]": info[name] for name in FLAGS}
    for name, flag in flags.items():
        _require(type(flag) is bool, f"{name} is a builtin bool, not {flag!r}", seed=seed)


def _check_possible_next(
    game: TextEnv, actions: list[str], state_format: str, *, seed: int
) -> None:
    state_before, stream_before = game.describe(), game.np_random.bit_generator.state
    for number in range(len(actions) + 1):
        outcomes = game.possible_next(actions[:number], state_format)
        call = f"possible_next({actions[:number]!r}, {state_format!r})"
        mass = sum(outcomes.values())
        is_sound = abs(mass - 1.0) < 1e-9 and min(outcomes.values()) > 0.0
        _require(is_sound, f"{call} gives positive probabilities of sum 1: {outcomes}", seed=seed)
        is_present = number > 0 or outcomes == {game.describe(state_format): 1.0}
        _require(is_present, f"{call} is the present state, not {outcomes}", seed=seed)
    _require(game.describe() == state_before, "possible_next moves nothing", seed=seed)
    stream = game.np_random.bit_generator.state
    _require(stream == stream_before, "possible_next draws nothing from np_random", seed=seed)


def _check_nonsense(game: TextEnv, seed: int) -> None:
    """No text raises; one that isn't an action changes nothing and ends nothing."""
    for text in NONSENSE:
        before, _ = game.reset(seed=seed)
        expected = game.possible_next([text])
        after, reward, terminated, truncated, info = game.step(text)
        _check_result(reward, terminated, truncated, info, seed=seed)
        shown = repr(text[:40])
        is_listed = game.action_names is None or not info["action_is_valid"]
        _require(is_listed, f"{shown} is none of action_names, yet valid", seed=seed)
        if info["action_is_valid"]:
            continue
        is_harmless = after == before and not info["action_is_effective"] and not terminated
        _require(is_harmless, f"{shown} is no action, yet something changed", seed=seed)
        message = f"possible_next of {shown}, which is no action, is the present state"
        _require(expected == {before: 1.0}, message, seed=seed)


def _check_legal_actions(game: TextEnv, seed: int) -> None:
    """What constrained answers choose from are actions."""
    game.reset(seed=seed)
    legal = game.legal_actions()
    if legal is None:
        return
    is_list = len(legal) > 0 and len(set(legal)) == len(legal)
    _require(is_list, f"legal_actions are distinct texts or None, not {legal!r}", seed=seed)
    _check_writable(legal)
    for action in legal:
        game.reset(seed=seed)
        is_valid = game.step(action)[-1]["action_is_valid"]
        _require(is_valid, f"{action!r} is one of legal_actions, yet no action", seed=seed)


def _check_bounds(game: TextEnv, seed: int) -> None:
    """Where the game knows its own: rates in order, which more actions never lower, and which an
    optimal oracle reaches in a world without luck."""
    if not isinstance(game, HasBounds):
        return
    before, _ = game.reset(seed=seed)
    stream, last = game.np_random.bit_generator.state, Bounds(0.0, 0.0)
    for num_actions in _BUDGETS:
        bounds = game.success_bounds(Budget(num_actions))
        chains = (
            (0.0, bounds.floor, bounds.ceiling, 1.0),
            (last.floor, bounds.floor),
            (last.ceiling, bounds.ceiling),
        )
        for chain in chains:
            rates = [round(rate, 9) for rate in chain if rate is not None]
            message = f"success_bounds for {num_actions} actions are rates in order: {bounds}"
            _require(rates == sorted(rates), message, seed=seed)
        last = bounds
    _require(game.describe() == before, "success_bounds moves nothing", seed=seed)
    message = "success_bounds draws nothing from np_random"
    _require(game.np_random.bit_generator.state == stream, message, seed=seed)
    for num_actions in _BUDGETS:
        game.reset(seed=seed)
        ceiling = game.success_bounds(Budget(num_actions)).ceiling
        played = oracle_success(game, seed, num_actions)
        message = f"the oracle reaches the ceiling {ceiling} of {num_actions} actions, not {played}"
        _require(None in (ceiling, played) or ceiling == played, message, seed=seed)


def _check_pictures(game: TextEnv, seed: int) -> None:
    """Each render mode of the metadata gives what Gymnasium says it is."""
    game.reset(seed=seed)
    for mode in game.metadata.get("render_modes", ()):
        game.render_mode = mode
        frame: Any = game.render()
        if mode == "ansi":
            _require(isinstance(frame, str) and bool(frame), f"ansi is a text, not {frame!r}")
        if mode == "rgb_array":
            is_frame = isinstance(frame, np.ndarray) and frame.dtype == np.uint8
            is_frame = is_frame and frame.ndim == 3 and frame.shape[2] == 3
            _require(is_frame, "rgb_array is an array of uint8, (height, width, 3)")


def _check_keys(game: TextEnv, seeds: Sequence[int]) -> None:
    """Two resets look alike exactly where their keys are equal."""
    key_of: dict[str, str] = {}
    for seed in seeds:
        observation, _ = game.reset(seed=seed)
        key = game.state_key()
        first = key_of.setdefault(observation, key)
        message = f"the same initial state has two state_keys, {first!r} and {key!r}: {observation}"
        _require(first == key, message, seed=seed)
    state_of: dict[str, str] = {}
    for observation, key in key_of.items():
        other = state_of.setdefault(key, observation)
        message = f"different initial states share the state_key {key!r}:\n{other}\nand\n"
        _require(other == observation, message + observation)


def _check_oracle(game: TextEnv, seeds: Sequence[int]) -> None:
    """Where there is an oracle, it wins: always without luck, and at least once with it."""
    game.reset(seed=seeds[0])
    if game.oracle() is None:
        return
    results = [_oracle_episode(game, seed) for seed in seeds]
    for seed, (is_success, is_certain) in zip(seeds, results, strict=True):
        _require(is_success or not is_certain, "the oracle loses a game without luck", seed=seed)
    _require(any(is_success for is_success, _ in results), "the oracle never wins")


def _oracle_episode(game: TextEnv, seed: int) -> tuple[bool, bool]:
    """(success, nothing was left to luck)"""
    game.reset(seed=seed)
    is_certain = True
    for left in range(_ORACLE_STEPS, 0, -1):
        action = game.oracle(left)
        if action is None:
            raise AssertionError(f"the oracle falls silent with {left} actions left (seed {seed})")
        is_certain &= len(game.possible_next([action])) == 1
        _, _, terminated, truncated, info = game.step(action)
        _require(info["action_is_valid"], f"the oracle's {action!r} is no action", seed=seed)
        if terminated or truncated:
            return info["success"], is_certain
    return False, is_certain


def main(arguments: Sequence[str] | None = None) -> None:
    """Check environments by their ids: a registered one, or module:Class."""
    parser = argparse.ArgumentParser(prog="python -m envs.testing", description=main.__doc__)
    parser.add_argument("env_id", nargs="+", help="a registered id or module:Class")
    parser.add_argument("--seeds", type=int, default=8, help="number of seeds (default 8)")
    options = parser.parse_args(arguments)
    codes = [_checked(env_id, range(options.seeds)) for env_id in options.env_id]
    if any(codes):
        raise SystemExit(max(codes))


def _checked(env_id: str, seeds: Sequence[int]) -> int:
    """Say how a game fares: 0 for a good one, 1 where it breaks a promise, 2 where none is made."""
    try:
        check_text_env(env_id, seeds)
        for split, (count, base_seed) in PUZZLES.items():
            splits.draw_seeds(_factory(env_id), split, count, base_seed, distinct=True)
    except envs.EnvironmentIdError as error:
        return _say(f"{error}", 2)
    except envs.EnvironmentConfigError as error:
        is_made = "too few puzzles" in str(error)
        named = f"{error}" if env_id in str(error) else f"{env_id}: {error}"
        return _say(named, 1 if is_made else 2)
    except AssertionError as error:
        return _say(f"{env_id} breaks a promise: {error}", 1)
    except (Exception, SystemExit) as error:
        return _say(f"{env_id} raised {error!r} at {_place(env_id, error)}", 1)
    print(f"{env_id} keeps every promise")  # noqa: T201
    return 0


def _say(line: str, code: int) -> int:
    sys.stderr.write(f"{line}\n")
    return code


def _place(env_id: str, error: BaseException) -> str:
    """The last line of the game's own files that the error went through, or else of any."""
    kin = type(envs.make(env_id).unwrapped).__mro__
    files = {inspect.getfile(each) for each in kin[: kin.index(TextEnv)]}
    frames = traceback.extract_tb(error.__traceback__)
    where = ([frame for frame in frames if frame.filename in files] or frames)[-1]
    return f"{where.filename}:{where.lineno}, in {where.name}()"


if __name__ == "__main__":
    main()
