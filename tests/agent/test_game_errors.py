"""A game that raises is named, with place and seed; our own mistakes keep their traceback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envs import testing
from envs.errors import EnvironmentConfigError
from envs.frozenlake import FrozenLake
from steps.agent import rollout
from steps.agent.rollout import EpisodeSpec
from steps.errors import GameError, SPAError
from steps.policies.random_policy import RandomPolicy
from tests.agent.test_rollout import play, rules

SPECS = [EpisodeSpec(env_seed=17, sampling_seed=1)]


class Broken(FrozenLake):
    """Raises in the method that `where` names."""

    where = "step"

    def step(self, action: str) -> Any:
        if self.where == "step":
            return self._open("cellar")
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.where == "reset":
            raise RuntimeError("no map")
        if self.where == "exit":
            raise SystemExit(3)
        if self.where == "arguments":
            raise EnvironmentConfigError("give another map.")
        return super().reset(seed=seed, options=options)

    def possible_next(self, actions: Any, state_format: str = "grid_coords") -> dict[str, float]:
        if self.where == "possible_next":
            raise ZeroDivisionError
        return super().possible_next(actions, state_format)

    def _open(self, room: str) -> Any:
        return {}[room]


@pytest.mark.parametrize(
    ("where", "raised"),
    [
        ("step", "KeyError('cellar')"),
        ("reset", "RuntimeError('no map')"),
        ("possible_next", "ZeroDivisionError()"),
        ("exit", "SystemExit(3)"),
    ],
)
def test_a_game_that_raises_is_named_with_method_seed_and_line(
    where: str, raised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broken, "where", where)
    with pytest.raises(GameError) as found:
        play(RandomPolicy(), rules(), make_env=Broken, specs=SPECS)
    said = str(found.value)
    name = f"{__name__}:Broken"
    method = "reset" if where == "exit" else where
    start = f"{name} raised {raised} in {method}() of the episode with seed 17, at "
    assert said.startswith(start)
    assert f"{__file__}:" in said and f"`python -m envs.testing {name}`" in said
    assert isinstance(found.value.__cause__, Exception | SystemExit)


class Odd(FrozenLake):
    """Its step returns what `change` makes of the right values."""

    change: Any = None

    def step(self, action: str) -> Any:
        return type(self).change(*super().step(action))


CHANGES = {
    "4 values, not (observation, reward, terminated, truncated, info)": (
        lambda state, reward, ended, cut, info: (state, reward, ended, info)
    ),
    "None, not (observation,": lambda *_: None,
    "reward='1.0', not a finite number": lambda state, _, *rest: (state, "1.0", *rest),
    "reward=nan, not a finite number": lambda state, _, *rest: (state, float("nan"), *rest),
    "terminated='yes', not a bool": (
        lambda state, reward, _, cut, info: (state, reward, "yes", cut, info)
    ),
    "info=None, not a dict": lambda *values: (*values[:4], None),
    "an info without 'success'": lambda *values: (*values[:4], {"action_is_valid": True}),
    "info['action_is_valid']=1, not a bool": (
        lambda *values: (*values[:4], {**values[4], "action_is_valid": 1})
    ),
}


@pytest.mark.parametrize("said", CHANGES)
def test_a_step_that_returns_other_values_is_named(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "change", staticmethod(CHANGES[said]))
    with pytest.raises(GameError) as found:
        play(RandomPolicy(), rules(), make_env=Odd, specs=SPECS)
    name = f"{__name__}:Odd"
    assert str(found.value).startswith(f"{name}'s step() returned {said}")
    assert str(found.value).endswith(f"; `python -m envs.testing {name}` checks the game.")


def test_numbers_and_truths_of_numpy_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(state: str, reward: float, ended: bool, cut: bool, info: Any) -> Any:
        return state, np.float32(reward), np.bool_(ended), cut, info

    monkeypatch.setattr(Odd, "change", staticmethod(change))
    assert play(RandomPolicy(), rules(), make_env=Odd, specs=SPECS)[0].turns


def test_what_a_game_says_of_its_arguments_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "where", "arguments")
    with pytest.raises(GameError) as found:
        play(RandomPolicy(), rules(), make_env=Broken, specs=SPECS)
    assert str(found.value) == f"{__name__}:Broken, seed 17: give another map."


def test_a_mistake_of_ours_isnt_the_games(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: Any, **__: Any) -> Any:
        raise ValueError("ours")

    monkeypatch.setattr(rollout, "parse_response", parse)
    with pytest.raises(ValueError, match="ours") as found:
        play(RandomPolicy(), rules(), make_env=FrozenLake, specs=SPECS)
    assert not isinstance(found.value, SPAError)


def test_the_check_of_a_game_says_in_one_line_what_it_raised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        testing.main([f"{__name__}:Broken"])
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith(f"{__name__}:Broken raised KeyError('cellar') at {__file__}:")
    assert said.endswith("in _open()\n") and said.count("\n") == 1
