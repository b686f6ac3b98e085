"""What a tokenizer's chat template decides: how a chat is written, and which tokens end an answer.

The same in every stage and for every engine: what is taught is what is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from steps.agent.records import Message
from steps.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE_ANSWER = "answer"


def render_prompts(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Sequence[Message]]
) -> list[str]:
    """Each chat as its template writes it, with the generation prompt."""
    if not chats:
        return []
    rendered = tokenizer.apply_chat_template(
        [[message.as_dict() for message in chat] for chat in chats],
        add_generation_prompt=True,
        tokenize=False,
    )
    return [str(text) for text in rendered]


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Sequence[Message]]
) -> list[list[int]]:
    """Token ids of each chat with the generation prompt: what a model is given, in every stage."""
    if not chats:
        return []
    texts = render_prompts(tokenizer, chats)
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def end_of_turn_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends an assistant's turn in this chat template.

    Read off a rendered conversation, since it need not be the tokenizer's `eos_token`; that is the
    fallback where a template rewrites the answer.
    """
    chat = [{"role": "user", "content": "question"}, {"role": "assistant", "content": PROBE_ANSWER}]
    rendered = str(tokenizer.apply_chat_template(chat, tokenize=False))
    suffix = rendered.rpartition(PROBE_ANSWER)[2]
    special = set(tokenizer.all_special_ids)
    for token in tokenizer(suffix, add_special_tokens=False)["input_ids"]:
        if token in special:
            return int(token)
    if tokenizer.eos_token_id is None:
        raise ModelError(
            "neither the chat template nor the tokenizer names an end-of-turn token: set eos_token "
            "in tokenizer_config.json."
        )
    return int(tokenizer.eos_token_id)


def stop_token_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that end an answer, sorted: the template's end of turn and `eos_token`."""
    return sorted({end_of_turn_id(tokenizer), tokenizer.eos_token_id} - {None})
