"""GAE and bi-level GAE by hand and by definition, whitening, group selection."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steps.training.advantages import (
    bi_level_gae,
    gae,
    group_deviations,
    select_groups,
    whiten,
)


def test_gae_of_a_hand_computed_episode() -> None:
    # gamma 0.5, lambda 0.5, rewards 0 1 2, values 1 2 3 (and 0 after the end):
    # deltas: 0+0.5*2-1=0 ; 1+0.5*3-2=0.5 ; 2-3=-1
    # A2=-1 ; A1=0.5+0.25*-1=0.25 ; A0=0+0.25*0.25=0.0625
    advantages, returns = gae([0, 1, 2], [1, 2, 3], gamma=0.5, lam=0.5)
    assert advantages.tolist() == [0.0625, 0.25, -1.0]
    assert returns.tolist() == [1.0625, 2.25, 2.0]


def test_gae_with_lambda_one_is_return_minus_value() -> None:
    advantages, returns = gae([0.0, 0.0, 1.0], [0.2, 0.4, 0.6], gamma=1.0, lam=1.0)
    assert advantages == pytest.approx([0.8, 0.6, 0.4])
    assert returns == pytest.approx([1.0, 1.0, 1.0])


def test_gae_with_lambda_zero_is_the_one_step_error() -> None:
    advantages, _ = gae([1.0, 0.0], [0.5, 0.25], gamma=0.9, lam=0.0)
    assert advantages == pytest.approx([1.0 + 0.9 * 0.25 - 0.5, -0.25])


def test_gae_of_no_steps_is_empty() -> None:
    advantages, returns = gae([], [], gamma=1.0, lam=1.0)
    assert advantages.size == 0 and returns.size == 0


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=12),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_gae_is_the_weighted_sum_of_errors(
    steps: list[tuple[float, float]], gamma: float, lam: float
) -> None:
    rewards, values = [r for r, _ in steps], [v for _, v in steps]
    following = [*values[1:], 0.0]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    slow = [
        sum((gamma * lam) ** (later - now) * deltas[later] for later in range(now, len(steps)))
        for now in range(len(steps))
    ]
    advantages, _ = gae(rewards, values, gamma=gamma, lam=lam)
    assert advantages == pytest.approx(slow, abs=1e-9)


def test_bi_level_gae_of_a_hand_computed_episode_whose_first_turn_earns_nothing() -> None:
    # two turns, of two tokens and of one; gamma = lam = gamma_turn = 0.5, lam_turn 1
    # turns:  d1 = 1 - 0.5 = 0.5 ; A1 = 0.5 ; G1 = 0.5 + 0.5 = 1
    #         d0 = 0 + 0.5*0.5 - 0.25 = 0 ; A0 = 0 + 0.5*1*0.5 = 0.25 ; G0 = 0.25 + 0.25 = 0.5
    # tokens: A[1] = 0.5 - 0.25 = 0.25 ; A[0] = 0.5*0.25 - 0.5 + 0.25*0.25 = -0.3125
    #         A[2] = 1 - 0.5 = 0.5
    advantages, returns = bi_level_gae(
        [0, 0, 1],
        [0.5, 0.25, 0.5],
        [False, True, True],
        gamma=0.5,
        lam=0.5,
        gamma_turn=0.5,
        lam_turn=1.0,
    )
    assert advantages.tolist() == [-0.3125, 0.25, 0.5]
    assert returns.tolist() == [0.1875, 0.5, 1.0]


def test_a_turn_without_reward_is_a_turn_all_the_same() -> None:
    # values are 0, so that advantages are returns; each turn further from the prize costs a factor
    # 0.5, each token of a turn none. Turns found by rewards would be one: 1 everywhere.
    advantages, _ = bi_level_gae(
        [0, 0, 0, 0, 1],
        [0] * 5,
        [False, True, False, True, True],
        gamma=1.0,
        lam=1.0,
        gamma_turn=0.5,
        lam_turn=1.0,
    )
    assert advantages.tolist() == [0.25, 0.25, 0.5, 0.5, 1.0]


def test_a_reward_inside_a_turn_counts_for_the_whole_turn() -> None:
    settings = {"gamma": 1.0, "lam": 1.0, "gamma_turn": 0.5, "lam_turn": 1.0}
    early, _ = bi_level_gae([3, 0], [0, 0], [False, True], **settings)
    late, _ = bi_level_gae([0, 3], [0, 0], [False, True], **settings)
    assert early.tolist() == late.tolist() == [3.0, 3.0]


def test_bi_level_gae_of_no_tokens_is_empty_and_a_token_after_the_last_turn_is_a_mistake() -> None:
    settings = {"gamma": 1.0, "lam": 1.0, "gamma_turn": 1.0, "lam_turn": 1.0}
    assert bi_level_gae([], [], [], **settings)[0].size == 0
    with pytest.raises(AssertionError, match="after the last turn"):
        bi_level_gae([1, 0], [0, 0], [True, False], **settings)


TOKENS = st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.booleans()), min_size=1)


@given(TOKENS)
def test_undiscounted_bi_level_gae_is_gae_over_tokens(
    tokens: list[tuple[float, float, bool]],
) -> None:
    """Both telescope to the rewards from the turn on, less the value before the token."""
    ends = [*[end for _, _, end in tokens[:-1]], True]
    rewards = [reward if end else 0.0 for (reward, _, _), end in zip(tokens, ends, strict=True)]
    values = [value for _, value, _ in tokens]
    two, _ = bi_level_gae(rewards, values, ends, gamma=1.0, lam=1.0, gamma_turn=1.0, lam_turn=1.0)
    one, _ = gae(rewards, values, gamma=1.0, lam=1.0)
    assert two == pytest.approx(one, abs=1e-9)


@given(TOKENS, st.floats(0, 1), st.floats(0, 1))
def test_bi_level_gae_of_turns_of_one_token_is_gae_over_turns(
    tokens: list[tuple[float, float, bool]], gamma_turn: float, lam_turn: float
) -> None:
    rewards, values = [r for r, _, _ in tokens], [v for _, v, _ in tokens]
    two, returns = bi_level_gae(
        rewards,
        values,
        [True] * len(tokens),
        gamma=0.3,
        lam=0.4,
        gamma_turn=gamma_turn,
        lam_turn=lam_turn,
    )
    one, targets = gae(rewards, values, gamma=gamma_turn, lam=lam_turn)
    assert two == pytest.approx(one, abs=1e-9)
    assert returns == pytest.approx(targets, abs=1e-9)


def test_whitened_values_have_mean_zero_and_deviation_one() -> None:
    whitened = whiten(np.array([1.0, 2.0, 3.0, 6.0]))
    assert whitened.mean() == pytest.approx(0)
    assert whitened.std() == pytest.approx(1)


def test_whitening_a_constant_gives_zeros() -> None:
    assert whiten(np.array([2.0, 2.0])).tolist() == [0.0, 0.0]


def test_groups_of_the_largest_deviation_are_selected() -> None:
    rewards = [0, 0, 0, 1, 1, 1, 0, 5]
    groups = [10, 10, 11, 11, 12, 12, 13, 13]
    assert select_groups(rewards, groups, ratio=0.5) == [11, 13]
    assert select_groups(rewards, groups, ratio=0.01) == [13]
    assert select_groups(rewards, groups, ratio=1.0) == [10, 11, 12, 13]


REWARDS, GROUPS = [0, 0, 0, 1, 1, 1, 0, 5], [10, 10, 11, 11, 12, 12, 13, 13]
"""Deviations 0, 0.5, 0 and 2.5."""


def test_deviations_of_groups() -> None:
    assert group_deviations(REWARDS, GROUPS) == {10: 0.0, 11: 0.5, 12: 0.0, 13: 2.5}


def test_reversed_the_groups_of_the_smallest_deviation_are_selected() -> None:
    assert select_groups(REWARDS, GROUPS, ratio=0.5, by="std_rev") == [10, 12]
    assert select_groups(REWARDS, GROUPS, ratio=0.75, by="std_rev") == [10, 11, 12]


def test_a_group_of_equal_returns_fills_a_place_unless_it_is_excluded() -> None:
    assert select_groups(REWARDS, GROUPS, ratio=0.75) == [10, 11, 13]
    assert select_groups(REWARDS, GROUPS, ratio=0.75, exclude_zero=True) == [11, 13]
    assert select_groups(REWARDS, GROUPS, ratio=1.0, exclude_zero=True) == [11, 13]
    assert select_groups(REWARDS, GROUPS, ratio=0.25, by="std_rev", exclude_zero=True) == [11]
    assert select_groups([1, 1], [0, 0], ratio=0.5, exclude_zero=True) == []


def test_returns_that_differ_by_rounding_alone_are_equal() -> None:
    sums = [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1]
    assert sums[0] != sums[1]
    assert select_groups(sums, [0, 0], ratio=1.0, exclude_zero=True) == []


@given(st.permutations(range(8)))
def test_the_selection_does_not_depend_on_the_order_of_episodes(order: list[int]) -> None:
    rewards, groups = [REWARDS[i] for i in order], [GROUPS[i] for i in order]
    assert select_groups(rewards, groups, ratio=0.5) == [11, 13]
