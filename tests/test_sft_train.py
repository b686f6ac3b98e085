"""The stage `sft_train`: bad settings fail at once, the gate holds, nothing superfluous is left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conf.schema import Config
from steps import sft_train as stage
from steps import storage
from steps.agent.records import SFTExample
from steps.errors import ConfigError, DataError, ModelError, StageError
from steps.policies.loading import load_model
from steps.sft_train import sft_train
from steps.storage import TRAIN_FILE, VALIDATION_FILE
from steps.tracking import NullTracker
from steps.training.checkpoints import DirectoryCheckpoints
from tests.training.toys import (
    BreakingOff,
    PowerCutError,
    example,
    same_weights,
    toy_config,
    undecided_examples,
)


def run(
    config: Config,
    directory: Path,
    *,
    model_dir: str = "",
    examples: Sequence[SFTExample] | None = None,
    **replaced: Any,
) -> dict[str, Any]:
    data = directory / "data"
    storage.write_examples(
        data / TRAIN_FILE, undecided_examples() if examples is None else examples
    )
    storage.write_examples(data / VALIDATION_FILE, [example("A", "Left", split="validation")])
    fields = {
        "data_dir": data,
        "model_dir": model_dir,
        "out_dir": directory / "out",
        "checkpoints": DirectoryCheckpoints(directory / "checkpoints"),
        "tracker": NullTracker(),
    }
    return sft_train(config, **fields | replaced)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("sft.state_loss", "masked", r"sft.state_loss.*did you mean 'mask'"),
        ("sft.schedule", "linear", r"sft.schedule.*Known: constant, cosine"),
        ("sft.keep", "best", r"set sft.eval_every"),
        ("sft.backend", "verl", r"sft by verl: .*sft.backend=local"),
        ("sft.backend", "locale", r"sft.backend.*did you mean 'local'"),
        ("model.lora_rank", 8, r"model.lora_rank is 8.*set model.lora_rank=0"),
        ("model.from_scratch", False, r"has no path and isn't built from scratch"),
    ],
)
def test_a_bad_setting_is_one_clear_error_before_a_model_is_built(
    setting: str, value: Any, message: str, tmp_path: Path
) -> None:
    config = toy_config()
    section, name = setting.split(".")
    setattr(getattr(config, section), name, value)
    with pytest.raises(ConfigError, match=message):
        run(config, tmp_path)
    assert not (tmp_path / "out").exists()


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{TRAIN_FILE} is missing"):
        run(toy_config(), tmp_path, data_dir=tmp_path / "nowhere")


def test_data_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no rows"):
        run(toy_config(), tmp_path, examples=[])


def test_a_directory_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ModelError, match=r"missing config.json, tokenizer_config.json"):
        run(toy_config(), tmp_path, model_dir=str(tmp_path / "model"))


def test_the_result_names_a_model_and_leaves_no_work_directory(tmp_path: Path) -> None:
    config = toy_config()
    config.sft.save_every, config.sft.min_format_rate = 15, 0.9
    result = run(config, tmp_path)
    assert result["model"] == str(tmp_path / "out" / "model")
    assert (result["steps"], result["rows"], result["backend"]) == (40, 32, "local")
    assert result["probe"]["probe/format_rate"] >= 0.9
    assert result["parameters"] == sum(p.numel() for p in load_model(result["model"]).parameters())
    assert result["few_puzzles"] is False
    assert not (tmp_path / "out" / "work").exists()


def test_the_gate_refuses_a_model_whose_answers_are_malformed(tmp_path: Path) -> None:
    config = toy_config()
    config.sft.max_steps, config.sft.min_format_rate = 1, 0.5
    with pytest.raises(StageError, match=r"0\.0% of the answers.*min_format_rate=50\.0%"):
        run(config, tmp_path)


def test_without_a_probe_there_is_no_gate(tmp_path: Path) -> None:
    config = toy_config()
    config.sft.max_steps, config.sft.min_format_rate, config.sft.probe_puzzles = 1, 1.0, 0
    assert run(config, tmp_path)["probe"] == {}


def test_run_again_after_an_interruption_it_ends_as_if_there_had_been_none(
    tmp_path: Path,
) -> None:
    config = toy_config()
    config.sft.save_every = 10
    whole = run(config, tmp_path / "whole")
    store = BreakingOff(tmp_path / "checkpoints", last_step=20)
    with pytest.raises(PowerCutError):
        run(config, tmp_path, checkpoints=store)
    again = run(config, tmp_path)
    assert again["fingerprint"] == whole["fingerprint"]
    assert same_weights(load_model(again["model"]), load_model(whole["model"]))
    assert again["probe"] == whole["probe"]


def test_other_data_does_not_take_up_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config()
    config.sft.save_every, config.sft.max_steps = 2, 4
    first = run(config, tmp_path)
    found = DirectoryCheckpoints(tmp_path / "checkpoints").newest(first["fingerprint"])
    assert found is not None and found[0] == 2
    other = run(config, tmp_path, examples=undecided_examples(16))
    assert other["fingerprint"] != first["fingerprint"]
    assert [point["step"] for point in other["curve"]] == [1, 4]


def test_another_seed_gives_another_initial_model(tmp_path: Path) -> None:
    one, other = toy_config(), toy_config()
    other.seed = 1
    models = [
        stage.resolve_model(config, "", tmp_path / str(config.seed)) for config in (one, other)
    ]
    assert not same_weights(*map(load_model, models))


def test_the_plain_arms_leave_a_pretrained_model_as_it_is(tmp_path: Path) -> None:
    first = run(toy_config(), tmp_path / "first")
    config = toy_config()
    config.model.from_scratch, config.sft.target, config.sft.min_format_rate = False, "format", 0.0
    config.sft.max_length = 1  # no row is so short, and none is read
    result = run(config, tmp_path / "second", model_dir=first["model"])
    assert (result["steps"], result["rows"], result["too_long"]) == (0, 0, 0)
    assert same_weights(load_model(first["model"]), load_model(result["model"]))
