"""Small tokenizers with chat templates of the shapes that published models use.

The templates stand in `templates/`, written for the tests after the public description of each
format. The vocabulary is the built-in tokenizer's plus the format's own special tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from steps.training.tiny_model import build_tokenizer

DIRECTORY = Path(__file__).parent / "templates"


class Shape(NamedTuple):
    """The special tokens of a format; without a text start it has none."""

    special: tuple[str, ...]
    end_of_turn: str
    end_of_text: str
    """The tokenizer's `eos_token`, which need not end a turn."""
    start_of_text: str = ""


SHAPES = {
    "qwen2.5": Shape(("<|im_start|>", "<|im_end|>"), "<|im_end|>", "<|endoftext|>"),
    "smollm2": Shape(("<|im_start|>", "<|im_end|>"), "<|im_end|>", "<|im_end|>"),
    "llama3.2": Shape(
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
        "<|eot_id|>",
        "<|begin_of_text|>",
    ),
    "tiny": Shape((), "<|end|>", "<|end|>"),
}


def make_tokenizer(name: str) -> tuple[PreTrainedTokenizerFast, str]:
    """The tokenizer of one shape, and its end-of-turn token."""
    shape = SHAPES[name]
    tokenizer = build_tokenizer()
    if shape.special:
        names = {"eos_token": shape.end_of_text}
        if shape.start_of_text:
            names["bos_token"] = shape.start_of_text
        tokenizer.add_special_tokens({"additional_special_tokens": list(shape.special), **names})
        tokenizer.chat_template = (DIRECTORY / f"{name}.jinja").read_text("utf-8")
    return tokenizer, shape.end_of_turn
