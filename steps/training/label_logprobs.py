"""Log-probabilities of given tokens, and entropies, from logits: in bounded memory, with gradients.

verl takes the former with flash-attention's kernel; where that isn't installed it goes through its
logits row by row in Python, and a row is a token. Entropies it takes from all logits at once, with
several copies of them in float32. `verl_hooks` puts these functions in their places. On a GPU they
are kernels (`logits_kernels`), elsewhere PyTorch's functions on some rows at a time.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import torch

CHUNK = 2**24
"""Logits that are worked on at once, 64 MiB in float32; a row is never cut."""


def label_logprobs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """log softmax of `logits` `[..., vocabulary]` at `labels` `[...]`.

    Half precision is computed, and returned, in float32; the gradient has the dtype of the logits.
    """
    rows, chosen = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).contiguous()
    if _has_kernels(rows):
        found, _ = _ByKernels.apply(rows, chosen)
    else:
        found = _LabelLogprobs.apply(rows, chosen)
    return cast(torch.Tensor, found).view(labels.shape)


class _LabelLogprobs(torch.autograd.Function):
    """Keeps the logits and computes their softmax twice; autograd would keep it in float32."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits, labels)
        parts = [_log_softmax(logits[part]).gather(1, labels[part, None]) for part in _cut(logits)]
        return torch.cat(parts)[:, 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slopes: torch.Tensor) -> tuple[torch.Tensor, None]:
        """d log p(label) / d logit is one at the label, less the token's probability."""
        logits, labels = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for part in _cut(logits):
            slope = slopes[part, None]
            block = _log_softmax(logits[part]).exp_().mul_(-slope)
            gradient[part] = block.scatter_add_(1, labels[part, None], slope)
        return gradient, None


def logprobs_and_entropies(
    logits: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`label_logprobs` and `token_entropies` of `[rows, vocabulary]`; on a GPU in one look."""
    if _has_kernels(logits):
        found: tuple[torch.Tensor, torch.Tensor] = _ByKernels.apply(logits, labels.contiguous())
        return found
    return label_logprobs(logits, labels), token_entropies(logits)


def token_entropies(logits: torch.Tensor) -> torch.Tensor:
    """Entropies in nats of the distributions `[..., vocabulary]`, as `[...]`.

    Half precision is computed, and returned, in float32; the gradient has the dtype of the logits.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    if _has_kernels(rows):
        _, found = _ByKernels.apply(rows, rows.new_zeros(len(rows), dtype=torch.long))
    else:
        found = _Entropies.apply(rows)
    return cast(torch.Tensor, found).view(logits.shape[:-1])


class _Entropies(torch.autograd.Function):
    """As `_LabelLogprobs`."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        parts = [
            torch.special.entr(_log_softmax(logits[part]).exp_()).sum(-1) for part in _cut(logits)
        ]
        found = torch.cat(parts)
        ctx.save_for_backward(logits, found)
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slopes: torch.Tensor) -> torch.Tensor:
        """d entropy / d logit is -p (log p + entropy), 0 where p is."""
        logits, found = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for part in _cut(logits):
            chances = _log_softmax(logits[part]).exp_()
            block = torch.special.entr(chances) - chances * found[part, None]
            gradient[part] = block.mul_(slopes[part, None])
        return gradient


class _ByKernels(torch.autograd.Function):
    """(log-probabilities, entropies); keeps the logits and three numbers of each row."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies, most, log_sums = _kernels().read_rows(logits, labels)
        ctx.save_for_backward(logits, labels, entropies, most, log_sums)
        return logprobs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, by_logprobs: torch.Tensor, by_entropies: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        found = _kernels().gradient(
            *ctx.saved_tensors, by_logprobs=by_logprobs, by_entropies=by_entropies
        )
        return found, None


def _has_kernels(logits: torch.Tensor) -> bool:
    """Whether these logits can be `logits_kernels`'s. Triton comes with PyTorch's for CUDA."""
    is_fit = logits.is_cuda and logits.dtype is not torch.float64 and logits.stride(-1) == 1
    return is_fit and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _kernels() -> Any:
    return import_module("steps.training.logits_kernels")


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    precise = torch.promote_types(logits.dtype, torch.float32)
    return torch.log_softmax(logits, -1, dtype=precise)


def _cut(logits: torch.Tensor) -> list[slice]:
    """Rows that are worked on at once; at least one slice, which may be empty."""
    size = max(1, CHUNK // max(1, logits.shape[1]))
    return [slice(start, start + size) for start in range(0, max(1, len(logits)), size)]
