"""Curves of a training as blocks: the metrics of its rows, drawn where they are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steps.report import figures
from steps.report.records import Block, Image
from steps.report.series import Series
from steps.report.tables import Result, words


def picture(
    series: Sequence[Series],
    title: str,
    caption: str,
    *,
    is_rate: bool = False,
    floor: float | None = None,
    ceiling: float | None = None,
) -> list[Block]:
    """A curve, where there is anything to draw."""
    if not series:
        return []
    png = figures.curve(series, title=title, is_rate=is_rate, floor=floor, ceiling=ceiling)
    if is_rate and any(len(each.x) >= figures.NOISY_POINTS for each in series):
        caption += " Faint: single steps; bold: their running mean."
    return [Image(png=png, label=caption)]


def lines(curve: Sequence[Result], names: Mapping[str, str]) -> list[Series]:
    """The lines of those metrics of a curve that are there; `names` says what to call them."""
    return [line for key, name in names.items() for line in _line(curve, key, name)]


def lines_below(curve: Sequence[Result], prefix: str) -> list[Series]:
    """A line for every metric whose name begins so."""
    keys = dict.fromkeys(key for row in curve for key in row if key.startswith(prefix))
    return [line for key in keys for line in _line(curve, key, words(key.removeprefix(prefix)))]


def _line(curve: Sequence[Result], key: str, name: str) -> list[Series]:
    points = [(row["step"], row[key]) for row in curve if row.get(key) is not None]
    if not points:
        return []
    steps, values = zip(*points, strict=True)
    ends = [
        [row[f"{key}_{end}"] for row in curve if row.get(f"{key}_{end}") is not None]
        for end in ("low", "high")
    ]
    has_band = all(len(end) == len(points) for end in ends)
    low, high = ends if has_band else ((), ())
    return [Series(name=name, x=steps, y=values, low=low, high=high)]


def last_probe(curve: Sequence[Result]) -> Result:
    """The last row of a curve that has a probe."""
    return next((row for row in reversed(curve) if "probe/success" in row), {})


def pass_over_training(curve: Sequence[Result], result: Result) -> list[Block]:
    """Pass@k of the probes, where it was measured for more than one k."""
    keys = sorted(
        {
            key
            for row in curve
            for key in row
            if key.startswith("probe/pass@") and key[11:].isdigit()
        },
        key=lambda key: int(key[11:]),
    )
    if len(keys) < 2:
        return []
    return picture(
        lines(curve, {key: f"Pass@{key[11:]}" for key in keys}),
        "Pass@k over training, validation puzzles",
        "Bands: intervals over puzzles. Dashed: a single try of random and of optimal play.",
        is_rate=True,
        floor=result.get("floor"),
        ceiling=result.get("ceiling"),
    )
