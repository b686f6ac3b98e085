"""A finished run as one plain JSON file: its settings and what each stage returned.

    python -m steps.orchestration.export RUN_ID [--out FILE]

Tables and figures read such files, so that results travel between machines without their datastore.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from metaflow import Run, namespace
from metaflow.exception import MetaflowNotFound

from conf import shown
from steps.errors import DataError, SPAError
from steps.storage import atomic_write_json, check_out, write_out

FLOW = "SPAFlow"
ARTIFACTS = {
    "selfplay_generate": "selfplay",
    "filter_format": "filtered",
    "sft_train": "sft",
    "ppo_train": "ppo",
    "evaluate": "report",
}
"""Step -> the artifact that holds its stage's result."""
SCHEMA = 1


def export_run(run_id: str) -> dict[str, Any]:
    """`run`, `finished`, `began`, `seconds`, `settings` and, by environment, the stages' results.

    `run_id` is a number or a pathspec. An unfinished run gives the stages that it has done, in a
    branch that failed those before the failure. Addresses in the settings have no passwords.
    Raises `DataError` where there is no such run in this directory's datastore.
    """
    run = run_of(run_id)
    environments: dict[str, dict[str, Any]] = {}
    for step, artifact in ARTIFACTS.items():
        for env_id, result in _results(run, step, artifact):
            environments.setdefault(env_id, {})[step] = result
    return {
        "schema": SCHEMA,
        "run": run.pathspec,
        "finished": bool(run.finished),
        "began": run.created_at.timestamp(),
        "seconds": _seconds(run),
        "settings": shown(run["start"].task.data.settings),
        "environments": environments,
    }


def run_of(run_id: str) -> Run:
    """A run by its number or pathspec; raises `DataError` where there is none."""
    pathspec = run_id if "/" in run_id else f"{FLOW}/{run_id}"
    namespace(None)
    try:
        return Run(pathspec)
    except MetaflowNotFound as error:
        raise DataError(
            f"no run {pathspec} in this datastore: call this where the run was started, or set "
            "METAFLOW_DATASTORE_SYSROOT_LOCAL as it was then."
        ) from error


def _results(run: Any, step: str, artifact: str) -> list[tuple[str, Any]]:
    if step not in {each.id for each in run}:
        return []
    finished = [task.data for task in run[step] if task.finished and artifact in task]
    results = [(data.env_id, getattr(data, artifact)) for data in finished]
    return [(env_id, result) for env_id, result in results if result]  # a failure leaves {}


def _seconds(run: Any) -> float | None:
    """By the clock; None for a run that isn't finished, or in which the clock was set back."""
    if run.finished_at is None:
        return None
    seconds = float((run.finished_at - run.created_at).total_seconds())
    return seconds if seconds >= 0 else None


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="run id or pathspec")
    parser.add_argument("--out", type=Path, help="file to write; default: standard output")
    options = parser.parse_args()
    try:
        check_out(options.out, is_file=True)
        exported = export_run(options.run)
        write_out(options.out, partial(_write, exported))
    except SPAError as error:
        parser.exit(2, f"{error}\n")
    if options.out is None:
        print(json.dumps(exported))  # noqa: T201


def _write(exported: dict[str, Any], file: Path) -> Iterator[Path]:
    atomic_write_json(file, exported)
    yield file


if __name__ == "__main__":
    main()
