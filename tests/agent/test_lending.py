"""Rows that show what states look like: whose states they get, and what stays as it was."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steps.agent.lending import lend_states
from steps.agent.parsing import parse_response
from steps.agent.records import Message, ParseStatus, SFTExample, SpanKind
from steps.agent.splice import write_response
from steps.errors import DataError


def row(puzzle: str, turn: int = 0) -> SFTExample:
    """True states name their puzzle and turn: `o:p0` is observed, `n:p0` comes next."""
    observation, prediction = f"o:{puzzle}{turn}", f"n:{puzzle}{turn}"
    return SFTExample(
        prompt=(Message(role="user", content=f"shown {puzzle}{turn}"),),
        response=write_response(
            "world_model",
            observation=observation,
            thought="so",
            prediction=prediction,
            actions=["Up"],
        ),
        spans=(),
        trajectory_id=puzzle,
        turn_index=turn,
        puzzle_hash=puzzle,
        split="train",
        true_observation=observation,
        true_prediction=prediction,
    )


def states(lent: SFTExample) -> tuple[str, str]:
    """Puzzles of the two states in an answer, which must be well-formed."""
    parsed = parse_response(lent.response, "world_model", action_names=("Up",))
    assert parsed.status is ParseStatus.OK
    assert parsed.thought == "so"
    assert parsed.actions == ("Up",)
    assert parsed.observation is not None and parsed.observation.startswith("o:")
    assert parsed.prediction is not None and parsed.prediction.startswith("n:")
    return parsed.observation[2], parsed.prediction[2]


def test_of_three_puzzles_a_row_gets_one_state_of_each_other() -> None:
    rows = [row(puzzle) for puzzle in "abc"]
    for seed in range(20):
        found = [states(each) for each in lend_states(rows, seed=seed)]
        assert [set(pair) for pair in found] == [{"b", "c"}, {"a", "c"}, {"a", "b"}]


def test_of_two_puzzles_a_row_gets_both_states_of_the_other() -> None:
    rows = [row("a", 0), row("b", 0), row("a", 1)]
    assert [states(each) for each in lend_states(rows, seed=0)] == [
        ("b", "b"),
        ("a", "a"),
        ("b", "b"),
    ]


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=40), st.integers(0, 9))
def test_no_row_keeps_a_state_of_its_own_puzzle_and_the_two_are_of_different_ones(
    puzzles: list[str], seed: int
) -> None:
    rows = [row(puzzle, turn) for turn, puzzle in enumerate(puzzles)]
    if len(set(puzzles)) == 1:
        with pytest.raises(DataError, match="of one puzzle"):
            lend_states(rows, seed=seed)
        return
    for before, after in zip(rows, lend_states(rows, seed=seed), strict=True):
        seen, ahead = states(after)
        assert before.puzzle_hash not in (seen, ahead)
        assert seen != ahead or len(set(puzzles)) == 2


def test_prompts_and_facts_stay_and_spans_are_those_of_the_new_text() -> None:
    rows = [row(puzzle) for puzzle in "abc"]
    for before, after in zip(rows, lend_states(rows, seed=3), strict=True):
        assert after.prompt == before.prompt
        assert (after.true_observation, after.true_prediction) == (
            before.true_observation,
            before.true_prediction,
        )
        texts = {span.kind: after.response[span.start : span.end] for span in after.spans}
        seen, ahead = states(after)
        assert texts[SpanKind.OBSERVATION] == f"o:{seen}0"
        assert texts[SpanKind.PREDICTION] == f"n:{ahead}0"
        assert after.spans[-1].end == len(after.response)


def test_where_each_puzzle_has_one_row_every_state_is_lent_once() -> None:
    """The next in a ring: each row is the next of one other."""
    rows = [row(puzzle) for puzzle in "abcdefgh"]
    seen = Counter(states(each)[0] for each in lend_states(rows, seed=5))
    assert seen == Counter("abcdefgh")


def test_a_seed_gives_the_same_rows_and_another_gives_others() -> None:
    rows = [row(puzzle) for puzzle in "abcdefgh"]
    assert lend_states(rows, seed=1) == lend_states(rows, seed=1)
    assert lend_states(rows, seed=1) != lend_states(rows, seed=2)
    assert lend_states([], seed=1) == []
