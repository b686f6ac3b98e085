"""The run that `resume` takes up, looked for before Metaflow does: it answers with a traceback."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metaflow.metaflow_config import DEFAULT_DATASTORE
from metaflow.plugins import DATASTORES

from steps.errors import ConfigError

NUM_LISTED = 5


def check_origin(argv: Sequence[str], flow: str) -> None:
    """Raise `ConfigError` where `--origin-run-id` names no run of `flow` in the datastore.

    Without the option Metaflow takes the latest run, and says itself where there is none.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--origin-run-id")
    parser.add_argument("--datastore", default=DEFAULT_DATASTORE)
    parser.add_argument("--datastore-root")
    try:
        given, _ = parser.parse_known_args([*argv[1:]])
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error}; give the id of the run to take up.") from error
    if any(word.startswith("--origin-run-id=") for word in argv):
        raise ConfigError(
            "write --origin-run-id RUN, without '=': Metaflow would take the settings of its "
            "latest run instead."
        )
    run_id = given.origin_run_id
    storage = next((each for each in DATASTORES if given.datastore == each.TYPE), None)
    if run_id is None or storage is None:
        return
    root = given.datastore_root or storage.get_datastore_root_from_config(
        lambda *_, **__: None, create_on_absent=False
    )
    if root is None:
        raise ConfigError(
            f"no run {run_id!r} to resume: there is no .metaflow folder in {Path.cwd()} or above "
            "it; go to the folder where the run was started."
        )
    _check_run(storage(root), flow, run_id)


def _check_run(storage: Any, flow: str, run_id: str) -> None:
    """A run that has begun has kept its parameters."""
    if run_id and storage.list_content([f"{flow}/{run_id}/_parameters"]):
        return
    found = [entry.path.rsplit("/", 1)[-1] for entry in storage.list_content([flow])]
    runs = sorted((name for name in found if name.isdigit()), key=int)[-NUM_LISTED:]
    known = f"the newest there: {', '.join(reversed(runs))}" if runs else "there is none"
    raise ConfigError(
        f"no run {run_id!r} of {flow} in {storage.full_uri('')} ({known}); give the id that the "
        "run printed in its first lines, in the folder where it was started."
    )
