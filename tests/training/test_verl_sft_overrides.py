"""Finetuning in verl's words, golden for each profile; after a change that is meant,
`python -m tests.training.test_verl_sft_overrides` writes them anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from conf import compose
from conf.schema import Config, VerlSection
from steps.errors import ConfigError
from steps.training.schedules import lr_scale, sft_warmup
from steps.training.verl_common import Kernels, environment, kernels, micro_batch, override
from steps.training.verl_sft_overrides import SFTPlan, to_verl_overrides
from tests.training.toys import verls_scale

GOLDEN = Path(__file__).parents[1] / "golden" / "verl"
PROFILES = ("single_gpu", "multi_gpu", "paper")


def plan(config: Config, **fields: Any) -> SFTPlan:
    given = {
        "model_dir": "/models/qwen",
        "train_file": Path("/run/work/train.parquet"),
        "validation_file": Path("/run/work/validation.parquet"),
        "directory": Path("/run/work/verl"),
        "steps": 1505,
        "batch_size": config.sft.batch_size,
        "max_length": 1871,
        "eval_every": 301,
        "save_every": config.sft.save_every,
        "num_gpus": config.verl.n_gpus_per_node,
        "kernels": Kernels(attention="sdpa", remove_padding=False),
    }
    return SFTPlan(**given | fields)


def text_of(profile: str) -> str:
    config = compose(env="frozenlake", profile=profile)
    return "\n".join(to_verl_overrides(config, plan(config))) + "\n"


def as_dict(config: Config, **fields: Any) -> dict[str, str]:
    overrides = to_verl_overrides(config, plan(config, **fields))
    pairs = dict(text.split("=", 1) for text in overrides)
    assert len(pairs) == len(overrides), "a key is given twice"
    return pairs


@pytest.mark.parametrize("profile", PROFILES)
def test_overrides_of_each_profile(profile: str) -> None:
    assert text_of(profile) == (GOLDEN / f"sft_{profile}.txt").read_text("utf-8")


def test_resuming_is_always_said() -> None:
    config = compose(profile="single_gpu")
    found = as_dict(config)
    assert found["trainer.resume_mode"] == "disable"
    assert found["trainer.resume_from_path"] == "null"
    begun = to_verl_overrides(config, plan(config), resume_from=Path("/run/resume/global_step_7"))
    assert "trainer.resume_mode=resume_path" in begun
    assert "trainer.resume_from_path=/run/resume/global_step_7" in begun


def test_without_a_limit_gradients_are_cut_to_nothing_that_they_reach() -> None:
    found = as_dict(compose(profile="single_gpu", overrides=["sft.max_grad_norm=0"]))
    assert float(found["optim.clip_grad"]) == 1e9


def test_adapters_are_asked_for_where_the_model_has_them() -> None:
    config = compose(profile="single_gpu", overrides=["model.lora_rank=8", "model.lora_alpha=16"])
    found = as_dict(config)
    assert (found["model.lora_rank"], found["model.lora_alpha"]) == ("8", "16")
    assert "model.lora_rank" not in as_dict(compose(profile="single_gpu"))


def test_what_is_never_done_is_minus_one() -> None:
    config = compose(profile="single_gpu", overrides=["sft.save_every=0"])
    found = as_dict(config, eval_every=0, validation_file=None)
    assert found["trainer.save_freq"] == found["trainer.test_freq"] == "-1"
    assert found["data.val_files"] == "null"


OWN = ["verl.sft_overrides=['engine.x=1','+y=[a,b]']", "verl.overrides=['critic.x=1']"]


def test_a_users_overrides_come_last_and_verbatim() -> None:
    config = compose(profile="single_gpu", overrides=OWN)
    assert to_verl_overrides(config, plan(config))[-2:] == ["engine.x=1", "+y=[a,b]"]


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 5, 19, 20])
def test_each_steps_learning_rate_is_that_of_the_local_backend(schedule: str, warmup: int) -> None:
    given = [f"sft.schedule={schedule}", f"sft.warmup_steps={warmup}", "sft.min_lr_ratio=0.1"]
    given += ["sft.warmup_ratio=0"]
    found = as_dict(compose(profile="single_gpu", overrides=given), steps=20)
    ours = [
        lr_scale(step, total_steps=20, warmup_steps=warmup, schedule=schedule, min_ratio=0.1)
        for step in range(20)
    ]
    assert [verls_scale(found, "optim", step) for step in range(20)] == pytest.approx(ours)


@pytest.mark.parametrize("experiment", ["spa", "spa_epochs_1", "spa_epochs_3", "spa_epochs_5"])
@pytest.mark.parametrize(("steps", "warmup"), [(1505, 150), (301, 30), (84, 8)])
def test_warm_up_is_a_share_of_the_steps_however_many_there_are(
    experiment: str, steps: int, warmup: int
) -> None:
    config = compose(profile="paper", experiment=experiment)
    assert sft_warmup(config.sft, steps) == warmup
    found = as_dict(config, steps=steps)
    scales = [verls_scale(found, "optim", step) for step in range(steps)]
    assert scales.index(1.0) == warmup
    assert found["optim.lr_warmup_steps"] == str(warmup + 1)


@pytest.mark.parametrize(
    "value",
    [
        *("/a/b-c_d.e", "with space", "a=b", "null", "12", "a,b", "[x]", "", "ünî"),
        *("it's", "back\\slash", "\\'", "end\\"),
    ],
)
def test_any_text_goes_through_hydras_grammar_unchanged(value: str) -> None:
    parsed = OverridesParser.create().parse_override(override("key", value))
    found = parsed.value()
    assert (found.text if hasattr(found, "text") else found) == value


def test_other_values_keep_their_types() -> None:
    parser = OverridesParser.create()
    for value in (None, True, False, 3, -1, 1e-06, 0.95, [0.9, 0.95], ["a", "b"]):
        assert parser.parse_override(override("key", value)).value() == value


@pytest.mark.parametrize(
    ("section", "has_flash_attn", "expected"),
    [
        ({}, True, ("flash_attention_2", True)),
        ({}, False, ("sdpa", False)),
        ({"remove_padding": "never"}, True, ("flash_attention_2", False)),
        ({"attention": "eager"}, True, ("eager", False)),
        ({"dtype": "float32"}, True, ("sdpa", False)),
        ({"remove_padding": "always"}, True, ("flash_attention_2", True)),
    ],
)
def test_rows_are_packed_only_where_the_kernels_keep_them_apart(
    section: dict[str, Any], has_flash_attn: bool, expected: tuple[str, bool]
) -> None:
    found = kernels(VerlSection(**section), has_flash_attn=has_flash_attn)
    assert (found.attention, found.remove_padding) == expected


@pytest.mark.parametrize(
    ("section", "has_flash_attn", "words"),
    [
        ({"attention": "flash_attention_2"}, False, "flash-attn isn't installed"),
        (
            {"attention": "flash_attention_2", "dtype": "float32"},
            True,
            "half precision alone, and verl.dtype is float32",
        ),
        ({"remove_padding": "always"}, False, "remove_padding=always needs flash-attn"),
        ({"attention": "sdpa", "remove_padding": "always"}, True, "verl.attention is sdpa"),
        ({"sequence_parallel_size": 2}, False, "sequence_parallel_size is 2"),
        ({"sequence_parallel_size": 2, "remove_padding": "never"}, True, "without padding"),
    ],
)
def test_what_needs_flash_attention_says_so(
    section: dict[str, Any], has_flash_attn: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        kernels(VerlSection(**section), has_flash_attn=has_flash_attn)


@pytest.mark.parametrize(("rows", "most", "size"), [(16, 8, 8), (12, 8, 6), (7, 4, 1), (3, 8, 3)])
def test_micro_batches_divide_a_gpus_share(rows: int, most: int, size: int) -> None:
    config = replace(Config(), verl=VerlSection(micro_batch_size_per_gpu=most))
    assert micro_batch(config, rows) == size


def test_the_trainer_finds_our_modules_and_the_callers(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = environment(Path("/run/metrics.jsonl"), {"PYTHONPATH": "/given", "HOME": "/home"})
    paths = found["PYTHONPATH"].split(":")
    assert paths[0] == str(root)
    assert str(tmp_path) in paths and paths[-1] == "/given"
    assert len(paths) == len(set(paths))
    assert found["VERL_FILE_LOGGER_PATH"] == "/run/metrics.jsonl" and found["HOME"] == "/home"


if __name__ == "__main__":
    for name in PROFILES:
        (GOLDEN / f"sft_{name}.txt").write_text(text_of(name), "utf-8")
