"""Send metrics to MLflow.

    python -m steps.tracking sync                            the spool under the working directory
    python -m steps.tracking sync .spa/mlflow/spool          a spool
    python -m steps.tracking sync .metaflow/spa.store/SPAFlow/RUN --uri http://host:5000

`sync` sends what waits and tells of each file what became of it; the exit code is 1 where something
still waits. Given a run's folder, or a `metrics.jsonl`, it sends what the stages have kept. Nothing
is logged twice. `feed` is what runs start by themselves: it sends a spool while it grows.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from steps.tracking.feed import LINGER_S, feed
from steps.tracking.spool import CLIENT_SETTINGS, STORE
from steps.tracking.sync import sync


def main() -> None:
    """Command line. Sending has low priority: training comes first."""
    parser = argparse.ArgumentParser(
        prog="python -m steps.tracking",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    feeding = commands.add_parser("feed", help="send a spool while it grows")
    feeding.add_argument("spool", type=Path)
    feeding.add_argument("--linger", type=float, default=LINGER_S, help="seconds to wait for more")
    syncing = commands.add_parser("sync", help="send what waits, once")
    syncing.add_argument("place", nargs="*", type=Path, default=[STORE / "spool"])
    syncing.add_argument("--uri", default="", help="MLflow store or server for kept metrics")
    arguments = parser.parse_args()
    places = [arguments.spool] if arguments.command == "feed" else arguments.place
    for place in places:
        if not place.exists():
            parser.error(f"{place} doesn't exist; name a spool, or run where .spa is.")
    for name, value in CLIENT_SETTINGS.items():
        os.environ.setdefault(name, value)
    if arguments.command == "feed":
        feed(arguments.spool.resolve(), linger_s=arguments.linger, niceness=10)
    else:
        sys.exit(_sync(places, arguments.uri))


def _sync(places: list[Path], uri: str) -> int:
    """Print a line for each file, one kind of problem in full once; 1 where something is left."""
    code, told = 0, set[str]()
    for place in places:
        outcomes = list(sync(place.resolve(), uri=uri))
        for path, problem in outcomes:
            kind = problem.partition(":")[0]  # the rest may hold the run's own address
            print(f"{path}: {'waits, as above' if kind in told else problem or 'sent'}")
            told |= {kind} - {""}
            code |= bool(problem)
        if not outcomes:
            print(f"{place}: nothing waits")
    return code


if __name__ == "__main__":
    main()
