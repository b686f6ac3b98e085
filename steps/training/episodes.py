"""Which episodes of a step are learned from, and with what rewards.

Each rank tells all others the returns of its episodes. All sort them by group and member and work
on the whole table, so that choice and normalisation are the same for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.schema import PPOSection
from steps.agent.records import Trajectory
from steps.training.advantages import group_deviations, select_groups
from steps.training.rewards import at_last_turn, normalize_returns, turn_rewards
from steps.workers import Peers

Key = tuple[int, int]
"""Group and member: no two episodes of a step share both."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """An episode that is learned from."""

    trajectory: Trajectory
    rewards: list[float]
    """Of each turn, as `ppo.reward_at` places them, bonuses included."""
    standing: float
    """Return, normalised as `ppo.reward_norm` says; for GRPO the advantage."""


def chosen_episodes(
    peers: Peers, section: PPOSection, trajectories: Sequence[Trajectory]
) -> tuple[list[Episode], dict[str, float]]:
    """This rank's episodes of the chosen groups, and `rollout/in_group_std` and `/chosen_share`.

    Groups are chosen by their returns as they were earned, then normalised among all, chosen or
    not, as published.
    """
    rewards = [turn_rewards(trajectory, section) for trajectory in trajectories]
    returns = _all_returns(peers, trajectories, rewards)
    groups = [group for group, _ in returns]
    deviations = group_deviations(list(returns.values()), groups)
    chosen = _chosen(section, list(returns.values()), groups)
    standings = _standings(section, returns)
    kept = [
        _episode(section, trajectory, own, standings[trajectory.group, trajectory.member])
        for trajectory, own in zip(trajectories, rewards, strict=True)
        if trajectory.group in chosen
    ]
    return kept, {
        "rollout/in_group_std": sum(deviations.values()) / max(len(deviations), 1),
        "rollout/chosen_share": len(chosen) / max(len(deviations), 1),
    }


def _all_returns(
    peers: Peers, trajectories: Sequence[Trajectory], rewards: Sequence[Sequence[float]]
) -> dict[Key, float]:
    """Return of each episode of every rank, in order of their keys."""
    mine = [
        ((trajectory.group, trajectory.member), sum(own))
        for trajectory, own in zip(trajectories, rewards, strict=True)
    ]
    return dict(sorted(pair for rank in peers.gather(mine) for pair in rank))


def _chosen(section: PPOSection, returns: Sequence[float], groups: Sequence[int]) -> set[int]:
    if section.filter_ratio >= 1 and not section.exclude_zero_variance:
        return set(groups)
    return set(
        select_groups(
            returns,
            groups,
            ratio=section.filter_ratio,
            by=section.filter_by,
            exclude_zero=section.exclude_zero_variance,
        )
    )


def _standings(section: PPOSection, returns: dict[Key, float]) -> dict[Key, float]:
    is_grpo = section.advantage == "grpo"
    normalized = normalize_returns(
        list(returns.values()),
        [group for group, _ in returns],
        method="mean_std" if is_grpo else section.reward_norm,
        grouping="state" if is_grpo else section.reward_norm_group,
    )
    return dict(zip(returns, normalized, strict=True))


def _episode(
    section: PPOSection, trajectory: Trajectory, rewards: list[float], standing: float
) -> Episode:
    if section.reward_at == "episode":
        rewards = at_last_turn(len(rewards), standing)
    return Episode(trajectory=trajectory, rewards=rewards, standing=standing)
