"""The run that `resume` takes up, looked for before Metaflow does: it answers with a traceback."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from metaflow.datastore import FlowDataStore, TaskDataStoreSet
from metaflow.util import get_latest_run_id

from steps.errors import ConfigError
from steps.orchestration.datastore_root import datastore_options
from steps.orchestration.directory_store import name_of, open_transport

NUM_LISTED = 5


def check_origin(argv: Sequence[str], flow: str) -> None:
    """Raise `ConfigError` where `--origin-run-id` names no run of `flow` in the datastore.

    Without the option Metaflow takes the latest run, and says itself where there is none.
    """
    given = datastore_options(argv, need_values=True)
    if any(word.startswith("--origin-run-id=") for word in argv):
        raise ConfigError(
            "write --origin-run-id RUN, without '=': Metaflow would take the settings of its "
            "latest run instead."
        )
    if given.origin_run_id is not None:
        try:
            transport = open_transport(given.datastore, given.datastore_root)
        except ConfigError as error:
            raise ConfigError(f"no run {given.origin_run_id!r} to resume: {error}") from error
        _check_run(transport, flow, given.origin_run_id)


def origin_settings(argv: Sequence[str], flow: str) -> dict[str, Any]:
    """The settings of the run that is taken up, or nothing where they can't be read."""
    given = datastore_options(argv, need_values=True)
    with suppress(Exception):  # Metaflow says what is wrong with it
        transport = open_transport(given.datastore, given.datastore_root)
        (found,) = TaskDataStoreSet(
            FlowDataStore(flow, storage_impl=type(transport), ds_root=transport.datastore_root),
            given.origin_run_id or get_latest_run_id(_quiet, flow),
            steps=["_parameters"],
            prefetch_data_artifacts=["cfg"],
        )
        return dict(found["cfg"])
    return {}


def _quiet(*_: Any, **__: Any) -> None:
    pass


def _check_run(transport: Any, flow: str, run_id: str) -> None:
    """A run that has begun has kept its parameters."""
    if run_id and transport.list_content([f"{flow}/{run_id}/_parameters"]):
        return
    found = [name_of(entry) for entry in transport.list_content([flow])]
    runs = sorted((name for name in found if name.isdigit()), key=int)[-NUM_LISTED:]
    known = f"the newest there: {', '.join(reversed(runs))}" if runs else "there is none"
    raise ConfigError(
        f"no run {run_id!r} of {flow} in {transport.full_uri('')} ({known}); give the id that the "
        "run printed in its first lines, in the folder where it was started."
    )
