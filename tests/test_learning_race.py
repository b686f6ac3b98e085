"""What the picture of the README is drawn from."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.learning_race import series_of

CURVE = [
    {"ppo/seconds": 60.0, "rollout/success": 0.2},
    {"ppo/seconds": 120.0, "rollout/success": 0.4, "probe/success": 0.3},
    {"ppo/seconds": 180.0, "rollout/success": 0.6},
    {"ppo/seconds": 240.0, "rollout/success": 0.8, "probe/success": 0.7},
]


class FakeRun(dict[str, Any]):
    """A run whose PPO began two minutes after it."""

    id = "7"

    def __init__(self) -> None:
        begun = datetime(2026, 1, 1)
        data = SimpleNamespace(ppo={"curve": CURVE})
        later = SimpleNamespace(created_at=begun + timedelta(minutes=2), data=data)
        start = SimpleNamespace(created_at=begun)
        super().__init__(start=SimpleNamespace(task=start), ppo_train=SimpleNamespace(task=later))


def test_own_play_is_a_running_mean_over_minutes_since_the_start() -> None:
    series = series_of(FakeRun())  # type: ignore[arg-type]
    assert list(series.x) == [3.0, 4.0, 5.0, 6.0]
    assert list(series.y) == pytest.approx([0.2, 0.3, 0.4, 0.5])


def test_probes_are_drawn_as_they_are_where_there_are_any() -> None:
    series = series_of(FakeRun(), probes=True)  # type: ignore[arg-type]
    assert (list(series.x), list(series.y)) == ([4.0, 6.0], [0.3, 0.7])
