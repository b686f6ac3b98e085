"""Learning-rate factors at the ends and in the middle."""

from __future__ import annotations

import pytest

from conf.schema import SFTSection
from steps.training.schedules import lr_scale, sft_warmup


def _scale(step: int, schedule: str, min_ratio: float = 0.0) -> float:
    return lr_scale(step, total_steps=12, warmup_steps=2, schedule=schedule, min_ratio=min_ratio)


def test_warmup_rises_linearly_to_one() -> None:
    assert [_scale(step, "constant") for step in range(4)] == pytest.approx([1 / 3, 2 / 3, 1, 1])


@pytest.mark.parametrize(
    ("schedule", "middle"), [("linear", 0.5), ("cosine", 0.5), ("constant", 1.0)]
)
def test_decay_is_halfway_in_the_middle(schedule: str, middle: float) -> None:
    assert _scale(7, schedule) == pytest.approx(middle)


def test_decay_ends_at_the_minimum_and_stays_there() -> None:
    assert _scale(12, "cosine", 0.1) == pytest.approx(0.1)
    assert _scale(50, "linear", 0.1) == pytest.approx(0.1)


def test_decay_follows_the_clock_where_that_is_further_on() -> None:
    """Step 4 of 2..12 is a fifth of the way; half of the time is gone. Warm-up heeds steps only."""

    def scale(step: int, time_share: float) -> float:
        return lr_scale(
            step,
            total_steps=12,
            warmup_steps=2,
            schedule="linear",
            min_ratio=0.0,
            time_share=time_share,
        )

    assert scale(4, 0.0) == pytest.approx(0.8)
    assert scale(4, 0.5) == pytest.approx(0.5)
    assert scale(4, 0.1) == pytest.approx(0.8)
    assert scale(0, 0.9) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("steps", "ratio", "total", "warmup"),
    [
        (0, 0.0, 100, 0),
        (0, 0.1, 1505, 150),
        (0, 0.29, 100, 29),
        (50, 0.1, 1505, 50),
        (0, 1.0, 7, 7),
    ],
)
def test_warm_up_is_given_in_steps_or_as_a_share(
    steps: int, ratio: float, total: int, warmup: int
) -> None:
    assert sft_warmup(SFTSection(warmup_steps=steps, warmup_ratio=ratio), total) == warmup
