"""How a chat is written and which tokens end an answer, read off several chat templates."""

from __future__ import annotations

from typing import Any

import pytest

from steps.agent.records import Message
from steps.errors import ModelError
from steps.policies.chat_template import (
    encode_prompts,
    end_of_turn_id,
    render_prompts,
    stop_token_ids,
)
from tests.training.templates import SHAPES, make_tokenizer

CHAT = (Message(role="user", content="P_G"),)
REWRITING = "{% for message in messages %}{{ message.content | upper }} {% endfor %}"
"""A template in which the answer, and so what follows it, isn't found."""


def rewriting_tokenizer() -> Any:
    tokenizer, _ = make_tokenizer("tiny")
    tokenizer.chat_template = REWRITING
    return tokenizer


@pytest.mark.parametrize("shape", SHAPES)
def test_the_end_of_turn_is_the_templates_and_stops_answers_beside_eos(shape: str) -> None:
    tokenizer, end = make_tokenizer(shape)
    end_id = tokenizer.convert_tokens_to_ids(end)
    assert end_of_turn_id(tokenizer) == end_id
    assert stop_token_ids(tokenizer) == sorted({end_id, tokenizer.eos_token_id} - {None})


def test_where_the_template_rewrites_answers_eos_ends_them() -> None:
    tokenizer = rewriting_tokenizer()
    tokenizer.eos_token = "<|user|>"
    assert stop_token_ids(tokenizer) == [tokenizer.convert_tokens_to_ids("<|user|>")]


def test_without_any_end_of_turn_the_tokenizer_is_refused() -> None:
    tokenizer = rewriting_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match=r"set eos_token in tokenizer_config\.json"):
        end_of_turn_id(tokenizer)


def test_prompts_are_encoded_as_they_are_written() -> None:
    tokenizer, _ = make_tokenizer("tiny")
    assert render_prompts(tokenizer, [CHAT]) == ["<|user|>P_G<|end|><|assistant|>"]
    (ids,) = encode_prompts(tokenizer, [CHAT])
    assert tokenizer.decode(ids) == "<|user|>P_G<|end|><|assistant|>"
    assert render_prompts(tokenizer, []) == encode_prompts(tokenizer, []) == []
