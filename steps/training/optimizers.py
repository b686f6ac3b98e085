"""AdamW, or Muon for the hidden matrices with AdamW for the rest, behind one small interface.

Muon (Jordan et al. 2024; `torch.optim.Muon`) orthogonalises the momentum of each weight matrix.
The built-in model learns its world in less than half of the steps with it (LAB_NOTES.md).
Embeddings, the output head, biases and norms are not matrices in that sense and stay with AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

NOT_HIDDEN = (torch.nn.Embedding,)


class Optimizers:
    """The optimizers of one model: stepped, scheduled and saved as one."""

    def __init__(self, parts: Iterable[torch.optim.Optimizer]) -> None:
        self.parts = list(parts)
        self.base_lrs = [[group["lr"] for group in part.param_groups] for part in self.parts]

    @property
    def lr(self) -> float:
        """Present learning rate of the first part (AdamW's)."""
        return float(self.parts[0].param_groups[0]["lr"])

    def scale_lr(self, scale: float) -> None:
        """Set every learning rate to `scale` times what it was made with."""
        for part, lrs in zip(self.parts, self.base_lrs, strict=True):
            for group, lr in zip(part.param_groups, lrs, strict=True):
                group["lr"] = lr * scale

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self) -> None:
        """One update."""
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values of all parts."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, of the same model and kind."""
        for part, part_state in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(part_state)


def build_optimizers(
    model: torch.nn.Module,
    *,
    kind: str,
    lr: float,
    muon_lr: float,
    betas: tuple[float, float],
    weight_decay: float,
) -> Optimizers:
    """`kind` is adamw or muon; `lr` is AdamW's, `muon_lr` that of the hidden matrices."""
    hidden = hidden_matrices(model) if kind == "muon" else []
    taken = {id(parameter) for parameter in hidden}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    parts: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(rest, lr=lr, betas=betas, weight_decay=weight_decay, fused=True)
    ]
    if hidden:
        parts.append(torch.optim.Muon(hidden, lr=muon_lr, weight_decay=weight_decay))
    return Optimizers(parts)


def clip_gradient(model: torch.nn.Module, max_norm: float) -> torch.Tensor:
    """Cut the gradient to length `max_norm`, 0 is no limit; returns its length before."""
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm or math.inf)


def hidden_matrices(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Two-dimensional weights inside the transformer's blocks: no embedding, head or vector."""
    outside = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, NOT_HIDDEN)
        for parameter in module.parameters()
    }
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is not None:
        outside |= {id(parameter) for parameter in head.parameters()}
    return [
        parameter
        for parameter in model.parameters()
        if parameter.ndim == 2 and min(parameter.shape) > 1 and id(parameter) not in outside
    ]
