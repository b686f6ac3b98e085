"""What is learned, token by token, for several chat templates; ids that are never made twice."""

from __future__ import annotations

import pytest

from steps.agent.parsing import spans
from steps.agent.records import (
    Completion,
    Message,
    ParsedResponse,
    ParseStatus,
    ResponseFormat,
    SFTExample,
    StopReason,
    Trajectory,
    Turn,
)
from steps.errors import DataError
from steps.policies.hf import encode_prompts, end_of_turn_id
from steps.training import tokenization
from steps.training.tiny_model import build_tokenizer
from steps.training.tokenization import SPAN_KINDS, policy_samples, tokenize_examples
from tests.training.templates import SHAPES, make_tokenizer

GRID, NEXT = "P__\n_O_\n__G", "_P_\n_O_\n__G"
RESPONSE = (
    f"<think><observation>{GRID}</observation>go on<prediction>{NEXT}</prediction></think>"
    "<answer>Right</answer>"
)


def _example() -> SFTExample:
    return SFTExample(
        prompt=(
            Message(role="system", content="Rules."),
            Message(role="user", content=GRID),
        ),
        response=RESPONSE,
        spans=spans(RESPONSE, ResponseFormat.WORLD_MODEL),
        trajectory_id="t",
        turn_index=0,
        puzzle_hash="0" * 16,
        split="train",
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_the_whole_response_and_the_end_of_turn_are_learned_and_nothing_else(shape: str) -> None:
    tokenizer, end = make_tokenizer(shape)
    (row,) = tokenize_examples([_example()], tokenizer, max_length=500)
    learned = [token for token, weight in zip(row.token_ids, row.weights, strict=True) if weight]
    context = [
        token for token, weight in zip(row.token_ids, row.weights, strict=True) if not weight
    ]
    assert tokenizer.decode(learned) == RESPONSE + end
    rendered = tokenizer.apply_chat_template(
        [message.as_dict() for message in _example().prompt],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert tokenizer.decode(context) == rendered


@pytest.mark.parametrize("shape", SHAPES)
def test_first_and_last_learned_token_stand_where_they_should(shape: str) -> None:
    tokenizer, end = make_tokenizer(shape)
    (row,) = tokenize_examples([_example()], tokenizer, max_length=500)
    first = row.weights.index(1.0)
    assert tokenizer.decode([row.token_ids[first]]) == "<think>"
    assert row.weights[first - 1] == 0.0
    assert row.token_ids[-1] == tokenizer.convert_tokens_to_ids(end)
    assert row.weights[-1] == 1.0
    assert end_of_turn_id(tokenizer) == row.token_ids[-1]


def test_masked_states_leave_exactly_the_states_out() -> None:
    tokenizer = build_tokenizer()
    (row,) = tokenize_examples([_example()], tokenizer, state_loss="mask", max_length=500)
    learned = [token for token, weight in zip(row.token_ids, row.weights, strict=True) if weight]
    assert tokenizer.decode(learned) == (
        "<think><observation></observation>go on<prediction></prediction></think>"
        "<answer>Right</answer><|end|>"
    )


def test_each_kind_of_span_holds_its_own_text() -> None:
    tokenizer = build_tokenizer()
    (row,) = tokenize_examples([_example()], tokenizer, max_length=500)
    texts = {
        kind.value: tokenizer.decode(
            [t for t, k in zip(row.token_ids, row.kinds, strict=True) if k == index]
        )
        for index, kind in enumerate(SPAN_KINDS)
    }
    assert texts["observation"] == GRID
    assert texts["prediction"] == NEXT
    assert texts["thought"] == "go on"
    assert texts["answer"] == "Right"


def test_an_example_that_is_too_long_is_refused_not_cut() -> None:
    with pytest.raises(DataError, match="trajectory t, turn 0"):
        tokenize_examples([_example()], build_tokenizer(), max_length=20)


def _turn(index: int, prompt: tuple[int, ...], answer: tuple[int, ...]) -> Turn:
    return Turn(
        index=index,
        prompt=(),
        state_shown="",
        observation_truth="",
        prediction_truth="",
        completion=Completion(
            text="", prompt_ids=prompt, token_ids=answer, logprobs=(-0.5,) * len(answer)
        ),
        response="",
        parsed=ParsedResponse(status=ParseStatus.OK),
    )


def _trajectory(*turns: Turn) -> Trajectory:
    return Trajectory(
        trajectory_id="e",
        env_id="frozenlake",
        env_seed=0,
        puzzle_hash="0" * 16,
        group=0,
        member=0,
        policy="hf",
        turns=turns,
        stop_reason=StopReason.MAX_TURNS,
        success=False,
        response_format=ResponseFormat.WORLD_MODEL,
    )


def test_a_whole_episode_is_one_sequence_of_the_sampled_tokens() -> None:
    trajectory = _trajectory(_turn(0, (1, 2), (3, 4)), _turn(1, (1, 2, 3, 4, 9, 9), (5,)))
    (sample,) = policy_samples(trajectory, whole_episode=True)
    assert sample.token_ids == (1, 2, 3, 4, 9, 9, 5)
    assert sample.loss_mask == (0, 0, 1, 1, 0, 0, 1)
    assert sample.turn_of_token == (-1, -1, 0, 0, -1, -1, 1)
    assert sample.logprobs == (0, 0, -0.5, -0.5, 0, 0, -0.5)


def test_an_episode_whose_history_was_rewritten_gives_a_sequence_a_turn() -> None:
    trajectory = _trajectory(_turn(0, (1, 2), (3, 4)), _turn(1, (1, 2, 7, 9), (5,)))
    first, second = policy_samples(trajectory, whole_episode=True)
    assert first.token_ids == (1, 2, 3, 4) and first.turn_indices == (0,)
    assert second.token_ids == (1, 2, 7, 9, 5) and second.loss_mask == (0, 0, 0, 0, 1)


def test_prompts_end_with_the_generation_prompt_and_every_text_is_reversible() -> None:
    tokenizer = build_tokenizer()
    text = 'tab\t "quotes" \\1 √ 猫 😀 \x00'
    (ids,) = encode_prompts(tokenizer, [[Message(role="user", content=text)]])
    assert tokenizer.decode(ids) == f"<|user|>{text}<|end|><|assistant|>"


def test_micro_batches_cover_the_rows_in_order_and_bound_the_padded_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenization, "MAX_LOGITS", 60)
    # vocabulary 2: at most 30 padded tokens; [10 10 10], [20] (2 x 20 are too many), [40] alone
    parts = list(tokenization.micro_batches([10, 10, 10, 20, 40, 5], 2))
    assert parts == [slice(0, 3), slice(3, 4), slice(4, 5), slice(5, 6)]
    assert list(tokenization.micro_batches([], 2)) == []
