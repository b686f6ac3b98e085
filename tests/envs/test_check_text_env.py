"""The shipped checker passes what is right and names what is wrong."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest

import envs
from conf import compose
from envs import testing
from envs.base import GRID_COORDS, TextSpace
from envs.frozenlake import FrozenLake
from envs.solvers import Bounds, Budget
from envs.tabular import best_success, random_success
from envs.testing import check_text_env
from steps.agent.parsing import ORDER

LAKES = [env_id for env_id in envs.list_ids() if env_id.startswith("frozenlake")]


@pytest.mark.parametrize("env_id", LAKES)
def test_every_lake_passes(env_id: str) -> None:
    """The other games' tests call the checker themselves."""
    check_text_env(env_id)


def test_a_game_that_publishes_its_bounds_passes() -> None:
    check_text_env(lambda: Bounded(intended_prob=1.0), seeds=range(3))
    check_text_env(Bounded, seeds=range(3))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["frozenlake", "--seeds", "1"], None, "frozenlake keeps every promise"),
        (["frozenlak"], 2, "did you mean 'frozenlake'"),
        (["broken_game:AlwaysEffective"], 1, "breaks a promise: action_is_effective says"),
        (["broken_game:FourValues"], 1, "step() returned 4 values, not (observation, reward,"),
        (["broken_game:NoSuccess"], 1, "step() returned an info without 'success'"),
        (["broken_game:Joined"], 1, "neither '||' nor a tag of the answer: 'row || alone'"),
        (["broken_game:Tagged"], 1, "neither '||' nor a tag of the answer: 'go</answer>'"),
        (["broken_game:TaggedState"], 1, "a state holds no tag of the answer: '<observation>"),
        (["broken_game:Unseen"], 1, "__init__ takes render_mode: str | None = None"),
        (["broken_game:OneMap"], 1, "OneMap has too few puzzles: found 0 of 8"),
        (["broken_game:Exits"], 1, "broken_game:Exits raised SystemExit(3) at "),
        (["broken_game:TwoKeys"], 1, "has two state_keys, '1' and '2': P_O"),
    ],
)
def test_command_line(
    words: list[str],
    code: int | None,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "broken_game", sys.modules[__name__])
    if code is None:
        testing.main(words)
    else:
        with pytest.raises(SystemExit) as error:
            testing.main(words)
        assert error.value.code == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err


def test_one_bad_game_doesnt_hide_the_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "broken_game", sys.modules[__name__])
    with pytest.raises(SystemExit) as error:
        testing.main(["broken_game:FourValues", "frozenlak", "frozenlake", "--seeds", "1"])
    assert error.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == "frozenlake keeps every promise\n"
    assert len(shown.err.splitlines()) == 2


def test_what_answers_cant_hold_is_what_the_flow_refuses() -> None:
    for names in ORDER.values():
        assert all(testing.TAGS.fullmatch(f"<{name}>") for name in names)
    config = compose(profile="smoke")
    assert config.env.action_separator.strip() == testing.SEPARATOR
    assert {
        "test": (config.evaluation.puzzles, config.evaluation.base_seed),
        "validation": (config.sft.probe_puzzles, config.ppo.base_seed),
    } == testing.PUZZLES


def test_factories_wrapped_or_bare_pass() -> None:
    check_text_env(lambda: envs.make("frozenlake", size=6), seeds=range(3))
    check_text_env(lambda: FrozenLake(map=["P_O", "__G", "O__"]), seeds=range(3))


class FourValues(FrozenLake):
    def step(self, action: str) -> Any:
        state, reward, terminated, _, info = super().step(action)
        return state, reward, terminated, info


class NoSuccess(FrozenLake):
    def step(self, action: str) -> Any:
        return *super().step(action)[:4], {}


class Joined(FrozenLake):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.action_names = ("Left", "row || alone")


class Tagged(FrozenLake):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.action_names = ("Left", "go</answer>")


class Unseen(FrozenLake):
    def __init__(self) -> None:
        super().__init__()


class TaggedState(FrozenLake):
    def describe(self, state_format: str = GRID_COORDS) -> str:
        return f"<observation>{super().describe(state_format)}"


class OneMap(FrozenLake):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode, map=["P_O", "__G", "O__"])


class TwoKeys(OneMap):
    num_keys = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        type(self).num_keys = 1 + (seed or 0)
        return super().reset(seed=seed)

    def state_key(self) -> str:
        return str(self.num_keys)


class Exits(FrozenLake):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise SystemExit(3)


class ForgetsSeed(FrozenLake):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=random.randrange(10**9))


class TiresOverEpisodes(FrozenLake):
    """Legs that are tired from the last episode only go left in the next."""

    steps = 0

    def step(self, action: str) -> Any:
        self.steps += 1
        return super().step("Left" if self.steps > 30 else action)


class NumpyFlags(FrozenLake):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "success": np.bool_(info["success"])}


class RaisesOnNonsense(FrozenLake):
    def step(self, action: str) -> Any:
        assert action.strip().capitalize() in self.action_names, "unknown action"
        return super().step(action)


class TakesNonsenseForLeft(FrozenLake):
    def step(self, action: str) -> Any:
        known = action.strip().capitalize() in self.action_names
        return super().step(action if known else "Left")


class ListsNonsense(FrozenLake):
    def legal_actions(self) -> tuple[str, ...]:
        return (*self.action_names, "Jump")


