"""What transformers takes of flash-attn, in PyTorch: exact, with gradients, in any precision.

It says that it is 2.8.3, whose signatures these are. `tests.training.flash_on_cpu` has it found.
"""

from __future__ import annotations

from typing import Any

import torch

__version__ = "2.8.3"


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """Of `[rows, length, heads, width]`; a head of `k` and `v` serves a group of `q`'s."""
    assert dropout_p == 0 and window_size == (-1, -1) and softcap == 0
    assert q.shape[1] == k.shape[1] == v.shape[1] and k.shape[2] == v.shape[2]
    found = torch.nn.functional.scaled_dot_product_attention(
        *(each.transpose(1, 2) for each in (q, k, v)),
        is_causal=causal,
        scale=softmax_scale,
        enable_gqa=True,
    )
    return found.transpose(1, 2)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """Of `[tokens, heads, width]`, rows that begin and end at `cu_seqlens_q`, `[rows + 1]`."""
    assert cu_seqlens_q.dtype == torch.int32 and cu_seqlens_q.equal(cu_seqlens_k)
    lengths = cu_seqlens_q.diff()
    assert cu_seqlens_q[0] == 0 and cu_seqlens_q[-1] == len(q)
    assert int(max_seqlen_q) == int(max_seqlen_k) == int(lengths.max())
    rows = zip(*(each.split(lengths.tolist()) for each in (q, k, v)), strict=True)
    told = dropout_p, softmax_scale, causal, window_size, softcap, deterministic
    found = [flash_attn_func(*(each[None] for each in row), *told)[0] for row in rows]
    return torch.cat(found)


def flash_attn_with_kvcache(*_: Any, **__: Any) -> torch.Tensor:
    raise NotImplementedError("trainers keep no cache")
