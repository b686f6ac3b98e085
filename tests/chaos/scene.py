"""How a bad day is staged: flows that lie half done, what befalls them, what the user reads.

Two flows are made once: one that nobody disturbed, and one that was killed in PPO with two of its
checkpoints kept. Each day takes a copy of one of them and spoils it in its own way.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.chaos import harness
from tests.chaos.harness import DAY_S, OPTIONS, ROOT, Calm

RUN = ("run", *OPTIONS)
POLL_S = 0.02
MAX_SHOWN = 320
_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d [\d:.]+ (\[[^\]]*\] )?")
_OF_BRANCH = re.compile(r"\S*spa\.store/[^/\s]+/[^/\s]+/[^/\s]+/")
_LONG_NUMBER = re.compile(r"\b\d{15,}\b")
_CAPABILITIES = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: with them root reads and writes what it may not."""
_PR_CAPBSET_DROP = 24
_CLOCK = """
import os, time
_time, _time_ns = time.time, time.time_ns
def _back():
    return {day} if os.path.exists({flag!r}) else 0
time.time = lambda: _time() - _back()
time.time_ns = lambda: _time_ns() - _back() * 10**9
"""


class SkippedDay(Exception):  # noqa: N818
    """This machine can't have such a day; the text says why."""


@dataclass(frozen=True)
class Ended:
    """A flow that has come to its end, well or badly."""

    code: int
    text: str
    run_id: str
    """Empty where no run began."""

    def line(self, pattern: str, work: Path, otherwise: str = "") -> str:
        """The first line of what was printed that matches, short enough for a table."""
        found = [line for line in self.text.splitlines() if re.search(pattern, line)]
        if otherwise and not found:
            return otherwise
        assert found, f"nothing printed matches {pattern!r}:\n{self.text[-3000:]}"
        line = _PREFIX.sub("", found[0]).replace(f"{work.resolve()}/", "").replace(str(work), ".")
        line = _OF_BRANCH.sub(".../", line)
        return clipped(_LONG_NUMBER.sub("RUN", line).replace("|", "\\|").strip())


def clipped(text: str) -> str:
    """A long message without its middle."""
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[: MAX_SHOWN // 2].rstrip()} [...] {text[-MAX_SHOWN // 2 :].lstrip()}"


class Scene:
    """What all days of one round share: also a flow that nobody disturbed, where there is one."""

    def __init__(self, root: Path, seed: int, calm: Calm | None = None) -> None:
        self.root = root
        self.rng = random.Random(seed)
        if calm is not None:
            self.calm = calm

    @cached_property
    def calm(self) -> Calm:
        """That flow."""
        return harness.undisturbed(self.root / "calm")

    @cached_property
    def halted(self) -> Path:
        """A flow killed in PPO, its first two checkpoints kept."""
        work = self.root / "halted"
        work.mkdir()
        process = harness.start(work, *RUN)
        wait_until(lambda: bool(checkpoint(work, 2)), process, work)
        harness.kill(process)
        return work

    @property
    def halted_id(self) -> str:
        """Its run id."""
        return (self.halted / ".metaflow" / "SPAFlow" / "latest_run").read_text()

    @property
    def resume(self) -> tuple[str, ...]:
        """The words that take it up."""
        return ("resume", "--origin-run-id", self.halted_id)

    def copy(self, source: Path, name: str) -> Path:
        """A copy of a flow's directory, to be spoilt."""
        work = self.root / name
        shutil.copytree(source, work, symlinks=True)
        return work

    def is_equal(self, work: Path, ended: Ended) -> bool:
        """Whether a run came to what the undisturbed one came to."""
        assert ended.code == 0, ended.text[-3000:]
        return harness.outcome(work, ended.run_id) == self.calm.outcome


def attempt(
    work: Path,
    *words: str,
    when: str = "",
    then: Callable[[subprocess.Popen[bytes], str], None] | None = None,
    **surroundings: Any,
) -> Ended:
    """Run the flow to its end; `then` is called with it and the run's id when `when` starts."""
    offset = harness.size(work)
    process = harness.start(work, *words, **surroundings)
    try:
        if then is not None:
            run_id = harness.wait_for(work, offset, when, process)
            assert run_id is not None, harness.tail(work, offset)[-3000:]
            then(process, run_id)
        code = process.wait(timeout=2 * harness.PATIENCE_S)
    finally:
        if process.poll() is None:
            harness.kill(process)
    text = harness.tail(work, offset)
    runs = harness.STARTING.findall(text)
    return Ended(code, text, runs[-1][0] if runs else "")


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], work: Path) -> None:
    """Wait for something that a running flow will do."""
    deadline = time.monotonic() + harness.PATIENCE_S
    while not condition():
        assert process.poll() is None, harness.tail(work, 0)[-3000:]
        assert time.monotonic() < deadline, harness.tail(work, 0)[-3000:]
        time.sleep(POLL_S)


def checkpoint(work: Path, step: int, stage: str = "ppo_train") -> list[Path]:
    """The directories of a complete checkpoint; there is one for each run that has it."""
    pattern = f"spa.store/*/*/*/{stage}/checkpoints/*/step_{step:08d}/manifest.json"
    return [path.parent for path in (work / ".metaflow").glob(pattern)]


