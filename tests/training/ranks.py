"""What the ranks of tests/training/test_workers.py run: a spawned process imports it by name."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from steps.errors import DataError
from steps.workers import Peers

INPUTS = ((1.0, 2.0), (3.0, -4.0), (-5.0, 6.0), (7.0, 8.0), (9.0, 1.0))
TARGETS = (1.0, 0.0, -2.0, 3.0, 5.0)


def gradient(peers: Peers) -> list[float]:
    """Gradient of the mean of (w.x - y)^2 at w = (2, -1); each rank adds its share of the rows."""
    weight = torch.nn.Parameter(torch.tensor([2.0, -1.0]))
    unused = torch.nn.Parameter(torch.zeros(3))
    frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    rows = list(zip(INPUTS, TARGETS, strict=True))[peers.rank :: peers.size]
    for inputs, target in rows:
        ((weight @ torch.tensor(inputs) - target) ** 2).backward()
    peers.sum_gradients([weight, unused, frozen], scale=1 / len(INPUTS))
    assert weight.grad is not None and unused.grad is not None and frozen.grad is None
    return [*weight.grad.tolist(), *unused.grad.tolist()]


def exchange(peers: Peers, word: str, tracker: Any) -> dict[str, Any]:
    """Everything that ranks exchange, and what each was given."""
    return {
        "gradient": gradient(peers),
        "sum": peers.sum([peers.rank + 1, 0.5]),
        "gathered": peers.gather((peers.rank, peers.is_main, word, tracker is None)),
    }


def fail_in_a_child(peers: Peers, when: str) -> str:
    """Rank 1 fails where rank 0 waits for it, or where nobody does, or without a word."""
    if peers.rank == 1 and when == "before":
        raise ValueError("the dog ate the batch")
    if peers.rank == 1 and when == "mistake":
        raise DataError("the batch is empty")
    peers.sum([1.0])
    if peers.rank == 1 and when == "after":
        raise ValueError("the dog ate the batch")
    if peers.rank == 1 and when == "killed":
        os._exit(9)
    return "done"


class Unreadable:
    """Can be sent to a child, which then fails before it is up."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def fail_in_the_caller(peers: Peers) -> None:
    """Rank 0 fails while rank 1 is at work."""
    if peers.is_main:
        raise KeyError("tracker")
    time.sleep(600)
