"""Pass@k, its intervals and paired gains, against brute force and hand cases."""

import itertools
import math

import numpy as np
import pytest

from steps.agent.records import ResponseFormat, StopReason, Trajectory
from steps.agent.success import (
    Bootstrap,
    Tries,
    attainable,
    interval,
    paired_gain,
    pass_at_k,
    pass_scores,
    scores_by_difficulty,
    success_scores,
    tries_by_puzzle,
)


def episode(puzzle, success, *, stop_reason=StopReason.TERMINATED):
    return Trajectory(
        trajectory_id="t",
        env_id="frozenlake",
        env_seed=0,
        puzzle_hash=puzzle,
        group=0,
        member=0,
        policy="scripted",
        turns=(),
        stop_reason=stop_reason,
        success=success,
        response_format=ResponseFormat.PLAIN,
    )


def test_pass_at_k_equals_the_share_of_all_draws_that_hold_a_success():
    for n in range(1, 8):
        for c in range(n + 1):
            results = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                draws = list(itertools.combinations(results, k))
                share = sum(any(draw) for draw in draws) / len(draws)
                assert pass_at_k(n, c, k) == pytest.approx(share, abs=1e-12), (n, c, k)


def test_pass_at_k_stays_exact_where_factorials_overflow_a_float():
    # 1 - (999/1000) * (998/999) * ... for one success in n tries is k/n.
    assert pass_at_k(1000, 1, 400) == pytest.approx(0.4)
    assert pass_at_k(2000, 2000, 1024) == 1.0


@pytest.mark.parametrize("n, c, k", [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0), (0, 0, 1)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match="needs"):
        pass_at_k(n, c, k)


def test_scores_are_means_over_puzzles():
    episodes = [episode("a", won) for won in (True, True, False, False)]
    episodes += [episode("b", False) for _ in range(4)]
    scores = success_scores(episodes, pass_k=[2, 1, 8])
    assert scores["pass@1"] == pytest.approx((0.5 + 0.0) / 2)
    # Puzzle a: of the six pairs one holds no success.
    assert scores["pass@2"] == pytest.approx((5 / 6 + 0.0) / 2)
    assert scores["pass@8"] is scores["pass@8_low"] is scores["pass@8_high"] is None
    assert (scores["n"], scores["puzzles"], scores["errors"]) == (8, 2, 0)


def test_episodes_broken_by_the_policy_are_counted_apart():
    episodes = [episode("a", True), episode("a", False, stop_reason=StopReason.POLICY_ERROR)]
    scores = success_scores(episodes)
    assert (scores["pass@1"], scores["n"], scores["errors"]) == (1.0, 1, 1)
    assert success_scores(episodes[1:])["pass@1"] is None


def test_running_out_of_context_is_the_models_failure():
    episodes = [episode("a", True), episode("b", False, stop_reason=StopReason.CONTEXT_FULL)]
    assert success_scores(episodes)["pass@1"] == 0.5


def test_interval_of_two_puzzles_by_hand():
    # Two draws of {0, 1}: means 0, .5, 1 with chances 1/4, 1/2, 1/4. The inner 40 % are all .5,
    # the inner 95 % reach both ends.
    assert interval([0.0, 1.0], Bootstrap(confidence=0.4)) == (0.5, 0.5)
    assert interval([0.0, 1.0], Bootstrap(confidence=0.95)) == (0.0, 1.0)


def test_interval_is_that_of_the_mean_in_a_large_sample():
    values = [0.0, 1.0] * 200
    low, high = interval(values, Bootstrap(resamples=4000))
    # Standard error sqrt(.25 / 400) = .025, times 1.96.
    assert low == pytest.approx(0.5 - 0.049, abs=0.006)
    assert high == pytest.approx(0.5 + 0.049, abs=0.006)


def test_interval_holds_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    hits = 0
    for trial in range(300):
        rates = rng.beta(0.7, 0.7, size=60)
        values = rng.binomial(8, rates) / 8
        low, high = interval(values.tolist(), Bootstrap(resamples=400, seed=trial))
        hits += low <= 0.5 <= high
    assert 0.90 <= hits / 300 <= 0.985


def test_interval_of_puzzles_that_all_agree_is_no_certainty():
    # .025 ** (1/128) = exp(ln(.025) / 128) = exp(-3.68888 / 128) = exp(-.028819) = .97159
    assert interval([1.0] * 128) == (pytest.approx(0.97159, abs=1e-5), 1.0)
    assert interval([0.0] * 128) == (0.0, pytest.approx(0.02841, abs=1e-5))
    assert interval([0.25]) == (0.0, 1.0)
    assert interval([]) == (None, None)


