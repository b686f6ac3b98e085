"""A store of batches that is a plain directory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from steps.storage import check_manifest, write_manifest
from steps.storage.batches import DAMAGES, batch_name, warn_of_damage


class DirectoryBatches:
    """Batches under `root/<fingerprint>/batch_<n>`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(self, directory: Path, *, index: int, fingerprint: str) -> None:
        """Copy `directory` under a temporary name, then move it into place."""
        target = self.root / fingerprint / batch_name(index)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(directory, temporary)
        write_manifest(temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)

    def find(self, index: int, fingerprint: str) -> Path | None:
        """The batch where it is whole; a damaged one counts as none."""
        directory = self.root / fingerprint / batch_name(index)
        if not directory.is_dir():
            return None
        try:
            check_manifest(directory)
        except DAMAGES as error:
            warn_of_damage(index, error)
            return None
        return directory
