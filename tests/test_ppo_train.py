"""The stage `ppo_train`: bad settings fail at once, a whole run leaves a model and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import conf
from conf.schema import Config
from steps.errors import ConfigError, ModelError, StageError
from steps.policies.loading import load_model
from steps.ppo_train import ppo_train, probe_bounds
from steps.tracking import NullTracker
from steps.training.checkpoints import DirectoryCheckpoints
from tests.training.toys import BreakingOff, PowerCutError, finetuned, same_weights, toy_config


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return finetuned(tmp_path_factory.mktemp("ppo_train"), toy_config())


def run(config: Config, model_dir: str, directory: Path, **replaced: Any) -> dict[str, Any]:
    fields = {
        "out_dir": directory / "out",
        "checkpoints": DirectoryCheckpoints(directory / "checkpoints"),
        "tracker": NullTracker(),
    }
    return ppo_train(config, model_dir=model_dir, **fields | replaced)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("ppo.advantage", "turns", r"ppo.advantage.*did you mean 'turn'"),
        ("ppo.lr_schedule", "cosin", r"ppo.lr_schedule.*did you mean 'cosine'"),
        ("ppo.filter_ratio", 0.0, r"ppo.filter_ratio=0 leaves no group"),
        ("ppo.filter_ratio", 1.5, r"ppo.filter_ratio=1.5 is outside 0..1"),
        ("ppo.filter_by", "max", r"ppo.filter_by.*Known: std, std_rev"),
        ("ppo.optimizer", "adam", r"ppo.optimizer.*did you mean 'adamw'"),
        ("ppo.reward_norm", "mean_std", r"set ppo.reward_at=episode"),
        ("ppo.backend", "verl", r"ppo by verl: .*ppo.backend=local"),
        ("sampling.temperature", 0.0, r"sampling.temperature=0.0.*set temperature above 0"),
        ("sampling.top_p", 0.9, r"sampling.top_p=0.9; set temperature above 0 and top_p=1"),
        ("model.lora_rank", 8, r"set model.lora_rank=0"),
    ],
)
def test_a_bad_setting_is_one_clear_error_before_a_model_is_loaded(
    setting: str, value: Any, message: str, tmp_path: Path
) -> None:
    config = toy_config()
    section, name = setting.split(".")
    setattr(getattr(config, section), name, value)
    with pytest.raises(ConfigError, match=message):
        run(config, str(tmp_path / "no model"), tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_model_that_isnt_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model at .*nowhere"):
        run(toy_config(), str(tmp_path / "nowhere"), tmp_path)


def test_a_run_leaves_a_better_model_and_no_work_directory(model_dir: str, tmp_path: Path) -> None:
    config, tracker = toy_config(), NullTracker()
    config.ppo.save_every, config.ppo.probe_every = 8, 10
    result = run(config, model_dir, tmp_path, tracker=tracker)
    assert result["model"] == str(tmp_path / "out" / "model")
    assert (result["steps"], result["backend"], result["few_puzzles"]) == (20, "local", False)
    assert 0.4 < result["floor"] < 0.6 and result["ceiling"] is None  # two doors, no solver
    assert [point["step"] for point in result["curve"]] == list(range(21))
    assert [point["step"] for point in result["curve"] if "probe/success" in point] == [0, 10, 20]
    assert result["curve"][-1]["rollout/success"] > result["curve"][1]["rollout/success"] + 0.25
    assert not same_weights(load_model(result["model"]), load_model(model_dir))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model"]


def test_floor_and_ceiling_are_of_as_many_validation_puzzles_as_there_are() -> None:
    config = conf.compose(env="frozenlake_deterministic")
    config.ppo.probe_puzzles, config.env.max_actions, config.env.max_turns = 3, 15, 15
    bounds = probe_bounds(config)
    assert bounds["floor"] is not None
    assert 0 < bounds["floor"] < 1
    assert bounds["ceiling"] == 1.0  # without slip, 15 actions reach any goal of 16 cells
    config.env.kwargs["map"] = ["PG__", "____", "____", "____"]  # one puzzle alone
    assert probe_bounds(config) == {"floor": None, "ceiling": None}


def test_run_again_after_an_interruption_it_ends_as_if_there_had_been_none(
    model_dir: str, tmp_path: Path
) -> None:
    config = toy_config()
    config.ppo.total_steps, config.ppo.save_every = 5, 2
    whole = run(config, model_dir, tmp_path / "whole")
    with pytest.raises(PowerCutError):
        store = BreakingOff(tmp_path / "checkpoints", last_step=2)
        run(config, model_dir, tmp_path, checkpoints=store)
    again = run(config, model_dir, tmp_path)
    assert again["fingerprint"] == whole["fingerprint"]
    assert same_weights(load_model(again["model"]), load_model(whole["model"]))


def test_a_checkpoint_of_more_steps_than_planned_is_an_error(
    model_dir: str, tmp_path: Path
) -> None:
    class Ahead(DirectoryCheckpoints):
        def newest(self, fingerprint: str) -> tuple[int, Path] | None:
            found = super().newest(fingerprint)
            return found and (9, found[1])

    config = toy_config()
    config.ppo.total_steps, config.ppo.save_every = 2, 1
    run(config, model_dir, tmp_path)
    with pytest.raises(StageError, match="did 9 steps of 2"):
        run(config, model_dir, tmp_path, checkpoints=Ahead(tmp_path / "checkpoints"))


def test_a_time_limit_may_end_it_early(model_dir: str, tmp_path: Path) -> None:
    config = toy_config()
    config.ppo.time_limit_s = 1e-9
    assert run(config, model_dir, tmp_path)["steps"] == 1
