"""The design's table of experiments against what is composed. The table is written out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import conf
from conf.schema import Config


class Row(NamedTuple):
    """One experiment: what is shown, taught and rewarded."""

    response_format: str = "world_model"
    shown: str = "grid_coords"
    target: str = "states"
    state_loss: str = "train"
    states: str = "truth"
    player: str = "auto"
    """auto: the model; in the first round of a model from scratch, random play."""
    rounds: int = 1
    """Of a model from scratch."""
    is_filtered: bool = True
    random_coords: bool = False
    anchored: bool = True
    """A model from scratch is held to its finetuned self by a KL term."""
    rewards: tuple[float, float] = (0.0, 0.0)
    """For a right observation and prediction, of a pretrained model."""
    epochs: int = 5
    tiny_steps: int = 1000
    """Finetuning steps of a model from scratch, in the laptop profile."""
    of_tiny: tuple[str, str] | None = None
    """What a model from scratch is taught and its loss over states, where they differ."""


SPA = Row()
FORMAT = Row(target="format", anchored=False, tiny_steps=200)
TABLE = {
    "vanilla_rl": FORMAT._replace(response_format="plain", shown="grid"),
    "state_estimation_rl": FORMAT._replace(response_format="plain"),
    "spa": SPA,
    "spa_coords": SPA,
    "spa_random_policy": SPA._replace(player="random"),
    "spa_masked_states": SPA._replace(
        state_loss="mask", of_tiny=("format", "train"), tiny_steps=400
    ),
    "spa_self_belief": SPA._replace(states="self_belief", rounds=2),
    "spa_random_coords": SPA._replace(random_coords=True),
    "spa_no_coords": SPA._replace(shown="grid"),
    "spa_epochs_1": SPA._replace(epochs=1, tiny_steps=200),
    "spa_epochs_2": SPA._replace(epochs=2, tiny_steps=400),
    "spa_epochs_3": SPA._replace(epochs=3, tiny_steps=600),
    "spa_epochs_4": SPA._replace(epochs=4, tiny_steps=800),
    "spa_epochs_5": SPA,
    "spa_raw_unfiltered": SPA._replace(is_filtered=False),
    "vagen_reward": FORMAT._replace(rewards=(0.5, 0.5), tiny_steps=400),
    "easy_to_hard": SPA,
    "cross_complexity": SPA,
    "cross_game": SPA,
}
TINY = [name for name in conf.known("model") if name.startswith("tiny")]
OTHERS = [name for name in conf.known("model") if not name.startswith("tiny")]


def composed(config: Config) -> dict[str, object]:
    """What a config says about the columns that hold for every model."""
    return {
        "response_format": config.prompt.response_format,
        "target": config.sft.target,
        "state_loss": config.sft.state_loss,
        "states": config.selfplay.states,
        "player": config.selfplay.policy,
        "is_filtered": config.filter.enabled,
        "random_coords": config.prompt.random_coords,
    }


def check(name: str, env: str, model: str) -> None:
    row, config = TABLE[name], conf.compose(experiment=name, env=env, model=model)
    if model in TINY and row.of_tiny is not None:
        row = row._replace(target=row.of_tiny[0], state_loss=row.of_tiny[1])
    assert composed(config) == {key: getattr(row, key) for key in composed(config)}
    assert (config.experiment, config.env.id) == (name, env)
    rewards = (config.ppo.observation_reward, config.ppo.prediction_reward)
    if model in TINY:
        assert config.model.from_scratch
        assert config.selfplay.rounds == row.rounds
        assert (config.ppo.kl_coef > 0) == row.anchored
        assert [reward > 0 for reward in rewards] == [reward > 0 for reward in row.rewards]
        return
    assert not config.model.from_scratch
    assert (config.selfplay.rounds, config.sft.epochs) == (1, row.epochs)
    assert (config.prompt.state_shown, config.ppo.kl_coef) == (row.shown, 0)
    assert rewards == row.rewards


def test_the_table_has_every_experiment() -> None:
    assert sorted(TABLE) == conf.known("experiment")


@pytest.mark.parametrize("name", TABLE)
def test_an_experiment_is_the_designs_row(name: str) -> None:
    for model in ("tiny", "qwen2.5-1.5b"):
        check(name, "frozenlake", model)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_it_is_so_in_every_environment_and_with_every_model(name: str) -> None:
    """Not in all pairs of them: that is some thousand compositions."""
    for env in conf.known("env"):
        check(name, env, "tiny")
    for model in conf.known("model"):
        check(name, "sokoban", model)


@pytest.mark.parametrize("name", TABLE)
def test_a_tiny_models_prompt_is_the_bare_grid_and_its_finetuning_as_long_as_said(
    name: str,
) -> None:
    config = conf.compose(experiment=name, profile="laptop", model="tiny")
    assert config.sft.max_steps == TABLE[name].tiny_steps
    shown = "grid_coords" if name == "state_estimation_rl" else "grid"
    assert config.prompt.state_shown == shown


@pytest.mark.parametrize("name", TABLE)
def test_random_play_is_the_published_one_where_a_pretrained_model_learns(
    name: str,
) -> None:
    paper = conf.compose(experiment=name, profile="paper").selfplay
    is_random = name == "spa_random_policy"
    assert (paper.random_actions_per_turn, bool(paper.random_thought)) == (3 * is_random, is_random)
    tiny = conf.compose(experiment=name, model="tiny").selfplay
    assert (tiny.random_actions_per_turn, tiny.random_thought) == (0, "")


@pytest.mark.parametrize("name", TABLE)
def test_warm_up_is_a_tenth_of_a_pretrained_models_steps_and_a_number_of_a_tiny_ones(
    name: str,
) -> None:
    for profile in ("paper", "single_gpu", "multi_gpu"):
        sft = conf.compose(experiment=name, profile=profile, model="qwen2.5-1.5b").sft
        assert (sft.warmup_steps, sft.warmup_ratio) == (0, 0.1)
        sft = conf.compose(experiment=name, profile=profile, model="tiny").sft
        share = TABLE[name].epochs if name.startswith("spa_epochs") else 15
        assert (sft.warmup_steps, sft.warmup_ratio) == (10 * share, 0)
    assert conf.compose(experiment=name, profile="laptop", model="tiny").sft.warmup_ratio == 0


def test_the_paper_profile_filters_as_the_published_code_does() -> None:
    for env in ("frozenlake", "sudoku"):
        section = conf.compose(profile="paper", env=env).filter
        assert (section.enabled, section.deduplicate) == (True, True)
    assert not conf.compose(profile="paper", env="sokoban").filter.enabled
    assert not conf.compose().filter.deduplicate


def test_a_tiny_model_writes_bare_grids_but_in_the_arms_of_coordinates() -> None:
    for name in TABLE:
        prompt = conf.compose(experiment=name, model="tiny").prompt
        arms = ("spa_coords", "spa_random_coords")
        written = "grid_coords" if name in arms else "grid"
        assert (prompt.observation, prompt.prediction) == (written, "grid"), name


def test_states_are_written_with_coordinates_but_for_the_arm_without() -> None:
    for name in TABLE:
        prompt = conf.compose(experiment=name, model=OTHERS[0]).prompt
        written = "grid" if name == "spa_no_coords" else "grid_coords"
        assert (prompt.observation, prompt.prediction) == (written, written), name


@pytest.mark.parametrize("env", conf.known("env"))
def test_right_states_in_every_turn_pay_a_tiny_model_no_more_than_winning(env: str) -> None:
    """A lake: ten turns, both states right: 10 x (0.05 + 0.05) = 1, what reaching the goal pays."""
    config = conf.compose(experiment="vagen_reward", env=env, model="tiny")
    turn = config.ppo.observation_reward + config.ppo.prediction_reward
    assert 0.1 - 1e-9 <= config.env.max_turns * turn <= 1.0 + 1e-9
    if env in ("frozenlake", "sudoku", "sudoku_9x9"):
        assert config.env.max_turns * turn == pytest.approx(1.0)


def test_the_docs_have_a_row_for_every_experiment() -> None:
    text = (Path(conf.__file__).parents[1] / "docs" / "experiments.md").read_text("utf-8")
    rows = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    for name in TABLE:
        assert f"`{name}`" in rows or name in ("spa_epochs_2", "spa_epochs_3", "spa_epochs_4"), name
