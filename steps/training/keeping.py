"""The checkpoints of a local training: where it goes on from, when one is due, which one it leaves.

With `keep: best` a checkpoint is written whenever the number that judges it is the best so far,
besides those of `save_every`; it is never pruned while it is the best, and its weights are the
stage's model in the end. `last`, the default, changes nothing of this. The verl backend's
checkpoints are verl's (`verl_checkpoints`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steps.policies.loading import load_model
from steps.training.best import Best
from steps.training.checkpoints import CheckpointStore
from steps.workers import Peers

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Keeping:
    """Where a training keeps its checkpoints, and when."""

    store: CheckpointStore | None
    """That of the main rank; the others have none. Without one nothing is kept."""
    fingerprint: str
    scratch: Path
    """A directory that a checkpoint is written to before the store copies it."""
    judge: Best
    save_every: int
    """Steps between checkpoints; 0 is never."""

    def newest(self, peers: Peers) -> tuple[int, str]:
        """Step and directory that every rank goes on from; 0 and "" where there is nothing."""
        found = None if self.store is None else self.store.newest(self.fingerprint)
        step, directory = found or (0, "")
        start: tuple[int, str] = peers.gather((step, str(directory)))[0]
        return start

    def keep(
        self, step: int, curve: Sequence[Mapping[str, float]], write: Callable[[Path], None]
    ) -> None:
        """Keep what `write` leaves in a directory, where `step` is due or the best so far."""
        best = self.judge.step(curve)
        is_due = self.save_every > 0 and step % self.save_every == 0
        if self.store is not None and (is_due or best == step):
            write(self.scratch)
            self.store.save(self.scratch, step=step, fingerprint=self.fingerprint, best=best)

    def take_best(
        self, peers: Peers, model: Any, curve: Sequence[Mapping[str, float]], *, last: int
    ) -> int:
        """Put the weights of the best step into `model`, which holds those of step `last`.

        Returns the step whose weights it holds then. Every rank calls this; the main one's curve
        and store count. Where the checkpoint is gone or damaged the model stays as it is, with a
        warning.
        """
        directory, best = "", self.judge.step(curve)
        if best is not None and best != last and self.store is not None:
            found = self.store.at(best, self.fingerprint)
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
