"""What a finetuning by verl has reported: a curve by our names of metrics, and its best step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from conf.schema import SFTSection
from steps.tracking import Tracker
from steps.training.best import sft_best
from steps.training.schedules import lr_scale, sft_warmup
from steps.training.tokenization import SPAN_KINDS
from steps.training.verl_sft_data import VALIDATION

NAMES = {
    "train/loss": "sft/loss",
    "train/grad_norm": "sft/grad_norm",
    "train/mfu": "perf/mfu",
    "train/global_tokens": "perf/tokens",
    "perf/max_memory_allocated_gb": "perf/max_memory_allocated_gb",
    VALIDATION: "sft/validation_loss",
    **{f"{VALIDATION}_{kind}": f"sft/validation_loss_{kind}" for kind in SPAN_KINDS},
}
"""verl's metrics -> ours. Its `train/lr` is left out: it is that of the step to come."""
LOGGED_EVERY = 20


@dataclass(kw_only=True)
class Progress:
    """What has been seen of a running training."""

    curve: list[dict[str, float]] = field(default_factory=list)
    step: int = 0
    seconds_before: float = 0.0
    """Of training, before this process took it up."""
    section: SFTSection
    total: int
    tracker: Tracker
    began: float = field(default_factory=time.perf_counter)
    _row: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of training, with the start of its processes."""
        return self.seconds_before + time.perf_counter() - self.began

    def see(self, step: int, data: dict[str, Any]) -> None:
        """A row of verl's metrics; a validation loss has one of its own, after its step's."""
        found = {name: float(data[key]) for key, name in NAMES.items() if key in data}
        self._row = self._row | found if step == self.step else found
        self.step = step
        is_due = (step - 1) % LOGGED_EVERY == 0 or step == self.total or VALIDATION in data
        if not found or not is_due:
            return
        now = {"sft/lr": self.section.lr * self._lr_scale(step), "sft/seconds": self.seconds}
        row = {"step": step, **self._row, **now}
        if self.curve and self.curve[-1]["step"] == step:
            self.curve[-1] = row
        else:
            self.curve.append(row)
        self.tracker.log({key: value for key, value in row.items() if key != "step"}, step)

    @property
    def best(self) -> int | None:
        """Step of the lowest validation loss so far, where the settings want it (`sft.keep`)."""
        return sft_best(self.section.keep).step(self.curve)

    def _lr_scale(self, step: int) -> float:
        return lr_scale(
            step - 1,
            total_steps=self.total,
            warmup_steps=sft_warmup(self.section, self.total),
            schedule=self.section.schedule,
            min_ratio=self.section.min_lr_ratio,
        )
