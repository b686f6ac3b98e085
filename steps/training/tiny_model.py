"""The built-in model: made from a configuration and a seed, saved like any Hugging Face model.

An ordinary `GPT2LMHeadModel` (or, for verl, a `LlamaForCausalLM`) of some 100 thousand parameters
and its own small tokenizer, so that the whole recipe runs where nothing can be downloaded. Every
other module treats the directory as it treats any model's.

The tokenizer's words stand in `steps.training.tiny_tokenizer`.

The deviation of the initial weights is a setting that matters (LAB_NOTES.md). The activation is
torch's own tanh GELU: GPT-2's function, which transformers writes out operation by operation.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from conf.schema import ModelSection
from steps.training.checkpoints import save_model
from steps.training.tiny_tokenizer import ASSISTANT, END, PAD, SYSTEM, USER, WORDS, bare_tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer(words: Iterable[str] = WORDS) -> PreTrainedTokenizerFast:
    """The byte-level tokenizer with `words` as whole tokens; its chat template has one a role."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bare_tokenizer(words),
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(section: ModelSection, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A freshly initialised model; equal sections give equal weights."""
    build = {"gpt2": _gpt2, "llama": _llama}[section.architecture]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(section.init_seed)
        return build(section, tokenizer)


def _gpt2(section: ModelSection, tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    config = GPT2Config(
        n_positions=section.max_positions,
        n_embd=section.hidden_size,
        n_layer=section.num_layers,
        n_head=section.num_heads,
        n_inner=section.ffn_size,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **_common(section, tokenizer),
    )
    return GPT2LMHeadModel(config)


def _llama(section: ModelSection, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        max_position_embeddings=section.max_positions,
        hidden_size=section.hidden_size,
        num_hidden_layers=section.num_layers,
        num_attention_heads=section.num_heads,
        intermediate_size=section.ffn_size,
        tie_word_embeddings=True,
        **_common(section, tokenizer),
    )
    return LlamaForCausalLM(config)


def _common(section: ModelSection, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "initializer_range": section.init_std or section.hidden_size**-0.5,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.eos_token_id,
    }


def build_tiny(section: ModelSection, directory: Path) -> Path:
    """Write model and tokenizer to `directory` as an ordinary Hugging Face directory."""
    tokenizer = build_tokenizer()
    model = build_model(section, tokenizer)
    tokenizer.model_max_length = section.max_positions
    save_model(directory, model, tokenizer)
    return directory
