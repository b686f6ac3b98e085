"""Adapters become part of the weights they stand beside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from steps.errors import ModelError
from steps.training.lora import merge_adapters, merged_weights

BLOCK = "base_model.model.model.layers.0.q_proj"
WEIGHTS = {
    f"{BLOCK}.base_layer.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
    f"{BLOCK}.lora_A.default.weight": torch.tensor([[1.0, 2.0]]),
    f"{BLOCK}.lora_B.default.weight": torch.tensor([[3.0], [5.0]]),
    "base_model.model.model.norm.weight": torch.tensor([7.0], dtype=torch.bfloat16),
    "base_model.model.lm_head.weight": torch.tensor([[1.0, 1.0]]),
}


def test_the_product_of_the_pair_is_added_to_its_map() -> None:
    # B A = [[3, 6], [5, 10]], scaled by 8 / 4
    merged = merged_weights(WEIGHTS, scale=2.0)
    assert merged["model.layers.0.q_proj.weight"].tolist() == [[7.0, 12.0], [10.0, 21.0]]
    assert merged["model.norm.weight"].tolist() == [7.0]
    assert {value.dtype for value in merged.values()} == {torch.float32}
    assert set(merged) == {"model.layers.0.q_proj.weight", "model.norm.weight", "lm_head.weight"}


@pytest.mark.parametrize("missing", ["base_layer", "lora_A", "lora_B"])
def test_half_an_adapter_is_refused(missing: str) -> None:
    weights = {name: value for name, value in WEIGHTS.items() if missing not in name}
    with pytest.raises(ModelError, match=r"adapter of model\.layers\.0\.q_proj"):
        merged_weights(weights, scale=1.0)


@pytest.mark.parametrize("tied", [True, False])
def test_a_directory_becomes_that_of_an_ordinary_model(tied: bool, tmp_path: Path) -> None:
    names = sorted(WEIGHTS)
    for index, half in enumerate((names[:2], names[2:])):  # two shards
        save_file({n: WEIGHTS[n] for n in half}, tmp_path / f"model-{index}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    merge_adapters(tmp_path, rank=4, alpha=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    merged = load_file(tmp_path / "model.safetensors")
    assert merged["model.layers.0.q_proj.weight"].tolist() == [[7.0, 12.0], [10.0, 21.0]]
    assert ("lm_head.weight" in merged) is not tied


def test_a_model_without_adapters_is_refused(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="holds no adapters"):
        merge_adapters(tmp_path, rank=4, alpha=8)