def test_puzzles_of_one_rate_claim_no_certainty():
    """Wilson's interval of 5 in 10 is (.2366, .7634), of 4 in 12 (.1381, .6094)."""
    assert interval([0.5] * 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    thirds = [1 / 3] * 6 + [1 - 2 / 3] * 6  # one rate, worked out in two ways
    assert interval(thirds) == pytest.approx((0.1381, 0.6094), abs=1e-4)


def test_puzzles_that_all_gain_the_same_claim_no_certainty():
    """The bound of 20 puzzles that agree is .1684 (.025 to the power 1/20 is .8316)."""
    before = {str(i): Tries(num=4, successes=0) for i in range(20)}
    after = {str(i): Tries(num=4, successes=4) for i in range(20)}
    gained, same = paired_gain(before, after), paired_gain(before, before)
    low = pytest.approx(1 - math.hypot(0.1684, 0.1684), abs=1e-4)
    assert gained == {"gain": 1.0, "low": low, "high": 1.0, "puzzles": 20}
    assert (same["low"], same["high"]) == pytest.approx((-0.1684, 0.1684), abs=1e-4)


def test_bound_of_agreeing_puzzles_covers_as_it_says():
    # A true rate p shows only successes in n puzzles with chance p**n; at the bound that is 2.5 %.
    low, _ = interval([1.0] * 20)
    assert low**20 == pytest.approx(0.025)


def test_interval_does_not_depend_on_the_block_size(monkeypatch):
    values = [0.0, 0.25, 0.5, 1.0, 1.0]
    whole = interval(values, Bootstrap(resamples=500))
    monkeypatch.setattr("steps.agent.success._MAX_DRAWS", 35)
    assert interval(values, Bootstrap(resamples=500)) == whole


def test_gain_is_paired_by_puzzle():
    before = {"a": Tries(num=4, successes=0), "b": Tries(num=4, successes=2)}
    after = {
        "b": Tries(num=4, successes=3),
        "a": Tries(num=4, successes=1),
        "c": Tries(num=4, successes=0),
    }
    # Both puzzles gain a quarter: however the puzzles are drawn, so does the mean. Both rates reach
    # a quarter to either side, and the gain as far as the diagonal.
    reach = math.hypot(0.25, 0.25)
    assert paired_gain(before, after) == pytest.approx(
        {"gain": 0.25, "low": 0.25 - reach, "high": 0.25 + reach, "puzzles": 2}
    )
    assert paired_gain({"a": before["a"]}, after) is None


@pytest.mark.parametrize(("confidence", "low", "high"), [(0.4, 0.3, 0.5), (0.95, 0.1, 0.7)])
def test_the_interval_of_a_gain_leaves_half_of_its_doubt_on_each_side(confidence, low, high):
    """Of ten puzzles four are gained: the mean of ten draws is that of a binomial of .4.

    At most 0, 1, 2, 3, 4, 5, 6, 7 of ten: .006, .046, .167, .382, .633, .834, .945, .988. So .3 and
    .7 of the draws lie at 3 and 5, .025 and .975 at 1 and 7.
    """
    before = {str(n): Tries(num=1, successes=0) for n in range(10)}
    after = {str(n): Tries(num=1, successes=int(n < 4)) for n in range(10)}
    found = paired_gain(before, after, Bootstrap(resamples=20_000, confidence=confidence))
    assert found == pytest.approx({"gain": 0.4, "low": low, "high": high, "puzzles": 10})


def test_tries_keep_the_order_of_the_puzzles():
    episodes = [episode("b", True), episode("a", False), episode("b", False)]
    assert tries_by_puzzle(episodes) == {
        "b": Tries(num=2, successes=1),
        "a": Tries(num=1, successes=0),
    }
    assert list(tries_by_puzzle(episodes)) == ["b", "a"]


def test_quarters_begin_with_the_puzzles_that_luck_solves_least():
    """By hand: sixteen puzzles, of which those with an even number are solved, two tries each."""
    tries = {str(n): Tries(num=2, successes=2 * (n % 2 == 0)) for n in range(16)}
    bounds = {str(n): (n / 16, 1.0 if n < 15 else None) for n in range(16)}
    found = scores_by_difficulty(tries, dict(reversed(bounds.items())), pass_k=[1, 2])
    assert list(found) == ["hardest", "harder", "easier", "easiest"]
    hardest, easiest = found["hardest"], found["easiest"]
    assert (hardest["puzzles"], hardest["floor"], hardest["ceiling"]) == (4, 1.5 / 16, 1.0)
    assert (easiest["floor"], easiest["ceiling"]) == (13.5 / 16, None)
    assert [each["pass@1"] for each in found.values()] == [0.5] * 4
    tries["0"] = Tries(num=2, successes=1)
    hardest = scores_by_difficulty(tries, bounds, pass_k=[1, 2])["hardest"]
    assert (hardest["pass@1"], hardest["pass@2"]) == (0.375, 0.5)


def test_quarters_want_sixteen_puzzles_with_a_known_chance():
    tries = {str(n): Tries(num=1, successes=1) for n in range(16)}
    known = dict.fromkeys(tries, (0.5, None))
    assert scores_by_difficulty(tries, known)
    assert scores_by_difficulty(tries, known | {"3": (None, 1.0)}) == {}
    del tries["3"]
    assert scores_by_difficulty(tries, known) == {}


def test_the_share_of_the_attainable_runs_from_random_to_optimal_play():
    scores = {"pass@1": 0.5, "pass@1_low": 0.4, "pass@1_high": 0.7, "floor": 0.2, "ceiling": 0.8}
    # 0.3 of 0.6; the ends of the interval are 0.2 and 0.5 of 0.6.
    assert attainable(scores) == pytest.approx(
        {"attainable": 1 / 2, "attainable_low": 1 / 3, "attainable_high": 5 / 6}
    )
    assert attainable(scores | {"pass@1": 0.1})["attainable"] == pytest.approx(-1 / 6)


@pytest.mark.parametrize(
    "bounds", [{}, {"floor": None, "ceiling": 0.5}, {"floor": 0.2, "ceiling": None},
               {"floor": 1.0, "ceiling": 1.0}],
)  # fmt: skip
def test_without_two_bounds_nothing_is_attainable(bounds):
    found = attainable({"pass@1": 0.5, "pass@1_low": 0.4, "pass@1_high": 0.7} | bounds)
    assert set(found.values()) == {None}


def test_tries_alone_give_pass_at_k():
    tries = {"a": Tries(num=4, successes=1), "b": Tries(num=4, successes=4)}
    scores = pass_scores(tries, pass_k=[1, 2, 8])
    # One success of four: a draw of two holds it with 1/2.
    assert (scores["pass@1"], scores["pass@2"], scores["pass@8"]) == (0.625, 0.75, None)
