"""A command and all that it starts: begun in a session of its own, ended whole.

A trainer starts processes that start processes: torchrun its ranks, Ray its daemons, which leave
the process group. All of them inherit one environment variable, the mark, and on Linux are found by
it in /proc; elsewhere the process group must do. A guard, a small process that waits for our end of
a pipe to close, ends the family when this process dies without a chance to (SIGKILL, out of
memory): otherwise the GPU would stay taken. The file is also the guard's program, so that it
imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = "SPA_PROCESS_FAMILY"
_PROC = Path("/proc")


class Family:
    """A running command; use it as a context, at whose end nothing of it runs any more."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            list(command),
            env={**env, MARK: self.mark},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(self.process.pid), self.mark],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            end(self.process.pid, self.mark)
            raise

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(grace_s=0.0)

    def stop(self, *, grace_s: float) -> None:
        """Ask the group to end, wait `grace_s` seconds at most, then kill what is left."""
        if grace_s > 0 and self.process.poll() is None:
            _signal_group(self.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        end(self.process.pid, self.mark)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(b"over\n")
                self._guard.stdin.close()
        self._guard.wait()


def members(mark: str, proc: Path = _PROC) -> list[int]:
    """Ids of the living processes that carry `mark`; none where there is no /proc."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for directory in proc.glob("[0-9]*"):
        try:
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
        except OSError:  # it has ended, or is another user's
            continue
    return sorted(found)


def end(group: int, mark: str) -> None:
    """Kill the process group and every marked process, until none is found twice in a row.

    Once isn't enough: a process that is just being started has no environment to read.
    """
    deadline, scans_without = time.monotonic() + 10.0, 0
    while scans_without < 2 and time.monotonic() < deadline:
        _signal_group(group, signal.SIGKILL)
        left = [pid for pid in members(mark) if pid != os.getpid()]
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        scans_without = 0 if left else scans_without + 1
        time.sleep(0.05)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    # Closed without a word: whoever began the family is gone.
    if not sys.stdin.readline():
        end(int(sys.argv[1]), sys.argv[2])
