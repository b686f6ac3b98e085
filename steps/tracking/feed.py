"""The process that sends spool files to MLflow: the only place that imports it, and late.

It runs at low priority, leaves when nothing has come for a while, and survives the stage that
started it. Delivery is at least once: after a kill a batch may be sent again. A failed attempt is
repeated with growing pauses; a file to which nobody has written for a minute then waits for the
next feeding process.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from steps.tracking.spool import feeder_lock, read_state, state_path, write_state

POLL_S = 0.25
LINGER_S = 15.0
"""Kept alive this long without work: the next stage starts within seconds of the last."""
MAX_PAUSE_S = 30.0
GIVE_UP_S = 60.0
FORGOTTEN_S = 24 * 3600.0
"""A file whose writer has been silent this long counts as left behind: process ids are reused."""
_MAX_BYTES = 1 << 20
_MAX_METRICS = 1000
_MAX_PARAMS = 100
_MAX_PARAM_CHARS = 5000
_NOT_IN_KEYS = re.compile(r"[^\w\-./: ]")
_BAD_VALUE = "INVALID_PARAMETER_VALUE"
_REFUSED = (_BAD_VALUE, "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST")
"""Answers that another attempt won't change."""


def feed(spool: Path, *, linger_s: float = LINGER_S, niceness: int = 0) -> None:
    """Send what is in the spool until nothing has come for `linger_s` seconds.

    The first round runs at full priority: a run waits for the id that it brings.
    """
    with feeder_lock(spool) as is_ours:
        if not is_ours:
            return
        stores: dict[str, Store] = {}
        jobs: dict[Path, Job] = {}
        last_work = time.monotonic()
        while spool.is_dir():
            jobs = {path: jobs.get(path) or Job(path, stores) for path in _files(spool)}
            if sum(job.advance() for job in jobs.values()):
                last_work = time.monotonic()
            elif time.monotonic() - last_work >= linger_s:
                return
            if jobs and niceness:
                os.nice(niceness)
                niceness = 0
            time.sleep(POLL_S)


def _files(spool: Path) -> list[Path]:
    return sorted(spool.glob("*.jsonl"))


