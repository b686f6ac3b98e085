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
        )
    except (OSError, ValueError, LookupError) as error:
        raise ModelError(f"the size of the model in {directory} can't be read: {error}") from error


def num_parameters(directory: Path) -> int:
    """Numbers in all safetensors files of a directory; tied weights are stored, and count, once."""
    return sum(map(math.prod, tensor_shapes(directory).values()))


def _first(config: dict[str, Any], *keys: str, default: int | None = None) -> int:
    for key in keys:
        if config.get(key):
            return int(config[key])
    if default is None:
        raise LookupError(f"config.json has no {keys[0]}")
    return default
