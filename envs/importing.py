"""Finds the class behind `package.module:Class`, or says why it can't: file, line, what to mend."""

from __future__ import annotations

import difflib
import importlib
import inspect
import traceback
from typing import Any

from envs.base import TextEnv
from envs.errors import EnvironmentIdError

_HOW = "Write it as 'package.module:Class' and see that the package can be imported."

_OURS = (__file__, importlib.__file__)


def load(env_id: str, target: str) -> Any:
    """The class or factory; raises `EnvironmentIdError`."""
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a module raises that is imported
        raise EnvironmentIdError(
            f"environment {env_id!r} points to {target!r}, {_why(error, module_name, attribute)}"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        seen = f"has no {attribute!r}{_meant(module, attribute)}" if attribute else f"alone. {_HOW}"
        raise EnvironmentIdError(
            f"environment {env_id!r} points to {target!r}, which can't be loaded: {module_name} "
            f"{seen}"
        )
    if inspect.isclass(found) and issubclass(found, TextEnv) and inspect.isabstract(found):
        lacks = ", ".join(sorted(found.__abstractmethods__))
        raise EnvironmentIdError(
            f"environment {env_id!r} can't be made: {attribute} doesn't define {lacks}, as every "
            "TextEnv must (envs/base.py says what they return)."
        )
    return found


def dotted(name: str) -> str:
    """A file's path before the colon as a module: `games/ferry.py:Ferry` is `games.ferry:Ferry`."""
    module, _, attribute = name.partition(":")
    return f"{module.removesuffix('.py').strip('./').replace('/', '.')}:{attribute}"


def _why(error: BaseException, module_name: str, attribute: str) -> str:
    seen = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return (
            f"which can't be read: {error.filename}:{error.lineno}: {error.msg}. Mend it there, "
            f"and see `python -m envs.testing {module_name}:{attribute}`."
        )
    is_own = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(
        f"{error.name or module_name}."
    )
    if is_own and module_name.endswith(".py"):
        better = dotted(f"{module_name}:{attribute}")
        return f"which can't be loaded: leave out '.py' and write {better!r}."
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in _OURS
    ]
    if is_own or not frames:
        return f"which can't be loaded ({seen}). {_HOW}"
    place = f"{frames[-1].filename}:{frames[-1].lineno}"
    if isinstance(error, ModuleNotFoundError):
        return f"which imports {error.name!r} at {place}, and there is no such module: install it."
    return f"which can't be loaded: {seen}, at {place}. Mend it there."


def _meant(module: Any, attribute: str) -> str:
    games = [
        name
        for name, each in vars(module).items()
        if inspect.isclass(each) and issubclass(each, TextEnv) and each is not TextEnv
    ]
    close = difflib.get_close_matches(attribute, games, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    known = f"; its games are {', '.join(games)}." if games else ", and no class of a game."
    return known
