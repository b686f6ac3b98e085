"""A command is watched while it starts, streamed while it runs, and never outlives its caller."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steps.errors import DataError, StageError
from steps.training import verl_launch
from steps.training.process_family import MARK, members
from steps.training.verl_launch import Phase, TrainerError, failure, follow_jsonl, launch

LINUX = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
PHASES = (Phase(name="loading", mark="weights"), Phase(name="training", mark=r"step:\d+"))
ORPHAN = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"],
                         start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print("orphan", child.pid, os.environ["SPA_PROCESS_FAMILY"], flush=True)
time.sleep(600)
"""
"""Starts a process in a session of its own, as Ray's daemons are, and tells its id."""
LAUNCHER = """
import os, sys
from pathlib import Path
from steps.training.verl_launch import TrainerError, launch
launch([sys.executable, "-c", sys.argv[1]], env=os.environ, log=Path(sys.argv[2]),
       on_line=lambda line: print(line, flush=True))
"""


def run(code: str, log: Path, **fields: object) -> int:
    return launch([sys.executable, "-u", "-c", code], env=os.environ, log=log, **fields)  # type: ignore[arg-type]


class Clock:
    """Time that also passes when it is told to."""

    passed = 0.0

    def pass_by(self, seconds: float) -> None:
        self.passed = seconds

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(verl_launch, "time", found)
    return found


