"""The best checkpoint of a training, by a number on its curve (`sft.keep`, `ppo.keep`).

With `keep: best` a checkpoint is written whenever that number is the best so far, besides those of
`save_every`; it is never pruned while it is the best, and its weights are the stage's model in the
end. Of equals the earliest counts. `last`, the default, changes nothing of this.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steps.policies.hf import load_model
from steps.training.checkpoints import CheckpointStore
from steps.workers import Peers

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """What a checkpoint is judged by."""

    metric: str
    sign: int
    """1 where more is better, -1 where less is."""
    is_wanted: bool
    """Whether the settings ask for the best (`keep: best`)."""

    def step(self, curve: Sequence[Mapping[str, float]]) -> int | None:
        """Step of the best point that has the number; None where the best isn't wanted."""
        points = [point for point in curve if self.is_wanted and self.metric in point]
        top = max(points, key=lambda point: self.sign * point[self.metric], default=None)
        return None if top is None else int(top["step"])


def sft_best(keep: str) -> Best:
    """The lowest validation loss."""
    return Best(metric="sft/validation_loss", sign=-1, is_wanted=keep == "best")


def ppo_best(keep: str) -> Best:
    """The highest success on validation puzzles."""
    return Best(metric="probe/success", sign=1, is_wanted=keep == "best")


def take_best(
    peers: Peers,
    model: Any,
    *,
    best: int | None,
    last: int,
    fingerprint: str,
    checkpoints: CheckpointStore | None,
) -> int:
    """Put the weights of step `best` into `model`, which holds those of step `last`.

    Returns the step whose weights it holds then. Every rank calls this; the main one's arguments
    count. Where the checkpoint is gone or damaged the model stays as it is, with a warning.
    """
    directory = ""
    if best is not None and best != last and checkpoints is not None:
        found = checkpoints.at(best, fingerprint)
        if found is None:
            _log.warning(
                "the best checkpoint, of step %d, is missing or damaged: the model is that of "
                "step %d.",
                *(best, last),
            )
        directory = str(found or "")
    step, directory = peers.gather((best, directory))[0]
    if not directory:
        return last
    other = load_model(directory, device=str(model.device), dtype="float32")
    model.load_state_dict(other.state_dict())
    return int(step)
