"""A Llama of thirty thousand parameters that reads the toys' tokens: verl trains no GPT-2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from conf.schema import ModelSection
from steps.training.checkpoints import save_model
from steps.training.tiny_model import build_model, build_tokenizer

SMALL = ModelSection(
    architecture="llama",
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    ffn_size=64,
    max_positions=64,
    init_std=0.1,
)


def untrained_llama(directory: Path, section: ModelSection = SMALL, **unsaid: Any) -> str:
    """A fresh model directory; the weights are the same at each call.

    `unsaid` is what a section has no word for, by the names of `LlamaConfig`: untied embeddings,
    groups of heads, a vocabulary with room.
    """
    tokenizer = build_tokenizer()
    with torch.device("meta"):
        config = build_model(section, tokenizer).config
    config.update(unsaid)
    torch.manual_seed(section.init_seed)
    save_model(directory, LlamaForCausalLM(config), tokenizer)
    return str(directory)
