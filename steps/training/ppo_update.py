"""One PPO update: values and advantages of the played episodes, then passes of minibatches.

Minibatches are those of the whole batch, whatever the number of ranks: these tell one another their
samples, and each works on an even share of every minibatch. Gradients are summed over the ranks and
divided by the whole minibatch's tokens (actor) or decisions (critic).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from steps.agent.records import Trajectory
from steps.errors import StageError
from steps.training.advantages import whiten
from steps.training.episodes import Episode, chosen_episodes
from steps.training.losses import entropy, policy_loss, token_logprobs, value_loss
from steps.training.optimizers import clip_gradient
from steps.training.ppo_batch import (
    PPOSample,
    build_samples,
    fill_advantages,
    fill_same_advantages,
    split_evenly,
    token_advantages,
)
from steps.training.ppo_learner import Learner, set_lr
from steps.training.tokenization import micro_batches, pad_rows, system_length
from steps.workers import Peers

MAX_FALLBACK_SHARE = 0.5
"""Above it most episodes would be learned from as `ppo.loss_on=sampled` does."""


def estimate(
    learner: Learner, trajectories: list[Trajectory]
) -> tuple[list[PPOSample], dict[str, float]]:
    """Samples of the kept groups, with values, advantages (normalised over all ranks), returns.

    Also the metrics of `chosen_episodes` and, with `ppo.loss_on=all`, `ppo/loss_on_fallback`.
    """
    section = learner.config.ppo
    kept, metrics = chosen_episodes(learner.peers, section, trajectories)
    samples, fallback = _samples(learner, kept)
    metrics |= fallback
    if learner.critic is not None:
        for sample, values in zip(samples, _values(learner, samples), strict=True):
            sample.values = values
    if section.advantage == "grpo":
        fill_same_advantages(samples, [item.standing for item in kept])
    else:
        turn_level = (section.gamma_turn, section.lam_turn)
        fill_advantages(
            samples,
            gamma=section.gamma,
            lam=section.lam,
            turn_level=turn_level if section.advantage == "bi_level" else None,
        )
    if section.normalize_advantages:
        _normalize(learner.peers, samples)
    return samples, metrics


def _samples(learner: Learner, kept: Sequence[Episode]) -> tuple[list[PPOSample], dict[str, float]]:
    section = learner.config.ppo
    starts = None
    if section.loss_on == "all":
        starts = [_context_start(learner, item.trajectory) for item in kept]
    samples = build_samples(
        [item.trajectory for item in kept],
        level=section.advantage,
        whole_episode=learner.config.prompt.history == "full",
        rewards=[item.rewards for item in kept],
        context_starts=starts,
    )
    assert all(sample.tokens.logprobs for sample in samples), "the policy told no log-probabilities"
    if starts is None:
        return samples, {}
    fallback = _fallback_share(learner.peers, samples)
    _fill_context_logprobs(learner, samples)
    return samples, {"ppo/loss_on_fallback": fallback}


def _fallback_share(peers: Peers, samples: Sequence[PPOSample]) -> float:
    """Share of all ranks' episodes of which `ppo.loss_on=all` learns only what was sampled.

    They are in several sequences: a later prompt tokenises an earlier answer otherwise than it was
    sampled, or the chat template changes it. Raises `StageError` where they are too many.
    """
    sequences = Counter(sample.episode for sample in samples)
    split, episodes = peers.sum([sum(n > 1 for n in sequences.values()), len(sequences)])
    share = split / max(episodes, 1)
    if share > MAX_FALLBACK_SHARE:
        raise StageError(
            f"ppo.loss_on=all can't be had: in {share:.0%} of a step's episodes later prompts hold "
            "earlier answers in other tokens than were sampled (a chat template that rewrites "
            "answers does so in all of them); set ppo.loss_on=sampled."
        )
    return share


def _context_start(learner: Learner, trajectory: Trajectory) -> int:
    return system_length(learner.tokenizer, trajectory.turns[0]) if trajectory.turns else 0


def _fill_context_logprobs(learner: Learner, samples: Sequence[PPOSample]) -> None:
    """Log-probabilities, before the update, of the learned tokens that the model didn't write."""
    learner.actor.eval()
    for sample, row in zip(samples, _logprobs(learner, learner.actor, samples), strict=True):
        tokens = sample.tokens
        logprobs = [
            sampled if turn >= 0 or not is_learned else computed
            for sampled, computed, turn, is_learned in zip(
                tokens.logprobs, row.tolist(), tokens.turn_of_token, tokens.loss_mask, strict=True
            )
        ]
        sample.tokens = replace(tokens, logprobs=tuple(logprobs))


