"""Arms compared at the same point of PPO: after as many episodes, or after as many seconds.

A point is read off PPO's own play on fresh training puzzles, as a running mean over `WINDOW` steps,
and off the nearest probe on validation puzzles. Seconds are PPO's; finetuning isn't in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from steps.report.exports import Played
from steps.report.paper_rows import Estimate, Row, estimate
from steps.report.series import Series, running_mean

WINDOW = 10
SUCCESS = "rollout/success"
UNITS = ("episodes", "seconds")


@dataclass(frozen=True, kw_only=True)
class AtEqual:
    """One arm at the common point."""

    row: Row
    unit: str
    at: float
    """The smallest of the arms' last points."""
    success: Estimate
    probe: Mapping[str, float]
    """Of the nearest probe, means over seeds: `success`, `pass@8` and so on; may be empty."""
    probe_at: float | None
    """Where that probe was taken, mean over seeds."""


def curve_of(run: Played) -> Sequence[Mapping[str, Any]]:
    """Entries of PPO's steps; none where the run didn't train."""
    curve: Sequence[Mapping[str, Any]] = run.ppo.get("curve") or ()
    return curve


def own_budget(rows: Iterable[Row]) -> str:
    """`1.5 times the actions` where PPO plays with more than evaluation allows, else empty."""
    runs = (run for row in rows for run in row.runs if curve_of(run))
    factors = sorted({float(run.ppo.get("budget_factor", 1.0)) for run in runs})
    if factors in ([], [1.0]):
        return ""
    return f"{' or '.join(f'{factor:g}' for factor in factors)} times the actions"


def at_equal(rows: Sequence[Row], unit: str) -> list[AtEqual]:
    """Every arm of each environment at its common point, but those of `without_curve`."""
    by_env: dict[str, list[Row]] = {}
    for row in rows:
        if all(curve_of(run) for run in row.runs):
            by_env.setdefault(row.env_id, []).append(row)
    found = []
    for trained in by_env.values():
        common = min(place(run, curve_of(run)[-1], unit) for row in trained for run in row.runs)
        found += [_at(row, unit, common) for row in trained]
    return found


def without_curve(rows: Sequence[Row]) -> list[str]:
    """A line on each arm that can't be compared, since some run of it has no steps of PPO."""
    lines = []
    for row in rows:
        bare = [run.run for run in row.runs if not curve_of(run)]
        if bare:
            lines.append(
                f"{row.env_id}, {row.arm}, {row.model}: no steps of PPO in {', '.join(bare)}"
            )
    return lines


def place(run: Played, entry: Mapping[str, Any], unit: str) -> float:
    """Where in the training an entry is, in episodes, seconds or steps."""
    if unit == "seconds":
        return float(entry["ppo/seconds"])
    return float(entry["step"]) * (run.episodes_a_step if unit == "episodes" else 1)


def line(run: Played, key: str, unit: str, *, window: int = 1) -> Series:
    """One metric of one run over PPO; where it wasn't measured there is no point."""
    points = [(place(run, each, unit), float(each[key])) for each in curve_of(run)
              if each.get(key) is not None]  # fmt: skip
    values = running_mean([y for _, y in points], window)
    return Series(name=run.name, x=[x for x, _ in points], y=values)


def _at(row: Row, unit: str, common: float) -> AtEqual:
    values = [_last(line(run, SUCCESS, unit, window=WINDOW), common) for run in row.runs]
    success = estimate(values) if len(values) > 1 else Estimate(value=values[0])
    probes = [probe for run in row.runs if (probe := _probe(run, unit, common)) is not None]
    if len(probes) < len(row.runs):
        return AtEqual(row=row, unit=unit, at=common, success=success, probe={}, probe_at=None)
    keys = [key for key in probes[0][1] if all(key in each for _, each in probes)]
    return AtEqual(
        row=row,
        unit=unit,
        at=common,
        success=success,
        probe={key: fmean(each[key] for _, each in probes) for key in keys},
        probe_at=fmean(where for where, _ in probes),
    )


def _last(series: Series, common: float) -> float:
    """The value at the last step that is not beyond the common point, or at the first one."""
    within = [y for x, y in zip(series.x, series.y, strict=True) if x <= common]
    value = within[-1] if within else series.y[0]
    assert value is not None
    return value


def _probe(run: Played, unit: str, common: float) -> tuple[float, dict[str, float]] | None:
    taken = [each for each in curve_of(run) if each.get("probe/success") is not None]
    if not taken:
        return None
    distance: Callable[[Mapping[str, Any]], float] = lambda entry: abs(  # noqa: E731
        place(run, entry, unit) - common
    )
    nearest = min(taken, key=distance)
    scores = {
        name: float(nearest[f"probe/{name}"])
        for name in ("success", *(key[6:] for key in nearest if key.startswith("probe/pass@")))
        if nearest.get(f"probe/{name}") is not None and not name.endswith(("_low", "_high"))
    }
    return place(run, nearest, unit), scores
