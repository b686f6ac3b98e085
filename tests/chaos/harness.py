"""Kills the real flow at random moments and looks whether anything is lost.

    python -m tests.chaos.harness --chains 10 --seed 0 --report FILE

A *chain* is one flow with the smoke profile in a directory of its own, killed once in each of its
five stages (SIGKILL to every process, at a moment drawn from the stage's usual length, or as it
ends, if that is sooner), each time taken up again: by `resume`, or by a new run that finds the
stage half done, in turn. In the end its weights and scores are compared with those of a flow that
nobody disturbed: a batch that was skipped or trained twice would show in the weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FLOW = ROOT / "flows" / "spa_flow.py"
STAGES = ("selfplay_generate", "filter_format", "sft_train", "ppo_train", "evaluate")
ENV = "frozenlake"
SETTINGS = "tracking.enabled=false device=cpu selfplay.env_groups=25 selfplay.batches=8"
"""The 200 puzzles of the smoke profile's self-play in eight batches, so that a kill leaves some."""
OPTIONS = ("--env", ENV, "--profile", "smoke", "--override", SETTINGS)
STARTING = re.compile(r"\[(\d+)/(\w+)/\d+ \(pid \d+\)\] Task is starting")
PLAYED = re.compile(r"self-play batch (\d+)/\d+:")
FINISHED = re.compile(r"\[\d+/(\w+)/\d+ \(pid \d+\)\] Task finished successfully")
PATIENCE_S = 300
DAY_S = 86_400


@dataclass
class Kill:
    """One kill, and what came of it."""

    chain: int
    stage: str
    after_s: float
    """Seconds after the stage's start."""
    taken_up_by: str
    lost_s: float
    """Seconds between the last checkpoint or batch, or else the stage's start, and the kill."""
    batches: frozenset[int] = frozenset()
    """Of self-play, those that were kept when the kill came."""
    log_size: int = 0
    """Bytes of the flow's log then."""
    repeated: int = 0
    """How many of `batches` were played again later."""


@dataclass(frozen=True)
class Calm:
    """A flow that nobody disturbed."""

    work: Path
    run_id: str
    outcome: dict[str, Any]
    lengths: dict[str, float]
    """Seconds of each stage."""


@dataclass
class Chain:
    """A flow and how often it was killed."""

    work: Path
    kills: list[Kill] = field(default_factory=list)
    is_equal: bool = False
    differences: list[str] = field(default_factory=list)


def start(work: Path, *words: str, **surroundings: Any) -> subprocess.Popen[bytes]:
    """Start the flow in its own process group; its output is appended to `work/log`.

    `surroundings` are arguments of `Popen`: an environment, what the child does first.
    """
    with (work / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(FLOW), *words],
            cwd=work,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **surroundings,
        )


def tail(work: Path, offset: int) -> str:
    """What the log holds from `offset` on."""
    return (work / "log").read_bytes()[offset:].decode(errors="replace")


