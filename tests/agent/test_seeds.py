"""One seed from many numbers, the same everywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steps.agent.seeds import mix_seed


def test_mixed_seeds_are_those_of_splitmix64() -> None:
    # First output of SplitMix64 seeded with 0 is 0xE220A8397B1DCDAF (the authors' test vector).
    assert mix_seed(0) == 0xE220A8397B1DCDAF >> 1
    assert mix_seed(1, 2) != mix_seed(2, 1)
    assert mix_seed(1) != mix_seed(1, 0)


@given(st.integers(), st.integers())
def test_any_integers_can_be_mixed(a: int, b: int) -> None:
    assert 0 <= mix_seed(a, b) < 2**63
