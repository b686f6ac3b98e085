"""The stage around verl's program, with a program that trains nothing: resume, best, failures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from conf.schema import Config
from steps.errors import CheckpointError, ConfigError, StageError
from steps.tracking import NullTracker
from steps.training import ppo_verl
from steps.training.checkpoints import DirectoryCheckpoints
from steps.training.verl_launch import MISTAKE, TrainerError
from steps.training.verl_model import mend_config
from tests.training.toys import BreakingOff, PowerCutError, toy_config, untrained


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return untrained(tmp_path_factory.mktemp("model"), toy_config())


@pytest.fixture(autouse=True)
def fake_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_verl, "DRIVER", "tests.training.fake_verl_driver")
    monkeypatch.setattr(ppo_verl, "_check", lambda *_: None)  # there is no GPU


def config_of(*, num_gpus: int = 1, **ppo: Any) -> Config:
    config = toy_config()
    section = replace(config.ppo, total_steps=5, save_every=1, env_groups=2, minibatch_size=4)
    return replace(
        config,
        ppo=replace(section, **{"probe_every": 1, **ppo}),
        verl=replace(config.verl, n_gpus_per_node=num_gpus),
    )


def train(config: Config, model_dir: str, directory: Path, store: Any = None) -> dict[str, Any]:
    return ppo_verl.train_ppo_verl(
        config,
        model_dir=model_dir,
        fingerprint="f",
        out_dir=directory / "out",
        tracker=NullTracker(),
        checkpoints=store or DirectoryCheckpoints(directory / "kept"),
    )


def weights(result: dict[str, Any]) -> float:
    return float(load_file(Path(result["model"]) / "model.safetensors")["step"][0])


def test_the_last_actor_is_the_model_and_checkpoints_are_no_training(
    model_dir: str, tmp_path: Path
) -> None:
    result = train(config_of(), model_dir, tmp_path)
    assert weights(result) == 5.0
    assert (result["steps"], result["kept_step"], result["processes"]) == (5, 5, 1)
    assert result["seconds"] == 5 * 1.5
    assert [point["step"] for point in result["curve"]] == [0, 1, 2, 3, 4, 5]
    assert result["curve"][2]["ppo/seconds"] == 3.0


def test_the_curve_begins_with_a_probe_of_the_model_as_it_came(
    model_dir: str, tmp_path: Path
) -> None:
    result = train(config_of(), model_dir, tmp_path)
    before = {"step": 0, "ppo/seconds": 0.0, "probe/success": 2.0, "timing_s/probe": 3.0}
    assert result["curve"][0] == before
    without = train(config_of(probe_every=0), model_dir, tmp_path / "without")
    assert [point["step"] for point in without["curve"]] == [1, 2, 3, 4, 5]


def test_the_models_configuration_is_of_its_weights_and_not_of_its_training(
    model_dir: str, tmp_path: Path
) -> None:
    directory = Path(train(config_of(), model_dir, tmp_path)["model"])
    assert json.loads((directory / "config.json").read_text())["dtype"] == "float32"
    weights = {"w": torch.zeros(2, dtype=torch.bfloat16)}
    save_file(weights, directory / "model.safetensors")
    told = {"torch_dtype": "float32", "a": 1, "attn_implementation": "flash_attention_2"}
    (directory / "config.json").write_text(json.dumps(told))
    mend_config(directory)
    assert json.loads((directory / "config.json").read_text()) == {"a": 1, "dtype": "bfloat16"}


def test_a_training_that_was_cut_off_goes_on_from_its_checkpoint(
    model_dir: str, tmp_path: Path
) -> None:
    with pytest.raises(PowerCutError):
        train(config_of(), model_dir, tmp_path, BreakingOff(tmp_path / "kept", last_step=3))
    result = train(config_of(), model_dir, tmp_path)
    assert [point["step"] for point in result["curve"]] == [0, 1, 2, 3, 4, 5]
    assert (weights(result), result["seconds"]) == (5.0, 7.5)


def test_a_finished_training_is_not_begun_again(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config_of(), model_dir, tmp_path)
    monkeypatch.setattr(ppo_verl, "DRIVER", "no.such.module")
    again = train(
        config_of(), model_dir, tmp_path / "elsewhere", DirectoryCheckpoints(tmp_path / "kept")
    )
    assert (weights(again), again["steps"]) == (5.0, 5)


def test_the_best_of_the_probes_is_kept_where_it_is_wanted(model_dir: str, tmp_path: Path) -> None:
    result = train(config_of(keep="best"), model_dir, tmp_path)
    assert (weights(result), result["kept_step"], result["steps"]) == (2.0, 2, 5)


def test_checkpoints_of_earlier_steps_are_removed_once_the_store_has_a_later_one(
    model_dir: str, tmp_path: Path
) -> None:
    train(config_of(), model_dir, tmp_path)
    left = {path.name for path in (tmp_path / "out/work/checkpoints").iterdir()}
    assert left == {"global_step_5"}


def test_a_step_whose_weights_are_gone_here_is_taken_from_the_store(tmp_path: Path) -> None:
    store = DirectoryCheckpoints(tmp_path / "kept")
    run = ppo_verl.VerlRun(
        config=config_of(), directory=tmp_path / "verl", checkpoints=store, fingerprint="f"
    )
    weights_file = tmp_path / "verl/global_step_2" / ppo_verl.MODEL / "model.safetensors"
    weights_file.parent.mkdir(parents=True)
    weights_file.write_bytes(b"weights")
    assert ppo_verl._directory_of(run, 2) == tmp_path / "verl/global_step_2"
    store.save(tmp_path / "verl/global_step_2", step=2, fingerprint="f")
    weights_file.unlink()
    assert ppo_verl._directory_of(run, 2) == store.at(2, "f")


def test_a_steps_learning_rate_is_that_of_its_own_updates(model_dir: str, tmp_path: Path) -> None:
    """verl tells the next step's."""
    config = config_of(lr=1.0, lr_schedule="constant", warmup_steps=3, critic_warmup=0)
    result = train(config, model_dir, tmp_path)
    assert [point["actor/lr"] for point in result["curve"][1:]] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_program_that_fails_says_after_which_step_and_why(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPA_FAKE_FAIL_AT", "3")
    said = r"(?s)after step 2, ended with exit code 3.*out of luck"
    with pytest.raises(TrainerError, match=said):  # a flow tries it again, from the checkpoint
        train(config_of(), model_dir, tmp_path)
    with pytest.raises(StageError, match=said):  # and not where it came to no step
        train(config_of(), model_dir, tmp_path)


def test_a_program_that_calls_its_failure_a_mistake_is_not_tried_again(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPA_FAKE_FAIL_AT", "3")
    monkeypatch.setenv("SPA_FAKE_FAIL_WITH", str(MISTAKE))
    with pytest.raises(StageError, match="after step 2"):
        train(config_of(), model_dir, tmp_path)


def test_a_checkpoint_of_another_number_of_gpus_is_refused(model_dir: str, tmp_path: Path) -> None:
    with pytest.raises(PowerCutError):
        train(config_of(), model_dir, tmp_path, BreakingOff(tmp_path / "kept", last_step=3))
    with pytest.raises(CheckpointError, match="written by 1 GPUs"):
        train(config_of(num_gpus=2), model_dir, tmp_path)


def test_settings_are_checked_before_the_machine(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"ppo by verl: ppo.lr_schedule=linear"):
        train(config_of(lr_schedule="linear"), model_dir, tmp_path)


def test_the_context_is_no_longer_than_the_models(model_dir: str, tmp_path: Path) -> None:
    config = config_of()
    config = replace(config, sampling=replace(config.sampling, max_model_len=9999))
    config.tracking.uri = "http://user:secret@host"
    run_file = ppo_verl.prepare(config, model_dir=model_dir, work=tmp_path)
    assert '"max_model_len": 24' in run_file.read_text()
    assert "secret" not in run_file.read_text()
