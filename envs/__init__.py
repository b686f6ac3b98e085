"""Text environments by name: `envs.make("frozenlake", size=6)`.

An id is a registered name (`frozenlake`, or `spa/frozenlake` as Gymnasium's registry spells it),
a name that an installed package publishes under the entry point group `spa.envs`, or
`package.module:Class`. Importing this package imports no game: its module is loaded by `make`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from envs import importing
from envs.base import TextEnv
from envs.errors import EnvironmentConfigError, EnvironmentIdError, unknown_name

__all__ = [
    "EnvironmentConfigError",
    "EnvironmentIdError",
    "TextEnv",
    "list_ids",
    "make",
    "makers_of",
    "register",
    "spec_of",
]

NAMESPACE = "spa/"
ENTRY_POINT_GROUP = "spa.envs"
_PIPELINE_ARGUMENTS = {"self", "render_mode"}


def make(env_id: str, **kwargs: Any) -> gymnasium.Env[str, str]:
    """A wrapped environment; its `TextEnv` is `.unwrapped`.

    `kwargs` go over the id's own arguments. Raises `EnvironmentIdError` for an id that leads
    nowhere and `EnvironmentConfigError` for an argument that the environment doesn't take, or
    with which it can't be made.
    """
    spec = _spec(env_id)
    _check_arguments(env_id, _creator(env_id), kwargs)
    env = _made(env_id, spec, kwargs)
    if not isinstance(env.unwrapped, TextEnv):
        raise _not_a_game(env_id, type(env.unwrapped))
    return env


def register(name: str, entry_point: str, **kwargs: Any) -> None:
    """Put an environment under `spa/<name>` in Gymnasium's registry; `kwargs` are its defaults.

    Gymnasium's per-step checker stays off: `envs.testing.check_text_env` is run once instead.
    """
    gymnasium.register(
        id=NAMESPACE + name, entry_point=entry_point, kwargs=kwargs, disable_env_checker=True
    )


def list_ids() -> list[str]:
    """Every registered name, those of installed packages included, in alphabetical order."""
    _load_entry_points()
    names = (key.removeprefix(NAMESPACE) for key in gymnasium.registry if key[:4] == NAMESPACE)
    return sorted(names)


def spec_of(env_id: str) -> dict[str, Any]:
    """The arguments that `make(env_id)` plays with: the class's defaults under the id's own."""
    defaults = {
        parameter.name: parameter.default
        for parameter in _parameters(_creator(env_id)).values()
        if parameter.name not in _PIPELINE_ARGUMENTS and parameter.default is not parameter.empty
    }
    return defaults | _spec(env_id).kwargs


def makers_of(env_id: str) -> set[str]:
    """Modules of the class or factory behind an id: the one that it names, and the one it is of."""
    creator = inspect.unwrap(_creator(env_id))
    return {str(_spec(env_id).entry_point).partition(":")[0], creator.__module__}


def _made(env_id: str, spec: EnvSpec, kwargs: dict[str, Any]) -> gymnasium.Env[str, str]:
    try:
        env: gymnasium.Env[str, str] = gymnasium.make(spec, **kwargs)
    except EnvironmentConfigError:
        raise
    except (Exception, SystemExit) as error:  # whatever a game's own constructor raises
        raise EnvironmentConfigError(
            f"environment {env_id!r} can't be made: {type(error).__name__}: {error}"
        ) from error
    return env


def _spec(env_id: str) -> EnvSpec:
    """Gymnasium's record of an id."""
    name = env_id.removeprefix(NAMESPACE)
    if ":" in name:
        try:
            return EnvSpec(id=NAMESPACE + name, entry_point=name, disable_env_checker=True)
        except gymnasium.error.Error as error:
            raise EnvironmentIdError(
                f"environment {env_id!r} is no 'package.module:Class', by which one is found"
                + (f"; write {importing.dotted(name)!r}." if "/" in name else ".")
            ) from error
    if NAMESPACE + name not in gymnasium.registry:
        _load_entry_points()
    if NAMESPACE + name not in gymnasium.registry:
        message = unknown_name("environment", env_id, list_ids(), also="'module:Class'")
        raise EnvironmentIdError(message)
    return gymnasium.registry[NAMESPACE + name]


