"""An MLflow store, by its client: the only file that imports MLflow, and late.

Sending the same lines twice leaves what sending them once does: a run is found by its key, and what
it holds already (parameters by name, metrics by name and step) isn't logged again. So a batch whose
answer was lost, a feeding process that was killed and a stage that logs a step anew on resume are
one case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from conf.credentials import without_credentials
from steps.tracking.spool import KEY_PREFIX

KEY_TAG = "spa.key"
PARENT_TAG = "mlflow.parentRunId"
_MAX_METRICS = 1000
_MAX_PARAMS = 100
_MAX_PARAM_CHARS = 5000
_NOT_IN_KEYS = re.compile(r"[^\w\-./: ]")
_BAD_VALUE = "INVALID_PARAMETER_VALUE"
_MISSING = "RESOURCE_DOES_NOT_EXIST"
_ENDED_EARLY = ("FAILED", "KILLED")


class RunGoneError(Exception):
    """The run was there and isn't: somebody deleted it, or the server lost its store."""


class _Content:
    """What a run holds, read piece by piece and only where it is asked for.

    What was read stays known when a later request fails, so that a server that loses answers is
    got through with, too.
    """

    def __init__(self, client: Any, run: Any) -> None:
        self._client = client
        self._run_id = str(run.info.run_id)
        self._unread = set(run.data.metrics)
        self._steps: dict[str, set[int]] = {}
        self._params: set[str] | None = set(run.data.params)

    def steps(self, key: str) -> set[int]:
        """Steps of a metric that are there."""
        if key in self._unread:
            history = self._client.get_metric_history(self._run_id, key)
            self._steps[key] = {point.step for point in history}
            self._unread.remove(key)
        return self._steps.setdefault(key, set())

    def params(self) -> set[str]:
        """Names of the parameters that are there."""
        if self._params is None:
            self._params = set(self._client.get_run(self._run_id).data.params)
        return self._params

    def add(self, items: Iterable[Any]) -> None:
        """Note what the server has taken."""
        for item in items:
            if hasattr(item, "step"):
                self._steps.setdefault(item.key, set()).add(item.step)
            else:
                self.params().add(item.key)

    def doubt(self, items: Iterable[Any]) -> None:
        """Nobody knows whether the server has taken these: ask it."""
        for item in items:
            if hasattr(item, "step"):
                self._unread.add(item.key)
            else:
                self._params = None


