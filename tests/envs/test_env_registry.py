"""Environments by name, from this package, from another one, and by their class."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import envs
from conf import compose
from envs.base import TextEnv
from envs.frozenlake import FrozenLake
from envs.solvers import floor_and_ceiling
from envs.splits import draw_seeds
from envs.testing import check_text_env
from steps.orchestration.fingerprints import parts_of

OTHER_GAME = """
from envs.frozenlake import FrozenLake

class Pond(FrozenLake):
    def __init__(self, size=3, **kwargs):
        super().__init__(size=size, **kwargs)

def no_game():
    import gymnasium
    return gymnasium.Env()

class Puddle:
    pass

class Sketch(FrozenLake.__mro__[1]):
    def describe(self, state_format="grid"):
        return ""

class Exits(FrozenLake):
    def __init__(self):
        raise SystemExit(3)
"""


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a game in it, as a third party installs it."""
    (tmp_path / "pond_game.py").write_text(OTHER_GAME)
    (tmp_path / "pond_broken.py").write_text("class Pond(:\n")
    (tmp_path / "pond_needy.py").write_text("\nimport no_such_library\n")
    (tmp_path / "pond_division.py").write_text("\n1 / 0\n")
    (tmp_path / "pond_exits.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "ponds").mkdir()
    (tmp_path / "ponds" / "game.py").write_text(OTHER_GAME)
    metadata = tmp_path / "pond-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pond\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[spa.envs]\npond = pond_game:Pond\n")
    monkeypatch.syspath_prepend(tmp_path)
    envs._load_entry_points.cache_clear()
    yield tmp_path
    gymnasium.registry.pop("spa/pond", None)
    envs._load_entry_points.cache_clear()
    envs._creator.cache_clear()
    sys.modules.pop("pond_game", None)


def test_the_registered_ids() -> None:
    """All that SPA and RAGEN name."""
    ours = (
        "bandit bandit_test countdown frozenlake frozenlake_6x6 frozenlake_6x6_upstream "
        "frozenlake_deterministic frozenlake_upstream metamathqa sokoban sokoban_2boxes "
        "sokoban_action_vocab sokoban_grid_vocab sokoban_harder sokoban_larger sokoban_visual "
        "sudoku sudoku_9x9 sudoku_hard sudoku_medium webshop"
    )
    assert set(ours.split()) <= set(envs.list_ids())


@pytest.mark.parametrize("env_id", ["frozenlake", "spa/frozenlake", "envs.frozenlake:FrozenLake"])
def test_three_spellings_make_the_same_game(env_id: str) -> None:
    env = envs.make(env_id, size=5)
    assert isinstance(env, gymnasium.Wrapper)
    game = env.unwrapped
    assert isinstance(game, FrozenLake) and isinstance(game, TextEnv)
    assert (game.size, game.intended_prob) == (5, 0.8)


def test_gymnasium_makes_it_too() -> None:
    game = gymnasium.make("spa/frozenlake_upstream").unwrapped
    assert isinstance(game, FrozenLake) and game.intended_prob == 1 / 3


def test_arguments_go_over_the_ids_own() -> None:
    assert envs.make("frozenlake_deterministic").unwrapped.intended_prob == 1.0
    assert envs.make("frozenlake_deterministic", intended_prob=0.5).unwrapped.intended_prob == 0.5
    assert envs.make("frozenlake_deterministic").unwrapped.intended_prob == 1.0


def test_spec_of_lists_every_argument() -> None:
    expected = {"size": 4, "frozen_prob": 0.8, "intended_prob": 1.0, "map": None}
    assert envs.spec_of("frozenlake_deterministic") == expected
    assert envs.spec_of("envs.frozenlake:FrozenLake") == expected | {"intended_prob": 0.8}


def test_an_unknown_id_names_the_nearest() -> None:
    with pytest.raises(envs.EnvironmentIdError) as error:
        envs.make("frozenlak")
    said = str(error.value)
    assert said.startswith("unknown environment 'frozenlak'; did you mean 'frozenlake'? Known: ")
    assert "frozenlake_upstream" in said and said.endswith(" or 'module:Class'.")
    assert isinstance(error.value, LookupError)


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(envs.EnvironmentConfigError, match="'siz'; did you mean 'size'"):
        envs.make("frozenlake", siz=4)