@cache
def _load_entry_points() -> None:
    """Register what installed packages publish; a name that is taken stays as it is.

    A name that Gymnasium doesn't take is passed over with a warning: the other games still work.
    """
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if NAMESPACE + point.name in gymnasium.registry:
            continue
        try:
            register(point.name, point.value)
        except gymnasium.error.Error as error:
            message = f"the entry point {point.name!r} of {ENTRY_POINT_GROUP} is no id: {error}"
            warnings.warn(message, stacklevel=2)


@cache
def _creator(env_id: str) -> Callable[..., TextEnv]:
    """The class or factory behind an id."""
    target = _spec(env_id).entry_point
    assert isinstance(target, str), target
    creator: Callable[..., TextEnv] = importing.load(env_id, target)
    is_game = issubclass(creator, TextEnv) if inspect.isclass(creator) else callable(creator)
    if not is_game:
        raise _not_a_game(env_id, creator)
    return creator


def _not_a_game(env_id: str, found: object) -> EnvironmentIdError:
    return EnvironmentIdError(
        f"environment {env_id!r} leads to {found!r}, which is not a TextEnv; "
        "derive the class from envs.base.TextEnv."
    )


@cache
def _parameters(creator: Callable[..., TextEnv]) -> Mapping[str, inspect.Parameter]:
    """Once an id, since the rollout makes an environment for each episode."""
    return inspect.signature(creator).parameters


def _check_arguments(env_id: str, creator: Callable[..., TextEnv], kwargs: dict[str, Any]) -> None:
    parameters = _parameters(creator)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in kwargs:
        if name not in parameters:
            known = [known for known in parameters if known not in _PIPELINE_ARGUMENTS]
            raise EnvironmentConfigError(unknown_name(f"argument of {env_id}", name, known))


register("frozenlake", "envs.frozenlake:FrozenLake")
register("frozenlake_deterministic", "envs.frozenlake:FrozenLake", intended_prob=1.0)
register("frozenlake_upstream", "envs.frozenlake:FrozenLake", intended_prob=1 / 3)
register("frozenlake_6x6", "envs.frozenlake:FrozenLake", size=6)
register("frozenlake_6x6_upstream", "envs.frozenlake:FrozenLake", size=6, intended_prob=1 / 3)
register("sokoban", "envs.sokoban:Sokoban")
register("sokoban_2boxes", "envs.sokoban:Sokoban", num_boxes=2, search_depth=30)
register("sokoban_larger", "envs.sokoban:Sokoban", size=8, num_boxes=2, search_depth=10)
register("sokoban_harder", "envs.sokoban:Sokoban", size=10, num_boxes=2)
register("sokoban_grid_vocab", "envs.sokoban:Sokoban", symbols="W.GCBA@", search_depth=30)
register(
    "sokoban_action_vocab",
    "envs.sokoban:Sokoban",
    labels=("Left", "Right", "Up", "Down"),
    search_depth=30,
)
register("sokoban_visual", "envs.sokoban:Sokoban", render_mode="rgb_array")
register("sudoku", "envs.sudoku:Sudoku")
register("sudoku_medium", "envs.sudoku:Sudoku", clues=9)
register("sudoku_hard", "envs.sudoku:Sudoku", clues=6)
register("sudoku_9x9", "envs.sudoku:Sudoku", size=9, clues=36)
register("countdown", "envs.countdown:Countdown")
register("metamathqa", "envs.metamathqa:MetaMathQA")
register("webshop", "envs.webshop:WebShop")
register("bandit", "envs.bandit:Bandit")
register("bandit_test", "envs.bandit:Bandit", arms="test")