def ends(pid: int) -> bool:
    """Waits half a minute at most for a process that isn't ours to end."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor) as handle:
        return bool(select.select([handle], [], [], 30)[0])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
    ],
)
def test_the_exit_code_is_the_commands(code: str, expected: int, tmp_path: Path) -> None:
    assert run(code, tmp_path / "log") == expected


def test_output_comes_line_by_line_and_is_logged_as_it_was_written(tmp_path: Path) -> None:
    lines: list[str] = []
    code = r"import sys; sys.stdout.write('one\n\n 1%\r 2%\rtwo\nlast'); sys.stderr.write('!')"
    assert run(code, tmp_path / "log", on_line=lines.append) == 0
    assert lines == ["one", " 1%", " 2%", "two", "last!"]
    assert (tmp_path / "log").read_bytes() == b"one\n\n 1%\r 2%\rtwo\nlast!"


def test_the_caller_hears_of_the_end_once_more_after_it(tmp_path: Path) -> None:
    result, seen = tmp_path / "result", []
    run(
        f"open({str(result)!r}, 'w').write('done')",
        tmp_path / "log",
        on_tick=lambda: seen.append(result.exists() and result.read_text()),
    )
    assert seen[-1] == "done"


@pytest.mark.parametrize(
    ("code", "phase"),
    [("", "starting the process"), ("print('weights found', flush=True); ", "loading")],
)
def test_a_start_that_takes_too_long_ends_and_names_its_phase(
    code: str, phase: str, tmp_path: Path, clock: Clock
) -> None:
    with pytest.raises(StageError, match=f"within 900 s: it stands at '{phase}'"):
        run(
            f"{code}import time; time.sleep(600)",
            tmp_path / "log",
            phases=PHASES,
            startup_timeout_s=900.0,
            on_line=lambda line: clock.pass_by(901.0),
            on_tick=lambda: None if code else clock.pass_by(901.0),
        )


def test_once_the_last_phase_has_begun_there_is_no_timeout(tmp_path: Path, clock: Clock) -> None:
    def end() -> None:
        if clock.passed:
            (tmp_path / "end").touch()

    code = (
        "import pathlib, time; print('step:1 - loss', flush=True)\n"
        f"while not pathlib.Path({str(tmp_path / 'end')!r}).exists(): time.sleep(0.02)"
    )
    pass_by = lambda line: clock.pass_by(901.0)  # noqa: E731
    how = {"phases": PHASES, "startup_timeout_s": 900.0, "on_line": pass_by, "on_tick": end}
    assert run(code, tmp_path / "log", **how) == 0
    assert clock.passed == 901.0


@LINUX
def test_a_command_that_waits_for_a_part_that_failed_is_ended(tmp_path: Path, clock: Clock) -> None:
    code = "import time; print('engine: add_lora failed', flush=True); time.sleep(600)"
    lines: list[str] = []

    def see(line: str) -> None:
        lines.append(line)
        clock.pass_by(verl_launch.BROKEN_S + 1)

    said = r"waited for it.*after 30 s: engine: add_lora failed"
    with pytest.raises(TrainerError, match=said):
        run(code, tmp_path / "log", broken="add_lora failed", on_line=see)
    with pytest.raises(StageError, match=said):  # amid its start
        run(code, tmp_path / "log", broken="add_lora failed", on_line=see, phases=PHASES)
    assert lines == ["engine: add_lora failed"] * 2


def test_a_command_that_ends_by_itself_after_such_a_line_says_so_itself(tmp_path: Path) -> None:
    assert run("print('it failed'); exit(3)", tmp_path / "log", broken="failed") == 3


def test_an_error_of_the_caller_ends_every_process_of_the_command(tmp_path: Path) -> None:
    told: list[str] = []

    def stop(line: str) -> None:
        told.extend(line.split())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(ORPHAN, tmp_path / "log", on_line=stop)
    _, orphan, mark = told
    assert members(mark) == []
    assert ends(int(orphan))


@LINUX
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_caller_that_is_killed_takes_every_process_with_it(
    number: signal.Signals, root: Path, tmp_path: Path
) -> None:
    caller = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, ORPHAN, str(tmp_path / "log")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert caller.stdout is not None
    _, orphan, mark = caller.stdout.readline().split()
    family = members(mark)
    assert int(orphan) in family and len(family) == 2
    caller.send_signal(number)
    assert caller.wait(30) == (143 if number is signal.SIGTERM else -9)
    assert all(ends(pid) for pid in family)
    caller.stdout.close()


@LINUX
def test_processes_that_a_command_leaves_behind_are_ended_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verl_launch, "DRAIN_S", 1.0)
    told: list[str] = []
    code = ORPHAN.replace("\ntime.sleep(600)", "")
    assert run(code, tmp_path / "log", on_line=told.append) == 0
    assert members(told[0].split()[2]) == []


@LINUX
def test_only_marked_processes_are_members() -> None:
    assert os.getpid() not in members("0")
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
        env={MARK: "mine"},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        child.stdout.readline()  # until then its environment may not be readable yet
        assert members("mine") == [child.pid]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_rows_of_a_growing_file_come_once_and_whole(tmp_path: Path) -> None:
    path, rows = tmp_path / "metrics.jsonl", []
    poll = follow_jsonl(path, lambda step, data: rows.append((step, data)))
    poll()  # not there yet
    assert rows == []
    with path.open("w") as file:
        file.write('{"step":1,"data":{"loss":2.5}}\n{"step":2,"da')
        file.flush()
        poll()
        assert rows == [(1, {"loss": 2.5})]
        file.write('ta":{"loss":1.5}}\n')
        file.flush()
    poll()
    poll()
    assert rows == [(1, {"loss": 2.5}), (2, {"loss": 1.5})]


@pytest.mark.parametrize("line", ["{", '{"step": 1}', '{"step": "x", "data": {}}', "3"])
def test_a_line_that_is_no_row_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step":1,"data":{{}}}}\n{line}\n')
    with pytest.raises(DataError, match=r"line 2 of .*metrics.jsonl"):
        follow_jsonl(path, lambda step, data: None)()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, r"exit code 1: ValueError: too few\n.*last lines.*\nthe end$"),
        (-9, "SIGKILL.*out of memory"),
        (137, "SIGKILL"),
        (-15, "SIGTERM"),
    ],
)
def test_a_failure_says_why_and_quotes_the_log(code: int, words: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "warming up\nTraceback (most recent call last):\n  File x\nValueError: too few\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \nthe end\n"
    )
    with pytest.raises(AssertionError, match=f"(?s){words}"):
        raise AssertionError(failure(code, log))