@torch.no_grad()
def _values(learner: Learner, samples: Sequence[PPOSample]) -> Iterator[np.ndarray]:
    assert learner.critic is not None
    learner.critic.eval()
    for chunk in _chunks(learner, samples):
        values_BT = learner.critic(_ids(learner, [sample.critic_ids for sample in chunk])).cpu()
        for row, sample in zip(values_BT.numpy(), chunk, strict=True):
            yield row[list(sample.positions)].astype(np.float64)


def _normalize(peers: Peers, samples: Sequence[PPOSample]) -> None:
    """Whiten advantages over every decision of every rank."""
    flat = [float(a) for sample in samples for a in sample.advantages]
    count, total = peers.sum([len(flat), sum(flat)])
    mean = total / max(count, 1)
    (squares,) = peers.sum([sum((a - mean) ** 2 for a in flat)])
    std = (squares / max(count, 1)) ** 0.5
    for sample in samples:
        sample.advantages = whiten(sample.advantages, mean=mean, std=std)


def _ids(learner: Learner, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    pad = learner.tokenizer.pad_token_id
    return pad_rows(rows, value=pad, dtype=torch.long, device=learner.device)


@dataclass(kw_only=True, slots=True)
class _Tensors:
    """One minibatch as tensors, `[B, T]` each (values `[B, D]` by decision)."""

    ids: torch.Tensor
    mask: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    reference: torch.Tensor | None


def _tensors(learner: Learner, samples: Sequence[PPOSample]) -> _Tensors:
    def floats(rows: Sequence[Sequence[float]]) -> torch.Tensor:
        return pad_rows(rows, value=0.0, dtype=torch.float32, device=learner.device)

    ids = _ids(learner, [sample.tokens.token_ids for sample in samples])
    anchors: torch.Tensor | None = None
    if learner.reference is not None:
        anchors = torch.zeros(ids.shape)
        for row, sample in enumerate(samples):
            assert sample.reference is not None
            anchors[row, : len(sample.reference)] = torch.from_numpy(sample.reference)
        anchors = anchors.to(learner.device)
    return _Tensors(
        ids=ids,
        mask=floats([sample.tokens.loss_mask for sample in samples]),
        old_logprobs=floats([sample.tokens.logprobs for sample in samples]),
        advantages=floats([token_advantages(sample) for sample in samples]),
        reference=anchors,
    )


@torch.no_grad()
def _logprobs(learner: Learner, model: Any, samples: Sequence[PPOSample]) -> Iterator[torch.Tensor]:
    """`[T]` log-probabilities of each sample's tokens under a model, at sampling's temperature."""
    temperature = learner.config.sampling.temperature
    for chunk in _chunks(learner, samples):
        ids = _ids(learner, [sample.tokens.token_ids for sample in chunk])
        logprobs = token_logprobs(_logits(model, ids, chunk), ids, temperature=temperature)
        for row, sample in zip(logprobs, chunk, strict=True):
            yield row[: len(sample.tokens.token_ids)]


def learn(learner: Learner, samples: list[PPOSample], step: int) -> dict[str, float]:
    """`ppo_epochs` passes over the samples in minibatches of the whole (all ranks') batch.

    Beyond `ppo.target_kl` the actor stays as it is, and the critic goes on.
    """
    section, peers = learner.config.ppo, learner.peers
    set_lr(learner, step)
    everything = _of_all_ranks(learner, samples)
    parts = max(1, round(len(everything) / section.minibatch_size))
    totals = np.zeros(6)
    norms: list[float] = []
    seen = 0
    is_near = step >= section.critic_warmup
    learner.actor.train()
    for epoch in range(section.ppo_epochs):
        rng = np.random.default_rng([learner.config.seed, step, epoch])
        for piece in split_evenly(rng.permutation(len(everything)), parts):
            batch = [everything[index] for index in piece]
            num_tokens, num_decisions = _num_tokens(batch), _num_decisions(batch)
            if num_tokens == 0:  # every group was left out: momentum and decay stay still, too
                continue
            seen += 1
            mine = batch[peers.rank :: peers.size]
            if is_near:
                sums, norm = _update_actor(learner, mine, num_tokens)
                totals[:5] += sums
                if norm is None:
                    is_near = False
                else:
                    norms.append(norm)
            totals[5] += _update_critic(learner, mine, num_decisions) * num_decisions
    metrics = _learn_metrics(learner, samples, totals, norms)
    if section.target_kl > 0 and step >= section.critic_warmup:
        metrics["actor/update_share"] = len(norms) / max(seen, 1)
    return metrics


def _of_all_ranks(learner: Learner, samples: Sequence[PPOSample]) -> list[PPOSample]:
    """The samples of every rank in the order of their groups, in which one rank alone has them."""
    if learner.reference is not None:
        rows = _logprobs(learner, learner.reference, samples)
        for sample, row in zip(samples, rows, strict=True):
            sample.reference = row.cpu().numpy()
    shares = learner.peers.gather(samples)
    return sorted((sample for share in shares for sample in share), key=attrgetter("group"))


def _chunks(learner: Learner, samples: Sequence[PPOSample]) -> Iterator[Sequence[PPOSample]]:
    """The samples in micro-batches that fit into memory, in order."""
    lengths = [len(sample.tokens.token_ids) for sample in samples]
    for part in micro_batches(lengths, learner.actor.config.vocab_size):
        yield samples[part]


def _num_tokens(batch: Sequence[PPOSample]) -> float:
    return sum(sum(sample.tokens.loss_mask) for sample in batch)


def _num_decisions(batch: Sequence[PPOSample]) -> float:
    return float(sum(len(sample.positions) for sample in batch))


def _update_actor(
    learner: Learner, batch: Sequence[PPOSample], num_tokens: float
) -> tuple[np.ndarray, float | None]:
    """One optimizer step; this rank's sums of (loss, clipped, approx KL, reference KL, tokens).

    And the norm of the gradient over all ranks; None, without a step, beyond `ppo.target_kl`.
    """
    section, temperature = learner.config.ppo, learner.config.sampling.temperature
    learner.actor_optimizer.zero_grad()
    sums = np.zeros(5)
    for chunk in _chunks(learner, batch):
        tensors = _tensors(learner, chunk)
        logits = _logits(learner.actor, tensors.ids, chunk)
        logprobs = token_logprobs(logits, tensors.ids, temperature=temperature)
        result = policy_loss(
            logprobs,
            tensors.old_logprobs,
            tensors.advantages,
            tensors.mask,
            clip_low=section.clip_low,
            clip_high=section.clip_high,
            dual_clip=section.dual_clip,
            reference_logprobs_BT=tensors.reference,
            kl_coef=section.kl_coef,
        )
        loss = result.loss
        if section.entropy_coef > 0:
            nats = entropy(logits, num_tokens=tensors.ids.shape[1], temperature=temperature)
            loss = loss - section.entropy_coef * (nats * tensors.mask).sum()
        loss.backward()
        sums += (
            float(loss.detach()),
            result.clipped,
            result.approx_kl,
            result.reference_kl,
            float(tensors.mask.sum()),
        )
    if section.target_kl > 0:
        (approx_kl,) = learner.peers.sum([sums[2]])
        if approx_kl > section.target_kl * num_tokens:
            return sums, None
    learner.peers.sum_gradients(learner.actor.parameters(), scale=1.0 / max(num_tokens, 1.0))
    norm = clip_gradient(learner.actor, section.max_grad_norm)
    if torch.isfinite(norm):
        learner.actor_optimizer.step()
    return sums, float(norm)


def _update_critic(learner: Learner, batch: Sequence[PPOSample], num_decisions: float) -> float:
    """One optimizer step of the critic; the mean loss of this rank's decisions over all."""
    if learner.critic is None or learner.critic_optimizer is None:
        return 0.0
    section, critic = learner.config.ppo, learner.critic
    critic.train()
    learner.critic_optimizer.zero_grad()
    value = 0.0
    for chunk in _chunks(learner, batch):
        values_BT = critic(_ids(learner, [sample.critic_ids for sample in chunk]))
        positions, mask = _padded([sample.positions for sample in chunk], learner.device)
        old, _ = _padded([sample.values for sample in chunk], learner.device)
        returns, _ = _padded([sample.returns for sample in chunk], learner.device)
        loss = value_loss(
            values_BT.gather(1, positions.long()), old, returns, mask, clip=section.value_clip
        )
        loss.backward()
        value += float(loss.detach())
    learner.peers.sum_gradients(critic.parameters(), scale=1.0 / max(num_decisions, 1.0))
    norm = clip_gradient(critic, section.max_grad_norm)
    if torch.isfinite(norm):
        learner.critic_optimizer.step()
    return value / max(num_decisions, 1.0)


def _logits(model: Any, ids_BT: torch.Tensor, samples: Sequence[PPOSample]) -> torch.Tensor:
    """`[B, S, V]` logits of the last `S` positions: those that predict a learned token.

    The mask is of ones, since padding is on the right, where causal attention never looks.
    """
    num_logits = ids_BT.shape[1] - min(sample.positions[0] for sample in samples)
    outputs = model(
        input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT), logits_to_keep=num_logits
    )
    return outputs.logits


