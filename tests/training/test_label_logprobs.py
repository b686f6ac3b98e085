"""Log-probabilities and entropies: values and gradients are those of torch's log softmax."""

from __future__ import annotations

import math

import pytest
import torch

from steps.training import label_logprobs as module
from steps.training.label_logprobs import label_logprobs, token_entropies


def case(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(*shape, generator=generator)).to(dtype)
    labels = torch.randint(shape[-1], shape[:-1], generator=generator)
    return logits.requires_grad_(), labels


def expected(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits, -1).gather(-1, labels[..., None])[..., 0]


def test_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [1000.0, 1000.0]], requires_grad=True)
    found = label_logprobs(logits, torch.tensor([1, 0]))
    assert found.tolist() == pytest.approx([math.log(0.75), math.log(0.5)])
    (found * torch.tensor([4.0, 2.0])).sum().backward()
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == pytest.approx([-1.0, 1.0, 1.0, -1.0])


@pytest.mark.parametrize("chunk", [1, 40, 2**26])
@pytest.mark.parametrize("shape", [(7, 13), (2, 5, 13), (0, 13)])
def test_chunks_and_shapes_change_nothing(
    shape: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    logits, labels = case(*shape, dtype=torch.float64)
    found = label_logprobs(logits, labels)
    torch.testing.assert_close(found, expected(logits, labels))
    slopes = torch.randn(shape[:-1], dtype=torch.float64)
    (mine,) = torch.autograd.grad(found, logits, slopes)
    (theirs,) = torch.autograd.grad(expected(logits, labels), logits, slopes)
    torch.testing.assert_close(mine, theirs)


def test_gradients_are_those_of_finite_differences() -> None:
    logits, labels = case(3, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda given: label_logprobs(given, labels), logits)


def test_half_precision_is_summed_in_float32() -> None:
    logits, labels = case(64, 4096, dtype=torch.bfloat16)
    found = label_logprobs(logits, labels)
    exact = expected(logits.float(), labels)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, exact)
    rounded = expected(logits, labels).float()
    assert (found - exact).abs().max() < 0.01 * (rounded - exact).abs().max()
    found.sum().backward()
    assert logits.grad is not None and logits.grad.dtype is torch.bfloat16
    (slope,) = torch.autograd.grad(exact.sum(), logits)
    torch.testing.assert_close(logits.grad, slope, atol=1e-6, rtol=2**-7)


def test_impossible_tokens_have_no_gradient() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0]], requires_grad=True)
    found = label_logprobs(logits, torch.tensor([0]))
    found.backward()
    assert found.item() == pytest.approx(math.log(0.5))
    assert logits.grad is not None and logits.grad.tolist() == [[0.5, 0.0, -0.5]]


def test_nothing_is_kept_without_a_gradient() -> None:
    logits, labels = case(4, 6)
    with torch.no_grad():
        assert not label_logprobs(logits, labels).requires_grad


def plain_entropies(logits: torch.Tensor) -> torch.Tensor:
    scores = torch.log_softmax(logits, -1)
    return -(scores.exp() * scores).sum(-1)


def test_entropies_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [1000.0, 1000.0]], requires_grad=True)
    found = token_entropies(logits)
    first = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert found.tolist() == pytest.approx([first, math.log(2.0)])
    found.sum().backward()
    assert logits.grad is not None
    slope = -0.75 * (math.log(0.75) + first)
    assert logits.grad.flatten().tolist() == pytest.approx([-slope, slope, 0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("chunk", [1, 40, 2**26])
@pytest.mark.parametrize("shape", [(7, 13), (2, 5, 13), (0, 13)])
def test_entropies_in_chunks_are_those_at_once(
    shape: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    logits, _ = case(*shape, dtype=torch.float64)
    found = token_entropies(logits)
    torch.testing.assert_close(found, plain_entropies(logits))
    slopes = torch.randn(shape[:-1], dtype=torch.float64)
    (mine,) = torch.autograd.grad(found, logits, slopes)
    (theirs,) = torch.autograd.grad(plain_entropies(logits), logits, slopes)
    torch.testing.assert_close(mine, theirs)
    if logits.numel():
        assert torch.autograd.gradcheck(token_entropies, logits)


def test_entropies_leave_out_impossible_tokens_and_keep_float32() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    found = token_entropies(logits)
    found.backward()
    assert found.dtype is torch.float32 and found.item() == pytest.approx(math.log(2.0))
    assert logits.grad is not None and logits.grad.tolist() == [[0.0, 0.0, 0.0]]
