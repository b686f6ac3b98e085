"""verl's names of metrics in ours. Pure; what isn't named here stays in verl's own file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

OURS = ("rollout/", "probe/")
"""Prefixes of what our trainer adds to verl's metrics; they are kept as they are."""
NAMES = {
    "actor/pg_loss": "actor/loss",
    "actor/pg_clipfrac": "actor/clip_fraction",
    # The mean of -log ratio, which may be negative; ours, `actor/approx_kl`, is Schulman's k3.
    "actor/ppo_kl": "actor/approx_kl_k1",
    "actor/kl_loss": "actor/reference_kl",
    "actor/entropy": "actor/entropy",
    "actor/grad_norm": "actor/grad_norm",
    "critic/vf_loss": "critic/loss",
    "critic/critic/vf_loss": "critic/loss",
    "critic/vf_explained_var": "critic/explained_variance",
    "critic/grad_norm": "critic/grad_norm",
    "timing_s/gen": "timing_s/rollout",
    "timing_s/old_log_prob": "timing_s/old_logprobs",
    "timing_s/ref": "timing_s/reference_logprobs",
    "timing_s/values": "timing_s/values",
    "timing_s/adv": "timing_s/advantages",
    "timing_s/update_critic": "timing_s/update_critic",
    "timing_s/update_actor": "timing_s/update_actor",
    "timing_s/update_weights": "timing_s/weight_sync",
    "timing_s/save_checkpoint": "timing_s/checkpoint",
    "timing_s/testing": "timing_s/probe",
    "timing_s/step": "timing_s/step",
    "training/rollout_probs_diff_mean": "rollout/probability_difference",
    "training/rollout_actor_probs_pearson_corr": "rollout/probability_correlation",
    "actor/perf/max_memory_allocated_gb": "memory_gb/actor_allocated",
    "actor/perf/max_memory_reserved_gb": "memory_gb/actor_reserved",
    "critic/perf/max_memory_allocated_gb": "memory_gb/critic_allocated",
    "perf/throughput": "rollout/tokens_per_gpu_second",
}
"""verl's name -> ours."""


def ours(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a step under our names; what isn't a finite number is left out."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        target = name if name.startswith(OURS) else NAMES.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if target is not None and is_number and math.isfinite(value):
            found[target] = float(value)
    return found


def training_seconds(metrics: Mapping[str, float]) -> float:
    """Duration of a step without its checkpoint; a probe is outside verl's step."""
    return metrics.get("timing_s/step", 0.0) - metrics.get("timing_s/checkpoint", 0.0)
