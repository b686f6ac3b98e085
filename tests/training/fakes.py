"""Models whose every logit is known, and a process group that isn't one."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

Logits = Callable[[torch.Tensor], torch.Tensor]


class KnownModel:
    """`logits(ids_BT)` gives `[B, T, V]`: what the model says comes after each token."""

    def __init__(self, logits: Logits, vocab_size: int, max_positions: int = 4096) -> None:
        self.logits = logits
        self.config = SimpleNamespace(vocab_size=vocab_size, max_position_embeddings=max_positions)
        self.device = "cpu"
        self.num_rows = 0

    def eval(self) -> KnownModel:
        return self

    def __call__(self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        self.num_rows += len(input_ids)
        return SimpleNamespace(logits=self.logits(input_ids))


def uniform(vocab_size: int, **kwargs: Any) -> KnownModel:
    """Every token is as likely as any other."""
    return KnownModel(lambda ids: torch.zeros(*ids.shape, vocab_size), vocab_size, **kwargs)


def prophet(vocab_size: int, *, odds: float, unknown: frozenset[int] = frozenset()) -> KnownModel:
    """Gives the next token `odds` times the chance of any other, unless it is unknown."""

    def logits(ids_BT: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(*ids_BT.shape, vocab_size)
        for row, ids in enumerate(ids_BT.tolist()):
            for place, token in enumerate(ids[1:]):
                found[row, place, token] = 0.0 if token in unknown else math.log(odds)
        return found

    return KnownModel(logits, vocab_size)


class Ranks:
    """Rank `rank` of several that all hold the given values: what they'd exchange is at hand."""

    def __init__(self, rank: int, values: list[Any]) -> None:
        self.rank, self.size, self.values = rank, len(values), values

    def gather(self, value: Any) -> list[Any]:
        assert value == self.values[self.rank]
        return self.values