def _padded(rows: Sequence[Any], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    filled = pad_rows(rows, value=0.0, dtype=torch.float32, device=device)
    mask = pad_rows(
        [[1.0] * len(row) for row in rows], value=0.0, dtype=torch.float32, device=device
    )
    return filled, mask


def _learn_metrics(
    learner: Learner, samples: Sequence[PPOSample], totals: np.ndarray, norms: Sequence[float]
) -> dict[str, float]:
    peers, epochs = learner.peers, learner.config.ppo.ppo_epochs
    sampled = [
        logprob
        for sample in samples
        for logprob, turn in zip(sample.tokens.logprobs, sample.tokens.turn_of_token, strict=True)
        if turn >= 0
    ]
    returns = [r for sample in samples for r in sample.returns]
    values = [v for sample in samples for v in sample.values]
    errors = sum((r - v) ** 2 for r, v in zip(returns, values, strict=True))
    local = [
        *totals,
        -sum(sampled),
        float(len(sampled)),
        float(len(returns)),
        sum(returns),
        sum(r * r for r in returns),
        errors,
    ]
    loss, clipped, kl, anchor, tokens, critic, nats, count, num, total, squares, error = peers.sum(
        local
    )
    tokens, num = max(tokens, 1.0), max(num, 1.0)
    variance = squares / num - (total / num) ** 2
    return {
        "actor/loss": loss / tokens,
        "actor/clip_fraction": clipped / tokens,
        "actor/approx_kl": kl / tokens,
        "actor/reference_kl": anchor / tokens,
        "actor/entropy": nats / max(count, 1.0),
        "actor/grad_norm": float(np.mean(norms)) if norms else 0.0,
        "actor/lr": learner.actor_optimizer.lr,
        "critic/loss": critic / (num * epochs),
        "critic/explained_variance": 1 - error / num / variance if variance > 1e-12 else 0.0,
    }
