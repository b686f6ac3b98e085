"""PPO by verl on GPUs: the chain of stages, a kill and what follows, both backends on one batch.

A Llama of two million random weights plays FrozenLake; it starts in the time that verl takes, about
two minutes each. `-k one_gpu` needs one GPU, `-k two_gpus` two; `-k flash` needs flash-attn, too.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.schema import Config
from steps.evaluate import evaluate
from steps.filter_format import filter_format
from steps.policies.loading import load_model, load_tokenizer
from steps.ppo_train import ppo_train
from steps.selfplay_generate import selfplay_generate
from steps.settings import env_factory
from steps.sft_train import sft_train
from steps.storage import read_trajectories
from steps.tracking import NullTracker
from steps.training import ppo_verl, teacher_forced
from steps.training.checkpoints import DirectoryCheckpoints
from steps.training.machine import installed
from steps.training.probe import forced_rows
from steps.training.verl_common import ROOT
from steps.workers import Peers
from tests.training.toys import BreakingOff, PowerCutError
from tests.training.verl_parity import NUM_STEPS, compare, config_of, small_llama

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(560)]
FLASH = pytest.mark.skipif("flash-attn" not in installed(), reason="flash-attn isn't installed")
CUT_AT = 2
PATCHED = "Monkey patch _flash_attention_forward"
"""What verl says where rows are packed."""


def finetuned(config: Config, directory: Path) -> str:
    """The stages before PPO."""
    stage = {"tracker": NullTracker()}
    played = selfplay_generate(config, model_dir="", out_dir=directory / "selfplay", **stage)
    filter_format(
        config,
        trajectories=[directory / "selfplay" / played["file"]],
        out_dir=directory / "filtered",
        **stage,
    )
    result = sft_train(
        config,
        data_dir=directory / "filtered",
        model_dir=config.model.path,
        out_dir=directory / "sft",
        checkpoints=DirectoryCheckpoints(directory / "sft_checkpoints"),
        **stage,
    )
    return str(result["model"])


def trained(config: Config, model_dir: Path, directory: Path) -> dict[str, Any]:
    """PPO from a model; its checkpoints are in `kept`."""
    result: dict[str, Any] = ppo_train(
        config,
        model_dir=str(model_dir),
        out_dir=directory / "ppo",
        checkpoints=DirectoryCheckpoints(directory / "kept"),
        tracker=NullTracker(),
    )
    return result


def test_one_gpu_chain_kill_resume_and_parity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(small_llama(tmp_path / "initial"))
    model_dir = finetuned(config, tmp_path)
    dump = tmp_path / "dump"
    dump.mkdir()
    monkeypatch.setenv("SPA_TEST_DUMP", str(dump))
    prepare = partial(ppo_verl.prepare, trainer="tests.training.verl_dump:DumpingTrainer")
    monkeypatch.setattr(ppo_verl, "prepare", prepare)
    train = partial(
        ppo_train, config, model_dir=model_dir, out_dir=tmp_path / "ppo", tracker=NullTracker()
    )
    with pytest.raises(PowerCutError):
        train(checkpoints=BreakingOff(tmp_path / "kept", last_step=CUT_AT))
    result = train(checkpoints=DirectoryCheckpoints(tmp_path / "kept"))

    assert [point["step"] for point in result["curve"]] == [0, 1, 2, 3]
    before, *trained = result["curve"]
    assert "probe/success" in before and "probe/success" in trained[-1]
    for point in trained:
        assert point["rollout/probability_correlation"] > 0.999
    compare_forced(config, model_dir, before)
    seeds = [
        {each.env_seed for each in read_trajectories(dump / f"step_{step}.parquet")}
        for step in (1, 2, 3)
    ]
    assert all(len(each) == config.ppo.env_groups for each in seeds)
    assert len(set.union(*seeds)) == NUM_STEPS * config.ppo.env_groups
    report = evaluate(
        config,
        model_dirs={"after_sft": model_dir, "final": result["model"]},
        out_dir=tmp_path / "report",
        tracker=NullTracker(),
    )
    assert {"pass@1", "after_sft"} <= report["summary"].keys()
    compare(config, model_dir, dump, trained[0])


def compare_forced(config: Config, model_dir: str, probed: dict[str, float]) -> None:
    """Likelihoods of true answers by vLLM, against those of the model itself."""
    tokenizer = load_tokenizer(model_dir)
    rows = forced_rows(config, env_factory(config), tokenizer, longest=2047)
    torch.set_float32_matmul_precision("highest")
    wanted = teacher_forced.scores(Peers(), load_model(model_dir, device="cuda"), rows)
    found = {name: probed[f"probe/teacher_forced_{name}"] for name in wanted}
    print("teacher forced", found, wanted)
    for name, value in wanted.items():
        # A token that two choices share is either's.
        assert found[name] == pytest.approx(value, abs=1e-3 if name.endswith("_nll") else 0.05)


def test_two_gpus_shard_the_trainer_and_share_the_rollout(tmp_path: Path) -> None:
    model_dir = small_llama(tmp_path / "initial")
    config = config_of(model_dir, n_gpus_per_node=2, tensor_parallel_size=2)
    config = replace(config, ppo=replace(config.ppo, total_steps=2, probe_every=0))
    result = trained(config, model_dir, tmp_path)
    assert result["processes"] == 2
    assert [point["step"] for point in result["curve"]] == [1, 2]
    for point in result["curve"]:
        assert point["rollout/probability_correlation"] > 0.999
    kept = DirectoryCheckpoints(tmp_path / "kept").newest(result["fingerprint"])
    assert kept is not None
    shards = sorted(path.name for path in (kept[1] / "actor").glob("model_world_size_2_rank_*.pt"))
    assert len(shards) == 2
    first = load_model(str(model_dir)).state_dict()
    last = load_model(result["model"]).state_dict()
    assert first.keys() == last.keys()
    assert any(not torch.equal(first[name], last[name]) for name in first)


def test_two_gpus_as_two_hosts_of_a_ray_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the model on each host, the trainer over both."""
    from tests.training.ray_hosts import ray_cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef0123456789abcdef")
    model_dir = small_llama(tmp_path / "initial")
    config = config_of(model_dir, nnodes=2, n_gpus_per_node=1)
    config = replace(config, ppo=replace(config.ppo, total_steps=2, probe_every=0))
    with ray_cluster(2, tmp_path, cpus=8, gpus=1) as address:
        config = replace(config, verl=replace(config.verl, ray_address=address))
        result = trained(config, model_dir, tmp_path)
    assert result["processes"] == 2
    assert [point["step"] for point in result["curve"]] == [1, 2]
    assert all(point["rollout/probability_correlation"] > 0.999 for point in result["curve"])
    kept = DirectoryCheckpoints(tmp_path / "kept").newest(result["fingerprint"])
    assert kept is not None
    assert len(list((kept[1] / "actor").glob("model_world_size_2_rank_*.pt"))) == 2


