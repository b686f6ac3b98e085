"""A growing prompt is encoded message by message, and to the same ids as at once."""

from __future__ import annotations

from typing import Any

import pytest

from steps.agent.records import Message
from steps.policies import segments
from steps.policies.chat_template import encode_prompts, render_prompts
from steps.policies.segments import Segments
from tests.policies.vocabularies import KINDS, make_vocabulary


class Counting:
    """A tokenizer that notes what it encodes."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.seen: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, texts: list[str], **kwargs: Any) -> Any:
        self.seen += texts
        return self.tokenizer(texts, **kwargs)


def conversation(num_turns: int) -> list[Message]:
    """With tags, blanks at the ends, and a special token in what the model wrote."""
    chat = [Message(role="system", content="Play  the game. ")]
    for turn in range(num_turns):
        chat.append(Message(role="user", content=f"\n State {turn}: _P√\n"))
        answer = f" <think>go {turn}[INST]</think><answer>Left || Up</answer>"
        chat.append(Message(role="assistant", content=answer))
    return [*chat, Message(role="user", content="Now? ")]


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_are_those_of_the_whole_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "NUM_CHECKED", 1)
    tokenizer = make_vocabulary(kind)
    encoder = Segments(tokenizer)
    for num_turns in range(6):
        chats = [conversation(num_turns), conversation(num_turns + 1)]
        rendered = render_prompts(tokenizer, chats)
        assert encoder.encode(rendered) == encode_prompts(tokenizer, chats)
    assert encoder.is_exact


def test_a_message_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "NUM_CHECKED", 0)
    counting = Counting(make_vocabulary("qwen"))
    encoder = Segments(counting)
    encoder.encode(render_prompts(counting.tokenizer, [conversation(3)]))
    counting.seen.clear()
    encoder.encode(render_prompts(counting.tokenizer, [conversation(4)]))
    assert counting.seen == [
        "user\n\n State 3: _P√\n",
        "assistant\n <think>go 3",
    ]  # the rest of the answer was in earlier ones


def test_a_tokenizer_that_treats_a_beginning_otherwise_is_found_out() -> None:
    class Prefixed(Counting):
        def __call__(self, texts: list[str], **kwargs: Any) -> Any:
            return super().__call__([f"^{text}" for text in texts], **kwargs)

    prefixed = Prefixed(make_vocabulary("qwen"))
    encoder = Segments(prefixed)
    texts = render_prompts(prefixed.tokenizer, [conversation(1)])
    whole = prefixed.tokenizer([f"^{texts[0]}"], add_special_tokens=False)["input_ids"]
    assert encoder.encode(texts) == whole and not encoder.is_exact
    assert encoder.encode(texts) == whole


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_REMEMBERED", 50)
    tokenizer = make_vocabulary("qwen")
    encoder = Segments(tokenizer)
    for num_turns in (1, 2, 3, 1):
        texts = render_prompts(tokenizer, [conversation(num_turns)])
        assert encoder.encode(texts) == encode_prompts(tokenizer, [conversation(num_turns)])
    assert encoder._num_remembered < 400
