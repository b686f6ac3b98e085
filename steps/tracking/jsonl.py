"""The lines of a metrics file: written as they come, read back whatever a kill cut short.

Lines, in order; only the metrics are there where tracking is off:
1. `{"run": {...}}`: the MLflow run that they belong to (`steps.tracking.spool` tells its fields).
2. `{"step", "time", "metrics"}`, any number.
3. `{"end": status}`, once the stage has ended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"


def raw_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line as it was written; none where there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


def merged(earlier: Path, own: Path) -> list[dict[str, Any]]:
    """What an earlier attempt had logged, then what only the present one has.

    A line is the same if it has the step and the names of another; the heads of both, and the
    earlier one's end, are left out.
    """
    lines = [line for line in raw_lines(earlier) if "metrics" in line]
    known = {_identity(line) for line in lines}
    own_lines = (line for line in raw_lines(own) if "metrics" in line)
    return lines + [line for line in own_lines if _identity(line) not in known]


def metrics_line(metrics: Mapping[str, float], step: int, time: float) -> dict[str, Any]:
    """The line of one step."""
    values = {key: jsonable(float(value)) for key, value in metrics.items()}
    return {"step": int(step), "time": time, "metrics": values}


def jsonable(value: float) -> float | str:
    """JSON has no word for what isn't finite; `float` reads these back."""
    return value if math.isfinite(value) else str(value)


def end_torn_line(path: Path) -> None:
    """Close a line that a kill cut short, so that the next one stands alone."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, 2)
        if file.read(1) != b"\n":
            file.write(b"\n")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _identity(line: Mapping[str, Any]) -> tuple[int | None, frozenset[str]]:
    return line.get("step"), frozenset(line["metrics"])
