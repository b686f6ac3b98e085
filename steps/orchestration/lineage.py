"""Where a run's score comes from: every stage behind it, its files, settings, code and versions.

    python -m steps.orchestration.lineage RUN_ID

Each line of the chain is checked against what lies in the datastore: files that are missing or
altered are named, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from metaflow import Run, namespace

import conf
from steps import storage
from steps.errors import ConfigError, DataError
from steps.orchestration.directory_store import DirectoryStore, open_transport
from steps.orchestration.export import ARTIFACTS, export_run
from steps.orchestration.runs import config_of
from steps.orchestration.stage_cache import StageCache

_SHORT = 12
"""Digits of a digest that are shown."""


class Lineage:
    """What is known of one run; `faults` fills while `lines` is read."""

    def __init__(self, run_id: str, scratch: Path) -> None:
        """Raises `DataError` where there is no such run."""
        self.exported = export_run(run_id)
        namespace(None)
        self.run = Run(self.exported["run"])
        self.scratch = scratch
        self.faults: list[str] = []

    def lines(self) -> Iterator[str]:
        """The report, from the score back to the settings."""
        yield f"{self.exported['run']}, {'finished' if self.exported['finished'] else 'unfinished'}"
        data = self.run["start"].task.data
        if getattr(data, "tracking_run", ""):
            yield f"MLflow run {_named(data.tracking_run)}"
        for env_id, stages in self.exported["environments"].items():
            yield from self._environment(env_id, stages)
        yield f"{len(self.faults)} fault(s)" if self.faults else "everything is there and unchanged"

    def _environment(self, env_id: str, stages: Mapping[str, Any]) -> Iterator[str]:
        config = config_of(self.run["start"].task.data.settings, env_id)
        yield ""
        yield f"{env_id}: settings {conf.digest(config)}"
        tasks = {step: self._task(step, env_id) for step in stages}
        for step in reversed([step for step in ARTIFACTS if step in stages]):
            yield from self._stage(step, stages[step], tasks[step])

    def _task(self, step: str, env_id: str) -> Any:
        """The task of a stage and environment that has a result."""
        found = [task for task in self.run[step] if task.finished and ARTIFACTS[step] in task]
        return next(task for task in found if task.data.env_id == env_id)

    def _stage(self, step: str, result: Mapping[str, Any], task: Any) -> Iterator[str]:
        hit = getattr(task.data, "cache_hit", None)
        key = getattr(task.data, "fingerprint", "")
        yield f"  {step}: {_said(step, result)}"
        yield f"    task {task.pathspec}" + (f", reused from {hit}" if hit else "")
        if getattr(task.data, "mlflow_run", ""):
            yield f"    MLflow run {_named(task.data.mlflow_run)}"
        if key:
            yield f"    fingerprint {key[:_SHORT]}"
        if "taken_from" in result:
            yield f"    taken from {dict(result['taken_from'])}"
        if "directory" in result:
            yield f"    files {self._checked(step, result['directory'])}"
            yield from self._origin(step, key, result["directory"])

    def _checked(self, step: str, reference: Mapping[str, Any]) -> str:
        """Whether the files of a stage are those that it kept."""
        said = f"{reference['url']} ({reference['digest'][:_SHORT]})"
        try:
            path = self._store(reference).get(reference["key"], reference["digest"])
        except (ConfigError, DataError) as error:
            self.faults.append(f"{step}: {error}")
            return f"{said}: {error}"
        manifest = storage.read_json(path / storage.MANIFEST)
        return f"{said}: unchanged, written by code {manifest.get('git_commit', 'unknown')[:16]}"

    def _store(self, reference: Mapping[str, Any]) -> DirectoryStore:
        """The datastore that kept files lie in: this folder's, or the remote one that is named."""
        url = str(reference["url"])
        if "://" not in url:
            return DirectoryStore(open_transport("local"), self.scratch)
        root = url.removesuffix(f"/{reference['key']}")
        return DirectoryStore(open_transport(url.partition("://")[0], root), self.scratch)

    def _origin(self, step: str, key: str, reference: Mapping[str, Any]) -> Iterator[str]:
        """Versions that the stage was computed with, where its datastore's index still knows it."""
        try:
            index = StageCache(self._store(reference))
        except ConfigError:  # told with the files
            return
        entry = next((each for each in index.entries([step]) if each.fingerprint == key), None)
        if entry is not None:
            versions = ", ".join(f"{name} {each}" for name, each in entry.parts["versions"].items())
            yield f"    computed with {versions}"


def _named(tracking_run: str) -> str:
    """An MLflow run's id; where the server was away or slow, the tag by which it has the run."""
    kind, mark, key = tracking_run.partition("key:")
    if kind or not mark:
        return tracking_run
    return f"with the tag spa.key={key} (`python -m steps.tracking sync` sends what still waits)"


def _said(step: str, result: Mapping[str, Any]) -> str:
    """A stage's result in a few words."""
    if step == "evaluate":
        scores = result["summary"]
        return ", ".join(
            f"{name} {scores[name]:.3f}"
            for name in ("pass@1", "floor", "ceiling")
            if scores.get(name) is not None
        )
    if step == "filter_format":
        return f"{result.get('kept', '?')} of {result.get('rows', '?')} rows kept"
    if step == "selfplay_generate":
        return f"{result.get('trajectories', '?')} episodes by {result.get('policy', '?')}"
    return f"{result.get('steps', '?')} steps"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="run id or pathspec")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spa-") as scratch:
        try:
            lineage = Lineage(options.run, Path(scratch))
        except DataError as error:
            parser.exit(2, f"{error}\n")
        for line in lineage.lines():
            print(line)  # noqa: T201
        sys.exit(bool(lineage.faults))


if __name__ == "__main__":
    main()
