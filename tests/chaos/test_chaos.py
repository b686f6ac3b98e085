"""The short versions: a flow killed in each of its stages, and some bad days. The long ones are the
modules' own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import bad_days, harness
from tests.chaos.harness import Calm
from tests.chaos.scene import Scene

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """The flow that all others are compared with."""
    return harness.undisturbed(tmp_path_factory.mktemp("chaos") / "calm")


def test_a_flow_killed_in_every_stage_ends_as_one_that_was_left_alone(
    calm: Calm, tmp_path: Path
) -> None:
    assert set(calm.lengths) == set(harness.STAGES)
    chain = harness.run_chain(0, tmp_path, calm, seed=3)
    assert [each.stage for each in chain.kills] == list(harness.STAGES)
    assert chain.is_equal, chain.differences
    assert sum(each.repeated for each in chain.kills) == 0


def test_a_run_survives_its_bad_days(calm: Calm, tmp_path: Path) -> None:
    """A checkpoint cut at a random byte, no room for the next one, a clock set back a day."""
    days = ["checkpoint_cut", "file_too_large", "clock_back_during"]
    rows = list(bad_days.run(days, Scene(tmp_path, seed=5, calm=calm)))
    assert [row.is_equal for row in rows] == [True, True, True]
