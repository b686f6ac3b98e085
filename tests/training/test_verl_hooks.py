# ruff: noqa: E402 (verl may be missing)
"""verl's critic is mended where its module is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from steps.training.verl_hooks import load_critic

ROOT = Path(__file__).resolve().parents[2]
AFTERWARDS = """
from steps.training import verl_hooks
verl_hooks.install()
verl_hooks.install()
from verl.utils.model import load_valuehead_model
assert load_valuehead_model is verl_hooks.load_critic, load_valuehead_model
"""
BEFORE = """
import verl.utils.model
from steps.training import verl_hooks
verl_hooks.install()
assert verl.utils.model.load_valuehead_model is verl_hooks.load_critic
"""


@pytest.mark.parametrize("program", [AFTERWARDS, BEFORE])
def test_the_function_is_exchanged_whenever_the_module_is_imported(program: str) -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr


def test_a_critic_starts_at_zero_with_the_configured_attention(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
        attn_implementation="eager",
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    critic = load_critic(str(tmp_path), torch.float32, config, False)
    ids = torch.tensor([[1, 2, 3]])
    assert critic(input_ids=ids).logits.tolist() == [[[0.0], [0.0], [0.0]]]
    assert critic.config._attn_implementation == "eager"