def wait_for(work: Path, offset: int, stage: str, process: subprocess.Popen[bytes]) -> str | None:
    """The id of the run in which a stage starts; None where the flow ends before."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for run_id, name in STARTING.findall(tail(work, offset)):
            if name == stage:
                return str(run_id)
        if process.poll() is not None:
            return None
        time.sleep(0.05)
    raise TimeoutError(f"{stage} hasn't started in {PATIENCE_S} s: {work / 'log'}")


def wait_in(
    work: Path, offset: int, stage: str, process: subprocess.Popen[bytes], seconds: float
) -> None:
    """Wait so long in a stage that has just started, or until it ends: it may be faster today."""
    moment = time.monotonic() + seconds
    while time.monotonic() < moment and process.poll() is None:
        if stage in FINISHED.findall(tail(work, offset)):
            return
        time.sleep(min(0.05, max(moment - time.monotonic(), 0.0)))


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the flow and all its tasks, which Metaflow puts into the same group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def finish(work: Path, *words: str) -> str:
    """Run the flow to its end; the id of the run."""
    offset = size(work)
    process = start(work, *words)
    if process.wait(timeout=2 * PATIENCE_S) != 0:
        raise RuntimeError(f"the flow failed; the end of {work / 'log'}:\n{tail(work, -3000)}")
    return STARTING.findall(tail(work, offset))[-1][0]


def size(work: Path) -> int:
    """Bytes of the log."""
    log = work / "log"
    return log.stat().st_size if log.exists() else 0


def outcome(work: Path, run_id: str) -> dict[str, Any]:
    """What a finished run left: digests of the models' weights, and the scores."""
    line = [sys.executable, "-m", "steps.orchestration.export", run_id, "--out", "outcome.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(line, cwd=work, env=environment, check=True)
    stages = json.loads((work / "outcome.json").read_text())["environments"][ENV]
    found: dict[str, Any] = {"scores": stages["evaluate"]["summary"]}
    for stage in ("sft_train", "ppo_train"):
        result = stages[stage]
        home = work / ".metaflow" / result["directory"]["key"]
        weights = (home / result["model"] / "model.safetensors").read_bytes()
        found[stage] = {"weights": hashlib.sha256(weights).hexdigest(), "steps": result["steps"]}
    return found


def durations(work: Path) -> dict[str, float]:
    """Seconds of each stage in the log of an undisturbed flow, by its time stamps."""
    found: dict[str, float] = {}
    for line in (work / "log").read_text(errors="replace").splitlines():
        starting, finished = STARTING.search(line), FINISHED.search(line)
        if starting and starting[2] in STAGES:
            found[starting[2]] = -_seconds(line)
        elif finished and finished[1] in STAGES:
            found[finished[1]] = (found[finished[1]] + _seconds(line)) % DAY_S
    return found


def _seconds(line: str) -> float:
    clock = line.split()[1]
    hours, minutes, seconds = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def disturb(
    work: Path, number: int, lengths: dict[str, float], rng: random.Random
) -> Iterator[Kill]:
    """Kill each stage once; the flow is left unfinished, unless it is done before its last kill."""
    words: tuple[str, ...] = ("run", *OPTIONS)
    how = "-"
    for index, stage in enumerate(STAGES):
        offset = size(work)
        process = start(work, *words)
        run_id = wait_for(work, offset, stage, process)
        if run_id is None:
            return
        began = time.time()
        wait_in(work, offset, stage, process, rng.uniform(0.0, lengths[stage]))
        if process.poll() is not None:  # the flow was done before: nothing to kill
            return
        kill(process)
        after = time.time() - began
        lost = after + began - max(began, last_checkpoint(work, stage))
        how = "resume" if (index + number) % 2 else "a new run"
        words = ("resume", "--origin-run-id", run_id) if how == "resume" else ("run", *OPTIONS)
        yield Kill(number, stage, after, how, lost, kept_batches(work), size(work))
    (work / "next").write_text(json.dumps(words))


def last_checkpoint(work: Path, stage: str) -> float:
    """When the last checkpoint or batch of a stage was complete; 0 where there is none."""
    manifests = (work / ".metaflow").glob(f"spa.store/*/*/*/{stage}/checkpoints/**/manifest.json")
    return max((path.stat().st_mtime for path in manifests), default=0.0)


def kept_batches(work: Path) -> frozenset[int]:
    """Numbers of self-play's whole batches in the datastore; a finished stage keeps none."""
    found = (work / ".metaflow").glob("spa.store/**/batches/*/*/batch_*/manifest.json")
    return frozenset(int(path.parent.name.removeprefix("batch_")) for path in found)


def repeated(work: Path, each: Kill) -> int:
    """How many of the batches that a kill left were played again after it, by the log."""
    played = {int(number) for number in PLAYED.findall(tail(work, each.log_size))}
    return len(played & each.batches)


def run_chain(number: int, root: Path, calm: Calm, seed: int) -> Chain:
    """One chain from its first start to the comparison."""
    work = root / f"chain_{number}"
    work.mkdir()
    chain = Chain(work)
    for each in disturb(work, number, calm.lengths, random.Random(f"{seed} {number}")):
        chain.kills.append(each)
        print(f"chain {number}: killed {each.stage} after {each.after_s:.1f} s", flush=True)
    words = (
        json.loads((work / "next").read_text()) if (work / "next").exists() else ["run", *OPTIONS]
    )
    found = outcome(work, finish(work, *words))
    for each in chain.kills:
        each.repeated = repeated(work, each)
    chain.differences = [key for key, value in calm.outcome.items() if found[key] != value]
    chain.is_equal = not chain.differences
    print(f"chain {number}: {'equal' if chain.is_equal else chain.differences}", flush=True)
    return chain


def report(chains: list[Chain], lengths: dict[str, float], seed: int) -> str:
    """The table, as Markdown."""
    kills = [each for chain in chains for each in chain.kills]
    lines = [
        f"{len(kills)} kills in {len(chains)} flows (seed {seed}); "
        f"{sum(chain.is_equal for chain in chains)} of {len(chains)} ended with the weights and "
        "scores of an undisturbed flow.",
        "",
        "| stage | usual length | kills | at (s) | taken up by | work lost: mean, most |",
        "|---|---|---|---|---|---|",
    ]
    for stage in STAGES:
        own = [each for each in kills if each.stage == stage]
        moments = ", ".join(f"{each.after_s:.1f}" for each in sorted(own, key=lambda k: k.after_s))
        resumed = sum(each.taken_up_by == "resume" for each in own)
        lost = [each.lost_s for each in own] or [0.0]
        lines.append(
            f"| `{stage}` | {lengths[stage]:.1f} s | {len(own)} | {moments} | resume {resumed}, "
            f"a new run {len(own) - resumed} | {sum(lost) / len(lost):.1f} s, {max(lost):.1f} s |"
        )
    kept = sum(len(each.batches) for each in kills)
    again = sum(each.repeated for each in kills)
    lines += ["", f"Of {kept} batches of self-play that were kept when a kill came, {again} were "
              "played again."]  # fmt: skip
    return "\n".join(lines) + "\n"


def undisturbed(work: Path) -> Calm:
    """Run a flow in a new directory, and let it be."""
    work.mkdir()
    run_id = finish(work, "run", *OPTIONS)
    return Calm(work, run_id, outcome(work, run_id), durations(work))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chains", type=int, default=10, help="five kills each (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="write the table there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spa-chaos-") as root:
        calm = undisturbed(Path(root) / "calm")
        chains = [
            run_chain(number, Path(root), calm, options.seed) for number in range(options.chains)
        ]
    table = report(chains, calm.lengths, options.seed)
    print(table)
    if options.report is not None:
        options.report.write_text(table)
    sys.exit(not all(chain.is_equal for chain in chains))


if __name__ == "__main__":
    main()