@pytest.mark.usefixtures("other_package")
@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("no_such_package.game:Game", "No module named 'no_such_package'"),
        ("envs.frozenlake:FrozenPond", "no 'FrozenPond'; did you mean 'FrozenLake'?"),
        ("pond_game:Pnod", "no 'Pnod'; did you mean 'Pond'?"),
        ("pond_game:Castle", "no 'Castle'; its games are FrozenLake, Pond, "),
        (":FrozenLake", "can't be loaded"),
        ("pond_broken:Pond", r"can't be read: .*pond_broken\.py:1: invalid syntax. Mend it"),
        ("pond_needy:Pond", r"'no_such_library' at .*pond_needy\.py:2, and there is no such"),
        ("pond_division:Pond", r"ZeroDivisionError: .*, at .*pond_division\.py:2. Mend it there"),
        ("pond_exits:Pond", r"SystemExit: 3, at .*pond_exits\.py:1. Mend it there"),
        ("pond_game.py:Pond", "leave out '.py' and write 'pond_game:Pond'"),
        ("ponds/game.py:Pond", "no 'package.module:Class'.*; write 'ponds.game:Pond'"),
        ("pond_game:Sketch", "Sketch doesn't define possible_next, state_key, as every TextEnv"),
        ("../pond_game:Pond", "no 'package.module:Class'"),
        ("envs.frozenlake:", "can't be loaded"),
        ("envs.frozenlake:ACTIONS", "Left.* not a TextEnv"),
    ],
)
def test_a_path_that_leads_nowhere_is_told(env_id: str, said: str) -> None:
    with pytest.raises(envs.EnvironmentIdError, match=said):
        envs.make(env_id)


@pytest.mark.usefixtures("other_package")
def test_a_game_that_exits_where_it_is_made_is_told() -> None:
    with pytest.raises(envs.EnvironmentConfigError, match="can't be made: SystemExit: 3"):
        envs.make("pond_game:Exits")


@pytest.mark.usefixtures("other_package")
def test_a_published_game_is_known_by_its_name() -> None:
    assert "pond" in envs.list_ids()
    assert envs.make("pond").unwrapped.size == 3
    assert envs.make("pond", intended_prob=1.0).unwrapped.intended_prob == 1.0
    assert envs.spec_of("pond") == {"size": 3}


@pytest.mark.usefixtures("other_package")
def test_a_game_is_made_by_its_path_without_any_registration() -> None:
    assert envs.make("pond_game:Pond").unwrapped.size == 3


@pytest.mark.usefixtures("other_package")
@pytest.mark.parametrize("factory", ["no_game", "Puddle"])
def test_what_is_no_text_env_is_refused(factory: str) -> None:
    with pytest.raises(envs.EnvironmentIdError, match=f"pond_game:{factory}"):
        envs.make(f"pond_game:{factory}")


def test_a_published_name_that_is_no_id_is_told_and_in_nobodys_way(other_package: Path) -> None:
    points = other_package / "pond-1.0.dist-info" / "entry_points.txt"
    points.write_text("[spa.envs]\nmy game = pond_game:Pond\npond = pond_game:Pond\n")
    with pytest.warns(UserWarning, match=r"entry point 'my game' of spa\.envs is no id"):
        names = envs.list_ids()
    assert {"pond", "frozenlake"} <= set(names) and "my game" not in names
    assert envs.make("pond").unwrapped.size == 3
    with pytest.raises(envs.EnvironmentIdError, match="unknown environment 'my game'"):
        envs.make("my game")
    assert envs.make("frozenlake").unwrapped.size == 4


def test_importing_envs_is_light() -> None:
    """No game, no learning library, no part of the pipeline."""
    code = (
        "import envs, sys; heavy = {'torch', 'transformers', 'matplotlib', 'metaflow', 'mlflow',"
        " 'omegaconf', 'pygame', 'steps', 'conf', 'envs.frozenlake'}\n"
        "print(heavy & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(envs.__file__).parents[1],
        capture_output=True,
        check=True,
        text=True,
    )
    assert result.stdout == "set()\n"


class Sluice(FrozenLake):
    """Counts those that are open."""

    num_open = 0

    def __init__(self, *, is_broken: bool = False, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        type(self).num_open += 1
        self.is_broken, self.is_open = is_broken, True

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.is_broken:
            raise RuntimeError("no water")
        return super().reset(seed=seed, options=options)

    def close(self) -> None:
        type(self).num_open -= self.is_open
        self.is_open = False


def test_what_is_made_to_be_asked_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sluice, "num_open", 0)
    sluice = f"{__name__}:Sluice"
    for _ in range(2):
        floor_and_ceiling(sluice, 2, [0], cache=tmp_path)
    check_text_env(sluice, seeds=[0])
    base = compose(profile="smoke")
    parts_of("evaluate", replace(base, env=replace(base.env, id=sluice)), before="")
    for ask in (
        lambda: draw_seeds(partial(envs.make, sluice, is_broken=True), "test", 1, 0),
        lambda: floor_and_ceiling(sluice, 2, [0], is_broken=True),
    ):
        with pytest.raises(RuntimeError, match="no water"):
            ask()
    assert Sluice.num_open == 0
