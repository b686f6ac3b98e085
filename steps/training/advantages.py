"""Advantages and value targets, in numpy: over turns, over tokens, over both; which groups count.

Source: generalised advantage estimation, Schulman et al. 2016 (arXiv 1506.02438), eq. 11-16.
An episode that ended, for whatever reason, has value 0 afterwards: the action budget and the turn
limit belong to the task (the success rates are measured under them).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

ADVANTAGES = ("turn", "token", "bi_level", "grpo")
"""By which verl's estimators are made, too; the words of `ppo.advantage`."""
MIN_DEVIATION = 1e-6
"""Returns that deviate less are equal (RAGEN's threshold)."""


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


def bi_level_gae(
    rewards: ArrayLike,
    values: ArrayLike,
    turn_ends: Sequence[bool],
    *,
    gamma: float,
    lam: float,
    gamma_turn: float,
    lam_turn: float,
) -> tuple[np.ndarray, np.ndarray]:
    """GAE from turn to turn, then over the tokens of each turn; arguments and result as of `gae`.

    `turn_ends` says of each token whether it is its turn's last. With `e(k)` the last token of turn
    `k`, `r(k)` the sum of the turn's rewards, and nothing after the last turn:

        turns   d(k) = r(k) + gamma_turn * V[e(k+1)] - V[e(k)]
                A(k) = d(k) + gamma_turn * lam_turn * A(k+1)
                G(k) = A(k) + V[e(k)]
        tokens  A[t] = G(k) - V[t]                                         where t = e(k)
                A[t] = gamma * V[t+1] - V[t] + gamma * lam * A[t+1]        elsewhere in turn k

    Source: VAGEN (arXiv 2510.16907) and RAGEN's code for it. Two deviations: there a turn ends at
    each token whose reward isn't 0, so that a turn of reward 0 vanishes and its tokens are chained
    to the next one's; and both levels share one lambda.
    """
    rewards_T = np.asarray(rewards, dtype=np.float64)
    values_T = np.asarray(values, dtype=np.float64)
    ends = np.flatnonzero(np.asarray(turn_ends, dtype=bool))
    assert len(turn_ends) == len(rewards_T), (len(turn_ends), len(rewards_T))
    assert len(rewards_T) == (ends[-1] + 1 if len(ends) else 0), "a token after the last turn"
    starts = [0, *(ends[:-1] + 1)]
    sums = [rewards_T[start : end + 1].sum() for start, end in zip(starts, ends, strict=False)]
    _, turn_returns = gae(sums, values_T[ends], gamma=gamma_turn, lam=lam_turn)
    advantages_T = np.zeros_like(values_T)
    for start, end, value in zip(starts, ends, turn_returns, strict=False):
        inside = np.zeros(end + 1 - start)
        inside[-1] = value
        advantages_T[start : end + 1], _ = gae(
            inside, values_T[start : end + 1], gamma=gamma, lam=lam
        )
    return advantages_T, advantages_T + values_T


def whiten(
    values: np.ndarray, *, mean: float | None = None, std: float | None = None
) -> np.ndarray:
    """Zero mean and unit deviation; a constant array becomes zeros."""
    centre = float(values.mean()) if mean is None else mean
    scale = float(values.std()) if std is None else std
    return (values - centre) / (scale + 1e-8)


def select_groups(
    rewards: Sequence[float],
    groups: Sequence[int],
    *,
    ratio: float,
    by: str = "std",
    exclude_zero: bool = False,
) -> list[int]:
    """The groups to train on: the `ratio` share whose rewards deviate most, or least (`std_rev`).

    Source: RAGEN's StarPO-S rollout filter. Ties go to the smaller group number; at least one
    group is kept. `exclude_zero` keeps none whose rewards are all equal, however few are left.
    """
    deviations = group_deviations(rewards, groups)
    sign = 1.0 if by == "std_rev" else -1.0
    order = sorted(deviations, key=lambda group: (sign * deviations[group], group))
    count = max(1, round(ratio * len(order)))
    if exclude_zero:
        order = [group for group in order if deviations[group] > MIN_DEVIATION]
    return sorted(order[:count])


def group_deviations(rewards: Sequence[float], groups: Sequence[int]) -> dict[int, float]:
    """Group -> standard deviation of its rewards."""
    by_group: dict[int, list[float]] = {}
    for group, reward in zip(groups, rewards, strict=True):
        by_group.setdefault(group, []).append(reward)
    return {group: float(np.std(members)) for group, members in by_group.items()}
