"""States for an arm that learns what states look like, and nothing of what is true.

A model from scratch learns its answers' format from random play, which writes true states into
them. Finetuned on those, an arm without world-model finetuning would know its world all the same.
So each answer gets its states from other puzzles. The format, the words and how often each state is
met stay; what an observation has to do with the prompt, and a prediction with the observation and
the action, is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from steps.agent.parsing import spans
from steps.agent.records import ResponseFormat, SFTExample
from steps.agent.splice import splice_truth
from steps.errors import DataError


def lend_states(rows: Sequence[SFTExample], *, seed: int) -> list[SFTExample]:
    """The rows in their order, with other states in their answers and all else as it was.

    They stand in a ring whose order `seed` draws. Each takes the true observation of the next row
    of another puzzle, and the true prediction of the next one after that which is of neither puzzle
    (of two puzzles, of the other one). An observation equals the row's own only where two puzzles
    look alike. Prompts stay, so they may hold no earlier answers. Raises `DataError` where all rows
    are of one puzzle.
    """
    puzzles = {row.puzzle_hash for row in rows}
    if len(puzzles) == 1:
        raise DataError(
            f"all {len(rows)} rows are of one puzzle, so that no other's states can be lent for "
            "sft.target=format: let self-play meet more puzzles (selfplay.env_groups)."
        )
    order = [int(place) for place in np.random.default_rng(seed).permutation(len(rows))]
    ring = [rows[place] for place in order]
    lent = list(rows)
    for place, row in enumerate(ring):
        seen = _next_of_others(ring, place, {row.puzzle_hash})
        used = {row.puzzle_hash, ring[seen].puzzle_hash}
        ahead = _next_of_others(ring, seen, used if len(puzzles) > 2 else {row.puzzle_hash})
        lent[order[place]] = _with_states(row, ring[seen], ring[ahead])
    return lent


def _next_of_others(ring: Sequence[SFTExample], place: int, puzzles: Collection[str]) -> int:
    """The first place after `place` whose row is of none of these puzzles."""
    following = chain(range(place + 1, len(ring)), range(place + 1))
    return next(index for index in following if ring[index].puzzle_hash not in puzzles)


def _with_states(row: SFTExample, seen: SFTExample, ahead: SFTExample) -> SFTExample:
    response = splice_truth(
        row.response, observation=seen.true_observation, prediction=ahead.true_prediction
    )
    return replace(row, response=response, spans=spans(response, ResponseFormat.WORLD_MODEL))
