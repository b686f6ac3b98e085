"""A stage's finished batches in Metaflow's datastore, found again on retry, on `resume` and by a
new run of the same fingerprint.

They lie beside the stage's checkpoints, under the same roots and under the fingerprint of the whole
stage: code, versions and inputs count, so that no batch of other work is ever taken. Each is one
directory with a manifest that is written last; nothing that is there already is written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steps.orchestration.directory_store import DirectoryStore
from steps.storage.batches import DAMAGES, batch_name, warn_of_damage

FOLDER = "batches"


class MetaflowBatches:
    """The `BatchStore` of one stage of one branch; `work` is the stage's fingerprint.

    `roots` are the keys where batches may lie: this run's first, then those of its origins and of
    other runs that have begun the same work.
    """

    def __init__(self, store: DirectoryStore, *, roots: Sequence[str], work: str) -> None:
        self.store = store
        self.roots = [f"{root}/{FOLDER}/{work}" for root in roots]

    def save(self, directory: Path, *, index: int, fingerprint: str) -> None:
        """Keep a copy of `directory` as batch `index` in this run's place."""
        self.store.put(directory, f"{self.roots[0]}/{fingerprint}/{batch_name(index)}", index=index)

    def find(self, index: int, fingerprint: str) -> Path | None:
        """The first whole copy of a batch, in the order of the roots; damaged ones are named."""
        for root in self.roots:
            key = f"{root}/{fingerprint}/{batch_name(index)}"
            if not self.store.holds(key):
                continue
            try:
                return self.store.get(key)
            except DAMAGES as error:
                warn_of_damage(index, error)
        return None

    def discard(self) -> None:
        """Remove all of them from a local disk, once the stage's own result is kept."""
        for root in self.roots:
            self.store.discard(root)
