"""Log-probabilities of given tokens and entropies on a GPU: logits are read once, and once more for
their gradient, a row by one program of Triton. Importing it needs triton.

PyTorch's own functions write each row out in float32 several times (docs/benchmarks.md).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

READ, WRITTEN = 8192, 8192
"""Logits of a row that a program holds at once."""
READ_WARPS, WRITE_WARPS = 16, 8


def read_rows(
    logits: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(log-probability of the label, entropy in nats, largest logit, log of the sum of
    exp(logit - largest)), each `[rows]` in float32.

    `logits` `[rows, vocabulary]` of half or single precision, each row in one piece; `labels`
    contiguous. NaN is the log-probability of a label that is no token.
    """
    rows, width = logits.shape
    logprobs, entropies, most, log_sums = (
        torch.empty(rows, device=logits.device, dtype=torch.float32) for _ in range(4)
    )
    if rows:
        with torch.cuda.device_of(logits):
            _read[(rows,)](
                logits,
                labels,
                logprobs,
                entropies,
                most,
                log_sums,
                width,
                logits.stride(0),
                BLOCK=READ,
                num_warps=READ_WARPS,
            )
    return logprobs, entropies, most, log_sums


def gradient(
    logits: torch.Tensor,
    labels: torch.Tensor,
    entropies: torch.Tensor,
    most: torch.Tensor,
    log_sums: torch.Tensor,
    *,
    by_logprobs: torch.Tensor,
    by_entropies: torch.Tensor,
) -> torch.Tensor:
    """Of the logits, in their dtype, from those of the two that `read_rows` found, each `[rows]`.

    d log p(label) / d logit is one at the label, less the token's probability p;
    d entropy / d logit is -p (log p + entropy), 0 where p is.
    """
    rows, width = logits.shape
    found = torch.empty((rows, width), device=logits.device, dtype=logits.dtype)
    if rows:
        with torch.cuda.device_of(logits):
            _write[(rows, triton.cdiv(width, WRITTEN))](
                logits,
                labels,
                entropies,
                most,
                log_sums,
                by_logprobs.float().contiguous(),
                by_entropies.float().contiguous(),
                found,
                width,
                logits.stride(0),
                BLOCK=WRITTEN,
                num_warps=WRITE_WARPS,
            )
    return found


# Triton evaluates annotations: a kernel has none but `constexpr`.
@triton.jit
def _read(  # type: ignore[no-untyped-def]
    logits,
    labels,
    logprobs,
    entropies,
    largest,
    log_sums,
    width,
    stride,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Sums of exp(x - m) and (x - m) exp(x - m), where m is the largest logit so far."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    most = -float("inf")
    total = 0.0
    weighted = 0.0
    for start in range(0, width, BLOCK):
        places = start + tl.arange(0, BLOCK)
        x = tl.load(logits + places, mask=places < width, other=-float("inf")).to(tl.float32)
        above = tl.maximum(most, tl.max(x, 0))
        shift = tl.where(above == -float("inf"), 0.0, above)
        step = tl.where(most == -float("inf"), 0.0, most - shift)
        shrink = tl.exp(most - shift)
        exponentials = tl.exp(x - shift)
        products = tl.where(exponentials > 0, exponentials * (x - shift), 0.0)
        weighted = shrink * (weighted + total * step) + tl.sum(products, 0)
        total = total * shrink + tl.sum(exponentials, 0)
        most = above
    log_sum = tl.log(total)
    label = tl.load(labels + row)
    is_token = (label >= 0) & (label < width)
    chosen = tl.load(logits + label, mask=is_token, other=float("nan")).to(tl.float32)
    tl.store(logprobs + row, (chosen - most) - log_sum)
    tl.store(entropies + row, log_sum - weighted / total)
    tl.store(largest + row, most)
    tl.store(log_sums + row, log_sum)


@triton.jit
def _write(  # type: ignore[no-untyped-def]
    logits,
    labels,
    entropies,
    largest,
    log_sums,
    by_logprobs,
    by_entropies,
    found,
    width,
    stride,
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * stride + places, mask=places < width, other=-float("inf"))
    log_p = (x.to(tl.float32) - tl.load(largest + row)) - tl.load(log_sums + row)
    p = tl.exp(log_p)
    slope = tl.load(by_logprobs + row)
    spread = tl.load(by_entropies + row) * (log_p + tl.load(entropies + row))
    change = tl.where(p > 0, -p * (slope + spread), 0.0)
    change += tl.where(places == tl.load(labels + row), slope, 0.0)
    tl.store(found + row * width + places, change, mask=places < width)
