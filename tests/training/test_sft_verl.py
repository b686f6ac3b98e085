"""Finetuning by verl, around a stand-in: what it is given, and what is made of what it leaves."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conf.schema import Config
from steps.errors import CheckpointError, ConfigError, StageError
from steps.tracking import NullTracker
from steps.training import sft_verl
from steps.training.checkpoints import CheckpointStore, DirectoryCheckpoints
from steps.training.machine import Gpu, Machine
from steps.training.sft_verl import command, largest_micro_batch, train_sft_verl
from steps.training.verl_launch import TrainerError
from steps.training.verl_preflight import NEEDED
from tests.training.llamas import untrained_llama
from tests.training.test_verl_sft_overrides import plan
from tests.training.toys import BreakingOff, PowerCutError, example, toy_config, untrained

GIB = 1 << 30
GPU = Gpu(name="toy", total=80 * GIB, free=80 * GIB)
MACHINE = Machine(gpus=(GPU, GPU), cpus=8, shared_memory=GIB, memory=GIB, versions=NEEDED)
ROWS = [example("A", "Left"), example("B", "Right"), example("A", "Right")] * 4


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return untrained_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put the stand-in in verl's place; call it with what FAKE_VERL is to say."""

    def fake_command(overrides: Sequence[str], num_gpus: int) -> list[str]:
        return [sys.executable, "-m", "tests.training.fake_verl", *overrides]

    def tell(**told: Any) -> None:
        monkeypatch.setenv("FAKE_VERL", json.dumps(told))

    monkeypatch.setattr(sft_verl, "command", fake_command)
    tell()
    return tell


def settings() -> Config:
    config = toy_config()
    config.sft.optimizer, config.sft.probe_puzzles = "adamw", 2
    config.sft.max_steps, config.sft.batch_size, config.sft.save_every = 50, 4, 10
    return config


def finetune(
    config: Config,
    source: str,
    work: Path,
    *,
    checkpoints: CheckpointStore | None = None,
    tracker: NullTracker | None = None,
    machine: Machine = MACHINE,
) -> dict[str, Any]:
    return train_sft_verl(
        config,
        ROWS,
        [example("B", "Left")],
        source=source,
        fingerprint="f",
        out_dir=work,
        tracker=tracker or NullTracker(),
        checkpoints=checkpoints or DirectoryCheckpoints(work / "store"),
        machine=machine,
    )


def test_the_result_is_that_of_the_local_backend(fake: Any, llama: str, tmp_path: Path) -> None:
    tracker = NullTracker()
    found = finetune(settings(), llama, tmp_path, tracker=tracker)
    assert (found["steps"], found["too_long"], found["parameters"]) == (50, 0, 30688)
    assert [point["step"] for point in found["curve"]] == [1, 21, 41, 50]
    first, last = found["curve"][0], found["curve"][-1]
    assert (first["sft/loss"], last["sft/loss"]) == (1.0, 0.02)
    assert first["sft/lr"] == pytest.approx(1e-2 / 5)  # the first of four warm-up steps
    assert (last["sft/validation_loss"], last["sft/validation_loss_answer"]) == (1.0, 2.0)
    assert "probe/success" in found["probe"]
    assert {step for step, _ in tracker.logged} == {1, 21, 41, 50}
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    assert written["dtype"] == "float32"
    assert "step:50" in (tmp_path / "verl_sft.log").read_text()
    newest = DirectoryCheckpoints(tmp_path / "store").newest("f")
    assert newest is not None and newest[0] == 40


def test_the_best_step_is_taken_where_the_settings_want_it(
    fake: Any, llama: str, tmp_path: Path
) -> None:
    fake(best=20)
    config = settings()
    config.sft.keep, config.sft.eval_every, config.sft.save_every = "best", 10, 0
    store = DirectoryCheckpoints(tmp_path / "store", keep_last=1)
    found = finetune(config, llama, tmp_path, checkpoints=store)
    assert (found["steps"], found["kept_step"], found["processes"]) == (50, 20, 1)
    judged = [point["step"] for point in found["curve"] if "sft/validation_loss" in point]
    assert judged == [10, 20, 30, 40, 50]
    assert store.at(20, "f") is not None and (tmp_path / "model/model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        (
            {"exit_after": {"23": 1}},
            TrainerError,
            r"after step 23, ended with exit code 1: ValueError: broken",
        ),
        ({"exit_after": {"23": -9}}, TrainerError, r"after step 23, was killed \(SIGKILL\)"),
        ({"steps": 30}, StageError, r"ended at step 30 of 50, its last checkpoint is of step 30"),
    ],
)
def test_a_training_that_breaks_off_says_so_and_goes_on_from_its_last_checkpoint(
    told: dict[str, Any],
    kind: type[Exception],
    words: str,
    fake: Any,
    llama: str,
    tmp_path: Path,
) -> None:
    fake(**told)
    store = DirectoryCheckpoints(tmp_path / "store")
    with pytest.raises(kind, match=words):
        finetune(settings(), llama, tmp_path / "one", checkpoints=store)
    fake()
    tracker = NullTracker()
    found = finetune(settings(), llama, tmp_path / "two", checkpoints=store, tracker=tracker)
    assert [point["step"] for point in found["curve"]] == [1, 21, 41, 50]
    begun_at = 30 if "steps" in told else 20
    assert min(step for step, _ in tracker.logged) > begun_at


