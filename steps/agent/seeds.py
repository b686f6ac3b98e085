"""Seeds from seeds: one number for each episode, answer and draw, equal in every process."""

from __future__ import annotations

from enum import IntEnum, unique

_MASK = (1 << 64) - 1


@unique
class Stream(IntEnum):
    """Keeps the sampling seeds of one use apart from those of the others under the same seed.

    It is mixed in after the run's seed; of state perplexity, which depends on no run, after the
    puzzle's. Self-play has the number of its round there (1, 2, ...): rounds 7 and 13, if a run has
    so many, draw with seeds of PROBE and EVALUATION, for other puzzles. A change of a value changes
    results.
    """

    PROBE = 7
    """Validation puzzles while PPO trains, and after finetuning."""
    PPO = 11
    """Episodes that PPO learns from, by both backends."""
    EVALUATION = 13
    """Held-out puzzles, the same for every model of a run."""
    TEACHER_FORCED = 17
    """Random play whose true texts a model is fed."""
    PERPLEXITY = 19
    """Random play that visits the states whose words are measured."""


def mix_seed(*parts: int) -> int:
    """A seed in [0, 2**63) that depends on every part and on their order.

    Each part is folded in by a round of SplitMix64 (Steele, Lea, Flood 2014).
    """
    state = 0
    for part in parts:
        state = (state + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1
