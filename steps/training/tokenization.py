"""From texts and trajectories to token sequences with one number a token.

SFT: `prompt + response + end of turn`, loss on the response and the end-of-turn token, weighted by
the kind of span a token lies in. The prompt's tokens come from the same function that the rollout
uses (`steps.policies.chat_template.encode_prompts`), so what is taught is what is shown. Nothing
is ever cut: rows that are too long are left out.

PPO: the tokens that were sampled, id by id, never tokenised again. History `full` gives one
sequence an episode (each prompt must then begin with all the tokens before it; where a chat
template rewrites history, the episode falls back to one sequence a turn); `single_turn` and
`last_k` give one sequence a turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from conf.schema import SFTSection
from steps.agent.records import SFTExample, Span, SpanKind, TokenSample, Trajectory, Turn
from steps.policies.chat_template import encode_prompts, end_of_turn_id
from steps.training.row_lengths import check_fit

SPAN_KINDS = tuple(SpanKind)

MAX_LOGITS = 1 << 28
"""Logits of one forward pass: 1 GiB in float32, of which training holds a few copies."""
MAX_ROWS = 512
STATE_KINDS = frozenset({SpanKind.OBSERVATION, SpanKind.PREDICTION})
EQUAL_WEIGHTS: Mapping[SpanKind, float] = dict.fromkeys(SPAN_KINDS, 1.0)
NO_LIMIT = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class SFTRow:
    """One tokenised example."""

    token_ids: tuple[int, ...]
    weights: tuple[float, ...]
    """Loss weight of each token: 0 on the prompt, the weight of its span's kind on the response."""
    kinds: tuple[int, ...]
    """Index into `SPAN_KINDS` of each response token, -1 on the prompt and the end of turn."""


def span_weights(section: SFTSection) -> dict[SpanKind, float]:
    """Loss weight of each kind of span: `mask` leaves states out of the loss (the ablation)."""
    hidden = STATE_KINDS if section.state_loss == "mask" else frozenset()
    weights = {
        SpanKind.TAG: section.tag_weight,
        SpanKind.OBSERVATION: section.observation_weight,
        SpanKind.PREDICTION: section.prediction_weight,
        SpanKind.THOUGHT: section.thought_weight,
        SpanKind.ANSWER: section.answer_weight,
    }
    return {kind: 0.0 if kind in hidden else weight for kind, weight in weights.items()}


def tokenize_examples(
    examples: Sequence[SFTExample],
    tokenizer: PreTrainedTokenizerBase,
    *,
    weights: Mapping[SpanKind, float] = EQUAL_WEIGHTS,
    max_length: int = NO_LIMIT,
) -> list[SFTRow]:
    """A row for each example of at most `max_length` tokens; the end of the turn weighs 1."""
    if not examples:
        return []
    prompts = encode_prompts(tokenizer, [example.prompt for example in examples])
    encoded = tokenizer(
        [example.response for example in examples],
        add_special_tokens=False,
        return_offsets_mapping=True,
    )
    end = end_of_turn_id(tokenizer)
    rows = [
        _sft_row(prompt, response, offsets, example.spans, weights, end)
        for prompt, response, offsets, example in zip(
            prompts, encoded["input_ids"], encoded["offset_mapping"], examples, strict=True
        )
    ]
    return [row for row in rows if len(row.token_ids) <= max_length]


def fitting(rows: Sequence[SFTRow], max_length: int) -> list[SFTRow]:
    """The rows of at most `max_length` tokens; raises `ConfigError` where most are longer."""
    lengths = [(len(row.token_ids), sum(map(bool, row.weights))) for row in rows]
    check_fit(lengths, max_length, "finetuning rows")
    return [row for row in rows if len(row.token_ids) <= max_length]


def tokenize_sets(
    train: Sequence[SFTExample],
    validation: Sequence[SFTExample],
    tokenizer: PreTrainedTokenizerBase,
    section: SFTSection,
    *,
    limit: int,
) -> tuple[list[SFTRow], list[SFTRow], int]:
    """Rows of both sets up to `limit` tokens, and how many of the two are longer and left out.

    Raises `ConfigError` where most rows of training are.
    """
    weights = span_weights(section)
    rows = fitting(tokenize_examples(train, tokenizer, weights=weights), limit)
    held_out = tokenize_examples(validation, tokenizer, weights=weights, max_length=limit)
    return rows, held_out, len(train) - len(rows) + len(validation) - len(held_out)