def test_a_power_cut_ends_the_trainer_and_leaves_the_checkpoint(
    fake: Any, llama: str, tmp_path: Path
) -> None:
    store = BreakingOff(tmp_path / "store", last_step=20)
    with pytest.raises(PowerCutError):
        finetune(settings(), llama, tmp_path / "one", checkpoints=store)
    found = store.newest("f")
    assert found is not None and found[0] >= 20
    assert finetune(settings(), llama, tmp_path / "two", checkpoints=store)["steps"] == 50


def test_a_checkpoint_of_other_gpus_ends_it_before_it_starts(
    fake: Any, llama: str, tmp_path: Path
) -> None:
    store = BreakingOff(tmp_path / "store", last_step=20)
    with pytest.raises(PowerCutError):
        finetune(settings(), llama, tmp_path / "one", checkpoints=store)
    config = settings()
    config.verl.n_gpus_per_node = 2
    with pytest.raises(CheckpointError, match="written by 1 GPUs, and 2 train now"):
        finetune(config, llama, tmp_path / "two", checkpoints=store)
    assert not (tmp_path / "two" / "verl_sft.log").exists()


def test_sequences_that_gpus_cannot_share_are_refused_before_it_starts(
    fake: Any, llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings()
    config.verl.n_gpus_per_node = config.verl.sequence_parallel_size = 2
    with pytest.raises(ConfigError, match="sequence_parallel_size is 2: it needs flash-attn"):
        finetune(config, llama, tmp_path)
    monkeypatch.setattr(sft_verl, "installed", lambda: {"flash-attn": "2.8.3"})
    assert finetune(config, llama, tmp_path / "shared")["steps"] == 50
    config.verl.max_tokens_per_gpu = 3
    words = r"has 8 tokens, and a micro-batch holds 6: set verl\.max_tokens_per_gpu=4 or more"
    with pytest.raises(ConfigError, match=words):
        finetune(config, llama, tmp_path)
    config = settings()
    config.verl.n_gpus_per_node = config.verl.sequence_parallel_size = 4
    with pytest.raises(ConfigError, match="can't share out the model's 2 attention heads, 2 of"):
        finetune(config, llama, tmp_path)
    assert not (tmp_path / "verl_sft.log").exists()


def test_what_cannot_be_trained_is_refused_before_it_starts(
    fake: Any, llama: str, tmp_path: Path
) -> None:
    gpt2 = untrained(tmp_path / "gpt2", toy_config())
    with pytest.raises(ConfigError, match="can't train a gpt2"):
        finetune(settings(), gpt2, tmp_path)
    with pytest.raises(ConfigError, match="needs a CUDA GPU"):
        finetune(settings(), llama, tmp_path, machine=Machine())
    config = settings()
    config.verl.max_tokens_per_gpu = 3
    with pytest.raises(ConfigError, match=r"longest finetuning row has 8 tokens.*holds 3"):
        finetune(config, llama, tmp_path)
    config = settings()
    config.verl.n_gpus_per_node = 16
    config.sft.batch_size = 16
    with pytest.raises(ConfigError, match="12 finetuning rows can't be shared by 16 GPUs"):
        finetune(config, llama, tmp_path)
    assert not (tmp_path / "verl_sft.log").exists()


@pytest.mark.parametrize(
    ("verl", "tokens"),
    [
        ({}, 16384),
        ({"max_tokens_per_gpu": 100_000}, 16 * 1871),
        ({"dynamic_batches": False}, 8 * 1871),
        ({"dynamic_batches": False, "n_gpus_per_node": 4}, 4 * 1871),
        # Eight GPUs of which four share each sequence: 16 rows on two ranks.
        ({"n_gpus_per_node": 8, "sequence_parallel_size": 4}, 8 * 1871 // 4),
        ({"max_tokens_per_gpu": 900, "n_gpus_per_node": 8, "sequence_parallel_size": 4}, 900),
        (
            {"dynamic_batches": False, "n_gpus_per_node": 8, "sequence_parallel_size": 4},
            8 * 1871 // 4,
        ),
    ],
)
def test_the_largest_micro_batch(verl: dict[str, Any], tokens: int) -> None:
    config = Config()
    for key, value in verl.items():
        setattr(config.verl, key, value)
    assert largest_micro_batch(config, plan(config)) == tokens


def test_torchrun_starts_a_process_for_each_gpu() -> None:
    found = command(["a=1"], 4)
    assert found[1:] == [
        *("-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc_per_node=4"),
        *("-m", "steps.training.verl_sft_driver", "a=1"),
    ]
