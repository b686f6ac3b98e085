"""verl's finetuning trainer with our losses on held-out rows.

verl's own is a mean over batches, whatever tokens each of them has. Here it is a mean over tokens,
of all and of each kind of span, as in `sft_local.evaluate_loss`: the loss function counts them, and
verl's trainer adds them up over micro-batches and ranks as it does with any metric.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch

from steps.training.tokenization import SPAN_KINDS
from steps.training.verl_sft_data import KINDS, VALIDATION, WEIGHTS

SUMS = "spa_validation"
"""Metric of a micro-batch: nats and tokens of each kind, flat, then both weighted."""
_SHAPE = (len(SPAN_KINDS) + 1, 2)
Loss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]


def span_loss(
    model_output: Any, data: Any, dp_group: Any = None, *, others: Loss
) -> tuple[torch.Tensor, dict[str, Any]]:
    """verl's loss function `others`; of held-out rows it tells the sums besides."""
    loss, metrics = others(model_output=model_output, data=data, dp_group=dp_group)
    if KINDS not in data:
        return loss, metrics
    # verl tells of each place how likely the next token is.
    nats = -model_output["log_probs"].values().double()
    kinds, weights = (data[name].values().roll(-1) for name in (KINDS, WEIGHTS))
    parts = [kinds == index for index in range(len(SPAN_KINDS))]
    sums = [
        float(number) for part in (*parts, weights) for number in ((nats * part).sum(), part.sum())
    ]
    return loss, metrics | {SUMS: sums}


class Validation:
    """The sums of a validation, over its batches."""

    def __init__(self) -> None:
        self.sums = torch.zeros(_SHAPE, dtype=torch.float64)

    def add(self, metrics: dict[str, Any]) -> None:
        """A batch's metrics: `SUMS` of each rank's micro-batches, in lists of any depth."""
        found = torch.tensor(metrics.get(SUMS, []), dtype=torch.float64)
        self.sums += found.reshape(-1, *_SHAPE).sum(0)

    def losses(self) -> dict[str, float]:
        """By verl's way to name them; the sums begin anew."""
        sums, self.sums = self.sums, torch.zeros_like(self.sums)
        found = {VALIDATION: float(sums[-1, 0] / sums[-1, 1].clamp(min=1))}
        for kind, (nats, tokens) in zip(SPAN_KINDS, sums[:-1].tolist(), strict=True):
            if tokens:
                found[f"{VALIDATION}_{kind}"] = nats / tokens
        return found


def mend(module: ModuleType) -> None:
    """Exchange trainer and log of `verl.trainer.sft_trainer`."""
    validation = Validation()
    theirs: Any = module.__dict__["SFTTrainer"]
    log: Any = module.__dict__["Tracking"]

    class SFTTrainer(theirs):
        def _build_engine(self) -> None:
            super()._build_engine()
            client = self.training_client
            client.set_loss_fn(partial(span_loss, others=self.loss_fn))
            infer = client.infer_batch

            def infer_batch(data: Any) -> Any:
                output = infer(data)
                if output is not None:
                    validation.add(output["metrics"])
                return output

            client.infer_batch = infer_batch

    class Tracking(log):
        def log(self, data: dict[str, Any], step: int, *others: Any, **named: Any) -> None:
            if VALIDATION in data:
                data = data | validation.losses()
            super().log(data, step, *others, **named)

    module.__dict__.update(SFTTrainer=SFTTrainer, Tracking=Tracking)


def main() -> None:
    """verl's program, mended."""
    from verl.trainer import sft_trainer

    mend(sft_trainer)
    sft_trainer.main()
