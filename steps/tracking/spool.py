"""The spool: one JSONL file for each MLflow run that is being written, and who sends them.

Lines of a spool file, in order:
1. `{"run": {...}}`: `key` or `run_id` of the MLflow run, its name, stage, parent (an id or a key)
   and tags, where to (`uri`, `experiment`), and the process that writes.
2. `{"step", "time", "metrics"}` and `{"params"}`, any number.
3. `{"end": status}`; an empty status leaves the MLflow run open.

Beside it, `<name>.state` says how far the feeding process has come: `run_id`, `offset` in bytes,
`error` of the last attempt. Both are removed when everything is sent, the second only once the
writer has read the run's id from it (`wants_reply`). A lock file tells whether a feeding process is
at work; whoever writes to the spool starts one where none is.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from conf.schema import TrackingSection

STORE = Path(".spa") / "mlflow"
"""Of the working directory: MLflow's SQLite store, and the spool."""
FEED_LOG = "feed.log"
KEY_PREFIX = "key:"
"""Before the key of a run that has no id yet, where an id is expected."""
CLIENT_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}
"""Environment of whoever sends: a slow answer is waited for, a failed attempt is repeated by us."""
_CHECK_EVERY_S = 10.0
_MAX_STARTS = 5
_ROOT = Path(__file__).resolve().parents[2]
_SQLITE = "sqlite:///"
_started: list[subprocess.Popen[bytes]] = []
"""Kept, since a Popen that is collected before its process ends complains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """An MLflow store and the spool in front of it."""

    uri: str
    experiment: str
    spool: Path
    database: Path | None = None
    """File of a SQLite store; None for a server."""

    @property
    def is_local(self) -> bool:
        """Whether the store is a file on this machine."""
        return self.database is not None

    @property
    def directories(self) -> tuple[Path, ...]:
        """Folders that must be writable."""
        return (self.spool,) if self.database is None else (self.database.parent, self.spool)


def target_of(section: TrackingSection) -> Target:
    """The store of a configuration; relative SQLite paths start at the working directory."""
    uri = section.uri or f"{_SQLITE}{Path.cwd() / STORE / 'mlflow.db'}"
    if not uri.startswith(_SQLITE):
        spool = Path.cwd() / STORE / "spool"
        return Target(uri=uri, experiment=section.experiment, spool=spool)
    database = (Path.cwd() / uri.removeprefix(_SQLITE)).absolute()
    return Target(
        uri=f"{_SQLITE}{database}",
        experiment=section.experiment,
        spool=database.parent / "spool",
        database=database,
    )


def stage_key(parent: str, stage: str, name: str) -> str:
    """The key of a stage's run: the same for each of its attempts under one parent."""
    return sha256("\n".join((parent, stage, name)).encode()).hexdigest()[:32]


class Spool:
    """The writing side of one spool file; its owner alone may read it, as `uri` has passwords."""

    def __init__(self, target: Target, run: Mapping[str, Any]) -> None:
        self.target = target
        target.spool.mkdir(parents=True, exist_ok=True)
        self.path = target.spool / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.jsonl"
        private = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(private, "w", encoding="utf-8")
        self._next_check = 0.0
        self._starts = 0
        where = {"uri": target.uri, "experiment": target.experiment}
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        self.append({"run": {**run, **where, **owner}})

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line; now and then, see that somebody sends it."""
        self._file.write(json.dumps(line, default=str) + "\n")
        self._file.flush()
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + _CHECK_EVERY_S
            self._see_to_feeder()

    def end(self, status: str) -> None:
        """Write the last line."""
        self._next_check = 0.0
        self.append({"end": status, "time": time.time()})
        self._file.close()

    def wait_until_sent(self, limit_s: float) -> str:
        """Wait for the file to be sent and removed, or for a failed attempt, and say why not."""
        if limit_s <= 0:
            return ""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if not self.path.exists():
                return ""
            error = read_state(self.path).get("error", "")
            if error:
                return str(error)
            time.sleep(0.05)
        return f"not done within {limit_s:.0f} s"

    def wait_for_reply(self, limit_s: float) -> dict[str, Any]:
        """The state of the run as soon as it has an id or an error."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            state = read_state(self.path)
            if state.get("error") or state.get("run_id"):
                return state
            time.sleep(0.05)
        return {}

    def wait_for_id(self, limit_s: float) -> str:
        """The id of the run; empty where there is none in time, or nobody to bring it."""
        deadline = time.monotonic() + limit_s
        while True:
            state = read_state(self.path)
            is_over = time.monotonic() >= deadline or state.get("error")
            if state.get("run_id") or is_over or not self._is_fed():
                return str(state.get("run_id", ""))
            time.sleep(0.05)

    def settle(self) -> None:
        """Remove the state of a file that is sent; nobody will ask for it any more."""
        if not self.path.exists():
            state_path(self.path).unlink(missing_ok=True)

    def _is_fed(self) -> bool:
        """Whether a feeding process is at work, or about to be."""
        if any(process.poll() is None for process in _started):
            return True
        with feeder_lock(self.target.spool) as is_free:
            return not is_free

    def _see_to_feeder(self) -> None:
        if self._starts >= _MAX_STARTS:
            return
        with feeder_lock(self.target.spool) as is_free:
            pass
        if is_free:
            self._starts += 1
            start_feeder(self.target.spool)


def start_feeder(spool: Path) -> None:
    """Start the feeding process: of its own session, so that Ctrl-C of a run doesn't reach it.

    It holds none of our pipes: a flow waits until all who hold a task's output have closed it.
    """
    _started[:] = [process for process in _started if process.poll() is None]
    with (spool / FEED_LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "steps.tracking", "feed", str(spool)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=spool.parent,
            env=_environment(),
            start_new_session=True,
        )
    _started.append(process)


@contextmanager
def feeder_lock(spool: Path) -> Iterator[bool]:
    """Hold the right to feed this spool; gives False where another process has it."""
    with (spool / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def state_path(path: Path) -> Path:
    """Where the feeding process notes how far it has come with a spool file."""
    return path.with_suffix(".state")


def read_state(path: Path) -> dict[str, Any]:
    """What it noted; empty before its first attempt."""
    try:
        state: dict[str, Any] = json.loads(state_path(path).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return state


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Note it, so that a reader never sees half of it."""
    temporary = path.with_suffix(".state.tmp")
    temporary.write_text(json.dumps(state), "utf-8")
    os.replace(temporary, state_path(path))


def _environment() -> dict[str, str]:
    """Ours, without the variables by which MLflow would pick another run, store or experiment."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
        and not key.startswith("MLFLOW_EXPERIMENT")
    }
    paths = [str(_ROOT), environment.get("PYTHONPATH", "")]
    return environment | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        **CLIENT_SETTINGS,
        "OMP_NUM_THREADS": "1",
    }