class Job:
    """One spool file on its way."""

    def __init__(self, path: Path, stores: dict[str, Store]) -> None:
        state = read_state(path)
        self.path = path
        self.header: dict[str, Any] = {}
        self.run_id = str(state.get("run_id", ""))
        self.offset = int(state.get("offset", 0))
        self._stores = stores
        self._pause_s = 0.0
        self._next_try = 0.0

    def advance(self) -> bool:
        """Send what is new; whether the file is, or may yet become, work."""
        if time.monotonic() < self._next_try:
            return not self._is_silent(GIVE_UP_S)
        try:
            is_open = self._send()
        except FileNotFoundError:
            return False
        except Exception as error:
            self._pause_s = min(max(1.0, 2 * self._pause_s), MAX_PAUSE_S)
            self._next_try = time.monotonic() + self._pause_s
            self._note(_first_line(error))
            return not self._is_silent(GIVE_UP_S)
        self._pause_s = 0.0
        return is_open

    def _send(self) -> bool:
        """Send one batch; False when that was the last one, and the file is gone."""
        if not self.header and not self._read_header():
            return not self._is_silent(GIVE_UP_S)
        is_alive = self._owner_is_alive()
        lines, offset = self._read_lines()
        store = self._store()
        if not self.run_id:
            self.run_id = store.run_id(self.header)
            self._note("")
        if lines:
            refused = store.send(self.run_id, lines)
            self.offset = offset
            self._note(refused)
        ends = [str(line["end"]) for line in lines if "end" in line]
        if ends or not (lines or is_alive):
            self._finish(store, ends[0] if ends else "KILLED")
            return False
        return True

    def _read_header(self) -> bool:
        with self.path.open("rb") as file:
            first = file.readline()
        if not first.endswith(b"\n"):
            return False
        self.header = json.loads(first)["run"]
        self.run_id = self.run_id or str(self.header.get("run_id", ""))
        self.offset = self.offset or len(first)
        return True

    def _read_lines(self) -> tuple[list[dict[str, Any]], int]:
        """New whole lines, and the offset behind them."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read(_MAX_BYTES)
        data = data[: data.rfind(b"\n") + 1]
        return [json.loads(line) for line in data.splitlines()], self.offset + len(data)

    def _finish(self, store: Store, status: str) -> None:
        if status:
            store.end(self.run_id, status)
        self.path.unlink(missing_ok=True)
        if not self.header.get("wants_reply"):
            state_path(self.path).unlink(missing_ok=True)

    def _note(self, error: str) -> None:
        if self.path.exists():
            write_state(self.path, {"run_id": self.run_id, "offset": self.offset, "error": error})

    def _store(self) -> Store:
        uri = str(self.header["uri"])
        if uri not in self._stores:
            self._stores[uri] = Store(uri)
        return self._stores[uri]

    def _owner_is_alive(self) -> bool:
        if self._is_silent(FORGOTTEN_S):
            return False
        if self.header["host"] != socket.gethostname():
            return True
        try:
            os.kill(int(self.header["pid"]), 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def _is_silent(self, seconds: float) -> bool:
        return time.time() - self.path.stat().st_mtime > seconds


class Store:
    """An MLflow store, by its client."""

    def __init__(self, uri: str) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        self._uri = uri
        self._experiments: dict[str, str] = {}

    def run_id(self, header: Mapping[str, Any]) -> str:
        """The run of an earlier attempt of the same stage under the same parent, or a new one."""
        experiment = self._experiment(str(header["experiment"]))
        found = self._earlier_attempt(experiment, header)
        if found:
            self._client.update_run(found, status="RUNNING")
            return found
        tags = {str(key): str(value) for key, value in header["tags"].items()}
        if header["parent"]:
            tags["mlflow.parentRunId"] = header["parent"]
        run = self._client.create_run(experiment, run_name=header["name"], tags=tags)
        return str(run.info.run_id)

    def send(self, run_id: str, lines: Iterable[Mapping[str, Any]]) -> str:
        """Log metrics and parameters; returns why some were refused for good, else nothing."""
        from mlflow.entities import Metric, Param

        metrics: list[Any] = []
        params: list[Any] = []
        for line in lines:
            millis = int(1000 * line.get("time", 0))
            for key, value in line.get("metrics", {}).items():
                metrics.append(Metric(_key(key), float(value), millis, int(line["step"])))
            for key, value in line.get("params", {}).items():
                params.append(Param(_key(key), str(value)[:_MAX_PARAM_CHARS]))
        refused = [
            *(self._log(run_id, "metrics", part) for part in _chunks(metrics, _MAX_METRICS)),
            *(self._log(run_id, "params", part) for part in _chunks(params, _MAX_PARAMS)),
        ]
        return "; ".join(reason for reason in refused if reason)

    def end(self, run_id: str, status: str) -> None:
        """Set the final status of a run."""
        self._client.set_terminated(run_id, status=status)

    def _log(self, run_id: str, kind: str, items: list[Any]) -> str:
        """Log a batch; where MLflow dislikes a value, all but that one."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(run_id, **{kind: items})
        except MlflowException as error:
            if error.error_code not in _REFUSED:
                raise
            if error.error_code != _BAD_VALUE or len(items) == 1:
                return _first_line(error)
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

    def _earlier_attempt(self, experiment: str, header: Mapping[str, Any]) -> str:
        if not header["parent"]:
            return ""
        wanted = {"mlflow.parentRunId": header["parent"], "spa.stage": header["stage"]}
        tags = " and ".join(f"tags.`{key}` = '{value}'" for key, value in wanted.items())
        for run in self._client.search_runs([experiment], filter_string=tags):
            if run.info.run_name == header["name"]:
                return str(run.info.run_id)
        return ""


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _key(name: str) -> str:
    """A name that MLflow takes: `pass@1` becomes `pass_at_1`."""
    return _NOT_IN_KEYS.sub("_", name.replace("@", "_at_"))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
