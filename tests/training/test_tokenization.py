"""What is learned, token by token, and with what weight; ids that are never made twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conf.schema import SFTSection
from steps.agent.parsing import spans
from steps.agent.records import (
    Completion,
    Message,
    ParsedResponse,
    ParseStatus,
    ResponseFormat,
    SFTExample,
    Span,
    SpanKind,
    StopReason,
    Trajectory,
    Turn,
)
from steps.errors import ConfigError
from steps.policies.chat_template import encode_prompts
from steps.training import tokenization
from steps.training.tiny_model import build_tokenizer
from steps.training.tokenization import (
    SPAN_KINDS,
    SFTRow,
    fitting,
    policy_samples,
    span_weights,
    tokenize_examples,
)

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


def test_each_kind_of_span_holds_its_own_text() -> None:
    tokenizer = build_tokenizer()
    (row,) = tokenize_examples([_example()], tokenizer)
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


def test_each_token_weighs_what_its_kind_of_span_does() -> None:
    section = SFTSection(
        tag_weight=0.1,
        observation_weight=0.2,
        prediction_weight=0.3,
        thought_weight=0.4,
        answer_weight=0.5,
    )
    tokenizer = build_tokenizer()
    (row,) = tokenize_examples([_example()], tokenizer, weights=span_weights(section))
    by_weight = {
        weight: tokenizer.decode(
            [t for t, w in zip(row.token_ids, row.weights, strict=True) if w == weight]
        )
        for weight in (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
    }
    assert by_weight == {
        0.1: "<think><observation></observation><prediction></prediction></think><answer></answer>",
        0.2: GRID,
        0.3: NEXT,
        0.4: "go on",
        0.5: "Right",
        1.0: "<|end|>",
    }


def test_masked_states_weigh_nothing_whatever_their_weight() -> None:
    section = SFTSection(state_loss="mask", observation_weight=2.0, answer_weight=3.0)
    assert span_weights(section) == {
        SpanKind.TAG: 1.0,
        SpanKind.OBSERVATION: 0.0,
        SpanKind.PREDICTION: 0.0,
        SpanKind.THOUGHT: 1.0,
        SpanKind.ANSWER: 3.0,
    }
    assert set(span_weights(SFTSection()).values()) == {1.0}


@pytest.mark.parametrize(
    ("token", "owner"),
    [
        ("on>P", SpanKind.TAG),
        (">P__", SpanKind.OBSERVATION),
        ("__G</", SpanKind.OBSERVATION),
        ("G</ob", SpanKind.TAG),
        (">P", SpanKind.TAG),
        ("G<", SpanKind.OBSERVATION),
    ],
)
def test_a_token_across_two_spans_is_of_the_kind_of_most_of_it_at_a_tie_of_the_first(
    token: str, owner: SpanKind
) -> None:
    tokenizer = build_tokenizer([token])
    response = f"<think><observation>{GRID}</observation></think>"
    tag = SpanKind.TAG
    pieces = [("<think><observation>", tag), (GRID, SpanKind.OBSERVATION)]
    pieces += [("</observation></think>", tag)]
    start, own = 0, []
    for text, kind in pieces:
        own.append(Span(kind=kind, start=start, end=start + len(text)))
        start += len(text)
    whole = replace(_example(), response=response, spans=tuple(own))
    masked = span_weights(SFTSection(state_loss="mask"))
    (row,) = tokenize_examples([whole], tokenizer, weights=masked)
    place = row.token_ids.index(tokenizer.convert_tokens_to_ids(token), row.weights.index(1.0))
    assert SPAN_KINDS[row.kinds[place]] == owner
    assert row.weights[place] == (1.0 if owner == tag else 0.0)


def _row(length: int) -> SFTRow:
    return SFTRow(token_ids=(1,) * length, weights=(1.0,) * length, kinds=(0,) * length)


def test_rows_that_are_too_long_are_left_out_not_cut() -> None:
    (row,) = tokenize_examples([_example()], build_tokenizer())
    length = len(row.token_ids)
    assert tokenize_examples([_example()], build_tokenizer(), max_length=length) == [row]
    assert tokenize_examples([_example()], build_tokenizer(), max_length=length - 1) == []
    assert fitting([_row(3), _row(9), _row(5)], 5) == [_row(3), _row(5)]


def test_half_of_the_rows_must_fit() -> None:
    assert fitting([_row(9), _row(5)], 5) == [_row(5)]
    assert fitting([], 5) == []
    with pytest.raises(ConfigError, match=r"2 of 3 finetuning rows .* 5 tokens \(the longest 9,"):
        fitting([_row(9), _row(6), _row(5)], 5)
    prompt = SFTRow(token_ids=(1,) * 493, weights=(0.0,) * 200 + (1.0,) * 293, kinds=(0,) * 493)
    with pytest.raises(ConfigError) as found:
        fitting([prompt], 256)
    room = "model.max_positions=512 sampling.max_model_len=512 sampling.max_new_tokens=320"
    assert room in str(found.value)
    assert "(the longest 493, of which 293 are learned)" in str(found.value)
    assert "larger sft.max_length" in str(found.value)


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
    assert first.token_ids == (1, 2, 3, 4) and first.turn_of_token == (-1, -1, 0, 0)
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
