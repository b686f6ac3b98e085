"""The best step of a training, by a number on its curve (`sft.keep`, `ppo.keep`).

Of equals the earliest counts. What becomes of that step's checkpoint is told by `keeping`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """What a checkpoint is judged by."""

    metric: str
    sign: int
    """1 where more is better, -1 where less is."""
    is_wanted: bool
    """Whether the settings ask for the best (`keep: best`)."""

    def step(self, curve: Sequence[Mapping[str, float]]) -> int | None:
        """Step of the best point that has the number; None where the best isn't wanted.

        The model that the training began with, step 0, has no checkpoint and isn't among them.
        """
        known = (point for point in curve if self.is_wanted and self.metric in point)
        points = [point for point in known if point["step"] > 0]
        top = max(points, key=lambda point: self.sign * point[self.metric], default=None)
        return None if top is None else int(top["step"])


def sft_best(keep: str) -> Best:
    """The lowest validation loss."""
    return Best(metric="sft/validation_loss", sign=-1, is_wanted=keep == "best")


def ppo_best(keep: str) -> Best:
    """The highest success on validation puzzles."""
    return Best(metric="probe/success", sign=1, is_wanted=keep == "best")