class DrawsWhilePredicting(FrozenLake):
    def possible_next(self, actions: Sequence[str], state_format: str = GRID_COORDS) -> Any:
        self.np_random.random()
        return super().possible_next(actions, state_format)


class PredictsNoSlips(FrozenLake):
    def possible_next(self, actions: Sequence[str], state_format: str = GRID_COORDS) -> Any:
        outcomes = super().possible_next(actions, state_format)
        return {max(outcomes, key=lambda text: outcomes[text]): 1.0}


class PredictsTooMuch(FrozenLake):
    def possible_next(self, actions: Sequence[str], state_format: str = GRID_COORDS) -> Any:
        return {**super().possible_next(actions, state_format), "elsewhere": 0.1}


class KeyFollowsThePlayer(FrozenLake):
    def state_key(self) -> str:
        return self.describe("grid")


class KeyForgetsTheStart(FrozenLake):
    def state_key(self) -> str:
        return self._lake.ice


class ShowsTheGridOnly(FrozenLake):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        _, info = super().reset(seed=seed)
        return self.describe("grid"), info


class AlwaysEffective(FrozenLake):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "action_is_effective": info["action_is_valid"]}


class WalksIntoTheWall(FrozenLake):
    def oracle(self, actions_left: int | None = None) -> str | None:
        return "Up"


class Bounded(FrozenLake):
    """Publishes its tables' bounds, changed by the classes below."""

    def success_bounds(self, budget: Budget) -> Bounds:
        world, num_actions = self.tabular_world(), budget.playable
        return Bounds(random_success(world, num_actions), best_success(world, num_actions))


class FloorAboveCeiling(Bounded):
    def success_bounds(self, budget: Budget) -> Bounds:
        floor, ceiling = super().success_bounds(budget)
        return Bounds(ceiling, floor)


class TiresWithActions(Bounded):
    def success_bounds(self, budget: Budget) -> Bounds:
        return Bounds(None, 1.0 / budget.playable)


class CeilingTooLow(Bounded):
    def success_bounds(self, budget: Budget) -> Bounds:
        return Bounds(0.0, 0.0)


class BoundsMove(Bounded):
    def success_bounds(self, budget: Budget) -> Bounds:
        self.step("Down")
        return super().success_bounds(budget)


class PaintsInGrey(FrozenLake):
    def render(self) -> Any:
        frame = super().render()
        return frame if isinstance(frame, str) else frame.mean(axis=2)


class RendersNothing(FrozenLake):
    def render(self) -> Any:
        return None


class NarrowSpace(FrozenLake):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = gymnasium.spaces.Text(8)  # type: ignore[assignment]


class NoRules(FrozenLake):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.instruction = " "


class UnknownTile(FrozenLake):
    tiles = {**FrozenLake.tiles, "O": "a_hole"}  # noqa: RUF012


class LongSymbol(FrozenLake):
    tiles = {**FrozenLake.tiles, "OO": "hole"}  # noqa: RUF012


class NoTextEnv(gymnasium.Env[str, str]):
    observation_space = action_space = TextSpace()


BROKEN = [
    (ForgetsSeed, {}, "one seed is one episode|deterministic|reset"),
    (TiresOverEpisodes, {"size": 8, "frozen_prob": 1.0}, "reset forgets the episode before"),
    (NumpyFlags, {}, r"info\['success'\] is a builtin bool"),
    (RaisesOnNonsense, {}, "unknown action"),
    (TakesNonsenseForLeft, {}, "is none of action_names, yet valid"),
    (ListsNonsense, {}, "'Jump' is one of legal_actions, yet no action"),
    (DrawsWhilePredicting, {}, "draws nothing from np_random"),
    (PredictsNoSlips, {"intended_prob": 1 / 3}, "leaves out what happened"),
    (PredictsTooMuch, {}, "sum 1"),
    (KeyFollowsThePlayer, {}, "state_key is of the initial state"),
    (KeyForgetsTheStart, {"size": 2}, "different initial states share the state_key"),
    (ShowsTheGridOnly, {}, r"reset returns describe\(\)"),
    (AlwaysEffective, {}, "action_is_effective says whether"),
    (WalksIntoTheWall, {"intended_prob": 1.0}, "the oracle loses a game without luck"),
    (WalksIntoTheWall, {"map": ["P_", "_G"], "intended_prob": 0.99}, "the oracle never wins"),
    (FloorAboveCeiling, {}, "success_bounds for 1 actions are rates in order"),
    (TiresWithActions, {}, "success_bounds for 2 actions are rates in order"),
    (CeilingTooLow, {"size": 2, "intended_prob": 1.0}, "the oracle reaches the ceiling 0.0 of"),
    (BoundsMove, {"intended_prob": 1.0}, "success_bounds moves nothing|rates in order"),
    (PaintsInGrey, {}, "rgb_array is an array of uint8"),
    (RendersNothing, {}, "ansi is a text, not None"),
    (NarrowSpace, {}, "use envs.base.TextSpace"),
    (NoRules, {}, "instruction holds the rules"),
    (UnknownTile, {}, r"'a_hole' \('O'\) is none"),
    (LongSymbol, {}, "symbols of one character, not 'OO'"),
    (NoTextEnv, {}, "NoTextEnv is not a TextEnv"),
]


@pytest.mark.parametrize(("cls", "kwargs", "said"), BROKEN, ids=[c.__name__ for c, _, _ in BROKEN])
def test_a_broken_promise_is_named(cls: Any, kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_text_env(lambda: cls(**kwargs), seeds=range(12))
