"""The short version: one flow, killed in each of its stages. The long one is the harness's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import harness


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_flow_killed_in_every_stage_ends_as_one_that_was_left_alone(tmp_path: Path) -> None:
    chains, lengths = harness.run(1, seed=3, root=tmp_path)
    assert [each.stage for each in chains[0].kills] == list(harness.STAGES)
    assert chains[0].is_equal, chains[0].differences
    assert sum(each.repeated for each in chains[0].kills) == 0
    assert set(lengths) == set(harness.STAGES)
