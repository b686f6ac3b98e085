# ruff: noqa: E402 (verl may be missing)
"""One batch of episodes through both backends on a CPU: tokens, masks, rewards, advantages, losses.

First with the models' own numbers (log-probabilities, values) given to both, then with verl's
engines in a process of their own, each backend computing its own. `test_ppo_verl_gpu` has a GPU.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

import torch
from safetensors.torch import load_file
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, FSDPCriticConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.losses import value_loss as verl_value_loss

from benchmarks.update import nested
from conf.schema import Config
from steps.agent.records import Trajectory
from steps.agent.rollout import Episode, EpisodeSpec
from steps.settings import env_factory, rollout_settings
from steps.storage import write_trajectories
from steps.training import ppo_update, ppo_verl
from steps.training.losses import policy_loss, value_loss
from steps.training.ppo_batch import PPOSample
from steps.training.ppo_learner import Learner, build_learner
from steps.training.verl_advantages import Discounts, episode_advantages
from steps.training.verl_episode import Answer, Player, TrainedSequence, sequences, stop_ids
from steps.workers import Peers
from tests.training import verl_parity
from tests.training.toys import toy_config, untrained
from tests.training.verl_parity import small_llama


def parity_config() -> Config:
    config = toy_config()
    return replace(
        config,
        env=replace(config.env, id="frozenlake", max_turns=3, max_actions=6),
        prompt=replace(config.prompt, history="full", response_format="plain"),
        model=replace(config.model, max_positions=512),
        sampling=replace(config.sampling, max_new_tokens=8, max_model_len=512),
        ppo=replace(
            config.ppo, advantage="token", gamma=0.99, lam=0.95, filter_ratio=1.0, kl_coef=0.1
        ),
    )


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    config = parity_config()
    model_dir = untrained(tmp_path_factory.mktemp("model"), config)
    return build_learner(Peers(), config, model_dir, "")


@pytest.fixture(scope="module")
def played(learner: Learner) -> list[Trajectory]:
    return play(learner, num_groups=3)


def play(learner: Learner, *, num_groups: int, max_tokens: int = 8) -> list[Trajectory]:
    """Episodes that go on from the sampled ids, whatever they spell: each is one sequence."""
    config, rng = learner.config, torch.Generator().manual_seed(0)
    settings = rollout_settings(config, for_ppo=True)
    limit, make_env = max_tokens, env_factory(config)

    @torch.no_grad()
    async def generate(prompt_ids: list[int], *, max_tokens: int, never_stop: bool) -> Answer:
        ids, logprobs = list(prompt_ids), []
        while len(logprobs) < min(limit, max_tokens):
            scores = learner.actor(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(torch.multinomial(scores.exp(), 1, generator=rng)))
            logprobs.append(float(scores[ids[-1]]))
            if ids[-1] in stop_ids(learner.tokenizer):
                break
        return Answer(token_ids=tuple(ids[len(prompt_ids) :]), logprobs=tuple(logprobs))

    def one(group: int, member: int) -> Trajectory:
        spec = EpisodeSpec(
            env_seed=group, group=group, member=member, sampling_seed=9 * group + member
        )
        player = Player(
            tokenizer=learner.tokenizer,
            generate=generate,
            sampling=settings.sampling,
            max_model_len=config.sampling.max_model_len,
        )
        return asyncio.run(
            player.play(lambda: Episode(0, spec, make_env(), settings), config.env.id)
        )

    learner.actor.eval()
    return [one(group, member) for group in range(num_groups) for member in range(2)]


def padded(rows: list[Any]) -> torch.Tensor:
    return nested(rows).to_padded_tensor(0.0)


def test_tokens_masks_and_rewards_are_equal(learner: Learner, played: list[Trajectory]) -> None:
    samples, _ = ppo_update.estimate(learner, played)
    for trajectory, sample in zip(played, samples, strict=True):
        (found,) = sequences(trajectory, learner.config.ppo, history="full")
        start = len(found.prompt_ids)
        assert (*found.prompt_ids, *found.response_ids) == sample.tokens.token_ids
        assert [*([0] * start), *found.response_mask] == list(sample.tokens.loss_mask)
        assert [*([0.0] * start), *found.logprobs] == list(sample.tokens.logprobs)
        rewards = [
            reward for reward, mask in zip(found.rewards, found.response_mask, strict=True) if mask
        ]
        assert rewards == list(sample.rewards)


class Both:
    """The batch as each backend holds it, with the same values and log-probabilities."""

    def __init__(self, learner: Learner, played: list[Trajectory]) -> None:
        rng = np.random.default_rng(0)
        self.section = learner.config.ppo
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ppo_update, "_values", lambda _, samples: iter(self.values_of(samples)))
            self.rng = np.random.default_rng(1)
            self.samples, _ = ppo_update.estimate(learner, played)
        self.parts = [sequences(each, learner.config.ppo, history="full")[0] for each in played]
        # New and reference log-probabilities, by token of the response.
        self.new = [self.near(part, rng) for part in self.parts]
        self.reference = [self.near(part, rng) for part in self.parts]
        self.values = [self.row_of(sample, sample.values) for sample in self.samples]
        self.predicted = [
            self.row_of(sample, sample.values + rng.normal(size=len(sample.values)))
            for sample in self.samples
        ]

    def values_of(self, samples: list[PPOSample]) -> list[np.ndarray]:
        return [self.rng.normal(size=len(sample.positions)) for sample in samples]

    @staticmethod
    def near(part: TrainedSequence, rng: np.random.Generator) -> np.ndarray:
        row = np.asarray(part.logprobs) + rng.normal(scale=0.3, size=len(part.logprobs))
        return (row * np.asarray(part.response_mask)).astype(np.float32)

    def row_of(self, sample: PPOSample, by_decision: np.ndarray) -> np.ndarray:
        """Numbers of decisions (tokens) in the places of the response."""
        start = sample.decision_of.index(0)
        row = np.zeros(len(sample.decision_of) - start, dtype=np.float32)
        for place, decision in enumerate(sample.decision_of[start:]):
            if decision >= 0:
                row[place] = by_decision[decision]
        return row

    def verl_data(self, **columns: torch.Tensor) -> TensorDict:
        mask = nested([part.response_mask for part in self.parts])
        data = TensorDict(
            {
                "prompts": nested([part.prompt_ids for part in self.parts]),
                "responses": nested([part.response_ids for part in self.parts]),
                "response_mask": mask,
                **columns,
            },
            batch_size=len(self.parts),
        )
        count = int(sum(sum(part.response_mask) for part in self.parts))
        tu.assign_non_tensor(
            data, dp_size=1, batch_num_tokens=count, global_batch_size=len(self.parts)
        )
        return data

    def outputs(self, rows: list[np.ndarray]) -> torch.Tensor:
        """As a model gives them: one number a token, read one place later."""
        whole = []
        for part, row in zip(self.parts, rows, strict=True):
            whole.append(np.concatenate([np.zeros(len(part.prompt_ids) - 1), row, [0.0]]))
        return nested([row.astype(np.float32) for row in whole])


@pytest.fixture(scope="module")
def both(learner: Learner, played: list[Trajectory]) -> Both:
    return Both(learner, played)


@pytest.fixture(scope="module")
def estimated(both: Both) -> tuple[torch.Tensor, torch.Tensor]:
    section = both.section
    return episode_advantages(
        padded([part.rewards for part in both.parts]),
        padded(both.values),
        padded([part.response_mask for part in both.parts]),
        [(row, 0) for row in range(len(both.parts))],
        level=section.advantage,
        discounts=Discounts(gamma=section.gamma, lam=section.lam),
        normalize=section.normalize_advantages,
    )


def test_advantages_are_within_a_ten_thousandth(
    both: Both, estimated: tuple[torch.Tensor, torch.Tensor]
) -> None:
    advantages, returns = estimated
    for row, sample in enumerate(both.samples):
        own = both.row_of(sample, sample.advantages)
        assert np.abs(advantages[row, : len(own)].numpy() - own).max() < 1e-4
        targets = both.row_of(sample, sample.returns)
        assert np.abs(returns[row, : len(targets)].numpy() - targets).max() < 1e-4


def test_policy_losses_are_equal(both: Both, estimated: tuple[torch.Tensor, torch.Tensor]) -> None:
    section = both.section
    mask = padded([[float(m) for m in part.response_mask] for part in both.parts])
    ours = policy_loss(
        padded(both.new),
        padded([np.float32(part.logprobs) for part in both.parts]),
        padded([both.row_of(sample, sample.advantages) for sample in both.samples]),
        mask,
        clip_low=section.clip_low,
        clip_high=section.clip_high,
        dual_clip=section.dual_clip,
        reference_logprobs_BT=padded(both.reference),
        kl_coef=section.kl_coef,
    )
    lengths = [len(part.response_ids) for part in both.parts]
    data = both.verl_data(
        old_log_probs=nested([np.float32(part.logprobs) for part in both.parts]),
        ref_log_prob=nested(both.reference),
        advantages=nested([row[:n] for row, n in zip(estimated[0], lengths, strict=True)]),
    )
    config = FSDPActorConfig(
        ppo_micro_batch_size_per_gpu=1,
        rollout_n=1,
        clip_ratio_low=section.clip_low,
        clip_ratio_high=section.clip_high,
        clip_ratio_c=section.dual_clip,
        use_kl_loss=True,
        kl_loss_coef=section.kl_coef,
        kl_loss_type="low_var_kl",
    )
    theirs, metrics = ppo_loss(config, {"log_probs": both.outputs(both.new)}, data)
    assert abs(float(ours.loss / mask.sum()) - float(theirs)) < 1e-5
    assert ours.clipped > 0 and "actor/pg_clipfrac" in metrics


def test_value_losses_are_equal(both: Both, estimated: tuple[torch.Tensor, torch.Tensor]) -> None:
    mask = padded([[float(m) for m in part.response_mask] for part in both.parts])
    ours = value_loss(
        padded(both.predicted),
        padded(both.values),
        padded([both.row_of(sample, sample.returns) for sample in both.samples]),
        mask,
        clip=both.section.value_clip,
    )
    lengths = [len(part.response_ids) for part in both.parts]
    data = both.verl_data(
        values=nested(both.values),
        returns=nested([row[:n] for row, n in zip(estimated[1], lengths, strict=True)]),
    )
    config = FSDPCriticConfig(
        ppo_micro_batch_size_per_gpu=1, rollout_n=1, cliprange_value=both.section.value_clip
    )
    theirs, _ = verl_value_loss(config, {"values": both.outputs(both.predicted)}, data)
    assert abs(float(ours / mask.sum()) - float(theirs)) < 1e-5


def test_the_models_log_probabilities_are_the_sampled_ones(
    learner: Learner, played: list[Trajectory]
) -> None:
    """What an update recomputes, token by token, is what sampling said."""
    samples, _ = ppo_update.estimate(learner, played)
    rows = ppo_update._logprobs(learner, learner.actor.eval(), samples)
    for row, sample in zip(rows, samples, strict=True):
        learned = np.asarray(sample.tokens.loss_mask) > 0
        told = np.asarray(sample.tokens.logprobs)[learned]
        assert np.abs(row.numpy()[learned] - told).max() < 1e-4


def test_verls_engines_do_what_the_local_backend_does(tmp_path: Path) -> None:
    compare_engines(tmp_path)


def compare_engines(tmp_path: Path, *, processes: int = 1, **verl: Any) -> None:
    """Two passes of FSDP2 in float32, actor and critic, from the same weights."""
    model_dir = small_llama(tmp_path / "model")
    section = {"strategy": "fsdp2", "max_tokens_per_gpu": 4096, "n_gpus_per_node": processes}
    config = verl_parity.config_of(model_dir, **section | verl)
    config = replace(
        config,
        device="cpu",
        workers=1,
        ppo=replace(config.ppo, env_groups=2, group_size=2, minibatch_size=4),
        verl=replace(config.verl, overrides=[*config.verl.overrides, "trainer.device=cpu"]),
    )
    dump = tmp_path / "dump"
    dump.mkdir()
    learner = build_learner(Peers(), config, str(model_dir), "")
    write_trajectories(dump / "step_1.parquet", play(learner, num_groups=2))
    run_file = ppo_verl.prepare(config, model_dir=str(model_dir), work=tmp_path / "work")
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"]
    program = [*torchrun[: 0 if processes == 1 else None], "tests.training.verl_ppo_cpu"]
    ran = subprocess.run(
        [sys.executable, "-m", *program, str(run_file), str(dump)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads((dump / "metrics.json").read_text())
    point = {"actor/loss": told["actor/pg_loss"], "critic/loss": told["critic/vf_loss"]}
    assert abs(point["actor/loss"]) > 0.01  # the second pass has moved
    metrics = verl_parity.compare(config, str(model_dir), dump, point)
    assert told["grad_norm"] == pytest.approx(metrics["actor/grad_norm"], rel=1e-5)


def test_vllm_is_handed_merged_adapters_and_the_model_keeps_its_own(tmp_path: Path) -> None:
    """On a GPU, handing over the adapters alone ended vLLM."""
    model_dir = small_llama(tmp_path / "model")
    config = verl_parity.config_of(model_dir, strategy="auto")
    config = replace(
        config,
        device="cpu",
        model=replace(config.model, lora_rank=4, lora_alpha=8),
        verl=replace(config.verl, overrides=[*config.verl.overrides, "trainer.device=cpu"]),
    )
    run_file = ppo_verl.prepare(config, model_dir=str(model_dir), work=tmp_path / "work")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.training.verl_lora_cpu", str(run_file), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    before, after, handed = (load_file(tmp_path / name) for name in ("before", "after", "handed"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert handed.keys() == load_file(model_dir / "model.safetensors").keys()
    place = "model.layers.1.self_attn.k_proj"
    base, first, second = (
        before[f"base_model.model.{place}.{name}.weight"]
        for name in ("base_layer", "lora_A.default", "lora_B.default")
    )
    change = 2 * second @ first  # alpha / rank
    merged = handed[f"{place}.weight"].float()
    assert change.abs().max() > 5e-3
    torch.testing.assert_close(merged, base + change, atol=2e-3, rtol=1e-2)  # bfloat16
