"""The local datastore, tried and made before a run starts.

Metaflow answers a read-only one by a traceback, and one of two first runs at once, too. A remote
datastore isn't tried; it answers for itself.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from metaflow.metaflow_config import DEFAULT_DATASTORE
from metaflow.plugins.datastores.local_storage import LocalStorage

from steps.errors import ConfigError, StorageError
from steps.orchestration import directory_store, stage_cache
from steps.orchestration.directory_store import open_transport

_PROBE = b"\0" * 4096
"""One block: on a full disk an empty file can still be made."""


def ready_root(argv: Sequence[str], flow: str) -> None:
    """Make the default datastore; raise `StorageError` where a run of `flow` could keep nothing."""
    given = datastore_options(argv)
    if given.datastore != LocalStorage.TYPE:
        return
    root = given.datastore_root or LocalStorage.get_datastore_root_from_config(
        lambda *_, **__: None, create_on_absent=False
    )
    default = Path.cwd() / LocalStorage.DATASTORE_DIR
    for place in _places(Path(root or default), flow):
        try:
            with tempfile.TemporaryFile(dir=place) as probe:
                probe.write(_PROBE)
        except OSError as error:
            raise StorageError(
                f"the datastore can't be written: {place}: {error.strerror or error}. Make it "
                "writable, or make room, or start in another folder, which then holds the runs."
            ) from error
    if root is None:
        default.mkdir(exist_ok=True)


def holds(argv: Sequence[str], key: str) -> bool:
    """Whether a directory was kept under `key` in the datastore that a command line names."""
    given = datastore_options(argv)
    transport = open_transport(given.datastore, given.datastore_root)
    return directory_store.DirectoryStore(transport, Path()).holds(key)


def datastore_options(argv: Sequence[str], *, need_values: bool = False) -> argparse.Namespace:
    """The datastore, its root, and the run that `resume` takes up, as a command line names them.

    An option without a value is a `ConfigError` where `need_values`, else None: Metaflow says what
    is wrong with it.
    """
    nargs = None if need_values else "?"
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--datastore", nargs=nargs, default=DEFAULT_DATASTORE)
    parser.add_argument("--datastore-root", nargs=nargs)
    parser.add_argument("--origin-run-id", nargs=nargs)
    try:
        return parser.parse_known_args([*argv[1:]])[0]
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error}; give the id of the run to take up.") from error


def _places(root: Path, flow: str) -> Iterator[Path]:
    """The folders that a run writes into, as far as there are any yet."""
    places = [root / name for name in (flow, directory_store.ROOT, stage_cache.ROOT)]
    found = [place for place in (root, *places) if place.is_dir()]
    yield from found or [next(parent for parent in root.parents if parent.is_dir())]
