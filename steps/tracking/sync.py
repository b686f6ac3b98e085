"""Catching up: sends what MLflow has missed, from a spool or from the metrics that runs have kept.

A kept file goes through the same door as a spool file, so it may be sent any number of times, and
beside a spool that holds the same lines.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from steps.tracking.feed import drain
from steps.tracking.jsonl import METRICS_FILE, raw_lines
from steps.tracking.spool import feeder_lock
from steps.tracking.store import Store

KEPT_WHOLE = "manifest.json"
"""Beside a metrics file whose stage has ended well."""
PATIENCE_S = 60.0
BUSY = "another process sends this spool and hasn't come to its end"
NO_RUN = "it names no MLflow run: its stage ran with tracking.enabled=false"


class Outcome(NamedTuple):
    """What became of one file."""

    path: Path
    problem: str
    """Why not all of it is in MLflow; empty where it is."""


def sync(place: Path, *, uri: str = "", patience_s: float = PATIENCE_S) -> Iterator[Outcome]:
    """Send a spool folder, a `metrics.jsonl`, or all of these in a folder, and tell of each.

    `uri` is where kept metrics go in place of the store that they name.
    """
    if place.is_dir() and (place / "lock").exists():
        yield from _sync_spool(place, patience_s)
        return
    files = [place] if place.is_file() else sorted(place.rglob(METRICS_FILE), key=_order)
    stores: dict[str, Store] = {}
    done: set[str] = set()
    for path in files:
        lines = list(raw_lines(path))
        head: dict[str, Any] = next((line["run"] for line in lines if "run" in line), {})
        key = str(head.get("key", ""))
        if key and key in done:
            continue
        problem = _sync_kept(head, lines, uri, stores) if key else NO_RUN
        if not problem:
            done.add(key)
        yield Outcome(path, problem)


def _order(path: Path) -> tuple[bool, Path]:
    """Stages that ended well come first: their files hold all that the attempts before had logged.

    So what follows of the same MLflow run is passed over.
    """
    return not (path.parent / KEPT_WHOLE).exists(), path


def _sync_spool(spool: Path, patience_s: float) -> Iterator[Outcome]:
    """A feeding process that is at work is left alone and waited for."""
    deadline = time.monotonic() + patience_s
    while True:
        with feeder_lock(spool) as is_ours:
            if is_ours:
                stores: dict[str, Store] = {}
                for path in sorted(spool.glob("*.jsonl")):
                    yield Outcome(path, drain(path, stores))
                return
        waiting = sorted(spool.glob("*.jsonl"))
        if not waiting:
            return
        if time.monotonic() >= deadline:
            yield from (Outcome(path, BUSY) for path in waiting)
            return
        time.sleep(0.25)


def _sync_kept(
    head: dict[str, Any], lines: list[dict[str, Any]], uri: str, stores: dict[str, Store]
) -> str:
    """Send a copy, which is a spool file in all but its name."""
    head = {**head, "wants_reply": False, **({"uri": uri} if uri else {})}
    body = [{"run": head}, *(line for line in lines if "run" not in line)]
    with tempfile.TemporaryDirectory(prefix="spa-") as scratch:
        copy = Path(scratch) / "kept.jsonl"
        copy.write_text("".join(json.dumps(line) + "\n" for line in body), "utf-8")
        return drain(copy, stores)
