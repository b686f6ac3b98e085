"""A Llama of thirty thousand parameters that reads the toys' tokens: verl trains no GPT-2."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from steps.policies.hf import load_tokenizer
from tests.training.toys import toy_config, untrained


def untrained_llama(directory: Path, *, tied: bool = True) -> str:
    """A fresh model directory; the weights are the same at each call."""
    tokenizer = load_tokenizer(untrained(directory / "tokenizer", toy_config()))
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=tied,
            initializer_range=0.1,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    model.save_pretrained(directory / "llama")
    tokenizer.save_pretrained(directory / "llama")
    return str(directory / "llama")
