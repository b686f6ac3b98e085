"""Tokens from logits: inverse transform sampling with numbers that each request's seed gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from steps.agent.records import Sampling


def draw(
    logits_BV: torch.Tensor,
    uniforms_B: torch.Tensor,
    sampling: Sampling,
    allowed_BV: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row by inverse transform, and its log-probability.

    The log-probability is that of the distribution drawn from (after temperature, before top-p,
    as vLLM and verl report it); greedy reports the model's own. `allowed_BV` leaves a choice of
    tokens, at least one a row, and doesn't change any token's log-probability.
    """
    if sampling.temperature == 0:
        chosen = _only(logits_BV, allowed_BV).argmax(-1)
        return chosen, torch.log_softmax(logits_BV, -1).gather(1, chosen[:, None]).squeeze(1)
    log_probs = torch.log_softmax(logits_BV / sampling.temperature, -1)
    if allowed_BV is None:
        probs = log_probs.exp()
    else:
        probs = torch.softmax(_only(log_probs, allowed_BV), -1)
    if sampling.top_p < 1:
        probs = _nucleus(probs, sampling.top_p)
    cumulative = probs.double().cumsum(-1)
    target = uniforms_B.double()[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    chosen = chosen.clamp(max=logits_BV.shape[1] - 1)
    return chosen, log_probs.gather(1, chosen[:, None]).squeeze(1)


def _only(scores_BV: torch.Tensor, allowed_BV: torch.Tensor | None) -> torch.Tensor:
    return scores_BV if allowed_BV is None else scores_BV.masked_fill(~allowed_BV, -torch.inf)


def _nucleus(probs_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero the tail beyond the smallest set of tokens whose probability reaches `top_p`."""
    ordered, index = probs_BV.sort(-1, descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return probs_BV.masked_fill(torch.zeros_like(outside).scatter(1, index, outside), 0.0)


def uniforms(seeds: Sequence[int], count: int) -> torch.Tensor:
    """`[len(seeds), count]` numbers in [0, 1): row `i` is the start of seed `i`'s own stream.

    That is `Generator(Philox(seed))`. One generator is set to each seed's key in turn, since to
    make a new one takes twice as long.
    """
    stream = np.random.Philox(0)
    generator, state = np.random.Generator(stream), stream.state
    numbers = np.empty((len(seeds), count))
    for row, seed in zip(numbers, seeds, strict=True):
        key: Any = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        state["state"]["key"] = key
        stream.state = state
        generator.random(out=row)
    return torch.from_numpy(numbers)
