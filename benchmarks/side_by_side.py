"""Runs many arms of an experiment on one machine, several at a time, and keeps each one's results.

    python -m benchmarks.side_by_side arms.txt --parallel 4 --out results

Each line of the file is a name and the options of `flows/spa_flow.py run`; `#` starts a comment:

    spa-lake-s0      --env frozenlake --experiment spa --seed 0
    vanilla-lake-s0  --env frozenlake --experiment vanilla_rl --seed 0 --override "ppo.lr=3e-4"

Writes `NAME.log` as the run prints it and, when it ends, `NAME.json` (made by
`steps.orchestration.export`): whole, or as far as it came. An arm whose file says that it is
finished isn't run again. A line is printed as each one starts and ends, and of one that failed why
and where its log is. All arms' settings are read before any starts. Interrupting this ends the runs
that it started.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf import shown
from steps import preflight
from steps.errors import SPAError
from steps.orchestration import runs

ROOT = Path(__file__).resolve().parents[1]
FLOW = ROOT / "flows" / "spa_flow.py"
RUN_ID = re.compile(r"run-id (\S+)\)")
POLL_SECONDS = 0.5
GRACE_SECONDS = 10
_PREFIX = re.compile(r"^\S+ \S+ \[[^]]+\] |^\d{4}-\d\d-\d\d \S+ ")
"""What Metaflow writes before a task's lines, and before its own."""
_NO_REASON = re.compile(
    r"Task (is starting|failed|finished successfully)\.|This failed task will not be retried\.|"
    r"Internal error:|The terminal step end was not successful by the end of flow\.|"
    r"Workflow failed\.|Terminating \d+ active tasks.*|Flushing logs.*|Step failure:|"
    r"Step \S+ \(task-id \d+\) failed\.|"
)
"""Lines of Metaflow's after a failure that don't say which."""


@dataclass(frozen=True)
class Arm:
    """A name and the options of its run."""

    name: str
    options: tuple[str, ...]


@dataclass
class Running:
    """An arm at work."""

    arm: Arm
    process: subprocess.Popen[bytes]
    log: Path
    began: float


def read_arms(file: Path) -> list[Arm]:
    """The arms of a file; raises `ValueError` for a line without options or a name used twice, and
    for a file that can't be read."""
    arms: list[Arm] = []
    try:
        text = file.read_text()
    except OSError as error:
        raise ValueError(
            f"the arms file {file} can't be read ({error.strerror}): give a file with a name and "
            "the options of a run on each line."
        ) from error
    for number, line in enumerate(text.splitlines(), start=1):
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if len(words) < 2 or not words[1].startswith("--"):
            raise ValueError(f"{file}, line {number}: write a name and options, not {line!r}")
        if words[0] in {arm.name for arm in arms}:
            raise ValueError(f"{file}, line {number}: the name {words[0]!r} is used twice")
        arms.append(Arm(words[0], tuple(words[1:])))
    return arms


def is_finished(out: Path, arm: Arm) -> bool:
    """Whether an earlier call has finished this arm, with the same options."""
    try:
        known = json.loads((out / f"{arm.name}.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(known["finished"]) and known.get("options") == shown(arm.options)


def refusals(arms: list[Arm]) -> list[str]:
    """Why runs would end before they begin, a line an arm."""
    found = []
    for arm in arms:
        try:
            runs.settings_of(runs.read_request(arm.options), check=preflight.check)
        except SPAError as error:
            found.append(f"{arm.name}: {error}")
    return found


def start(arm: Arm, out: Path) -> Running:
    """Start an arm's run in a process group of its own."""
    log = out / f"{arm.name}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, str(FLOW), "run", *arm.options],
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Running(arm, process, log, time.monotonic())


def end(running: Running, out: Path) -> dict[str, Any] | None:
    """Export what the run left; None where it had not even started."""
    found = RUN_ID.search(running.log.read_text(errors="replace"))
    if not found:
        return None
    from steps.orchestration.export import export_run

    exported = export_run(found[1]) | {
        "name": running.arm.name,
        "options": shown(running.arm.options),
        "wall_seconds": time.monotonic() - running.began,
    }
    (out / f"{running.arm.name}.json").write_text(json.dumps(exported))
    return exported


def kill(running: Running, number: int) -> None:
    """Signal the run and all that it started."""
    try:
        os.killpg(running.process.pid, number)
    except ProcessLookupError:
        return


def stop(group: list[Running]) -> None:
    """End runs: first asked, after `GRACE_SECONDS` killed."""
    for running in group:
        kill(running, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while any(r.process.poll() is None for r in group) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for running in group:
        kill(running, signal.SIGKILL)


def line_of(exported: dict[str, Any] | None) -> str:
    """Success of the final model, by environment."""
    parts = []
    for env_id, stages in (exported or {}).get("environments", {}).items():
        summary = stages.get("evaluate", {}).get("summary")
        parts.append(f"{env_id} {summary['pass@1']:.3f}" if summary else f"{env_id} not evaluated")
    return ", ".join(parts) or "nothing to show"


def reason_of(log: Path) -> str:
    """The last line of a log that tells why the run ended."""
    text = log.read_text(errors="replace").partition("\nThe run ended early.")[0]
    lines = (_PREFIX.sub("", line).strip() for line in text.splitlines())
    return next((line for line in reversed([*lines]) if not _NO_REASON.fullmatch(line)), "")


def run_all(arms: list[Arm], out: Path, parallel: int) -> int:
    """Run the arms and return how many failed."""
    waiting = [arm for arm in arms if not is_finished(out, arm)]
    running: list[Running] = []
    failed = 0
    began = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                running.append(start(waiting.pop(0), out))
                print(
                    f"{time.monotonic() - began:7.0f} s  start  {running[-1].arm.name}", flush=True
                )
            time.sleep(POLL_SECONDS)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                code = each.process.returncode
                failed += code != 0
                word = "done " if code == 0 else f"failed ({code})"
                print(
                    f"{time.monotonic() - began:7.0f} s  {word}  {each.arm.name}: "
                    f"{line_of(end(each, out))}",
                    flush=True,
                )
                if code:
                    print(f"{'':11}{reason_of(each.log)}\n{'':11}log: {each.log}", flush=True)
    finally:
        stop(running)
        for each in running:
            end(each, out)
    return failed


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("arms", type=Path)
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time (default 1)")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    try:
        arms = read_arms(options.arms)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    refused = refusals([arm for arm in arms if not is_finished(options.out, arm)])
    if refused:
        parser.exit(2, "\n".join([*refused, "No arm was started.\n"]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.out.mkdir(parents=True, exist_ok=True)
    sys.exit(min(run_all(arms, options.out, options.parallel), 100))


if __name__ == "__main__":
    main()
