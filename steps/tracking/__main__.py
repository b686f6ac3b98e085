"""Send metrics to MLflow.

    python -m steps.tracking sync                            the spool under the working directory
    python -m steps.tracking sync .spa/mlflow/spool          a spool
    python -m steps.tracking sync .metaflow/spa.store/SPAFlow/RUN --uri http://host:5000

`sync` sends what waits and tells of each file what became of it; the exit code is 1 where something
still waits. Given a run's folder, or a `metrics.jsonl`, it sends what the stages have kept. Nothing
is logged twice. `feed` is what runs start by themselves: it sends a spool while it grows. `pages`
prints where the server of a local store shows its runs (`make ui`).
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
from contextlib import closing
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
    paging = commands.add_parser("pages", help="where a server shows a local store's runs")
    paging.add_argument("database", type=Path)
    paging.add_argument("server", help="http://host:port")
    arguments = parser.parse_args()
    if arguments.command == "pages":
        sys.stdout.writelines(f"{line}\n" for line in _pages(arguments.database, arguments.server))
        return
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


def _pages(database: Path, server: str) -> list[str]:
    """A line an experiment. The page that MLflow 3 opens an experiment on is for chats and traces;
    only the address or a switch in the browser leads to the runs."""
    query = "SELECT name, experiment_id FROM experiments WHERE lifecycle_stage = 'active'"
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
            found = sorted(store.execute(query))
    except sqlite3.Error:  # no store yet, or one that only the server can read
        return []
    return [
        f"  runs of {name}: {server}/#/experiments/{number}?workflowType=machine_learning"
        for name, number in found
        if name != "Default"
    ]


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
