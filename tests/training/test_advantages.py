"""GAE by hand and by its definition, whitening, group selection."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steps.training.advantages import gae, select_groups, whiten


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
