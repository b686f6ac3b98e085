"""Which episodes are learned from, and with what: by hand, and for any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from conf.schema import PPOSection
from steps.agent.records import Trajectory
from steps.training.episodes import Episode, chosen_episodes
from steps.workers import Peers
from tests.training.episodes import make_trajectory, make_turn

RETURNS = {0: (0.0, 0.0), 1: (0.0, 1.0), 2: (1.0, 1.0), 3: (-0.3, 4.7)}
"""Group -> returns of its members; deviations 0, 0.5, 0 and 2.5."""


def episode(group: int, member: int) -> Trajectory:
    """Two turns: nothing, then the return."""
    return make_trajectory(
        make_turn(0, answer=2, reward=0.0),
        make_turn(1, answer=1, reward=RETURNS[group][member]),
        group=group,
        member=member,
    )


ALL = [episode(group, member) for group in RETURNS for member in (0, 1)]


class OneOf(Peers):
    """One of several ranks, told beforehand what all of them say."""

    def __init__(self, rank: int, said: Sequence[Any]) -> None:
        super().__init__(rank, len(said))
        self.said = said

    def gather(self, value: Any) -> list[Any]:
        assert value == self.said[self.rank]
        return list(self.said)


def choose(size: int = 1, **settings: Any) -> list[Episode]:
    """What all ranks choose, in the order of groups and members."""
    section = PPOSection(**settings)
    shares = [[item for item in ALL if item.group % size == rank] for rank in range(size)]
    said = [[((t.group, t.member), t.reward) for t in share] for share in shares]
    found = [
        chosen_episodes(OneOf(rank, said), section, share)[0] for rank, share in enumerate(shares)
    ]
    return sorted(
        (item for share in found for item in share),
        key=lambda item: (item.trajectory.group, item.trajectory.member),
    )


def groups_of(episodes: Sequence[Episode]) -> list[int]:
    return [item.trajectory.group for item in episodes]


def test_by_default_all_are_learned_from_as_they_were_rewarded() -> None:
    chosen = choose()
    assert [item.trajectory for item in chosen] == ALL
    assert [item.rewards for item in chosen] == [[0.0, t.reward] for t in ALL]


def test_the_share_that_differs_most_or_least_or_at_all() -> None:
    assert groups_of(choose(filter_ratio=0.5)) == [1, 1, 3, 3]
    assert groups_of(choose(filter_ratio=0.5, filter_by="std_rev")) == [0, 0, 2, 2]
    assert groups_of(choose(filter_ratio=0.75, exclude_zero_variance=True)) == [1, 1, 3, 3]
    assert groups_of(choose(exclude_zero_variance=True)) == [1, 1, 3, 3]


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize(
    "settings",
    [
        {"filter_ratio": 0.5},
        {"filter_ratio": 0.25, "filter_by": "std_rev"},
        {"exclude_zero_variance": True},
        {"reward_at": "episode", "reward_norm": "asym_clip", "reward_norm_group": "batch"},
        {"advantage": "grpo", "filter_ratio": 0.75},
    ],
)
def test_any_number_of_ranks_chooses_the_same_with_the_same_numbers(
    settings: dict[str, Any], size: int
) -> None:
    assert choose(size, **settings) == choose(1, **settings)


def test_an_episodes_reward_may_follow_its_last_turn_normalised_among_all() -> None:
    chosen = choose(reward_at="episode", reward_norm="mean", reward_norm_group="batch")
    mean = (0 + 0 + 0 + 1 + 1 + 1 - 0.3 + 4.7) / 8
    expected = [[0.0, t.reward - mean] for t in ALL]
    assert [item.rewards for item in chosen] == [pytest.approx(rewards) for rewards in expected]


def test_returns_are_normalised_before_groups_are_left_out() -> None:
    settings = {"reward_at": "episode", "reward_norm": "mean", "reward_norm_group": "batch"}
    few = choose(filter_ratio=0.25, **settings)
    assert groups_of(few) == [3, 3]
    assert few == choose(**settings)[-2:]


def test_grpo_gives_each_episode_its_distance_from_its_group() -> None:
    # two returns lie sqrt(1/2) of their sample deviation from their mean; equal ones not at all
    half = 0.5**0.5
    expected = [0, 0, -half, half, 0, 0, -half, half]
    assert [item.standing for item in choose(advantage="grpo")] == pytest.approx(expected, abs=1e-5)


def test_the_choice_is_reported() -> None:
    section = PPOSection(filter_ratio=0.25)
    _, metrics = chosen_episodes(Peers(), section, ALL)
    assert metrics == {
        "rollout/in_group_std": pytest.approx((0 + 0.5 + 0 + 2.5) / 4),
        "rollout/chosen_share": 0.25,
    }


def test_bonuses_count_when_groups_are_chosen_and_the_episodes_stay_as_they_are() -> None:
    blind = make_turn(0, answer=1, reward=0.0)  # its observation is missing
    seeing = replace(blind, parsed=replace(blind.parsed, observation=blind.observation_truth))
    played = [make_trajectory(blind), make_trajectory(seeing, member=1)]
    assert chosen_episodes(Peers(), PPOSection(exclude_zero_variance=True), played)[0] == []
    section = PPOSection(exclude_zero_variance=True, observation_reward=0.5)
    kept, _ = chosen_episodes(Peers(), section, played)
    assert [item.rewards for item in kept] == [[0.0], [0.5]]
    assert [item.trajectory for item in kept] == played
    assert [item.trajectory.reward for item in kept] == [0.0, 0.0]
