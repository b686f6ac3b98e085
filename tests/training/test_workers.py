"""Several processes of one stage: their sums are those of one, their failures reach the caller."""

from __future__ import annotations

import multiprocessing
import time

import pytest
import torch

from steps.errors import SPAError, StageError
from steps.workers import Peers, WorkerError, run_ranks
from tests.training import ranks

# By hand, at w = (2, -1): w.x - y is -1, 10, -14, 3, 12 for the five rows; twice its products with
# x sum to 2 * (-1 + 30 + 70 + 21 + 108) and 2 * (-2 - 40 - 84 + 24 + 12), over five rows.
MEAN_GRADIENT = [2 * 228 / 5, 2 * -90 / 5]


def test_one_rank_exchanges_nothing_and_scales_its_gradient() -> None:
    result = run_ranks(ranks.exchange, "word", size=1, main_only=("tracker",))
    assert result["gradient"] == pytest.approx([*MEAN_GRADIENT, 0.0, 0.0, 0.0])
    assert result["sum"] == [1.0, 0.5]
    assert result["gathered"] == [(0, True, "word", False)]


def test_a_parameter_without_gradient_counts_as_zero() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    Peers().sum_gradients([parameter], scale=3.0)
    assert parameter.grad is not None and parameter.grad.tolist() == [0.0, 0.0]


def test_two_ranks_sum_to_exactly_the_gradient_of_one() -> None:
    alone = run_ranks(ranks.gradient, size=1)
    result = run_ranks(ranks.exchange, "word", size=2, main_only=("tracker",))
    assert result["gradient"] == alone
    assert result["sum"] == [3.0, 1.0]
    assert result["gathered"] == [(0, True, "word", False), (1, False, "word", True)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failing_childs_traceback_reaches_the_caller(when: str) -> None:
    with pytest.raises(WorkerError) as caught:
        run_ranks(ranks.fail_in_a_child, when, size=2)
    assert "ValueError: the dog ate the batch" in str(caught.value)
    assert "in fail_in_a_child" in str(caught.value)


def test_a_childs_crash_is_none_of_the_users_mistakes_and_a_mistake_is() -> None:
    """The flow tries a crash again, and a `SPAError` never."""
    assert not issubclass(WorkerError, SPAError)
    with pytest.raises(StageError, match="DataError: the batch is empty"):
        run_ranks(ranks.fail_in_a_child, "mistake", size=2)


def test_a_child_that_dies_without_a_word_is_an_error_too() -> None:
    with pytest.raises(WorkerError, match="exit code 9"):
        run_ranks(ranks.fail_in_a_child, "killed", size=2)


def test_a_child_that_dies_before_it_is_up_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(WorkerError, match="exit code 1"):
        run_ranks(ranks.exchange, ranks.Unreadable(), size=2, main_only=(None,))
    assert time.monotonic() - began < 120


def test_a_failure_of_the_caller_ends_the_children() -> None:
    began = time.monotonic()
    with pytest.raises(KeyError, match="tracker"):
        run_ranks(ranks.fail_in_the_caller, size=2)
    assert time.monotonic() - began < 120
    assert not multiprocessing.active_children()
