"""A line on the terminal now and then while a stage trains: how far it is and how it goes.

Read off the metrics that a stage logs anyway, so that no training loop prints. The first step, the
last one, and one about every `EVERY_S` seconds are shown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from conf.schema import Config

EVERY_S = 20.0
SHOWN = {
    "sft_train": {
        "sft/loss": "loss",
        "sft/validation_loss": "validation loss",
        "probe/format_rate": "on validation puzzles: well-formed",
        "probe/observation_exact": "observation right",
        "probe/prediction_possible": "prediction possible",
    },
    "ppo_train": {
        "rollout/success": "success",
        "rollout/format_rate": "well-formed",
        "rollout/prediction_possible": "prediction possible",
        "probe/success": "success on validation puzzles",
    },
}
"""What is shown of each stage, in this order; the other stages speak for themselves."""
NAMES = {"sft_train": "SFT", "ppo_train": "PPO"}

_log = logging.getLogger(__name__)


class Progress:
    """Tells of one stage."""

    def __init__(self, stage: str, total: int = 0) -> None:
        self._stage = stage
        self._total = total
        self._next_time = 0.0
        self._waiting = ""

    def tell(self, metrics: Mapping[str, float], step: int) -> None:
        """Show the metrics of a step where it is time to."""
        known = [
            f"{name} {metrics[key]:.3f}"
            for key, name in SHOWN.get(self._stage, {}).items()
            if key in metrics
        ]
        if not known:
            return
        of = f"/{self._total}" if self._total else ""
        self._waiting = f"{NAMES[self._stage]} step {step}{of}: {', '.join(known)}"
        if step == self._total or time.monotonic() >= self._next_time:
            self.finish()

    def finish(self) -> None:
        """Show what came last, if it hasn't been."""
        if self._waiting:
            _log.info("%s", self._waiting)
        self._waiting = ""
        self._next_time = time.monotonic() + EVERY_S


def progress_of(config: Config, stage: str) -> Progress:
    """The progress of a stage with this configuration."""
    finetuning = config.sft.max_steps * config.selfplay.rounds
    totals = {"sft_train": finetuning, "ppo_train": config.ppo.total_steps}
    return Progress(stage, totals.get(stage, 0))
