"""verl's own code against the local backend: the same losses, step for step, on CPU processes.

Needs verl 0.9.1 and Ray, no GPU: `make verl`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conf import compose
from conf.schema import Config
from steps.policies.loading import load_model, load_tokenizer
from steps.policies.model_directory import form
from steps.tracking import NullTracker
from steps.training import sft_verl
from steps.training.checkpoints import CheckpointStore, DirectoryCheckpoints, save_model
from steps.training.machine import Machine
from steps.training.sft_local import evaluate_loss, train_sft
from steps.training.tokenization import tokenize_sets
from steps.training.verl_sft_overrides import to_verl_overrides
from steps.workers import Peers
from tests.training.llamas import untrained_llama
from tests.training.test_sft_verl import MACHINE, ROWS
from tests.training.test_verl_sft_overrides import PROFILES, plan
from tests.training.toys import BreakingOff, PowerCutError, example, toy_config

pytestmark = pytest.mark.verl
HELD_OUT = [
    *(example("B", "Left"), example("A", "Left"), example("C", "Up Up Left"), example("B", "Up")),
    *(example("C", "Left"), example("A", "Up"), example("A", "Left Up Left Up")),
]
"""Two batches of unlike lengths, the second filled up."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return untrained_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sft_verl.command

    def command(overrides: Sequence[str], num_gpus: int) -> list[str]:
        words = real(overrides, num_gpus)
        return [
            "tests.training.verl_cpu" if word == "steps.training.verl_sft_driver" else word
            for word in words
        ]

    monkeypatch.setattr(sft_verl, "command", command)


def settings(**sft: Any) -> Config:
    config = toy_config()
    config.verl.strategy, config.verl.dtype = "fsdp2", "float32"
    config.verl.sft_overrides = ["trainer.device=cpu"]
    chosen = {
        "optimizer": "adamw",
        "probe_puzzles": 0,
        "max_steps": 10,
        "batch_size": 4,
        "save_every": 4,
        "eval_every": 5,
        "observation_weight": 0.5,
        "answer_weight": 0.25,  # weights that a mask of zeros and ones couldn't say
        "weight_decay": 0.1,
    }
    for name, value in (chosen | sft).items():
        setattr(config.sft, name, value)
    return config


def finetune(
    config: Config,
    source: str,
    work: Path,
    checkpoints: CheckpointStore | None = None,
    *,
    machine: Machine | None = MACHINE,
) -> dict[str, Any]:
    return sft_verl.train_sft_verl(
        config,
        ROWS,
        HELD_OUT,
        source=source,
        fingerprint="f",
        out_dir=work,
        tracker=NullTracker(),
        checkpoints=checkpoints or DirectoryCheckpoints(work / "store"),
        machine=machine,
    )


def losses_of(work: Path) -> list[float]:
    rows = map(json.loads, (work / "work" / "metrics.jsonl").read_text().splitlines())
    return [row["data"]["train/loss"] for row in rows if "train/loss" in row["data"]]


def local_losses(config: Config, source: str, work: Path) -> tuple[list[float], dict[str, float]]:
    config.sft.eval_every = 1  # logs every step
    tracker = NullTracker()
    run = train_sft(Peers(), config, ROWS, HELD_OUT, source, "f", work, tracker, None)
    return [metrics["sft/loss"] for _, metrics in tracker.logged], run.curve[-1]


def held_out_losses(config: Config, model_dir: str) -> dict[str, float]:
    """Of a model's directory, by the local backend's function."""
    tokenizer = load_tokenizer(model_dir)
    _, rows, _ = tokenize_sets([], HELD_OUT, tokenizer, config.sft, limit=512)
    model = load_model(model_dir, device=config.device)
    found: dict[str, float] = evaluate_loss(Peers(), model, rows, pad=tokenizer.pad_token_id)
    return found


