"""A stage's checkpoints in Metaflow's datastore: found again on retry and on `resume`.

Kept by run, branch, stage and fingerprint. A retry looks in its own run; a resumed run looks in
itself, then in the run it was resumed from, and so on back; a new one in those that began the same
work. Of all that are found the one of the highest step counts, whatever the clock said when it was
written. Damaged or half-written checkpoints are passed over for the one before.

Code and versions aren't part of a checkpoint's own fingerprint, so that a run whose code was mended
can be taken up. Each checkpoint therefore names the work (the whole stage's fingerprint) that it is
made of: what goes on from another's is mixed, and so is all that goes on from that. Only `resume`
and a retry go on from mixed ones; a new run takes those of the very same work alone.
"""

from __future__ import annotations

import io
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from steps import storage
from steps.errors import CheckpointError, DataError
from steps.orchestration.directory_store import ROOT, DirectoryStore

KEEP_LAST = 2
JOURNAL = "metrics_so_far.jsonl"
_PREFIX = "step_"
_log = logging.getLogger(__name__)


class Journal(Protocol):
    """The metrics that a stage has logged so far, which its checkpoints carry along."""

    path: Path

    def restore(self, earlier: Path) -> None:
        """Go on from an earlier attempt's file."""


class MetaflowCheckpoints:
    """The `CheckpointStore` of one stage of one branch.

    `roots` are the keys where checkpoints lie: this run's first, then those of its origins;
    `others` those of runs that began the same `work`, the stage's fingerprint. The `journal` is
    kept with each checkpoint and goes on from the one that is found.
    """

    def __init__(
        self,
        store: DirectoryStore,
        *,
        roots: Sequence[str],
        others: Sequence[str] = (),
        work: str = "",
        keep_last: int = KEEP_LAST,
        journal: Journal | None = None,
    ) -> None:
        self.store = store
        self.roots = list(roots)
        self.others = list(others)
        self.work = work
        self.works = {work}
        """Of which the training here is made: ours, and that of checkpoints it goes on from."""
        self.keep_last = keep_last
        self.journal = journal

    @property
    def is_mixed(self) -> bool:
        """Whether a part of the training was done by other work, hence other code or versions."""
        return self.works != {self.work}

    def save(
        self, directory: Path, *, step: int, fingerprint: str, best: int | None = None
    ) -> None:
        """Keep a copy of `directory` as the checkpoint of `step`, and prune older ones.

        The last `keep_last` stay and, beside them, that of step `best`.
        """
        root = f"{self.roots[0]}/{fingerprint}"
        name = f"{_PREFIX}{step:08d}"
        if self.journal is not None and self.journal.path.exists():
            shutil.copyfile(self.journal.path, directory / JOURNAL)
        facts = {"step": step, "fingerprint": fingerprint, "works": sorted(self.works)}
        self.store.put(directory, f"{root}/{name}", **facts)
        if not self.store.is_local:
            return  # nothing can be removed there, and listing takes most of a second
        for old in self._names(root)[: -self.keep_last]:
            if old != f"{_PREFIX}{best or 0:08d}":
                self.store.discard(f"{root}/{old}")

    def newest(self, fingerprint: str) -> tuple[int, Path] | None:
        """Step and directory of the whole checkpoint that got furthest; None where there is none.

        Raises `CheckpointError` where there are some and all are damaged.
        """
        faults: list[str] = []
        for name, root in self._found(fingerprint):
            try:
                found = self._open(root, fingerprint, name)
                if self.journal is not None and (found / JOURNAL).exists():
                    self.journal.restore(found / JOURNAL)
                step = int(name.removeprefix(_PREFIX))
                _log.info("going on from the checkpoint of step %d", step)
                if self.is_mixed:
                    _log.warning(
                        "the checkpoint of step %d is of other code, versions or inputs: this "
                        "result mixes them with the present ones, and no other run will reuse it",
                        step,
                    )
                return step, found
            except DataError as error:
                faults.append(str(error))
                _log.warning("checkpoint %s is passed over: %s", name, error)
        if faults:
            roots = dict.fromkeys(root for _, root in self._found(fingerprint))
            places = ", ".join(self.store.transport.full_uri(f"{r}/{fingerprint}") for r in roots)
            raise CheckpointError(
                f"all {len(faults)} checkpoints of this stage are damaged; the newest: {faults[0]} "
                f"Remove {places} to train from the start."
            )
        return None

    def at(self, step: int, fingerprint: str) -> Path | None:
        """The whole checkpoint of one step, this run's or one that it goes on from; else None."""
        wanted = f"{_PREFIX}{step:08d}"
        for name, root in self._found(fingerprint):
            try:
                if name == wanted:
                    return self._open(root, fingerprint, name)
            except DataError as error:
                _log.warning("checkpoint %s is passed over: %s", name, error)
        return None

    def _found(self, fingerprint: str) -> list[tuple[str, str]]:
        """Name and root of each checkpoint, the highest step first; of equals our own."""
        found = [
            (name, root)
            for root in (*self.roots, *self.others)
            for name in self._names(f"{root}/{fingerprint}")
            if root in self.roots or self._is_ours_alone(f"{root}/{fingerprint}/{name}")
        ]
        return sorted(found, key=lambda each: each[0], reverse=True)

    def _open(self, root: str, fingerprint: str, name: str) -> Path:
        key = f"{fingerprint}/{name}"
        if root == self.roots[0]:
            found = self.store.get(f"{root}/{key}")
        else:
            found = self.store.adopt(f"{root}/{key}", f"{self.roots[0]}/{key}")
        self.works |= _works_of(storage.read_json(found / storage.MANIFEST))
        return found

    def _is_ours_alone(self, key: str) -> bool:
        try:
            return _works_of(self.store.manifest(key)) == {self.work}
        except DataError:  # half written, or just pruned
            return False

    def _names(self, root: str) -> list[str]:
        return [name for name in self.store.names(root) if name.startswith(_PREFIX)]


def _works_of(manifest: Mapping[str, Any]) -> set[str]:
    """What a checkpoint is made of; one that doesn't say is of unknown work."""
    return set(manifest.get("works", [""]))


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
