"""Finetuning by verl on real GPUs, with random models: no network.

`pytest -m gpu tests/training/test_sft_verl_gpu.py`, where the gpu extra is installed; `-k flash` is
what needs flash-attn besides.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conf import compose
from conf.schema import Config, ModelSection
from steps.errors import CheckpointError
from steps.filter_format import filter_format
from steps.selfplay_generate import selfplay_generate
from steps.sft_train import sft_train
from steps.tracking import NullTracker
from steps.training.checkpoints import DirectoryCheckpoints
from steps.training.machine import installed
from tests.training.llamas import untrained_llama
from tests.training.test_sft_verl_cpu import (
    finetune,
    held_out_losses,
    local_losses,
    losses_of,
    settings,
)
from tests.training.toys import BreakingOff, PowerCutError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(540),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
FLASH = pytest.mark.skipif("flash-attn" not in installed(), reason="flash-attn isn't installed")
PATCHED = "Monkey patch _flash_attention_forward in transformers.integrations.flash_attention"
"""What verl says where rows are packed."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return untrained_llama(tmp_path_factory.mktemp("llama"))


def on_gpu(*, gpus: int = 1, strategy: str = "fsdp", **sft: Any) -> Config:
    config = settings(**sft)
    config.device = "cuda"
    config.verl.n_gpus_per_node, config.verl.strategy = gpus, strategy
    config.verl.dtype, config.verl.sft_overrides = "bfloat16", []
    return config


def large_llama(directory: Path) -> str:
    """The shape of SmolLM2-135M, random, with the toys' tokens."""
    section = ModelSection(
        architecture="llama",
        hidden_size=576,
        num_layers=30,
        num_heads=9,
        ffn_size=1536,
        max_positions=2048,
        init_std=0.02,
    )
    return untrained_llama(directory, section, vocab_size=49152, num_key_value_heads=3)


def test_a_large_model_learns_the_smoke_data_in_its_stage(tmp_path: Path) -> None:
    source = large_llama(tmp_path / "large")
    trained = "device=cuda sft.backend=verl sft.lr=5e-4 sft.max_steps=40 sft.batch_size=8"
    played = "selfplay.policy=random generation.engine=hf sampling.max_model_len=2048"
    config = compose(
        profile="smoke",
        model=source,
        overrides=[*trained.split(), *played.split(), "sft.save_every=20"],
    )
    tracker = NullTracker()
    out = tmp_path / "data"
    episodes = selfplay_generate(config, model_dir=source, out_dir=out, tracker=tracker)
    files = [out / episodes["file"]]
    filter_format(config, trajectories=files, out_dir=out, tracker=tracker)
    found = sft_train(
        config,
        data_dir=out,
        model_dir=source,
        out_dir=tmp_path / "out",
        checkpoints=DirectoryCheckpoints(tmp_path / "store"),
        tracker=tracker,
    )
    assert (found["backend"], found["steps"]) == ("verl", 40)
    assert found["parameters"] > 100_000_000
    first, last = found["curve"][0], found["curve"][-1]
    assert first["sft/loss"] > 8  # ln 49152 is 10.8
    assert last["sft/loss"] < 3 and last["sft/validation_loss"] < 3
    assert first["perf/max_memory_allocated_gb"] > 1
    assert "probe/success" in found["probe"]
    assert json.loads((tmp_path / "out/model/config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize(
    ("strategy", "dtype", "tolerance"),
    [("fsdp", "bfloat16", 3e-2), ("fsdp2", "bfloat16", 3e-2), ("fsdp", "float16", 1e-2)],
)
def test_losses_follow_the_local_backends_within_the_precision(
    strategy: str, dtype: str, tolerance: float, llama: str, tmp_path: Path
) -> None:
    config = on_gpu(strategy=strategy)
    config.verl.dtype = dtype
    found = finetune(config, llama, tmp_path, machine=None)
    wanted, last = local_losses(config, llama, tmp_path / "local")
    assert losses_of(tmp_path) == pytest.approx(wanted, rel=tolerance)
    told = {key: value for key, value in last.items() if "validation" in key}
    assert {key: found["curve"][-1][key] for key in told} == pytest.approx(told, rel=tolerance)


def test_a_cut_off_training_ends_where_an_uncut_one_does(llama: str, tmp_path: Path) -> None:
    config = on_gpu(max_steps=30, save_every=5)
    finetune(config, llama, tmp_path / "whole", machine=None)
    store = BreakingOff(tmp_path / "store", last_step=10)
    try:
        finetune(config, llama, tmp_path / "one", store, machine=None)
    except PowerCutError:
        pass
    else:
        # The toy was faster than the keeper, which then kept a later step.
        assert store.newest("f") is not None
    newest = store.newest("f")
    assert newest is not None
    finetune(config, llama, tmp_path / "two", store, machine=None)
    resumed = losses_of(tmp_path / "two")
    assert len(resumed) == 30 - newest[0]
    uncut = losses_of(tmp_path / "whole")[newest[0] :]
    assert resumed == pytest.approx(uncut, rel=1e-2, abs=1e-3)


def test_adapters_are_trained_and_folded_into_the_model(llama: str, tmp_path: Path) -> None:
    config = on_gpu(lr=3e-2)
    config.model = replace(config.model, lora_rank=4, lora_alpha=8)
    found = finetune(config, llama, tmp_path, machine=None)
    last = found["curve"][-1]
    losses = held_out_losses(config, found["model"])
    assert {key: last[key] for key in losses} == pytest.approx(losses, rel=3e-2)
    assert last["sft/loss"] < 0.9 * found["curve"][0]["sft/loss"]


def follow_by_flash(config: Config, work: Path) -> None:
    """With heads of a width that the kernels have."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    source = untrained_llama(work / "llama", **heads)
    found = finetune(config, source, work, machine=None)
    wanted, last = local_losses(config, source, work / "local")
    assert losses_of(work) == pytest.approx(wanted, rel=3e-2, abs=1e-3)
    told = {key: value for key, value in last.items() if "validation" in key}
    assert {key: found["curve"][-1][key] for key in told} == pytest.approx(told, rel=3e-2)
    assert PATCHED in (work / "verl_sft.log").read_text()


@FLASH
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_losses_by_flash_attention_follow_the_local_backends(strategy: str, tmp_path: Path) -> None:
    """Rows are packed into one sequence."""
    follow_by_flash(on_gpu(strategy=strategy), tmp_path)


@FLASH
@TWO_GPUS
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_two_gpus_share_each_sequence_by_flash_attention(strategy: str, tmp_path: Path) -> None:
    config = on_gpu(gpus=2, strategy=strategy)
    config.verl.sequence_parallel_size = 2
    follow_by_flash(config, tmp_path)


@TWO_GPUS
def test_two_gpus_share_each_batch_and_dont_take_one_gpus_checkpoint(
    llama: str, tmp_path: Path
) -> None:
    config = on_gpu(gpus=2, max_steps=30, save_every=5)
    store = DirectoryCheckpoints(tmp_path / "store")
    finetune(config, llama, tmp_path / "two", store, machine=None)
    wanted, _ = local_losses(config, llama, tmp_path / "local")
    assert losses_of(tmp_path / "two") == pytest.approx(wanted, rel=3e-2, abs=1e-3)
    if store.newest("f") is not None:
        with pytest.raises(CheckpointError, match="written by 2 GPUs, and 1 train now"):
            finetune(on_gpu(max_steps=30), llama, tmp_path / "one", store, machine=None)
