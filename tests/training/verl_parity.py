"""What the comparisons of both PPO backends share: a model, settings, and the comparison itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from conf import compose
from conf.schema import Config, ModelSection
from steps.storage import read_trajectories
from steps.training import ppo_update
from steps.training.ppo_batch import build_samples, fill_advantages
from steps.training.ppo_learner import build_learner
from steps.training.ppo_update import learn
from steps.training.tiny_model import build_tokenizer
from steps.workers import Peers
from tests.training.llamas import untrained_llama

NUM_STEPS = 3


def small_llama(directory: Path) -> Path:
    """Random weights; heads, groups and vocabulary divide by two."""
    section = ModelSection(
        architecture="llama",
        hidden_size=256,
        num_layers=3,
        num_heads=4,
        ffn_size=512,
        max_positions=2048,
        init_std=0.1,  # else all tokens are equally likely
    )
    vocab_size = -(-len(build_tokenizer()) // 64) * 64
    untrained_llama(
        directory, section, vocab_size=vocab_size, num_key_value_heads=2, tie_word_embeddings=False
    )
    return directory


def config_of(model_dir: Path, **verl: Any) -> Config:
    config = compose(
        env="frozenlake",
        profile="smoke",
        model=str(model_dir),
        overrides=[
            "device=cuda",
            "prompt.history=full",
            "prompt.response_format=answer_only",
            "selfplay.policy=random",
            "generation.engine=hf",
            "sampling.max_new_tokens=24",
            "sampling.max_model_len=2048",
            "sft.backend=local",
            "sft.max_steps=60",
            "sft.optimizer=adamw",
            "sft.lr=1e-3",
            "ppo.backend=verl",
            f"ppo.total_steps={NUM_STEPS}",
            "ppo.advantage=token",
            "ppo.env_groups=8",
            "ppo.group_size=4",
            "ppo.minibatch_size=32",
            "ppo.ppo_epochs=2",
            "ppo.lr=1e-4",
            "ppo.critic_lr=1e-4",
            "ppo.entropy_coef=0",
            "ppo.save_every=1",
            "ppo.probe_every=3",
            "ppo.probe_puzzles=4",
            "evaluation.puzzles=4",
            "evaluation.samples=2",
            "evaluation.pass_k=[1,2]",
            "evaluation.teacher_forced_puzzles=8",
        ],
    )
    section = {
        "gpu_memory_utilization": 0.3,
        "enforce_eager": True,
        "agent_workers": 2,
        "logprobs_every": 1,
        "dtype": "float32",
    }
    return replace(config, verl=replace(config.verl, **section | verl))


def compare(
    config: Config, model_dir: str, dump: Path, point: dict[str, float]
) -> dict[str, float]:
    """The first step's batch through the local backend, and its metrics."""
    found: dict[str, list[torch.Tensor]] = torch.load(dump / "step_1.pt", weights_only=True)
    trajectories = read_trajectories(dump / "step_1.parquet")
    learner = build_learner(Peers(), config, model_dir, "")
    torch.set_float32_matmul_precision("highest")  # as verl computes here
    samples = build_samples(trajectories, level="token", whole_episode=True)
    assert len(samples) == len(found["responses"])
    differences: dict[str, list[float]] = {"logprobs": [], "values": [], "advantages": []}
    values = list(ppo_update._values(learner, samples))
    logprobs = list(ppo_update._logprobs(learner, learner.actor.eval(), samples))
    sampled, told = [], []
    for row, sample in enumerate(samples):
        start = len(found["prompts"][row])
        mask = found["response_mask"][row] > 0
        ids = [*found["prompts"][row].tolist(), *found["responses"][row].tolist()]
        assert ids == list(sample.tokens.token_ids)
        assert mask.tolist() == [weight > 0 for weight in sample.tokens.loss_mask[start:]]
        assert np.allclose(found["rm_scores"][row][mask], sample.rewards)
        old = found["old_log_probs"][row][mask].numpy()
        mine = logprobs[row][start:].cpu()[mask].numpy()
        differences["logprobs"].append(float(np.abs(old - mine).max()))
        theirs = found["values"][row][mask].numpy()
        differences["values"].append(float(np.abs(theirs - values[row]).max()))
        sampled.append(found["rollout_log_probs"][row][mask].exp())
        told.append(torch.from_numpy(old).exp())
        sample.values = values[row]
        # The ratio's denominator is the trainer's there, and what was sampled here.
        all_old = torch.zeros(len(ids))
        all_old[start:] = found["old_log_probs"][row]
        sample.tokens = replace(sample.tokens, logprobs=tuple(all_old.tolist()))
    fill_advantages(samples, gamma=config.ppo.gamma, lam=config.ppo.lam)
    ppo_update._normalize(learner.peers, samples)
    for row, sample in enumerate(samples):
        mask = found["response_mask"][row] > 0
        theirs = found["advantages"][row][mask].numpy()
        differences["advantages"].append(float(np.abs(theirs - sample.advantages).max()))
    metrics = learn(learner, samples, 0)
    correlation = float(np.corrcoef(torch.cat(sampled), torch.cat(told))[0, 1])
    print("largest differences", {name: max(each) for name, each in differences.items()})
    print("correlation of probabilities", correlation)
    names = ("actor/loss", "critic/loss", "actor/grad_norm")
    print("losses", {name: (point.get(name), metrics[name]) for name in names if name in metrics})
    assert max(differences["logprobs"]) < 5e-3 and max(differences["values"]) < 1e-4
    assert max(differences["advantages"]) < 1e-4
    assert correlation > 0.999
    assert abs(point["actor/loss"] - metrics["actor/loss"]) < 1e-3
    assert abs(point["critic/loss"] - metrics["critic/loss"]) < 1e-3
    return metrics