@pytest.mark.parametrize(
    ("gpus", "sft"),
    [
        (1, {"schedule": "cosine"}),
        (2, {"schedule": "constant"}),
        (1, {"max_steps": 0, "epochs": 3, "batch_size": 5}),  # 12 rows: two are left out, each time
    ],
)
def test_losses_are_those_of_the_local_backend_step_for_step(
    gpus: int, sft: dict[str, Any], llama: str, tmp_path: Path
) -> None:
    config = settings(**sft)
    config.verl.n_gpus_per_node = gpus
    found = finetune(config, llama, tmp_path)
    wanted, last = local_losses(config, llama, tmp_path / "local")
    assert losses_of(tmp_path) == pytest.approx(wanted, rel=1e-4)
    assert wanted[-1] < 0.6 * wanted[0]
    told = {key: value for key, value in last.items() if "validation" in key or key == "sft/lr"}
    assert "sft/validation_loss_answer" in told
    assert {key: found["curve"][-1][key] for key in told} == pytest.approx(told, rel=1e-4)


def test_a_cut_off_training_ends_where_an_uncut_one_does(llama: str, tmp_path: Path) -> None:
    config = settings()
    whole = finetune(config, llama, tmp_path / "whole")
    store = BreakingOff(tmp_path / "store", last_step=4)
    with pytest.raises(PowerCutError):
        finetune(config, llama, tmp_path / "one", store)
    newest = store.newest("f")
    assert newest is not None
    again = finetune(config, llama, tmp_path / "two", store)
    assert len(losses_of(tmp_path / "two")) == 10 - newest[0]
    assert losses_of(tmp_path / "two") == losses_of(tmp_path / "whole")[newest[0] :]
    key = "sft/validation_loss"
    assert again["curve"][-1][key] == pytest.approx(whole["curve"][-1][key], rel=1e-6)


def test_a_model_that_verl_wrote_has_the_form_of_one_that_was_saved_by_us(
    llama: str, tmp_path: Path
) -> None:
    """PPO takes verl's directory over as it is, so that the two stand side by side in a run."""
    ours = form(finetune(settings(max_steps=2), llama, tmp_path)["model"])
    (theirs,) = (tmp_path / "work/verl").glob("global_step_2/huggingface")
    assert form(str(theirs)) == ours
    save_model(tmp_path / "local", load_model(llama), load_tokenizer(llama))
    assert form(str(tmp_path / "local")) == ours
    assert "attn_implementation" not in json.loads((theirs / "config.json").read_text())


@pytest.mark.parametrize("tied", [True, False])
def test_adapters_are_trained_and_folded_into_the_model(tied: bool, tmp_path: Path) -> None:
    source = untrained_llama(tmp_path / "source", tie_word_embeddings=tied)
    config = settings(lr=3e-2)
    config.model.lora_rank, config.model.lora_alpha = 4, 8
    found = finetune(config, source, tmp_path)
    last = found["curve"][-1]
    # Taken by verl with its adapters, and here from the folded weights.
    losses = held_out_losses(config, found["model"])
    assert {key: last[key] for key in losses} == pytest.approx(losses, rel=1e-3)
    assert last["sft/loss"] < 0.9 * found["curve"][0]["sft/loss"]
    before, after = load_model(source).state_dict(), load_model(found["model"]).state_dict()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed == {name for name in before if "_proj" in name}
    assert len(before) == len(after)


@pytest.mark.parametrize("profile", PROFILES)
def test_verl_takes_the_settings_of_each_profile(profile: str, llama: str) -> None:
    import hydra
    from verl.utils.config import omega_conf_to_dataclass

    config = compose(env="frozenlake", profile=profile)
    overrides = to_verl_overrides(config, plan(config, model_dir=llama))
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        found = hydra.compose("sft_trainer_engine", overrides)
    engine, optim = (omega_conf_to_dataclass(found[name]) for name in ("engine", "optim"))
    model = omega_conf_to_dataclass(found.model)
    assert (engine.strategy, engine.model_dtype) == ("fsdp", "fp32")
    assert (optim.lr, tuple(optim.betas), optim.clip_grad) == (1e-4, (0.9, 0.95), 1.0)
    assert (optim.lr_scheduler_type, optim.lr_warmup_steps) == ("cosine", 151)
    assert model.hf_config._attn_implementation == "sdpa"
    assert omega_conf_to_dataclass(found.checkpoint).save_contents[-1] == "hf_model"


def test_verl_finds_our_data_set(tmp_path: Path) -> None:
    from verl.utils.import_utils import load_extern_object

    found = dict(text.split("=", 1) for text in to_verl_overrides(settings(), plan(settings())))
    path, name = found["data.custom_cls.path"], found["data.custom_cls.name"]
    assert load_extern_object(path, name).__name__ == "TokenRowsDataset"
