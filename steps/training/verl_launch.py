"""Runs a trainer as a subprocess: output streamed, start watched, all processes ended with it.

verl changes the process that imports it (environment, signal handlers, Ray) and leaves processes
behind when it fails, so it is never imported here. `launch` returns the exit code; whether the work
is done is for the caller to see, by the step that was reached. A trainer that breaks off once it
trains is a `TrainerError`, which a flow tries again; one that never trained is a `StageError`, as
are failures that it calls a mistake itself (`MISTAKE`). What verl writes as metrics, a file
with one JSON object a line, is read while it grows by `follow_jsonl`.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from steps.errors import DataError, StageError
from steps.training.process_family import Family

MISTAKE = 64
"""Exit code of a trainer that ended with a `SPAError`, which no second attempt would mend."""
TAIL_LINES = 20
"""Last lines of output that an error quotes."""
GRACE_S = 10.0
"""Between asking a trainer to end and killing it."""
DRAIN_S = 5.0
"""Longest wait for the end of the output once the trainer itself is gone."""
TICK_S = 0.25
BROKEN_S = 30.0
"""From a line that says that a part has failed to the end of a command that goes on."""
LOG_END = 1 << 18
"""Bytes at the end of a log in which a failure is looked for."""
_BREAK = re.compile(rb"[\r\n]+")
_EXCEPTION = re.compile(r"(\[rank\d+\]: ?)?[A-Za-z_][\w.]*(Error|Exception|Interrupt): .")
_log = logging.getLogger(__name__)


class TrainerError(RuntimeError):
    """A trainer broke off amid its work. Trying again may help: it goes on from its checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A stretch of the start: it has begun when a line of output matches `mark`."""

    name: str
    """What is being done, for messages: "loading the model"."""
    mark: str
    """Regular expression, searched for in each line. That of the last phase ends the start."""


@dataclass(kw_only=True)
class _Watch:
    """How far the start has come."""

    phases: Sequence[Phase]
    timeout_s: float
    began: float = field(default_factory=time.monotonic)
    entered: float = field(default_factory=time.monotonic)
    reached: int = 0
    """Number of phases that have begun; the process itself is the one before the first."""
    broken: str = ""
    """Regular expression of a line after which the command can't go on, whether it ends or not."""
    broke: tuple[float, str] | None = None
    """When such a line was seen first, and the line."""

    def see(self, line: str) -> None:
        """Phases may be skipped, and never go back."""
        if self.broken and not self.broke and re.search(self.broken, line):
            self.broke = time.monotonic(), line
        for index in range(self.reached, len(self.phases)):
            if re.search(self.phases[index].mark, line):
                self.reached, self.entered = index + 1, time.monotonic()
                _log.info("%s (after %.0f s)", self.name, self.entered - self.began)

    @property
    def name(self) -> str:
        return self.phases[self.reached - 1].name if self.reached else "starting the process"

    @property
    def is_started(self) -> bool:
        return self.reached == len(self.phases)

    @property
    def is_late(self) -> bool:
        return not self.is_started and time.monotonic() - self.began > self.timeout_s

    @property
    def is_stuck(self) -> bool:
        return self.broke is not None and time.monotonic() - self.broke[0] > BROKEN_S


def launch(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    phases: Sequence[Phase] = (),
    startup_timeout_s: float = float("inf"),
    broken: str = "",
    on_line: Callable[[str], None] | None = None,
    on_tick: Callable[[], None] | None = None,
    cwd: Path | None = None,
) -> int:
    """Run `command` to its end and return its exit code, negative for the signal that killed it.

    Output goes to `log` as it comes, and line by line to `on_line`; `on_tick` is called some times
    a second and once more at the end. Both are called in this thread. Whatever ends this call (an
    exception of theirs, Ctrl-C, SIGTERM, SIGKILL) ends all processes of the command, too. Raises
    `StageError` where the last of `phases` hasn't begun after `startup_timeout_s` seconds, naming
    the phase in which it stands, and where the command goes on `BROKEN_S` after a line in which the
    regular expression `broken` is found; `TrainerError` where it does so after its start.
    """
    watch = _Watch(phases=phases, timeout_s=startup_timeout_s, broken=broken)
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with _terminable(), Family(command, env=env, cwd=cwd) as family, log.open("ab") as sink:
        try:
            for line in _lines(family, sink):
                if line is not None:
                    _log.debug("%s", line)
                    tail.append(line)
                    watch.see(line)
                    if on_line is not None:
                        on_line(line)
                elif on_tick is not None:
                    on_tick()
                if watch.is_late:
                    raise StageError(_late(command, watch, log, tail))
                if watch.is_stuck:
                    kind = TrainerError if watch.is_started else StageError
                    raise kind(_stuck(command, watch, log))
        except BaseException:
            family.stop(grace_s=GRACE_S)
            raise
        code = family.process.wait()
    if on_tick is not None:
        on_tick()
    return code


