"""The process that sends spool files to MLflow.

It runs at low priority, leaves when nothing has come for a while, and survives the stage that
started it. A failed attempt is repeated with growing pauses, whatever the answer was; a file to
which nobody has written for a minute then waits for the next feeding process, or for `sync`. A run
that the server has lost is made again, from the first line of the file.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from steps.tracking.spool import feeder_lock, read_state, state_path, write_state
from steps.tracking.store import RunGoneError, Store, first_line

POLL_S = 0.25
LINGER_S = 15.0
"""Kept alive this long without work: the next stage starts within seconds of the last."""
MAX_PAUSE_S = 30.0
GIVE_UP_S = 60.0
FORGOTTEN_S = 24 * 3600.0
"""A file whose writer has been silent this long counts as left behind: process ids are reused."""
OPEN = "a process still writes to it"
_MAX_BYTES = 1 << 20


def feed(spool: Path, *, linger_s: float = LINGER_S, niceness: int = 0) -> None:
    """Send what is in the spool until nothing has come for `linger_s` seconds.

    The first round runs at full priority: a run waits for the id that it brings.
    """
    seen: set[Path] = set()
    while True:
        with feeder_lock(spool) as is_ours:
            if not is_ours:
                return
            _sweep(spool)
            seen = _feed(spool, linger_s, niceness)
        # A file that came while we were leaving: its writer saw us at work.
        if not set(_files(spool)) - seen:
            return


def _feed(spool: Path, linger_s: float, niceness: int) -> set[Path]:
    """Send until there is nothing to do; returns the files that were looked at last."""
    stores: dict[str, Store] = {}
    jobs: dict[Path, Job] = {}
    last_work = time.monotonic()
    while spool.is_dir():
        jobs = {path: jobs.get(path) or Job(path, stores) for path in _files(spool)}
        is_open = sum(job.advance() for job in jobs.values()) > 0
        if is_open or not all(path.exists() for path in jobs):  # one that is gone was sent
            last_work = time.monotonic()
        elif time.monotonic() - last_work >= linger_s:
            break
        if jobs and niceness:
            os.nice(niceness)
            niceness = 0
        time.sleep(POLL_S)
    return set(jobs)


def drain(path: Path, stores: dict[str, Store]) -> str:
    """Send all that a file holds now; why it stays (`OPEN`, or an error), or "" once it is sent."""
    job = Job(path, stores)
    while True:
        before = job.offset
        try:
            if not job.send():
                return ""
        except FileNotFoundError:
            return ""
        except Exception as error:
            return first_line(error)
        if job.offset == before:
            return OPEN


def _files(spool: Path) -> list[Path]:
    return sorted(spool.glob("*.jsonl"))


def _sweep(spool: Path) -> None:
    """Remove states whose file is sent and whose writer was killed before it read them."""
    for path in spool.glob("*.state"):
        if not path.with_suffix(".jsonl").exists() and _age(path) > FORGOTTEN_S:
            path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Seconds since a file was written to; none for one that is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


class Job:
    """One spool file on its way."""

    def __init__(self, path: Path, stores: dict[str, Store]) -> None:
        state = read_state(path)
        self.path = path
        self.header: dict[str, Any] = {}
        self.run_id = str(state.get("run_id", ""))
        self.offset = int(state.get("offset", 0))
        self._stores = stores
        self._is_attached = False
        """Whether the run is known to be there, under its present name and tags."""
        self._pause_s = 0.0
        self._next_try = 0.0

    def advance(self) -> bool:
        """Send what is new; whether the file is, or may yet become, work."""
        if time.monotonic() < self._next_try:
            return not self._is_silent(GIVE_UP_S)
        try:
            is_open = self.send()
        except FileNotFoundError:
            return False
        except Exception as error:
            self._pause_s = min(max(1.0, 2 * self._pause_s), MAX_PAUSE_S)
            self._next_try = time.monotonic() + self._pause_s
            self._note(first_line(error))
            return not self._is_silent(GIVE_UP_S)
        self._pause_s = 0.0
        return is_open

    def send(self) -> bool:
        """Send one batch; False when that was the last one, and the file is gone.

        What went wrong is raised, and the next call does it again.
        """
        try:
            return self._send()
        except FileNotFoundError:
            raise
        except Exception as error:
            store = self._stores.get(str(self.header.get("uri", "")))
            if store is not None and (isinstance(error, RunGoneError) or not self._is_attached):
                store.forget(self.run_id)
            if isinstance(error, RunGoneError) and "key" in self.header:
                self.run_id, self.offset, self._is_attached = "", 0, False
            raise

    def _send(self) -> bool:
        if not self.header and not self._read_header():
            return not self._is_silent(GIVE_UP_S)
        is_alive = self._owner_is_alive()
        store = self._store()
        if not self._is_attached:
            self._attach(store)
        lines, offset = self._read_lines()
        refused = store.send(self.run_id, lines) if lines else ""
        ends = [str(line["end"]) for line in lines if "end" in line]
        if ends or not (lines or is_alive):
            self._finish(store, ends[0] if ends else "KILLED", refused)
            return False
        if lines:
            self.offset = offset
            self._note(refused)
        return True

    def _attach(self, store: Store) -> None:
        """Find or make the run; a new one in the place of another gets all lines again."""
        run_id = store.run_id(self.header)
        if self.run_id not in ("", run_id):
            self.offset = 0
        self.run_id = run_id
        if self._owner_is_alive():  # what is caught up with later reopens nothing
            store.reopen_parent(self.header)
        self._is_attached = True
        self._note("")

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

    def _finish(self, store: Store, status: str, refused: str) -> None:
        if status:
            store.end(self.run_id, status)
        self._note(refused)
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
        if "pid" not in self.header:  # a kept file, to which nobody writes any more
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
        return _age(self.path) > seconds
