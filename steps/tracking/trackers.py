"""Trackers: what a stage logs its numbers with. None of them ever waits for a network."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO

from conf.credentials import without_credentials
from steps.tracking.jsonl import METRICS_FILE, end_torn_line, merged, metrics_line
from steps.tracking.progress import Progress
from steps.tracking.spool import KEY_PREFIX, Spool

CLOSE_WAIT_S = 10.0
"""Longest that the end of a stage waits for a remote server; a failed attempt ends it at once."""
LOCAL_WAIT_S = 0.0
"""The process that feeds a store on this machine outlives the stage: nobody waits for it."""
ID_WAIT_S = 5.0
"""Longest that the end of a stage waits for the id of its MLflow run: short stages are over before
the store has made one."""

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Where a stage's numbers go."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record numbers of one step."""
        ...

    def close(self) -> None:
        """Finish; further calls do nothing."""
        ...

    def __enter__(self) -> Tracker: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class NullTracker:
    """Keeps what is logged in memory, for tests and for calls without a run."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep the numbers."""
        self.logged.append((step, dict(metrics)))

    def close(self) -> None:
        """Nothing to finish."""

    def __enter__(self) -> NullTracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class RoundTracker(NullTracker):
    """Passes on what a later round logs; its steps go on after `before`, those of earlier rounds.

    MLflow keeps the first value of each step, and would show the first round alone.
    """

    def __init__(self, tracker: Tracker, before: int) -> None:
        super().__init__()
        self._tracker = tracker
        self._before = before

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """At the step over all rounds."""
        self._tracker.log(metrics, self._before + step)


class FileTracker:
    """Appends to `metrics.jsonl` in `directory`, and to the spool where there is one.

    `run` describes the MLflow run, at the head of the file; so the file alone can be sent later.
    """

    def __init__(
        self,
        directory: Path,
        spool: Spool | None = None,
        progress: Progress | None = None,
        *,
        run: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = directory / METRICS_FILE
        self.run_id = ""
        """Of the stage's MLflow run, once the tracker is closed: its id, or `key:` and its key
        where MLflow hasn't told an id. Empty without tracking."""
        self._run = run
        self._spool = spool
        self._progress = progress
        self._file: TextIO | None = None
        self._has_warned = False
        try:
            directory.mkdir(parents=True, exist_ok=True)
            end_torn_line(self.path)
            self._file = self.path.open("a", encoding="utf-8")
            if run is not None:
                self._write({"run": run})
        except OSError as error:
            self._warn(f"metrics can't be kept in {self.path}: {error}")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One line, flushed."""
        if self._progress is not None:
            self._progress.tell(metrics, step)
        try:
            self._append(metrics_line(metrics, step, time.time()))
        except OSError as error:
            self._warn(f"metrics of step {step} could not be written: {error}")

    def restore(self, earlier: Path) -> None:
        """Put the lines of `earlier`, a file that a checkpoint was saved with, before our own.

        So the file of a stage that was taken up tells of it from the first step. MLflow gets
        those lines, too; what it has already isn't logged again.
        """
        if self._file is None:
            return
        try:
            lines = merged(earlier, self.path)
            self._file.close()
            self._replace(lines)
            self._file = self.path.open("a", encoding="utf-8")
            if self._spool is not None:
                for line in lines:
                    self._spool.append(line)
        except OSError as error:
            self._warn(f"metrics of an earlier attempt could not be taken over: {error}")

    def close(self, *, status: str = "FINISHED", wait_s: float | None = None) -> None:
        """End the run in MLflow; waits for a remote server at most `CLOSE_WAIT_S`."""
        if self._progress is not None:
            self._progress.finish()
            self._progress = None
        if self._file is not None:
            try:
                if self._run is not None:
                    self._write({"end": status, "time": time.time()})
                self._file.close()
            except OSError as error:
                self._warn(f"the end could not be written to {self.path}: {error}")
            self._file = None
        spool, self._spool = self._spool, None
        if spool is not None:
            known = finish(spool, status, wait_s, id_wait_s=ID_WAIT_S)
            self.run_id = known or f"{KEY_PREFIX}{(self._run or {}).get('key', '')}"

    def __enter__(self) -> FileTracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(status="FINISHED" if kind is None else "FAILED")

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._write(line)
        if self._spool is not None:
            self._spool.append(line)

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line, default=str) + "\n")
        self._file.flush()

    def _replace(self, lines: Iterable[Mapping[str, Any]]) -> None:
        head = [] if self._run is None else [{"run": self._run}]
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        text = "".join(json.dumps(line, default=str) + "\n" for line in [*head, *lines])
        temporary.write_text(text, "utf-8")
        os.replace(temporary, self.path)

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            _log.warning("%s; the stage goes on.", text)
        self._has_warned = True


def finish(spool: Spool, status: str, wait_s: float | None, *, id_wait_s: float = 0.0) -> str:
    """End a spool file and wait a while for its being sent; the id of its run, where known."""
    limit = wait_s
    if limit is None:
        limit = LOCAL_WAIT_S if spool.target.is_local else CLOSE_WAIT_S
    run_id = ""
    try:
        spool.end(status)
        error = spool.wait_until_sent(limit)
        run_id = spool.wait_for_id(0.0 if error else id_wait_s)
        spool.settle()
    except OSError as problem:
        error = str(problem)
    if error:
        _log.warning(
            "MLflow at %s has not taken all metrics (%s); they wait in %s for the next run, or "
            "for `python -m steps.tracking sync %s`.",
            without_credentials(spool.target.uri),
            error,
            spool.path,
            spool.path.parent,
        )
    return run_id
