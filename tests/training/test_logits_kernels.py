"""The kernels' log-probabilities, entropies and gradients, against float64; without a GPU Triton
interprets them, and compiles them for one, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version

from steps.training import label_logprobs as module
from steps.training.label_logprobs import label_logprobs, token_entropies

ROOT = Path(__file__).resolve().parents[2]
COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from steps.training import logits_kernels

rows = "logprobs", "entropies", "largest", "log_sums", "by_logprobs", "by_entropies"
given = {"labels": "*i64", "width": "i32", "stride": "i32", "BLOCK": "constexpr"}
given |= dict.fromkeys(rows, "*fp32")
kernels = (
    (logits_kernels._read, logits_kernels.READ_WARPS),
    (logits_kernels._write, logits_kernels.WRITE_WARPS),
)
for dtype in ("*bf16", "*fp16", "*fp32"):
    types = {**given, "logits": dtype, "found": dtype}
    for kernel, warps in kernels:
        signature = {name: types[name] for name in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=signature, constexprs={"BLOCK": 8192})
        options = {"num_warps": warps}
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        assert made.asm["cubin"]
"""
INTERPRETED = """
from steps.training import label_logprobs, logits_kernels
from tests.training.test_logits_kernels import compare
logits_kernels.READ = logits_kernels.WRITTEN = 16
label_logprobs._has_kernels = lambda logits: True
compare("cpu", width=53)
"""


def case(device: str, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and labels that lie apart. Of the second row the first tokens are impossible, of the
    third the last, and the fourth's logits are a thousand higher."""
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(6, width + 8, generator=generator)
    logits[1, : width // 2] = -torch.inf
    logits[2, width // 2 :] = -torch.inf
    logits[3] += 1000
    labels = torch.tensor([[0, width - 1, 3, width - 1, width // 2, 7], [-1] * 6]).T.to(device)
    return logits.to(device, dtype)[:, :width].requires_grad_(), labels[:, 0]


def exact(
    logits: torch.Tensor, labels: torch.Tensor, slopes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities, entropies, and the gradient of their sum with `slopes` `[2, rows]`."""
    scores = torch.log_softmax(logits.detach().double(), -1)
    chances = scores.exp()
    entropies = torch.special.entr(chances).sum(-1)
    spread = torch.where(chances > 0, scores + entropies[:, None], 0.0)
    gradient = -chances * (slopes[0, :, None] + slopes[1, :, None] * spread)
    gradient.scatter_add_(1, labels[:, None], slopes[0, :, None])
    return scores.gather(1, labels[:, None])[:, 0], entropies, gradient


def compare(device: str, width: int) -> None:
    for dtype, rounding in ((torch.float32, 1e-5), (torch.bfloat16, 0.01)):
        logits, labels = case(device, width, dtype)
        slopes = torch.randn(2, len(logits), generator=torch.Generator().manual_seed(1)).to(device)
        expected = exact(logits, labels, slopes.double())
        found = label_logprobs(logits, labels), token_entropies(logits)
        for mine, theirs in zip(found, expected[:2], strict=True):
            assert mine.dtype is torch.float32
            torch.testing.assert_close(mine.double(), theirs, atol=1e-5, rtol=1e-5)
        (gradient,) = torch.autograd.grad((torch.stack(found) * slopes).sum(), logits)
        assert gradient.dtype is dtype
        torch.testing.assert_close(gradient.double(), expected[2], atol=rounding, rtol=rounding)
    assert label_logprobs(logits[:0], labels[:0]).shape == (0,)
    wrong = torch.full_like(labels, width)
    assert label_logprobs(logits, wrong).isnan().all()


@pytest.mark.skipif(not find_spec("triton"), reason="Triton is not installed")
@pytest.mark.parametrize(("program", "interpret"), [(INTERPRETED, "1"), (COMPILED, "0")])
def test_without_a_gpu(program: str, interpret: str, tmp_path: Path) -> None:
    """The interpreter takes what the compiler refuses; the compiler needs no card."""
    if interpret == "1" and Version(version("triton")) < Version("3.9"):
        pytest.skip("this Triton's interpreter stops at numpy 2.4 (3.6 was tried, 3.9 does not)")
    places = {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        env={**os.environ, **places, "TRITON_INTERPRET": interpret},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("width", [1000, 8192, 151936])
def test_on_a_gpu(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise AssertionError("not by the kernels")

    monkeypatch.setattr(module, "_cut", stop)
    compare("cuda", width)
