"""Models that benchmarks train and play: the shapes of real ones, random weights, and a tokenizer.

What such a model writes means nothing, and costs what the real one's answers do. The tokenizer is
made on the spot from the benchmark's own texts; its ids are the first of the shape's vocabulary,
whose other rows are computed all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from steps.training.checkpoints import save_model

QWEN = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.041666666666666664,
        "tie_word_embeddings": True,
    },
    "qwen2.5-0.5b": {
        **QWEN,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "qwen2.5-1.5b": {
        **QWEN,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "built-in": {
        "model_type": "llama",
        "vocab_size": 1024,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "model_type": "llama",
        "vocab_size": 1024,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
}
"""Of HuggingFaceTB/SmolLM2-135M-Instruct and Qwen/Qwen2.5-{0.5B,1.5B}-Instruct, from their
config.json; `built-in` is about `model: tiny_0_5m` as a Llama; `tiny` is nobody's, for a trial of a
benchmark without a GPU."""
VOCABULARY = 8192
"""Most pieces of a tokenizer."""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def build_tokenizer(
    texts: Iterable[str], *, vocab_size: int = VOCABULARY
) -> PreTrainedTokenizerFast:
    """Byte-level BPE of these texts, ChatML; at most `vocab_size` pieces, 259 of them fixed."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return with_chat(inner)


def with_chat(inner: Tokenizer) -> PreTrainedTokenizerFast:
    """The same with the special tokens and the template of ChatML."""
    inner.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT
    return fast


def build_model(
    directory: Path,
    shape: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerFast,
    *,
    layers: int = 0,
    device: str = "cpu",
) -> None:
    """Random weights in bfloat16, with the tokenizer, as a Hugging Face directory.

    `layers` 0 are the shape's own. Weights are drawn on `device`: other ones on each kind.
    """
    config = AutoConfig.for_model(
        **{**shape, "num_hidden_layers": layers or shape["num_hidden_layers"]},
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    save_model(directory, model, tokenizer)
    del model
    if device == "cuda":
        torch.cuda.empty_cache()
