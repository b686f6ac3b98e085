"""The built-in model: made from a configuration and a seed, saved like any Hugging Face model.

An ordinary `GPT2LMHeadModel` (or, for verl, a `LlamaForCausalLM`) of some 100 thousand parameters
and its own small tokenizer, so that the whole recipe runs where nothing can be downloaded. Every
other module treats the directory as it treats any model's.

The tokenizer is byte-level, hence reversible for every text, plus whole tokens for what the games
write often: tags, actions, coordinates' halves (`(1,` and `2)`), the phrases between them. Grid
symbols are single bytes already, `√` gets a token.

The deviation of the initial weights is a setting that matters (LAB_NOTES.md). The activation is
torch's own tanh GELU: GPT-2's function, which transformers writes out operation by operation.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
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

PAD, SYSTEM, USER, ASSISTANT, END = "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = (PAD, SYSTEM, USER, ASSISTANT, END)

TAGS = tuple(
    f"<{slash}{name}>"
    for name in ("think", "observation", "prediction", "answer")
    for slash in ("", "/")
)
ACTIONS = ("Up", "Down", "Left", "Right")
ROW_PARTS = tuple(f"({row}," for row in range(10))
COLUMN_PARTS = tuple(f"{column})" for column in range(10))
PHRASES = (
    " || ",
    "√",
    "Player (P) is at ",
    "Player (X) is at ",
    "Player (√) is at ",
    "Player (S) is at ",
    ", in a hole",
    ", on the goal",
    ", on a target",
    "; goal (G) is at ",
    "; hole (O) is at ",
    "; holes (O) are at ",
    "; box (X) is at ",
    "; boxes (X) are at ",
    "; box on target (√) is at ",
    "; boxes on targets (√) are at ",
    "; target (O) is at ",
    "; targets (O) are at ",
    "Empty position to be filled is at ",
    "Empty positions to be filled are at ",
    ", ",
)
WORDS = TAGS + ACTIONS + ROW_PARTS + COLUMN_PARTS + PHRASES

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer(words: Iterable[str] = WORDS) -> PreTrainedTokenizerFast:
    """The byte-level tokenizer with `words` as whole tokens; its chat template has one a role."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
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
