"""Draws success over minutes for finished runs of several recipes: the picture of the README.

    python -m benchmarks.learning_race learning.png --arm SPA=RUN,RUN,RUN --arm "vanilla RL=RUN"

The runs must be in this directory's Metaflow datastore (or the configured one), and of one
environment and setting: floor and ceiling are the first run's. Minutes count from the run's start,
all stages included. Success is that of PPO's own play on fresh training puzzles at temperature 1,
a running mean over ten steps; with `--probes` that of the probes on validation puzzles, which have
the evaluation's budget also where PPO plays with a larger one (`ppo.budget_factor`). The evaluation
on test puzzles is in the runs' summaries.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from metaflow import Run, namespace

from steps.report.figures import learning_race
from steps.report.series import Arm, Phase, Series, running_mean

WINDOW = 10


def minutes_before(run: Run, step: str) -> float:
    """Minutes from the run's start to the start of a step."""
    begun = run["start"].task.created_at
    return float((run[step].task.created_at - begun).total_seconds() / 60)


def series_of(run: Run, *, probes: bool = False) -> Series:
    """Success of PPO's play, or of its probes, over minutes since the run's start."""
    name, window = ("probe/success", 1) if probes else ("rollout/success", WINDOW)
    curve = [point for point in run["ppo_train"].task.data.ppo["curve"] if name in point]
    offset = minutes_before(run, "ppo_train")
    return Series(
        name=run.id,
        x=[offset + point["ppo/seconds"] / 60 for point in curve],
        y=running_mean([point[name] for point in curve], window),
    )


def draw(
    arms: dict[str, list[str]], *, where: str = "", probes: bool = False, flow: str = "SPAFlow"
) -> bytes:
    """The picture as PNG; `arms` maps a name to run ids."""
    namespace(None)
    runs = {name: [Run(f"{flow}/{run}") for run in ids] for name, ids in arms.items()}
    first = next(iter(runs.values()))[0]
    summary = next(iter(first.data.summary.values()))
    env_id = next(iter(first.data.summary))
    sft = Phase(
        name="before PPO",
        start=0.0,
        end=minutes_before(first, "ppo_train"),
    )
    return learning_race(
        [
            Arm(name=name, runs=[series_of(run, probes=probes) for run in found])
            for name, found in runs.items()
        ],
        floor=summary["floor"],
        ceiling=summary["ceiling"],
        title=f"{env_id}: success over time {where}".rstrip(),
        phases=[sft],
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--arm", action="append", required=True, metavar="NAME=RUN[,RUN...]")
    parser.add_argument("--where", default="", help='Machine, for the title: "on two CPU cores".')
    parser.add_argument("--probes", action="store_true", help="draw the probes' success")
    options = parser.parse_args()
    arms = {}
    for text in options.arm:
        name, _, ids = text.partition("=")
        if not ids:
            parser.error(f"--arm {text!r} names no run; write NAME=RUN[,RUN...].")
        arms[name] = ids.split(",")
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    options.picture.write_bytes(draw(arms, where=options.where, probes=options.probes))


if __name__ == "__main__":
    main()
