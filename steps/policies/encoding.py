"""Between texts and token ids, for many at once: what Python does around a model's forward pass.

A small model on a GPU writes faster than a tokenizer is called for one text after another. Members
of a group are shown the same state, and short answers are often the same: each text is encoded and
decoded once. What comes out is what the tokenizer gives for each text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from steps.agent.records import Completion, FinishReason, Message

Chat = tuple[Message, ...]
Ids = tuple[int, ...]
MAX_REMEMBERED = 1_000_000
"""Tokens that a `PromptCache` keeps, some 40 MB."""


class PromptCache:
    """Token ids of chats; a chat that is remembered isn't encoded again."""

    def __init__(self, encode: Callable[[Sequence[Chat]], list[list[int]]]) -> None:
        self._encode = encode
        self._known: dict[Chat, Ids] = {}
        self._num_tokens = 0

    def encode(self, chats: Sequence[Chat]) -> list[Ids]:
        """The ids of each chat, in order."""
        if self._num_tokens > MAX_REMEMBERED:
            self._known, self._num_tokens = {}, 0
        fresh = [chat for chat in dict.fromkeys(chats) if chat not in self._known]
        for chat, ids in zip(fresh, self._encode(fresh), strict=True):
            self._known[chat] = tuple(ids)
            self._num_tokens += len(ids)
        return [self._known[chat] for chat in chats]


def completions(
    tokenizer: Any,
    prompts: Sequence[Ids],
    tokens_BT: np.ndarray,
    logprobs_BT: np.ndarray,
    *,
    stop_ids: Sequence[int],
    rooms: Sequence[int],
) -> list[Completion]:
    """The answer in each row: up to its first stop token, or `rooms` tokens that were cut off."""
    is_stop = np.isin(tokens_BT, stop_ids)
    ends = np.where(is_stop.any(1), is_stop.argmax(1), tokens_BT.shape[1]).tolist()
    sizes = [min(end + 1, room) for end, room in zip(ends, rooms, strict=True)]
    rows = [tuple(row[:size].tolist()) for row, size in zip(tokens_BT, sizes, strict=True)]
    texts = decode_rows(tokenizer, [row[:end] for row, end in zip(rows, ends, strict=True)])
    return [
        Completion(
            text=text,
            prompt_ids=prompt,
            token_ids=row,
            logprobs=tuple(logprobs[: len(row)].tolist()),
            finish_reason=FinishReason.STOP if end < len(row) else FinishReason.LENGTH,
        )
        for text, prompt, row, logprobs, end in zip(
            texts, prompts, rows, logprobs_BT, ends, strict=True
        )
    ]


def decode_rows(tokenizer: Any, rows: Sequence[Ids]) -> list[str]:
    """The text of each row of token ids, special tokens written out."""
    different = list(dict.fromkeys(rows))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or tokenizer.clean_up_tokenization_spaces:
        texts = [tokenizer.decode(list(row), skip_special_tokens=False) for row in different]
    else:
        texts = backend.decode_batch([list(row) for row in different], skip_special_tokens=False)
    text_of = dict(zip(different, texts, strict=True))
    return [text_of[row] for row in rows]


def left_padded(
    prompts: Sequence[Sequence[int]], *, width: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """`[len(prompts), width]` token ids, each prompt at the right end, and 1 where they stand."""
    ids = [[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    starts = np.array([width - len(prompt) for prompt in prompts])
    return np.array(ids), (np.arange(width) >= starts[:, None]).astype(np.int64)
