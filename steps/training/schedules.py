"""Learning rate over training: linear warm-up, then constant, linear or cosine."""

from __future__ import annotations

import math

from conf.schema import SFTSection


def lr_scale(
    step: int,
    *,
    total_steps: int,
    warmup_steps: int,
    schedule: str,
    min_ratio: float,
    time_share: float = 0.0,
) -> float:
    """Factor on the learning rate for the update after `step` updates (0-based), in (0, 1].

    Warm-up rises linearly and reaches 1 at `warmup_steps`; the decay ends at `min_ratio`.
    `time_share` is the part of a time limit that is used: where it is further on than the steps
    are, the decay follows it.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return 1.0
    span = max(1, total_steps - warmup_steps)
    progress = min(1.0, max((step - warmup_steps) / span, time_share))
    if schedule == "linear":
        decayed = 1.0 - progress
    else:
        decayed = 0.5 * (1.0 + math.cos(math.pi * progress))
    return min_ratio + (1.0 - min_ratio) * decayed


def sft_warmup(section: SFTSection, total_steps: int) -> int:
    """Steps of warm-up of a finetuning of so many steps."""
    return section.warmup_steps or int(section.warmup_ratio * total_steps + 1e-9)
