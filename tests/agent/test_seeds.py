"""One seed from many numbers, the same everywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steps.agent.seeds import Stream, mix_seed


def test_streams_differ_and_keep_their_numbers() -> None:
    assert Stream.__members__ == {  # aliases, too, which are two names of one number
        "PROBE": 7,
        "PPO": 11,
        "EVALUATION": 13,
        "TEACHER_FORCED": 17,
        "PERPLEXITY": 19,
    }
    assert len(set(Stream.__members__.values())) == len(Stream.__members__)
    assert mix_seed(3, Stream.PPO, 1) == mix_seed(3, 11, 1)


def test_mixed_seeds_are_those_of_splitmix64() -> None:
    # First output of SplitMix64 seeded with 0 is 0xE220A8397B1DCDAF (the authors' test vector).
    assert mix_seed(0) == 0xE220A8397B1DCDAF >> 1
    assert mix_seed(1, 2) != mix_seed(2, 1)
    assert mix_seed(1) != mix_seed(1, 0)


@given(st.integers(), st.integers())
def test_any_integers_can_be_mixed(a: int, b: int) -> None:
    assert 0 <= mix_seed(a, b) < 2**63