def _sft_row(
    prompt: Sequence[int],
    response: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    spans: Sequence[Span],
    weights: Mapping[SpanKind, float],
    end: int,
) -> SFTRow:
    kinds = _token_kinds(spans, offsets)
    return SFTRow(
        token_ids=(*prompt, *response, end),
        weights=(*(0.0 for _ in prompt), *(weights[SPAN_KINDS[kind]] for kind in kinds), 1.0),
        kinds=(*(-1 for _ in prompt), *kinds, -1),
    )


def _token_kinds(spans: Sequence[Span], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Kind of each token: that of most of its characters, the earlier span's at a tie."""
    characters = b"".join(
        bytes([SPAN_KINDS.index(span.kind)]) * (span.end - span.start) for span in spans
    )
    kinds: list[int] = []
    for start, stop in offsets:
        piece = characters[start:stop]
        if not piece:
            kinds.append(kinds[-1] if kinds else SPAN_KINDS.index(SpanKind.TAG))
        elif piece.count(piece[0]) == len(piece):
            kinds.append(piece[0])
        else:
            kinds.append(max(piece, key=piece.count))
    return kinds


def policy_samples(trajectory: Trajectory, *, whole_episode: bool) -> list[TokenSample]:
    """The sampled tokens of an episode, ready for an update; turns without tokens are left out.

    Without log-probabilities where the policy told none of some turn.
    """
    turns = [turn for turn in trajectory.turns if turn.completion.token_ids]
    if not turns:
        return []
    if whole_episode:
        sample = _episode_sample(trajectory, turns)
        if sample is not None:
            return [sample]
    return [_turn_sample(trajectory, turn) for turn in turns]


def system_length(tokenizer: PreTrainedTokenizerBase, turn: Turn) -> int:
    """How many of the turn's prompt tokens belong to its system message; 0 without one."""
    system = [message.as_dict() for message in turn.prompt[:1] if message.role == "system"]
    if not system:
        return 0
    text = str(tokenizer.apply_chat_template(system, tokenize=False))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    pairs = zip(ids, turn.completion.prompt_ids, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), len(ids))


def _turn_sample(trajectory: Trajectory, turn: Turn) -> TokenSample:
    prompt, answer = turn.completion.prompt_ids, turn.completion.token_ids
    before = len(prompt)
    return TokenSample(
        trajectory_id=trajectory.trajectory_id,
        token_ids=prompt + answer,
        loss_mask=(0.0,) * before + (1.0,) * len(answer),
        turn_of_token=(-1,) * before + (turn.index,) * len(answer),
        logprobs=_logprobs([turn]),
    )


def _episode_sample(trajectory: Trajectory, turns: Sequence[Turn]) -> TokenSample | None:
    """All turns in one sequence, or None where a later prompt doesn't begin with those before."""
    ids: tuple[int, ...] = ()
    mask: tuple[float, ...] = ()
    turn_of: tuple[int, ...] = ()
    for turn in turns:
        prompt, answer = turn.completion.prompt_ids, turn.completion.token_ids
        if prompt[: len(ids)] != ids:
            return None
        context = len(prompt) - len(ids)
        ids = prompt + answer
        mask += (0.0,) * context + (1.0,) * len(answer)
        turn_of += (-1,) * context + (turn.index,) * len(answer)
    return TokenSample(
        trajectory_id=trajectory.trajectory_id,
        token_ids=ids,
        loss_mask=mask,
        turn_of_token=turn_of,
        logprobs=_logprobs(turns),
    )


def _logprobs(turns: Sequence[Turn]) -> tuple[float, ...]:
    """Of turns in one sequence, each prompt of which begins with all before it; 0 elsewhere."""
    found: tuple[float, ...] = ()
    for turn in turns:
        completion = turn.completion
        if completion.logprobs is None:
            return ()
        assert len(completion.logprobs) == len(completion.token_ids), turn.index
        found += (0.0,) * (len(completion.prompt_ids) - len(found)) + completion.logprobs
    return found


def micro_batches(lengths: Sequence[int], vocab_size: int) -> Iterator[slice]:
    """Consecutive slices of rows whose padded logits fit into `MAX_LOGITS`; one row always does.

    Losses are sums, so a batch taken in slices has the gradient of the whole.
    """
    start = 0
    while start < len(lengths):
        stop, longest = start, 0
        while stop < len(lengths):
            longest = max(longest, lengths[stop])
            rows = stop + 1 - start
            if rows > 1 and (rows > MAX_ROWS or rows * longest * vocab_size > MAX_LOGITS):
                break
            stop += 1
        yield slice(start, stop)
        start = stop


def pad_rows(
    rows: Sequence[Sequence[float]], *, value: float, dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    """`[B, T]` tensor of right-padded rows."""
    longest = max(map(len, rows))
    padded = [[*row, *([value] * (longest - len(row)))] for row in rows]
    return torch.tensor(padded, dtype=dtype, device=device)
