"""Finished batches of episodes, kept one by one: a stage that was cut off goes on from them.

A batch is a small directory of its own: its episodes as Parquet and the seconds that they took.
Keeping the next one costs its own size and never that of those before. Stages are handed a
`BatchStore` and never know where it keeps things: the flow's is `steps.orchestration.batch_store`.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from steps.agent.records import StopReason, Trajectory
from steps.errors import DataError
from steps.storage import (
    atomic_write_json,
    read_json,
    read_trajectories,
    write_trajectories,
)

FILE, FACTS = "episodes.parquet", "batch.json"
DAMAGES = (DataError, OSError, KeyError, TypeError, ValueError)
"""What reading a directory raises that was cut, altered, or removed by another run meanwhile."""
_log = logging.getLogger(__name__)


class BatchStore(Protocol):
    """Where a stage leaves its finished batches, and finds those of its own fingerprint again."""

    def save(self, directory: Path, *, index: int, fingerprint: str) -> None:
        """Keep a copy of `directory` as batch `index`."""

    def find(self, index: int, fingerprint: str) -> Path | None:
        """Directory of batch `index`, its files compared with their digests; None without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The episodes of one batch."""

    trajectories: list[Trajectory]
    seconds: float
    """That playing them took, in whichever attempt did it."""


class Batches:
    """The batches of one piece of work, over a store; without a store nothing is kept or found."""

    def __init__(self, store: BatchStore | None, fingerprint: str) -> None:
        self._store = store
        self._fingerprint = fingerprint

    def find(self, index: int, episodes: Sequence[tuple[int, int, int]]) -> Batch | None:
        """Batch `index` of an earlier attempt; None where it must be played.

        It must hold just these `episodes` (environment seed, group, member), in this order.
        """
        directory = self._store.find(index, self._fingerprint) if self._store else None
        if directory is None:
            return None
        try:
            found = read_trajectories(directory / FILE)
            seconds = float(read_json(directory / FACTS)["seconds"])
        except DAMAGES as error:
            warn_of_damage(index, error)
            return None
        if [(each.env_seed, each.group, each.member) for each in found] != list(episodes):
            warn_of_damage(index, DataError("it holds other episodes than are to be played"))
            return None
        return Batch(trajectories=found, seconds=seconds)

    def keep(self, index: int, batch: Batch) -> None:
        """Keep a finished batch. One in which the policy failed is left to be played again.

        A store that can't be written is a warning: a batch that isn't kept costs time, no result.
        """
        failed = any(each.stop_reason is StopReason.POLICY_ERROR for each in batch.trajectories)
        if self._store is None or failed:
            return
        with tempfile.TemporaryDirectory(prefix="spa-") as name:
            directory = Path(name)
            try:
                write_trajectories(directory / FILE, batch.trajectories)
                atomic_write_json(directory / FACTS, {"seconds": batch.seconds})
                self._store.save(directory, index=index, fingerprint=self._fingerprint)
            except Exception as error:  # whatever a storage raises
                _log.warning("batch %d isn't kept for a resumed run: %s", index + 1, error)


def batch_name(index: int) -> str:
    """Folder of a batch; the first is number 1."""
    return f"batch_{index + 1:06d}"


def warn_of_damage(index: int, error: Exception) -> None:
    """Say that a kept batch is of no use, and why."""
    _log.warning("the kept batch %d can't be used and is played again: %s", index + 1, error)
