"""Adapters folded into the weights they were trained beside: W + (alpha / rank) B A (LoRA, eq. 3).

verl writes an adapted model with the names that peft gives: each linear map as `base_layer.weight`
with `lora_A.<name>.weight` and `lora_B.<name>.weight`, the whole below `base_model.model`. Here it
becomes an ordinary model again, for anyone who knows nothing of adapters.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from steps.errors import ModelError

_PREFIX = "base_model.model."
_ADAPTER = re.compile(r"(?P<map>.+)\.lora_(?P<side>[AB])(\.[^.]+)?\.weight")
WEIGHTS_FILE = "model.safetensors"
_TIED = "lm_head.weight"
_INDEX = "model.safetensors.index.json"


def is_adapted(weights: dict[str, torch.Tensor]) -> bool:
    """Whether there are adapters among the weights."""
    return any(_ADAPTER.fullmatch(name) for name in weights)


def merge_adapters(directory: Path, *, rank: int, alpha: float) -> None:
    """Rewrite the weights of a Hugging Face directory, its adapters folded in, in float32."""
    files = sorted(directory.glob("*.safetensors"))
    weights = {name: value for file in files for name, value in load_file(file).items()}
    if not is_adapted(weights):
        raise ModelError(f"{directory} holds no adapters (lora_A, lora_B): it was trained without.")
    merged = merged_weights(weights, scale=alpha / rank)
    if json.loads((directory / "config.json").read_text("utf-8")).get("tie_word_embeddings"):
        merged.pop(_TIED, None)  # two tensors of one value would be loaded as two
    for file in (*files, directory / _INDEX):
        file.unlink(missing_ok=True)
    save_file(merged, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def merged_weights(weights: dict[str, torch.Tensor], *, scale: float) -> dict[str, torch.Tensor]:
    """Ordinary names and float32 weights; raises `ModelError` for an adapter without its map."""
    sides: dict[str, dict[str, torch.Tensor]] = {}
    plain: dict[str, torch.Tensor] = {}
    for name, value in weights.items():
        short = name.removeprefix(_PREFIX)
        found = _ADAPTER.fullmatch(short)
        if found:
            sides.setdefault(found["map"], {})[found["side"]] = value.float()
        else:
            plain[short.replace(".base_layer.", ".")] = value.float()
    for name, pair in sides.items():
        key = f"{name}.weight"
        if key not in plain or set(pair) != {"A", "B"}:
            raise ModelError(f"the adapter of {name} has no weights to go with, or half of it.")
        plain[key] = plain[key] + scale * (pair["B"] @ pair["A"])
    return {name: value.contiguous() for name, value in plain.items()}
