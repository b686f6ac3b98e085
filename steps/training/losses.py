"""The losses, as sums over tokens: the caller divides by the count of the whole batch.

Sums rather than means, so that several processes (or micro-batches) add up to exactly the loss of
one. Axes: B sequences, T tokens, V vocabulary. Position `t` of a `*_BT` tensor speaks of *token*
`t`, which the model predicts from the logits at `t - 1`; token 0 is never learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional


def token_logprobs(
    logits_BTV: torch.Tensor, token_ids_BT: torch.Tensor, *, temperature: float = 1.0
) -> torch.Tensor:
    """`[B, T]` log-probability of each token given those before it; 0 where it can't be told.

    The logits may be those of the last positions only (`logits_to_keep`): the tokens that they
    don't predict, at least the first, get 0.
    """
    scores_BSV = logits_BTV[:, :-1].float()
    if temperature not in (0.0, 1.0):
        scores_BSV = scores_BSV / temperature
    unknown = token_ids_BT.shape[1] - scores_BSV.shape[1]
    targets_BS = token_ids_BT[:, unknown:]
    losses = functional.cross_entropy(
        scores_BSV.flatten(0, 1), targets_BS.flatten(), reduction="none"
    )
    return functional.pad(-losses.view_as(targets_BS), (unknown, 0))


def entropy(logits_BTV: torch.Tensor, *, num_tokens: int, temperature: float = 1.0) -> torch.Tensor:
    """`[B, T]` entropy in nats of what each token was drawn from; 0 where it can't be told."""
    log_probs_BSV = torch.log_softmax(logits_BTV[:, :-1].float() / temperature, -1)
    nats_BS = -(log_probs_BSV.exp() * log_probs_BSV).sum(-1)
    return functional.pad(nats_BS, (num_tokens - nats_BS.shape[1], 0))


K3_MAX = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLoss:
    """Sums over the learned tokens; `loss` carries the gradient, the rest are plain numbers."""

    loss: torch.Tensor
    clipped: float
    """Tokens whose ratio was cut from either side."""
    approx_kl: float
    """Sum of the k3 estimate of KL(old || new)."""
    reference_kl: float
    """Sum of the k3 estimate of KL(new || reference); 0 without a reference."""


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """`exp(x) - x - 1` with `x = log q/p`: an unbiased, non-negative estimate of KL(p || q).

    For samples of p. Source: Schulman, "Approximating KL divergence" (2020). At most `K3_MAX`, as
    in verl: one token that p has nearly unlearned would otherwise outweigh the batch.
    """
    log_ratio = log_ratio.clamp(-20, 20)
    return (torch.expm1(log_ratio) - log_ratio).clamp(max=K3_MAX)


def policy_loss(
    logprobs_BT: torch.Tensor,
    old_logprobs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
    reference_logprobs_BT: torch.Tensor | None = None,
    kl_coef: float = 0.0,
) -> PolicyLoss:
    """PPO's clipped objective with separate bounds, dual clip and an anchor to a reference model.

    Sources: PPO, arXiv 1707.06347 eq. 7; clip-higher, DAPO (arXiv 2503.14476) eq. 10; dual clip,
    arXiv 1912.09729 eq. 5: for negative advantages the loss is at most `dual_clip * |A|`.
    """
    log_ratio_BT = (logprobs_BT - old_logprobs_BT).clamp(-20, 20)
    ratio_BT = log_ratio_BT.exp()
    plain_BT = -advantages_BT * ratio_BT
    cut_BT = -advantages_BT * ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    loss_BT = torch.maximum(plain_BT, cut_BT)
    if dual_clip > 0:
        bound_BT = -advantages_BT * dual_clip
        loss_BT = torch.where(advantages_BT < 0, torch.minimum(loss_BT, bound_BT), loss_BT)
    reference_kl = 0.0
    if reference_logprobs_BT is not None and kl_coef > 0:
        kl_BT = k3(reference_logprobs_BT - logprobs_BT)
        loss_BT = loss_BT + kl_coef * kl_BT
        reference_kl = float((kl_BT.detach() * mask_BT).sum())
    with torch.no_grad():
        clipped = float(((cut_BT > plain_BT) * mask_BT).sum())
        approx_kl = float((k3(log_ratio_BT) * mask_BT).sum())
    return PolicyLoss(
        loss=(loss_BT * mask_BT).sum(),
        clipped=clipped,
        approx_kl=approx_kl,
        reference_kl=reference_kl,
    )


def value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip: float,
) -> torch.Tensor:
    """Half the squared error, summed; `clip` > 0 takes the larger of plain and clipped, as verl."""
    squared = (values - returns) ** 2
    if clip > 0:
        near = old_values + (values - old_values).clamp(-clip, clip)
        squared = torch.maximum(squared, (near - returns) ** 2)
    return 0.5 * (squared * mask).sum()
