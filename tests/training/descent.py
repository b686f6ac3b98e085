"""How the ranks of test_two_processes.py train: a spawned process imports it by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from steps.training import ppo_learner, sft_local
from steps.training.optimizers import Optimizers
from steps.workers import Peers


def by_gradient_descent(peers: Peers, train: Callable[..., Any], *arguments: Any) -> Any:
    """What `train` returns where each optimizer is plain gradient descent.

    The length of a gradient shows in what is trained, which AdamW makes the same for any length.
    """
    with (
        patch.object(sft_local, "build_optimizers", _descent),
        patch.object(ppo_learner, "build_optimizers", _descent),
    ):
        return train(peers, *arguments)


def _descent(model: torch.nn.Module, *, lr: float, **_: Any) -> Optimizers:
    return Optimizers([torch.optim.SGD(model.parameters(), lr=lr)])
