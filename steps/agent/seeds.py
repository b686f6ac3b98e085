"""Seeds from seeds: one number for each episode, answer and draw, equal in every process."""

from __future__ import annotations

_MASK = (1 << 64) - 1


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