def at_work(work: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until PPO goes on from the second checkpoint: it has then made it its own."""
    wait_until(lambda: len(checkpoint(work, 2)) == 2, process, work)


def kept(work: Path, run_id: str, stage: str) -> Path:
    """The directory that a stage of a run has kept."""
    (manifest,) = (work / ".metaflow").glob(f"spa.store/*/{run_id}/*/{stage}/*/manifest.json")
    return manifest.parent


def cut(file: Path, rng: random.Random) -> str:
    """Cut a file at a random byte; says where."""
    length = file.stat().st_size
    at = rng.randrange(length - 1)  # a lost line end isn't a loss
    with file.open("rb+") as stream:
        stream.truncate(at)
    return f"`{file.name}` at byte {at:,} of {length:,}"


def bound_by_permissions() -> None:
    """To be called in a child: makes root obey the permissions of files, too."""
    libc = ctypes.CDLL(None)
    if os.geteuid() == 0:
        for capability in _CAPABILITIES:
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def set_writable(place: Path, *, is_writable: bool) -> None:
    """Let nobody make, change or remove anything below `place`, or its owner again."""
    for path in [place, *place.rglob("*")]:
        with suppress(FileNotFoundError):  # a running flow has files that come and go
            mode = path.stat().st_mode
            path.chmod(mode | 0o200 if is_writable else mode & ~0o222)


def check_permissions_bind(root: Path) -> None:
    """Raise `SkippedDay` where a child writes into a directory that it may not write into."""
    place = root / "forbidden"
    place.mkdir(exist_ok=True)
    place.chmod(0o555)
    line = [sys.executable, "-c", f"open({str(place / 'file')!r}, 'w')"]
    done = subprocess.run(line, preexec_fn=bound_by_permissions, capture_output=True, check=False)
    if done.returncode == 0:
        raise SkippedDay("permissions don't bind here, not even without root's capabilities")


def limit_files(process: subprocess.Popen[bytes], size: int) -> None:
    """No process of a running flow may write a file beyond `size` bytes from now on."""
    if not hasattr(resource, "prlimit"):
        raise SkippedDay("limits of a running process can't be set here (no prlimit)")
    for pid in _group(process.pid):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))


def _group(leader: int) -> Iterator[int]:
    """The processes of a group."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == leader:
                    yield int(entry.name)
            except ProcessLookupError:
                continue


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own in memory; raises `SkippedDay` where none may be mounted."""
    place.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    try:
        subprocess.run(line, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SkippedDay(f"no file system may be mounted here ({error})") from error
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()


def fill(disk: Path) -> Path:
    """A file that takes all the room that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as stream:
        try:
            while stream.write(bytes(1 << 16)):
                pass
        except OSError:
            return filler
    raise AssertionError("a disk without end")


def clock(root: Path, flag: Path) -> dict[str, str]:
    """Surroundings in which it is yesterday as soon as `flag` exists, in every process."""
    place = root / f"clock_{flag.parent.name}"
    place.mkdir()
    (place / "sitecustomize.py").write_text(_CLOCK.format(day=DAY_S, flag=str(flag)))
    paths = [str(place), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def export(work: Path, run_id: str) -> dict[str, Any]:
    """All that a run returned."""
    line = [sys.executable, "-m", "steps.orchestration.export", run_id, "--out", "all.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(line, cwd=work, env=environment, check=True)
    exported: dict[str, Any] = json.loads((work / "all.json").read_text())
    return exported


def durations(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number in nested plain values whose name says that it is in seconds."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from durations(each, str(key))
    elif isinstance(value, list):
        for each in value:
            yield from durations(each, name)
    elif isinstance(value, int | float) and ("seconds" in name or name.startswith("timing_s/")):
        yield name, float(value)


class MLflowServer:
    """A real `mlflow server` over a SQLite store in `home`; killed and started again at will."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.home = home
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return when it answers."""
        line = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
        line += ["--port", str(self.port), "--backend-store-uri", f"sqlite:///{self.home}/db"]
        line += ["--artifacts-destination", str(self.home / "artifacts")]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)
        wait_until(self._answers, self.process, self.home)

    def kill(self) -> None:
        """SIGKILL to it and its workers; nothing happens where that has been done."""
        if self.process.poll() is None:
            harness.kill(self.process)

    def logged(self) -> dict[str, list[tuple[str, int, float]]]:
        """Stage -> every point of every metric of its runs: key, step, value."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        found: dict[str, list[tuple[str, int, float]]] = {}
        for experiment in client.search_experiments():
            for run in client.search_runs([experiment.experiment_id]):
                points = found.setdefault(run.data.tags.get("spa.stage", ""), [])
                for key in run.data.metrics:
                    history = client.get_metric_history(run.info.run_id, key)
                    points += [(key, each.step, each.value) for each in history]
        return found

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def send_what_waits(work: Path) -> None:
    """Metrics that the server hadn't taken when the flow ended."""
    if not list((work / ".spa" / "mlflow" / "spool").glob("*.jsonl")):
        return
    line = [sys.executable, "-m", "steps.tracking", "sync"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def local_metrics(work: Path, run_id: str, stage: str) -> list[tuple[str, int, float]]:
    """Every point of a stage's `metrics.jsonl`, under MLflow's names."""
    lines = (kept(work, run_id, stage) / "metrics.jsonl").read_text().splitlines()
    return [
        (re.sub(r"[^\w\-./: ]", "_", key.replace("@", "_at_")), line["step"], float(value))
        for line in map(json.loads, lines)
        for key, value in line.get("metrics", {}).items()
    ]
