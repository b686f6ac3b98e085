"""The numbers in a metrics file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steps.tracking.jsonl import raw_lines


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Lines with metrics as they were logged: `step`, `time`, `metrics`; none that a kill cut."""
    found = [line for line in raw_lines(path) if "metrics" in line]
    for line in found:
        line["metrics"] = {key: float(value) for key, value in line["metrics"].items()}
    return found
