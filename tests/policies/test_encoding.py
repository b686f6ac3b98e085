"""Encoding and decoding many texts at once gives what one at a time gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from steps.agent.records import Completion, FinishReason, Message
from steps.policies import encoding
from steps.policies.chat_template import encode_prompts
from steps.policies.encoding import Chat, PromptCache, completions, decode_rows, left_padded
from steps.training.tiny_model import build_tokenizer

TOKENIZER = build_tokenizer()
END = TOKENIZER.convert_tokens_to_ids("<|end|>")
TEXTS = ("P_\n_G", "(1,2) (3,", "", "<think>é</think><answer>Up</answer>", "P_\n_G")


def chat(text: str) -> Chat:
    return (Message(role="user", content=text),)


def test_a_chat_is_encoded_once_and_as_it_is_alone() -> None:
    asked: list[Chat] = []

    def encode(chats: Sequence[Chat]) -> list[list[int]]:
        asked.extend(chats)
        return encode_prompts(TOKENIZER, chats)

    cache, chats = PromptCache(encode), [chat(text) for text in TEXTS]
    alone = [tuple(encode_prompts(TOKENIZER, [each])[0]) for each in chats]
    assert cache.encode(chats) == alone
    assert cache.encode(chats[::-1]) == alone[::-1]
    assert asked == chats[:4]


def test_what_is_remembered_is_forgotten_when_it_grows_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "MAX_REMEMBERED", 3)
    asked: list[Chat] = []

    def encode(chats: Sequence[Chat]) -> list[list[int]]:
        asked.extend(chats)
        return [[1, 2] for _ in chats]

    cache = PromptCache(encode)
    a, b = chat("a"), chat("b")
    assert [cache.encode([each]) for each in (a, a, b, a)] == [[(1, 2)]] * 4
    assert asked == [a, b, a]  # four tokens are over the limit, so the last call begins anew


def test_each_answer_ends_at_its_first_stop_token_or_where_its_room_does() -> None:
    a, b, c = TOKENIZER.convert_tokens_to_ids(["P", "_", "G"])
    tokens = np.array([[a, b, END, c, END], [a, a, a, c, b], [END, a, a, a, a], [a, b, c, END, a]])
    logprobs = np.arange(20, dtype=np.float32).reshape(4, 5)
    prompts = [(1,), (2, 2), (3,), (4,)]
    found = completions(TOKENIZER, prompts, tokens, logprobs, stop_ids=[END], rooms=[5, 4, 5, 3])
    stop, length = FinishReason.STOP, FinishReason.LENGTH
    assert found == [
        answer("P_", (1,), (a, b, END), (0.0, 1.0, 2.0), stop),
        answer("PPPG", (2, 2), (a, a, a, c), (5.0, 6.0, 7.0, 8.0), length),
        answer("", (3,), (END,), (10.0,), stop),
        answer("P_G", (4,), (a, b, c), (15.0, 16.0, 17.0), length),  # its stop has no room
    ]
    assert all(type(token) is int for each in found for token in each.token_ids)


def answer(
    text: str,
    prompt: tuple[int, ...],
    ids: tuple[int, ...],
    logprobs: tuple[float, ...],
    reason: FinishReason,
) -> Completion:
    return Completion(
        text=text, prompt_ids=prompt, token_ids=ids, logprobs=logprobs, finish_reason=reason
    )


@pytest.mark.parametrize("cleans", [False, True])
def test_rows_are_decoded_as_each_is_alone(cleans: bool) -> None:
    tokenizer = build_tokenizer()
    tokenizer.clean_up_tokenization_spaces = cleans
    rows = [tuple(tokenizer(text)["input_ids"]) for text in TEXTS] + [(END, 0, 255), ()]
    alone = [tokenizer.decode(list(row), skip_special_tokens=False) for row in rows]
    assert decode_rows(tokenizer, rows) == alone
    assert alone[:4] == list(TEXTS[:4])


def test_prompts_stand_at_the_right_end() -> None:
    ids, mask = left_padded([(5, 6), (7,), ()], width=3, pad_id=9)
    assert ids.tolist() == [[9, 5, 6], [9, 9, 7], [9, 9, 9]]
    assert mask.tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
