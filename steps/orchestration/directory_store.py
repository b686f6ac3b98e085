"""Directories (weights, Parquet) in Metaflow's datastore, beside its own artifacts.

A directory is kept file by file under a key, its manifest (names, sizes, SHA-256) written last; an
artifact holds only the reference that `put` returns. On a local datastore the stored directory is
used where it lies and a stage writes straight into it; on a remote one it is copied there and back.
Metaflow's storage classes do the transport, so that every datastore it knows is served.

metaflow-checkpoint's `@model` and `@checkpoint` do much of this, but add a card, a thread and
two to four seconds to every task, and verify nothing when they load.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

from metaflow.plugins import DATASTORES

from steps import storage
from steps.errors import ConfigError, DataError

ROOT = "spa.store"
"""Folder in the datastore's root, beside the folders that Metaflow keeps for each flow."""


class Transport(Protocol):
    """The part of Metaflow's `DataStoreStorage` in use; paths are relative to its root."""

    TYPE: str

    def full_uri(self, path: str) -> str: ...
    def is_file(self, paths: list[str]) -> list[bool]: ...
    def list_content(self, paths: list[str]) -> list[Any]: ...
    def save_bytes(self, items: Any, overwrite: bool = False, len_hint: int = 0) -> None: ...
    def load_bytes(self, keys: list[str]) -> Any: ...


class DirectoryStore:
    """Keeps directories under keys; `scratch` takes those that were fetched from elsewhere."""

    def __init__(self, transport: Transport, scratch: Path) -> None:
        self.transport = transport
        self.scratch = scratch

    @property
    def is_local(self) -> bool:
        """Whether the datastore is a folder of this machine."""
        return self.transport.TYPE == "local"

    @property
    def disk(self) -> Path:
        """The folder of this machine below which a stage writes."""
        return Path(self.transport.full_uri("") if self.is_local else tempfile.gettempdir())

    def workspace(self, key: str) -> Path:
        """An empty directory to write into, which `put` under the same key then keeps."""
        path = self._home(key)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def put(self, directory: Path, key: str, **facts: Any) -> dict[str, Any]:
        """Keep `directory` under `key`, in place of what may be there; returns its reference."""
        if self.is_local:
            manifest = self._place(directory, key, facts)
        else:
            manifest = storage.write_manifest(directory, **facts)
            self._send(directory, key, [*manifest["files"], storage.MANIFEST])
        return {
            "key": key,
            "url": self.transport.full_uri(key),
            "digest": manifest["digest"],
            "files": len(manifest["files"]),
            "bytes": sum(file["bytes"] for file in manifest["files"].values()),
        }

    def get(self, key: str, digest: str | None = None) -> Path:
        """The directory under `key`, every file compared with its manifest.

        Raises `DataError` where it is missing, incomplete or changed. Read it, don't write to it.
        """
        path = self._home(key)
        if not self.is_local:
            self._fetch(key, path)
        try:
            manifest = storage.check_manifest(path)
        except DataError as error:  # of the place that lasts, not of this task's copy
            raise DataError(str(error).replace(str(path), self.transport.full_uri(key))) from error
        if digest is not None and manifest["digest"] != digest:
            raise DataError(
                f"{self.transport.full_uri(key)} holds other files than its reference says "
                f"({manifest['digest'][:12]}, not {digest[:12]}); run the step that wrote it again."
            )
        return path

    def holds(self, key: str) -> bool:
        """Whether there is a manifest under `key`; on S3 a hundredth of what listing takes."""
        return bool(self.transport.is_file([f"{key}/{storage.MANIFEST}"])[0])

    def manifest(self, key: str) -> dict[str, Any]:
        """The manifest under `key` alone; raises `DataError` where there is none."""
        path = self._home(key)
        if not self.is_local:
            self._receive(key, [storage.MANIFEST], path)
        return storage.read_manifest(path)

    def adopt(self, key: str, own_key: str) -> Path:
        """The checked directory under `key` of another run, which may prune it at any moment.

        On a local datastore it becomes ours first, under `own_key`: linked file by file, or copied
        where links aren't possible. Raises `DataError` as `get` does, or where it has gone.
        """
        if not self.is_local:
            return self.get(key)
        source, target = self._home(key), self._home(own_key)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            for name in [*storage.read_manifest(source)["files"], storage.MANIFEST]:
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                _link(source / name, temporary / name)
            storage.check_manifest(temporary)
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
        except FileNotFoundError as error:
            raise DataError(f"{error.filename} has gone while it was read.") from error
        except DataError as error:
            raise DataError(str(error).replace(str(temporary), str(source))) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return target

    def names(self, key: str) -> list[str]:
        """Names of the folders under `key`, sorted."""
        found = self.transport.list_content([key])
        return sorted(name_of(entry) for entry in found if not entry.is_file)

    def discard(self, key: str) -> None:
        """Remove a local directory; Metaflow's remote storages know no deletion."""
        if self.is_local:
            shutil.rmtree(self._home(key), ignore_errors=True)

    def _home(self, key: str) -> Path:
        return Path(self.transport.full_uri(key)) if self.is_local else self.scratch / key

    def _place(self, directory: Path, key: str, facts: dict[str, Any]) -> dict[str, Any]:
        target = self._home(key)
        if directory == target:
            return storage.write_manifest(directory, **facts)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            shutil.copytree(directory, temporary)
            manifest = storage.write_manifest(temporary, **facts)
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
        finally:  # on a full disk half a copy would take the room that is left
            shutil.rmtree(temporary, ignore_errors=True)
        return manifest

    def _send(self, directory: Path, key: str, names: list[str]) -> None:
        for name in names:
            with (directory / name).open("rb") as file:
                self.transport.save_bytes(iter([(f"{key}/{name}", file)]), overwrite=True)

    def _fetch(self, key: str, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        self._receive(key, [storage.MANIFEST], target)
        if (target / storage.MANIFEST).is_file():
            self._receive(key, list(storage.read_manifest(target)["files"]), target)

    def _receive(self, key: str, names: list[str], target: Path) -> None:
        with self.transport.load_bytes([f"{key}/{name}" for name in names]) as found:
            for path, local, _ in found:
                if local is not None:
                    place = target / path.removeprefix(f"{key}/")
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(local, place)


def name_of(entry: Any) -> str:
    """Of what `list_content` found. S3 ends the path of a folder with a slash."""
    return str(entry.path).rstrip("/").rpartition("/")[2]


def open_transport(kind: str, root: str | None = None) -> Any:
    """The storage that `--datastore` and `--datastore-root` name, without the latter the default.

    Raises `ConfigError` where there is none.
    """
    found = next((each for each in DATASTORES if kind == each.TYPE), None)
    if found is None:
        raise ConfigError(f"--datastore {kind} is none that Metaflow knows.")
    root = root or found.get_datastore_root_from_config(
        lambda *_, **__: None, create_on_absent=False
    )
    if root is None and kind == "local":
        raise ConfigError(
            f"there is no .metaflow folder in {Path.cwd()} or above it; go to the folder where the "
            "runs were started, or give --datastore-root."
        )
    if root is None:
        variable = f"METAFLOW_DATASTORE_SYSROOT_{kind.upper()}"
        raise ConfigError(f"no place of --datastore {kind} is known: set {variable}.")
    return found(root)


def _link(source: Path, target: Path) -> None:
    """A hard link, since kept files are replaced and never changed; else a copy."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
