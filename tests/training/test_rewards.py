"""Bonuses for right states, normalised returns and GRPO's advantages, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.schema import PPOSection
from steps.agent.records import ParsedResponse, ParseStatus, ResponseFormat, Trajectory
from steps.training.rewards import at_last_turn, normalize_returns, turn_rewards
from tests.training.episodes import make_trajectory, make_turn


def stating(
    observation: str | None = "here",
    prediction: str | None = "there",
    *,
    status: ParseStatus = ParseStatus.OK,
) -> Trajectory:
    """One turn of reward 1 and penalty -0.25; the truth is `here`, then `there` or `elsewhere`."""
    turn = replace(
        make_turn(0, answer=2, reward=1.0, penalty=-0.25),
        observation_truth="here",
        prediction_truth="there",
        possible_next={"there": 0.8, "elsewhere": 0.2},
        parsed=ParsedResponse(status=status, observation=observation, prediction=prediction),
    )
    return make_trajectory(turn)


def rewarded(trajectory: Trajectory) -> list[float]:
    return turn_rewards(trajectory, PPOSection(observation_reward=0.5, prediction_reward=0.125))


def test_without_bonuses_a_turn_earns_its_reward_and_its_penalty() -> None:
    assert turn_rewards(stating(), PPOSection()) == [0.75]


def test_both_states_right_earn_both_bonuses() -> None:
    assert rewarded(stating()) == [0.75 + 0.5 + 0.125]


def test_a_state_that_could_have_come_is_predicted_rightly() -> None:
    assert rewarded(stating(prediction="elsewhere")) == [0.75 + 0.5 + 0.125]


@pytest.mark.parametrize(
    ("observation", "prediction", "bonus"),
    [("here!", "there", 0.125), ("here", "nowhere", 0.5), ("there", "here", 0.0)],
)
def test_a_wrong_state_earns_nothing(observation: str, prediction: str, bonus: float) -> None:
    assert rewarded(stating(observation, prediction)) == [0.75 + bonus]


def test_a_malformed_answer_earns_no_bonus() -> None:
    assert rewarded(stating(status=ParseStatus.EXTRA_TEXT)) == [0.75]


@pytest.mark.parametrize(
    ("trajectory", "penalty"),
    [
        (stating(), 0.0),
        (stating(prediction="elsewhere"), 0.0),
        (stating(prediction="nowhere"), -0.125),
        (stating(prediction=None), -0.125),
        (stating("here!"), -0.5),
        (stating("here!", "nowhere"), -0.625),
        (stating(status=ParseStatus.EXTRA_TEXT), -0.625),
    ],
)
def test_wrong_states_are_penalized(trajectory: Trajectory, penalty: float) -> None:
    section = PPOSection(observation_penalty=-0.5, prediction_penalty=-0.125)
    assert turn_rewards(trajectory, section) == [0.75 + penalty]


@pytest.mark.parametrize(
    ("prediction", "expected"), [("there", 0.75 + 0.5), ("elsewhere", 0.75 - 0.125)]
)
def test_where_other_ways_arent_known_the_state_that_came_is_the_right_prediction(
    prediction: str, expected: float
) -> None:
    """Several steps in a slippery world: only the chance of the path that came is known."""
    turn = replace(stating(prediction=prediction).turns[0], possible_next={"there": 0.5})
    section = PPOSection(prediction_reward=0.5, prediction_penalty=-0.125)
    assert turn_rewards(make_trajectory(turn), section) == [expected]


def test_rewards_and_penalties_add_up() -> None:
    section = PPOSection(observation_reward=0.25, prediction_penalty=-0.125)
    assert turn_rewards(stating(prediction="nowhere"), section) == [0.75 + 0.25 - 0.125]


def test_answers_without_states_earn_no_bonus() -> None:
    plain = replace(stating(None, None), response_format=ResponseFormat.PLAIN)
    assert rewarded(plain) == [0.75]


def test_each_turn_earns_its_own_and_the_trajectory_stays_as_it_is() -> None:
    right, wrong = stating().turns[0], stating("wrong", "wrong").turns[0]
    both = make_trajectory(right, replace(wrong, index=1))
    before = replace(both)
    assert rewarded(both) == [1.375, 0.75]
    assert both == before and both.reward == 1.5


def normalized(returns: list[float], method: str, grouping: str = "state") -> list[float]:
    groups = [0] * (len(returns) // 2) + [1] * (len(returns) - len(returns) // 2)
    return normalize_returns(returns, groups, method=method, grouping=grouping)


def test_without_normalisation_returns_stay_as_they_are() -> None:
    assert normalized([0.1, 5, 3, -2], "none") == [0.1, 5, 3, -2]


def test_mean_is_taken_from_the_group_or_from_all() -> None:
    assert normalized([0, 2, 5, 9], "mean") == [-1, 1, -2, 2]
    assert normalized([0, 2, 5, 9], "mean", "batch") == [-4, -2, 1, 5]


def test_mean_std_divides_by_the_samples_deviation() -> None:
    # [0, 1, 1, 2]: mean 1, squares 1 + 0 + 0 + 1 over n - 1 = 3: deviation sqrt(2/3) = 0.81650
    got = normalize_returns([0, 1, 1, 2], [7] * 4, method="mean_std", grouping="state")
    assert got == pytest.approx([-1.22474, 0, 0, 1.22474], abs=1e-5)
    # [0, 2]: deviation sqrt(2); [5, 9]: sqrt(8); each a distance of sqrt(1/2) from its mean
    half = 0.5**0.5
    assert normalized([0, 2, 5, 9], "mean_std") == pytest.approx([-half, half] * 2, abs=1e-5)


def test_asym_clip_lets_a_rare_success_stand_out_more_than_a_rare_failure() -> None:
    # 15 x 0 and one 16: mean 1, squares 15 + 225 = 240 over 15: deviation 4; (16 - 1) / 4 = 3.75
    success = normalize_returns([0] * 15 + [16], [0] * 16, method="asym_clip", grouping="batch")
    assert success == pytest.approx([-0.25] * 15 + [3.0], abs=1e-5)
    failure = normalize_returns([16] * 15 + [0], [0] * 16, method="asym_clip", grouping="batch")
    assert failure == pytest.approx([0.25] * 15 + [-1.0], abs=1e-5)


@pytest.mark.parametrize("method", ["mean", "mean_std", "asym_clip"])
def test_equal_returns_and_single_ones_become_zeros(method: str) -> None:
    assert normalized([2.0, 2.0, 2.0, 2.0], method) == [0.0] * 4
    assert normalize_returns([5.0], [0], method=method, grouping="state") == [0.0]
    assert normalize_returns([], [], method=method, grouping="batch") == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 20)), min_size=1),
    st.sampled_from(["state", "batch"]),
)
def test_normalised_returns_have_mean_zero_in_their_group(
    episodes: list[tuple[int, int]], grouping: str
) -> None:
    groups, returns = [g for g, _ in episodes], [float(r) for _, r in episodes]
    got = normalize_returns(returns, groups, method="mean_std", grouping=grouping)
    for group in set(groups if grouping == "state" else [0]):
        mine = [
            value for value, g in zip(got, groups, strict=True) if grouping == "batch" or g == group
        ]
        assert sum(mine) == pytest.approx(0, abs=1e-6)


def test_the_sum_comes_after_the_last_turn() -> None:
    assert at_last_turn(3, 0.5) == [0.0, 0.0, 0.5]
    assert at_last_turn(1, -1.0) == [-1.0]
    assert at_last_turn(0, 1.0) == []