def learn_by_flash(directory: Path, *, gpus: int) -> None:
    """Two steps in bfloat16 on packed rows, each sequence shared by all GPUs.

    vLLM's numbers of what it sampled are the trainer's: packed rows don't see each other, and
    weights of the second step are those of the first's update. Heads are 64 wide.
    """
    model_dir = small_llama(directory / "initial")
    config = config_of(
        model_dir, dtype="bfloat16", n_gpus_per_node=gpus, sequence_parallel_size=gpus
    )
    ppo = replace(config.ppo, total_steps=2, probe_every=0, kl_coef=0.01, entropy_coef=0.01)
    result = trained(replace(config, ppo=ppo), model_dir, directory)
    assert PATCHED in (directory / "ppo" / ppo_verl.LOG_FILE).read_text()
    first, second = result["curve"]
    for point in (first, second):
        print("correlation of probabilities", point["rollout/probability_correlation"])
        assert point["rollout/probability_correlation"] > 0.99
    assert 0 <= first["actor/reference_kl"] < 0.05
    before = load_model(str(model_dir)).state_dict()
    after = load_model(result["model"]).state_dict()
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)


@FLASH
def test_one_gpu_packs_sequences_by_flash_attention(tmp_path: Path) -> None:
    learn_by_flash(tmp_path, gpus=1)


@FLASH
def test_two_gpus_share_each_sequence_by_flash_attention(tmp_path: Path) -> None:
    learn_by_flash(tmp_path, gpus=2)


@pytest.mark.parametrize("history", ["single_turn"])
def test_one_gpu_turns_as_rows_and_adapters(tmp_path: Path, history: str) -> None:
    """Several sequences an episode; LoRA beside a critic and an anchor; the best step kept: one
    start for all.
    """
    model_dir = small_llama(tmp_path / "initial")
    config = config_of(model_dir)
    config = replace(
        config,
        model=replace(config.model, lora_rank=8, lora_alpha=16),
        prompt=replace(config.prompt, history=history),
        ppo=replace(
            config.ppo,
            total_steps=2,
            probe_every=1,
            keep="best",
            kl_coef=0.01,
            lr_schedule="cosine",
            advantage="bi_level",
        ),
    )
    result = trained(config, model_dir, tmp_path)
    curve = {point["step"]: point for point in result["curve"] if point["step"] > 0}
    assert list(curve) == [1, 2]
    assert 0 <= curve[1]["actor/reference_kl"] < 0.05
    assert all("probe/success" in point for point in curve.values())
    first = load_model(str(model_dir)).state_dict()
    last = load_model(result["model"]).state_dict()
    assert first.keys() == last.keys()
