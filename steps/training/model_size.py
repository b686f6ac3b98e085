"""How large a model is, read off its files: the headers of its safetensors, and its config.json."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steps.errors import ModelError
from steps.policies.model_directory import tensor_shapes


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """What memory depends on."""

    parameters: int
    layers: int
    hidden: int
    ffn: int
    vocab: int
    kv_heads: int
    """Heads whose keys and values are kept, by which GPUs share them."""
    cached: int
    """Numbers that are kept of each token of a conversation, in all layers that look at the whole
    of it (`num_cached`)."""


def size_of(directory: Path) -> ModelSize:
    """The size of a Hugging Face directory. Raises `ModelError` where its files don't say."""
    try:
        config = json.loads((directory / "config.json").read_text("utf-8"))
        hidden = _first(config, "hidden_size", "n_embd")
        return ModelSize(
            parameters=num_parameters(directory),
            layers=_first(config, "num_hidden_layers", "n_layer"),
            hidden=hidden,
            ffn=_first(config, "intermediate_size", "n_inner", default=4 * hidden),
            vocab=_first(config, "vocab_size"),
            kv_heads=_kv_heads(config),
            cached=num_cached(config),
        )
    except (OSError, ValueError, LookupError) as error:
        raise ModelError(f"the size of the model in {directory} can't be read: {error}") from error


def num_parameters(directory: Path) -> int:
    """Numbers in all safetensors files of a directory; tied weights are stored, and count, once."""
    return sum(map(math.prod, tensor_shapes(directory).values()))


def num_cached(config: dict[str, Any]) -> int:
    """Numbers of the KV cache that a token costs for as long as its conversation lasts.

    Layers with a sliding window are left out, for they forget.
    """
    types = config.get("layer_types")
    layers = _first(config, "num_hidden_layers", "n_layer")
    if types:
        layers = sum(each == "full_attention" for each in types)
    elif config.get("sliding_window") and config.get("use_sliding_window", True):
        layers = 0
    if config.get("kv_lora_rank"):  # one compressed vector for all heads (DeepSeek)
        return layers * (int(config["kv_lora_rank"]) + int(config.get("qk_rope_head_dim", 0)))
    heads = _first(config, "num_attention_heads", "n_head", default=1)
    head_size = _first(config, "head_dim", default=_first(config, "hidden_size", "n_embd") // heads)
    return layers * 2 * _kv_heads(config) * head_size


def _kv_heads(config: dict[str, Any]) -> int:
    if config.get("kv_lora_rank"):
        return 1
    return _first(config, "num_key_value_heads", "num_attention_heads", "n_head", default=1)


def _first(config: dict[str, Any], *keys: str, default: int | None = None) -> int:
    for key in keys:
        if config.get(key):
            return int(config[key])
    if default is None:
        raise LookupError(f"config.json has no {keys[0]}")
    return default