class Store:
    """An MLflow store; any of its methods may raise what the client raises."""

    def __init__(self, uri: str) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        self._uri = uri
        self._experiments: dict[str, str] = {}
        self._content: dict[str, _Content] = {}

    def forget(self, run_id: str) -> None:
        """Ask anew for a run and for its experiment: the store may have lost them."""
        self._experiments.clear()
        self._content.pop(run_id, None)

    def run_id(self, header: Mapping[str, Any]) -> str:
        """The run of this key, made where there is none; name and tags become `header`'s."""
        run = self._find(header)
        run_id = str(run.info.run_id)
        if header.get("stage") and run.info.status != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
        if header.get("name") and run.info.run_name != header["name"]:
            self._client.update_run(run_id, name=header["name"])
        for key, value in header.get("tags", {}).items():
            if run.data.tags.get(str(key)) != str(value):
                self._client.set_tag(run_id, str(key), str(value))
        if run_id not in self._content:
            self._content[run_id] = _Content(self._client, run)
        return run_id

    def reopen_parent(self, header: Mapping[str, Any]) -> None:
        """Set the parent of a stage that is at work to running, where it had ended early."""
        if not header.get("parent"):
            return
        parent = self._parent(self._experiment(str(header["experiment"])), str(header["parent"]))
        with suppress(RunGoneError):  # the stage's run is there without it
            if self._known(parent).info.status in _ENDED_EARLY:
                self._client.update_run(parent, status="RUNNING")

    def send(self, run_id: str, lines: Iterable[Mapping[str, Any]]) -> str:
        """Log metrics and parameters that the run hasn't; why some were refused for good, or ""."""
        from mlflow.entities import Metric, Param

        if run_id not in self._content:
            self._content[run_id] = _Content(self._client, self._known(run_id))
        content = self._content[run_id]
        metrics: dict[tuple[str, int], Any] = {}
        params: dict[str, Any] = {}
        for line in lines:
            millis = int(1000 * line.get("time", 0))
            for name, value in line.get("metrics", {}).items():
                key, step = _key(name), int(line["step"])
                if step not in content.steps(key):
                    metrics.setdefault((key, step), Metric(key, float(value), millis, step))
            for name, value in line.get("params", {}).items():
                key = _key(name)
                if key not in content.params():
                    params.setdefault(key, Param(key, str(value)[:_MAX_PARAM_CHARS]))
        parts = [("metrics", part) for part in _chunks(list(metrics.values()), _MAX_METRICS)]
        parts += [("params", part) for part in _chunks(list(params.values()), _MAX_PARAMS)]
        refused = []
        for kind, part in parts:
            try:
                refused.append(self._log(run_id, kind, part))
            except Exception:
                content.doubt(part)
                raise
            content.add(part)
        return "; ".join(reason for reason in refused if reason)

    def end(self, run_id: str, status: str) -> None:
        """Set the final status of a run."""
        self._client.set_terminated(run_id, status=status)
        self._content.pop(run_id, None)

    def _find(self, header: Mapping[str, Any]) -> Any:
        if header.get("run_id"):
            return self._known(str(header["run_id"]))
        experiment = self._experiment(str(header["experiment"]))
        found = self._by_key(experiment, str(header["key"]))
        return found or self._create(experiment, header)

    def _known(self, run_id: str) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == _MISSING:
                raise RunGoneError(f"MLflow has no run {run_id}") from error
            raise
        if run.info.lifecycle_stage == "deleted":
            raise RunGoneError(f"run {run_id} was deleted in MLflow")
        return run

    def _log(self, run_id: str, kind: str, items: list[Any]) -> str:
        """Log a batch; where MLflow dislikes a value, all but that one."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(run_id, **{kind: items})
        except MlflowException as error:
            if error.error_code == _MISSING:
                raise RunGoneError(f"MLflow has no run {run_id}") from error
            if error.error_code != _BAD_VALUE:
                raise
            if len(items) == 1:
                return first_line(error)
            halves = _chunks(items, (len(items) + 1) // 2)
            return "; ".join(filter(None, (self._log(run_id, kind, half) for half in halves)))
        return ""

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            found = self._client.get_experiment_by_name(name)
            self._experiments[name] = found.experiment_id if found else self._new_experiment(name)
        return self._experiments[name]

    def _new_experiment(self, name: str) -> str:
        """Artifacts of a SQLite store lie beside it; MLflow's default is the working directory."""
        database = self._uri.removeprefix("sqlite:///")
        location = None if database == self._uri else str(Path(database).parent / "artifacts")
        return str(self._client.create_experiment(name, artifact_location=location))

    def _by_key(self, experiment: str, key: str) -> Any | None:
        wanted = f"tags.`{KEY_TAG}` = '{key}'"
        found = self._client.search_runs([experiment], filter_string=wanted, max_results=1)
        return found[0] if found else None

    def _create(self, experiment: str, header: Mapping[str, Any]) -> Any:
        tags = {str(key): str(value) for key, value in header.get("tags", {}).items()}
        tags[KEY_TAG] = str(header["key"])
        if header["parent"]:
            tags[PARENT_TAG] = self._parent(experiment, str(header["parent"]))
        return self._client.create_run(experiment, run_name=header["name"] or None, tags=tags)

    def _parent(self, experiment: str, parent: str) -> str:
        """A parent's id; one that has only a key is made, and gets name and settings later."""
        key = parent.removeprefix(KEY_PREFIX)
        if key == parent:
            return parent
        header = {"key": key, "name": "", "parent": ""}
        run = self._by_key(experiment, key) or self._create(experiment, header)
        return str(run.info.run_id)


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _key(name: str) -> str:
    """A name that MLflow takes: `pass@1` becomes `pass_at_1`."""
    return _NOT_IN_KEYS.sub("_", name.replace("@", "_at_"))


def first_line(error: Exception) -> str:
    """An error in one line, without the password that MLflow shows in its addresses."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {without_credentials(lines[0])[:300]}"
