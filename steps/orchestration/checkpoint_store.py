"""A stage's checkpoints in Metaflow's datastore: found again on retry and on `resume`.

Kept by run, branch, stage and fingerprint. A retry looks in its own run; a resumed run looks in
itself, then in the run it was resumed from, and so on back. A new run never finds another's.
Damaged or half-written checkpoints are passed over for the one before.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from steps.errors import CheckpointError, DataError
from steps.orchestration.directory_store import ROOT, DirectoryStore

KEEP_LAST = 2
_PREFIX = "step_"
_log = logging.getLogger(__name__)


class MetaflowCheckpoints:
    """The `CheckpointStore` of one stage of one branch.

    `roots` are the keys where checkpoints lie: this run's first, then those of its origins.
    """

    def __init__(
        self, store: DirectoryStore, *, roots: Sequence[str], keep_last: int = KEEP_LAST
    ) -> None:
        self.store = store
        self.roots = list(roots)
        self.keep_last = keep_last

    def save(self, directory: Path, *, step: int, fingerprint: str) -> None:
        """Keep a copy of `directory` as the checkpoint of `step`, and prune older ones."""
        root = f"{self.roots[0]}/{fingerprint}"
        name = f"{_PREFIX}{step:08d}"
        self.store.put(directory, f"{root}/{name}", step=step, fingerprint=fingerprint)
        for old in self._names(root)[: -self.keep_last]:
            self.store.discard(f"{root}/{old}")

    def newest(self, fingerprint: str) -> tuple[int, Path] | None:
        """Step and directory of the newest whole checkpoint; None where there never was one.

        Raises `CheckpointError` where there are some and all are damaged.
        """
        faults: list[str] = []
        for root in (f"{root}/{fingerprint}" for root in self.roots):
            for name in reversed(self._names(root)):
                try:
                    return int(name.removeprefix(_PREFIX)), self.store.get(f"{root}/{name}")
                except DataError as error:
                    faults.append(str(error))
                    _log.warning("checkpoint %s is passed over: %s", name, error)
        if faults:
            raise CheckpointError(
                f"all {len(faults)} checkpoints of this stage are damaged; the newest: {faults[0]} "
                "Remove them to train from the start."
            )
        return None

    def _names(self, root: str) -> list[str]:
        return [name for name in self.store.names(root) if name.startswith(_PREFIX)]


def run_root(flow: str, run_id: str) -> str:
    """Where a run keeps its directories."""
    return f"{ROOT}/{flow}/{run_id}"


def lineage(store: DirectoryStore, flow: str, run_id: str, origin: str | None) -> list[str]:
    """Roots of a run and of those it was resumed from, newest first.

    Each resumed run notes its origin in the datastore: Metaflow tells a task only the last one.
    """
    roots = [run_root(flow, run_id)]
    if origin:
        note = io.BytesIO(json.dumps({"run_id": origin}).encode())
        store.transport.save_bytes(iter([(f"{roots[0]}/origin.json", note)]), overwrite=True)
    while origin and run_root(flow, origin) not in roots:
        roots.append(run_root(flow, origin))
        origin = _origin(store, roots[-1])
    return roots


def _origin(store: DirectoryStore, root: str) -> str | None:
    with store.transport.load_bytes([f"{root}/origin.json"]) as found:
        for _, local, _ in found:
            if local is not None:
                return str(json.loads(Path(local).read_text())["run_id"])
    return None
