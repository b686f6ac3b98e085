# ruff: noqa: E402 (verl may be missing)
"""verl's critic and log-probabilities are mended where their modules are imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

import torch
from transformers import AutoConfig
from verl.utils import torch_functional

from steps.training.label_logprobs import label_logprobs
from steps.training.verl_hooks import load_critic
from tests.training.llamas import untrained_llama

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
LOGPROBS = """
import torch
from verl.workers.engine.fsdp import transformer_impl
from steps.training.label_logprobs import label_logprobs
import verl.utils.torch_functional as functional
assert functional.logprobs_from_logits_v2 is label_logprobs
functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = False
found = transformer_impl.logprobs_from_logits(torch.zeros(3, 4).bfloat16(), torch.tensor([0, 1, 2]))
assert found.dtype is torch.float32, found
"""


@pytest.mark.parametrize("program", [AFTERWARDS + LOGPROBS, BEFORE + LOGPROBS])
def test_the_function_is_exchanged_whenever_the_module_is_imported(program: str) -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr


def test_a_finetuning_process_is_verls_program() -> None:
    driver = [sys.executable, "-W", "ignore", "-m", "steps.training.verl_sft_driver"]
    found = subprocess.run(
        [*driver, "--cfg", "job", "--package", "data", "data.train_batch_size=7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    assert "train_batch_size: 7" in found.stdout.splitlines()


def test_a_critic_starts_at_zero_with_the_configured_attention(tmp_path: Path) -> None:
    source = untrained_llama(tmp_path)
    config = AutoConfig.from_pretrained(source, num_labels=1, attn_implementation="eager")
    critic = load_critic(source, torch.float32, config, False)
    ids = torch.tensor([[1, 2, 3]])
    assert critic(input_ids=ids).logits.tolist() == [[[0.0], [0.0], [0.0]]]
    assert critic.config._attn_implementation == "eager"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_and_gradients_are_verls(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 300, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(300, (50,), generator=generator)
    rounding = {} if dtype is torch.float32 else {"atol": 0.02, "rtol": 0.01}
    mine = label_logprobs(logits, labels)
    slopes = torch.randn(50, generator=generator)
    (gradient,) = torch.autograd.grad(mine, logits, slopes)
    for theirs in (
        torch_functional.logprobs_from_logits_v2,
        torch_functional.logprobs_from_logits_naive,
    ):
        assert theirs is not label_logprobs
        found = theirs(logits, labels)
        torch.testing.assert_close(mine, found.float(), **rounding)
        (other,) = torch.autograd.grad(found, logits, slopes.to(found.dtype))
        torch.testing.assert_close(gradient, other, **rounding)