def check_exit(what: str, code: int, log: Path, *, has_trained: bool) -> None:
    """Raise for a bad exit code of `what`; see the module on which error it is."""
    if code != 0:
        kind = TrainerError if has_trained and code != MISTAKE else StageError
        raise kind(f"{what}, {failure(code, log)}")


def failure(code: int, log: Path) -> str:
    """Why a command with a bad exit code ended, as far as the code and the log tell."""
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        why = "was killed (SIGKILL), most often because the machine ran out of memory"
    elif code < 0:
        why = f"was ended by {signal.Signals(-code).name}"
    else:
        why = f"ended with exit code {code}"
    first = first_error(log)
    said = f": {first}" if first else ""
    return f"{why}{said}\nThe last lines of {log}:\n{last_lines(log)}"


def first_error(log: Path) -> str:
    """The first exception that a log names near its end; those of launchers follow from it."""
    for line in _end_of(log):
        if _EXCEPTION.match(line) and "ChildFailedError" not in line:
            return line
    return ""


def last_lines(log: Path, count: int = TAIL_LINES) -> str:
    """The last lines of a log that hold anything."""
    return "\n".join(_end_of(log)[-count:])


def _end_of(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_END))
            lines = _BREAK.split(file.read())
    except OSError as error:
        return [f"(unreadable: {error})"]
    return [line.decode("utf-8", "replace").rstrip() for line in lines if line.strip()]


def follow_jsonl(path: Path, on_row: Callable[[int, dict[str, Any]], None]) -> Callable[[], None]:
    """A function that hands each new row of a growing JSONL file to `on_row(step, data)`.

    A row is verl's `{"step": n, "data": {...}}`; call the function again and again (`on_tick`). A
    last line without its end waits for the next call. The file need not exist yet. Raises
    `DataError` for a whole line that isn't such a row.
    """
    position, count = 0, 0

    def poll() -> None:
        nonlocal position, count
        try:
            with path.open("rb") as file:
                file.seek(position)
                piece = file.read()
        except FileNotFoundError:
            return
        whole = piece[: piece.rfind(b"\n") + 1]
        position += len(whole)
        for line in whole.splitlines():
            count += 1
            if line.strip():
                on_row(*_row(line, path, count))

    return poll


def _row(line: bytes, path: Path, number: int) -> tuple[int, dict[str, Any]]:
    try:
        row = json.loads(line)
        return int(row["step"]), dict(row["data"])
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"line {number} of {path} isn't a row of verl's metrics ({error}): {line[:80]!r}; "
            "the file is verl's own, and nothing else may write to it."
        ) from error


def _lines(family: Family, sink: IO[bytes]) -> Iterator[str | None]:
    """Lines of output as they come, None at each tick; ends with the command."""
    stream = family.process.stdout
    assert stream is not None
    pieces: queue.Queue[bytes] = queue.Queue()
    reader = threading.Thread(target=_read, args=(stream.fileno(), pieces), daemon=True)
    reader.start()
    rest, next_tick, gone_at = b"", time.monotonic() + TICK_S, None
    while True:
        try:
            piece = pieces.get(timeout=TICK_S)
            if not piece:
                break
            sink.write(piece)
            sink.flush()
            *whole, rest = _BREAK.split(rest + piece)
            yield from (line.decode("utf-8", "replace") for line in whole if line.strip())
        except queue.Empty:
            # Processes that the command leaves behind may hold its output open.
            if family.process.poll() is not None:
                gone_at = gone_at or time.monotonic()
                if time.monotonic() - gone_at > DRAIN_S:
                    break
        if time.monotonic() >= next_tick:
            next_tick = time.monotonic() + TICK_S
            yield None
    if rest.strip():
        yield rest.decode("utf-8", "replace")


def _read(descriptor: int, pieces: queue.Queue[bytes]) -> None:
    """Feed `pieces` with output; an empty one is its end."""
    while True:
        try:
            piece = os.read(descriptor, 1 << 16)
        except OSError:
            piece = b""
        pieces.put(piece)
        if not piece:
            return


def _late(command: Sequence[str], watch: _Watch, log: Path, tail: Sequence[str]) -> str:
    now = time.monotonic()
    return (
        f"{Path(command[0]).name} didn't come to its first step within {watch.timeout_s:g} s: it "
        f"stands at {watch.name!r} for {now - watch.entered:.0f} s and was stopped. Raise "
        f"verl.startup_timeout_s if that takes so long here; else see {log}. Its last lines:\n"
        + "\n".join(tail)
    )


def _stuck(command: Sequence[str], watch: _Watch, log: Path) -> str:
    assert watch.broke is not None
    return (
        f"a part of {Path(command[0]).name} failed, and the others waited for it, so that all were "
        f"stopped after {BROKEN_S:g} s: {watch.broke[1].strip()}\nThe last lines of {log}:\n"
        f"{last_lines(log)}"
    )


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises SystemExit, so that the command is ended before this process is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
