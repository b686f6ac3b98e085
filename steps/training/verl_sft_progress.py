"""What a finetuning by verl has reported: a curve by our names of metrics, and its best step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from conf.schema import SFTSection
from steps.tracking import Tracker
from steps.training.best import Best
from steps.training.schedules import lr_scale, sft_warmup

BATCH_LOSS = "sft/validation_batch_loss"
NAMES = {
    "train/loss": "sft/loss",
    "train/grad_norm": "sft/grad_norm",
    "train/mfu": "perf/mfu",
    "train/global_tokens": "perf/tokens",
    "perf/max_memory_allocated_gb": "perf/max_memory_allocated_gb",
    "val/loss": BATCH_LOSS,
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
        is_due = (step - 1) % LOGGED_EVERY == 0 or step == self.total or "val/loss" in data
        if not found or not is_due:
            return
        now = {"sft/lr": self.section.lr * self._lr_scale(step), "sft/seconds": self.seconds}
        row = {"step": step, **self._row, **now}
        if self.curve and self.curve[-1]["step"] == step:
            self.curve[-1] = row
        else:
            self.curve.append(row)
        self.tracker.log({key: value for key, value in row.items() if key != "step"}, step)

    def add(self, losses: dict[str, float], step: int) -> None:
        """What was measured of a step's model once the training was over."""
        if any(row["step"] == step for row in self.curve):
            self.curve = [row | losses if row["step"] == step else row for row in self.curve]
        else:
            self.curve = [*self.curve, {"step": step, **losses}]
        self.tracker.log(losses, step)

    @property
    def best(self) -> int | None:
        """Step of the lowest validation loss so far, where the settings want it (`sft.keep`)."""
        judge = Best(metric=BATCH_LOSS, sign=-1, is_wanted=self.section.keep == "best")
        return judge.step(self.curve)

    def _lr_scale(self, step: int) -> float:
        return lr_scale(
            step - 1,
            total_steps=self.total,
            warmup_steps=sft_warmup(self.section, self.total),
            schedule=self.section.schedule,
            min_ratio=self.section.min_lr_ratio,
        )
