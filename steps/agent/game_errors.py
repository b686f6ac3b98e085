"""Errors that a game's own code raises, told as what its author can mend."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from envs.base import TextEnv, fault_of_step
from envs.errors import EnvironmentConfigError
from steps.errors import GameError, SPAError

Method = TypeVar("Method", bound=Callable[..., Any])


RAISED = (Exception, SystemExit)
"""What a game may raise: one that calls `sys.exit` would end the run without a word."""


def name_of(world: TextEnv) -> str:
    """The game as it is written on the command line."""
    return f"{type(world).__module__}:{type(world).__qualname__}"


def check_step(result: Any, world: TextEnv) -> None:
    """Raise `GameError` where a `step` returned other values than Gymnasium's five."""
    fault = fault_of_step(result)
    if fault:
        name = name_of(world)
        raise GameError(
            f"{name}'s step() returned {fault}; `python -m envs.testing {name}` checks the game."
        )


def game_error(error: BaseException, world: TextEnv, seed: int) -> GameError | None:
    """What the game did, where and with which seed; None where its code had no part in it."""
    game, name = type(world), name_of(world)
    if isinstance(error, EnvironmentConfigError):  # which says itself what to do
        return GameError(f"{name}, seed {seed}: {error}")
    files = {
        inspect.getfile(cls)
        for cls in game.__mro__[: game.__mro__.index(TextEnv)]
        if cls.__module__ != "builtins"
    }
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename in files]
    if not frames:
        return None
    return GameError(
        f"{name} raised {error!r} in {frames[0].name}() of the episode with seed {seed}, at "
        f"{frames[-1].filename}:{frames[-1].lineno}; mend it there, and see whether "
        f"`python -m envs.testing {name}` finds more."
    )


def names_the_game(method: Method) -> Method:
    """For methods of an episode: an error of its `world` is raised as `GameError`."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except SPAError:
            raise
        except RAISED as error:
            found = game_error(error, self.world, self.spec.env_seed)
            if found is None:
                raise
            raise found from error

    return cast(Method, call)
