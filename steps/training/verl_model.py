"""A model that verl wrote, made one that anything else may load."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types of weights in a safetensors file -> in a configuration."""
OF_TRAINING = ("attn_implementation",)
"""What `verl_common.model_overrides` adds to a model's configuration, and verl writes with it."""


def mend_config(directory: Path) -> None:
    """Have `config.json` name the type of the weights, and nothing of how they were trained.

    verl writes bfloat16 there in any case, and transformers would round what was trained in
    float32. It also writes the attention, and a model that names flash_attention_2 can't be loaded
    where flash-attn isn't installed.
    """
    path = directory / "config.json"
    settings = json.loads(path.read_text("utf-8"))
    for key in OF_TRAINING:
        settings.pop(key, None)
    with safe_open(min(directory.glob("*.safetensors")), framework="np") as weights:
        found = weights.get_slice(min(weights.keys())).get_dtype()
    if found in DTYPES:
        settings.pop("torch_dtype", None)
        settings["dtype"] = DTYPES[found]
    path.write_text(json.dumps(settings, indent=2), "utf-8")
