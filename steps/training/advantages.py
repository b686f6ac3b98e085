"""Returns and advantages, in numpy: over turns or over tokens.

Source: generalised advantage estimation, Schulman et al. 2016 (arXiv 1506.02438), eq. 11-16.
An episode that ended, for whatever reason, has value 0 afterwards: the action budget and the turn
limit belong to the task (the success rates are measured under them).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def gae(
    rewards: ArrayLike, values: ArrayLike, *, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and value targets of one episode's steps (turns or learned tokens).

    Args:
        rewards: `[T]`, reward after each step.
        values: `[T]`, value estimate before each step; the value after the last is 0.

    Returns:
        `(advantages, returns)`, each `[T]` float64, with `returns = advantages + values`.
    """
    rewards_T = np.asarray(rewards, dtype=np.float64)
    values_T = np.asarray(values, dtype=np.float64)
    assert rewards_T.shape == values_T.shape, (rewards_T.shape, values_T.shape)
    advantages_T = np.zeros_like(rewards_T)
    running, next_value = 0.0, 0.0
    for step in range(len(rewards_T) - 1, -1, -1):
        delta = rewards_T[step] + gamma * next_value - values_T[step]
        running = delta + gamma * lam * running
        advantages_T[step] = running
        next_value = values_T[step]
    return advantages_T, advantages_T + values_T


def whiten(
    values: np.ndarray, *, mean: float | None = None, std: float | None = None
) -> np.ndarray:
    """Zero mean and unit deviation; a constant array becomes zeros."""
    centre = float(values.mean()) if mean is None else mean
    scale = float(values.std()) if std is None else std
    return (values - centre) / (scale + 1e-8)


def select_groups(rewards: Sequence[float], groups: Sequence[int], *, ratio: float) -> list[int]:
    """The groups to train on: the `ratio` share with the largest reward deviation.

    Source: RAGEN's StarPO-S rollout filter. Ties go to the smaller group number; at least one
    group is kept.
    """
    by_group: dict[int, list[float]] = {}
    for group, reward in zip(groups, rewards, strict=True):
        by_group.setdefault(group, []).append(reward)
    order = sorted(by_group, key=lambda group: (-float(np.std(by_group[group])), group))
    return sorted(order[: max(1, round(ratio * len(order)))])
