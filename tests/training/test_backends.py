"""Who trains: what is asked for, and what `auto` makes of model and machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import conf
from conf.schema import Config, ModelSection, SFTSection, VerlSection
from steps.errors import ConfigError
from steps.training import backends
from steps.training.backends import Facts, check_backends, choose_backend, signature
from steps.training.verl_preflight import NEEDED

LARGE = Facts(parameters=500_000_000, gpus=1, has_verl=True)
PRETRAINED = ModelSection(path="owner/name", from_scratch=False)


def config(*, backend: str = "auto", lora_rank: int = 0, **fields: Any) -> Config:
    given = {
        "model": replace(PRETRAINED, lora_rank=lora_rank),
        "sft": SFTSection(backend=backend),
        **fields,
    }
    return Config(**given)


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        (LARGE, "verl"),
        (replace(LARGE, parameters=99_999_999), "local"),
        (replace(LARGE, gpus=0), "local"),
        (replace(LARGE, has_verl=False), "local"),
    ],
)
def test_auto_takes_verl_for_a_large_model_where_it_can_run(found: Facts, chosen: str) -> None:
    assert choose_backend(config(), "sft", found) == chosen


def test_verl_may_keep_the_best_step() -> None:
    settings = config(sft=SFTSection(keep="best", eval_every=50))
    assert choose_backend(settings, "sft", LARGE) == "verl"


def test_auto_leaves_ppo_to_verl_for_larger_models_than_finetuning() -> None:
    found = replace(LARGE, parameters=135_000_000)
    assert choose_backend(config(), "sft", found) == "verl"
    assert choose_backend(config(), "ppo", found) == "local"
    assert choose_backend(config(), "ppo", replace(found, parameters=200_000_000)) == "verl"


@pytest.mark.parametrize(
    "fields",
    [{"sft": SFTSection(optimizer="muon")}, {"device": "cpu"}, {"model": ModelSection()}],
)
def test_auto_stays_local_where_verl_lacks_something(fields: dict[str, Any]) -> None:
    assert choose_backend(config(**fields), "sft", LARGE) == "local"


def test_a_llama_from_scratch_can_be_trained_by_verl_and_is_too_small_for_auto() -> None:
    llama = ModelSection(architecture="llama")
    assert choose_backend(config(backend="verl", model=llama), "sft", LARGE) == "verl"
    found = replace(LARGE, parameters=100_000)
    assert choose_backend(config(model=llama), "sft", found) == "local"


def test_what_is_asked_for_is_taken() -> None:
    nothing = Facts(parameters=0, gpus=0, has_verl=False)
    assert choose_backend(config(backend="verl"), "sft", nothing) == "verl"
    assert choose_backend(config(backend="local"), "sft", LARGE) == "local"
    assert choose_backend(config(lora_rank=8), "sft", nothing) == "verl"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"backend": "verl", "device": "cpu"}, "sft by verl: device is cpu"),
        ({"backend": "verl", "model": ModelSection()}, "is a GPT-2, which it can't train"),
        ({"sft": SFTSection(backend="verl", optimizer="muon")}, "sft.optimizer is muon"),
        ({"backend": "local", "lora_rank": 8}, r"lora_rank is 8.*sft\.backend=verl"),
        ({"lora_rank": 8, "device": "cpu"}, "verl alone trains, and device is cpu"),
        (
            {"backend": "verl", "verl": VerlSection(n_gpus_per_node=3)},
            "sft.batch_size=16 can't be shared evenly by 3 GPUs",
        ),
        (
            {"backend": "verl", "verl": VerlSection(n_gpus_per_node=3, sequence_parallel_size=2)},
            "3 isn't a multiple of verl.sequence_parallel_size=2",
        ),
        ({"backend": "verk"}, "did you mean 'verl'"),
    ],
)
def test_what_a_trainer_cant_do_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_backend(config(**fields), "sft", LARGE)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("trainer.total_training_steps=9", "set sft.max_steps or sft.epochs"),
        ("data.train_batch_size=9", "batch for batch"),
        ("optim.lr=1e-4", "set sft.lr,"),
        ("checkpoint.save_contents=[model]", "leave it whole"),
        ("trainer.logger=[console]", "leaves out file"),
        ("trainer.logger=[file,wandb]", ""),
        ("data.num_workers=2", ""),
        ("model.use_liger=True", ""),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "verl", "local"])
def test_what_finetuning_cannot_be_told_is_refused_but_by_the_local_backend(
    told: str, words: str, backend: str
) -> None:
    settings = config(backend=backend, verl=VerlSection(sft_overrides=[told]))
    if not words or backend == "local":
        assert choose_backend(settings, "sft", LARGE) in ("verl", "local")
        return
    said = f"sft by verl: {told.split('=')[0]} among verl.sft_overrides .*{words}"
    with pytest.raises(ConfigError, match=said):
        choose_backend(settings, "sft", LARGE)


def test_what_ppo_by_verl_lacks_is_refused_when_the_run_starts() -> None:
    overrides = ["prompt.style=full", "prompt.history=full", "ppo.advantage=token"]
    overrides += ["ppo.loss_on=all", "ppo.backend=verl", "ppo.lr_schedule=constant"]
    found = conf.compose(model="tiny_llama", overrides=overrides)
    with pytest.raises(ConfigError, match="ppo by verl: it learns sampled tokens alone"):
        check_backends(found)


def test_ppo_on_a_ray_cluster_needs_no_gpu_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends, "visible_gpus", lambda: 0)
    monkeypatch.setattr(backends, "installed", lambda: dict(NEEDED))
    overrides = ["sft.backend=local", "ppo.backend=verl", "device=auto"]
    model = "qwen2.5-0.5b"
    alone = conf.compose(profile="single_gpu", model=model, overrides=overrides)
    with pytest.raises(ConfigError, match="needs a CUDA GPU"):
        check_backends(alone)
    overrides.append("verl.ray_address=10.0.0.1:6379")
    check_backends(conf.compose(profile="single_gpu", model=model, overrides=overrides))
    overrides.append("sft.backend=verl")  # finetuning is of this machine
    with pytest.raises(ConfigError, match="needs a CUDA GPU"):
        check_backends(conf.compose(profile="single_gpu", model=model, overrides=overrides))


def test_a_local_run_needs_a_gpu_when_it_starts_and_one_on_a_cluster_doesnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends, "visible_gpus", lambda: 0)
    with pytest.raises(ConfigError, match="needs a CUDA GPU"):
        check_backends(config(backend="verl"))
    check_backends(config(backend="verl", cluster="kubernetes"))
    monkeypatch.setattr(backends, "visible_gpus", lambda: 1)
    monkeypatch.setattr(backends, "installed", lambda: {"verl": "0.8.0"})
    with pytest.raises(ConfigError, match=r"verl 0\.8\.0 \(needed: 0\.9\.1\)"):
        check_backends(config(backend="verl"))


def test_a_fingerprint_knows_who_trained_and_with_which_overrides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends, "installed", lambda: {"verl": "0.9.1"})
    settings = config(verl=VerlSection(overrides=["a=1", "b=2"], sft_overrides=["c=3"]))
    assert signature(settings, "ppo", "local") == "local"
    assert signature(settings, "ppo", "verl") == "verl 0.9.1 bfloat16 a=1 b=2"
    assert signature(settings, "sft", "verl") == "verl 0.9.1 bfloat16 c=3"
