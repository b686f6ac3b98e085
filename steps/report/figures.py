"""Figures as PNG bytes: numbers in, picture out.

Matplotlib's object interface with the Agg canvas only: no `pyplot`, hence no global state, no
display and no figure left open in a long process. Lines carry their names at their ends instead
of in a legend; random floor and optimal ceiling are drawn wherever a success rate is.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from steps.report.series import Arm, Phase, Series, known_points, mean_curve, running_mean

COLOURS = ("#1f5fa8", "#d1702a", "#3c8a5a", "#8a4f9e", "#a83244", "#5b6770", "#b08d1e", "#2a8c9a")
"""Taken in this order; the first two differ in brightness, too, for the colour-blind."""
INK, FAINT, GRID = "#24292f", "#6e7781", "#e4e7eb"
DPI = 160
_LABEL_GAP = 0.055
"""Least distance of two labels at the right edge, as a share of the axes' height."""
_SWEEPS = 100
_MARKED_POINTS = 12
"""A line of so few points shows where they are."""
NOISY_POINTS = 60
"""A rate of so many steps is drawn with its running mean."""
_MEAN_SHARE = 20
"""A running mean spans this fraction of a line's points."""
_NOISE = 1e-9
"""What is nearer to zero is rounding, and is written as zero."""


def curve(
    series: Sequence[Series],
    *,
    floor: float | None = None,
    ceiling: float | None = None,
    title: str = "",
    xlabel: str = "step",
    ylabel: str = "",
    is_rate: bool = False,
) -> bytes:
    """Lines over steps. A rate keeps the axis 0 to 1, however little it moves.

    A rate of many steps is faint, since each step's share is noisy, under its running mean.
    """
    figure, axes = _frame(title, xlabel, ylabel, size=(6.4, 3.4))
    ends: list[tuple[float, str, str]] = []
    for index, each in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        x, y = known_points(each)
        if is_rate and len(x) >= NOISY_POINTS:
            axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.3)
            y = np.array(running_mean(y.tolist(), len(x) // _MEAN_SHARE))
        marker = "o" if len(x) <= _MARKED_POINTS else None
        axes.plot(x, y, color=colour, linewidth=1.8, marker=marker, markersize=4.5)
        if len(each.low):
            axes.fill_between(each.x, each.low, each.high, color=colour, alpha=0.14, linewidth=0)
        if len(y):
            ends.append((y[-1], f"{each.name} {_short(y[-1])}", colour))
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    ends += _bounds(axes, floor, ceiling)
    if is_rate or floor is not None or ceiling is not None:
        _rate_axis(axes)
    _end_labels(axes, ends)
    return png(figure)


def pass_curve(models: Mapping[str, Mapping[str, Any]], *, title: str = "") -> bytes:
    """Pass@k over k, a line a model, each with its band, k on a logarithmic axis.

    A model's scores hold `pass@k`, `pass@k_low` and `pass@k_high`; floor and ceiling, those of a
    single try, are read off the first.
    """
    figure, axes = _frame(title, "k: tries", "share of puzzles solved", size=(6.4, 3.4))
    ends: list[tuple[float, str, str]] = []
    ticks: set[int] = set()
    for index, (name, scores) in enumerate(models.items()):
        colour = COLOURS[index % len(COLOURS)]
        ks = sorted(int(key[5:]) for key in scores if key[5:].isdigit() and scores[key] is not None)
        y, low, high = ([scores[f"pass@{k}{end}"] for k in ks] for end in ("", "_low", "_high"))
        axes.plot(ks, y, color=colour, linewidth=1.8, marker="o", markersize=4)
        axes.fill_between(ks, low, high, color=colour, alpha=0.14, linewidth=0)
        ticks.update(ks)
        if y:
            ends.append((y[-1], f"{name} {_short(y[-1])}".strip(), colour))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value)}"))
    bounds = next(iter(models.values()), {})
    ends += _bounds(axes, bounds.get("floor"), bounds.get("ceiling"), of=", one try")
    _rate_axis(axes)
    _end_labels(axes, ends)
    return png(figure)


def learning_race(
    arms: Sequence[Arm],
    *,
    floor: float | None = None,
    ceiling: float | None = None,
    title: str = "",
    xlabel: str = "minutes since the start, all stages included",
    ylabel: str = "success rate",
    phases: Sequence[Phase] = (),
) -> bytes:
    """Success over time for several recipes: a thin line for each seed, a thick one for their mean.

    The mean runs over the stretch that all seeds of the arm cover, read between their points.
    """
    figure, axes = _frame(title, xlabel, ylabel, size=(8.6, 4.5))
    ends: list[tuple[float, str, str]] = []
    for index, arm in enumerate(arms):
        colour = COLOURS[index % len(COLOURS)]
        for run in arm.runs:
            axes.plot(*known_points(run), color=colour, linewidth=0.9, alpha=0.45)
        x, y = mean_curve(arm.runs)
        axes.plot(x, y, color=colour, linewidth=2.8, solid_capstyle="round")
        if len(y):
            seeds = f" ({len(arm.runs)} seeds)" if len(arm.runs) > 1 else ""
            ends.append((float(y[-1]), f"{arm.name} {y[-1]:.2f}{seeds}", colour))
    _phases(axes, phases)
    ends += _bounds(axes, floor, ceiling)
    _rate_axis(axes)
    axes.set_xlim(left=0)
    _end_labels(axes, ends, bold=True)
    return png(figure, dpi=200)


def drop_reasons(kept: int, dropped: Mapping[str, int], *, title: str = "") -> bytes:
    """What a filter kept and dropped, as bars with counts and shares."""
    reasons = sorted(((n, name) for name, n in dropped.items() if n), reverse=True)
    bars = [("kept", kept, COLOURS[0])]
    bars += [(name.replace("_", " "), n, COLOURS[1]) for n, name in reasons]
    return _bars(bars, total=kept + sum(dropped.values()), title=title)


def between_bounds(
    rates: Mapping[str, tuple[float, float, float]],
    *,
    floor: float | None = None,
    ceiling: float | None = None,
    title: str = "",
) -> bytes:
    """Rates with their intervals (value, low, high) on one axis between floor and ceiling."""
    height = 1.15 + 0.42 * len(rates)
    figure, axes = _frame(title, "success rate", "", size=(6.4, height))
    for row, (value, low, high) in enumerate(rates.values()):
        colour = COLOURS[row % len(COLOURS)]
        axes.plot([low, high], [row, row], color=colour, linewidth=5, alpha=0.3)
        axes.plot([value], [row], "o", color=colour, markersize=7)
        axes.annotate(
            f"{value:.2f}",
            (value, row),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    axes.yaxis.set_major_locator(FixedLocator(range(len(rates))))
    axes.set_yticklabels(list(rates))
    axes.set_ylim(len(rates) - 0.4, -0.75)
    axes.set_xlim(-0.02, 1.02)
    axes.grid(axis="y", visible=False)
    for bound, name in ((floor, "random"), (ceiling, "optimal")):
        if bound is not None:
            axes.axvline(bound, color=FAINT, linewidth=1, linestyle=(0, (5, 3)))
            axes.annotate(
                f"{name} {bound:.2f}",
                (bound, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=8,
                color=FAINT,
            )
    axes.set_title(title, pad=18, **_TITLE)
    return png(figure)


_TITLE: dict[str, Any] = {"loc": "left", "fontsize": 10.5, "fontweight": "bold", "color": INK}


def canvas(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """An empty figure of `size` inches with one pair of axes."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def grid(
    size: tuple[float, float], heights: Sequence[float], widths: Sequence[float] = (1.0,)
) -> tuple[Figure, Any]:
    """An empty figure and its axes, an array of rows of these heights; columns share their x."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    ratios = {"height_ratios": list(heights), "width_ratios": list(widths)}
    shape = len(heights), len(widths)
    return figure, figure.subplots(*shape, squeeze=False, sharex="col", gridspec_kw=ratios)


def png(figure: Figure, dpi: int = DPI) -> bytes:
    """The figure as a file's content, the same for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def _frame(
    title: str, xlabel: str, ylabel: str, *, size: tuple[float, float]
) -> tuple[Figure, Axes]:
    figure, axes = canvas(size)
    style(axes, title, xlabel, ylabel)
    return figure, axes


def style(axes: Axes, title: str = "", xlabel: str = "", ylabel: str = "") -> None:
    """The house's look: two spines, a pale grid, a title at the left."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=8.5, length=3)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.set_title(title, pad=10, **_TITLE)


def _rate_axis(axes: Axes) -> None:
    axes.set_ylim(0, 1.03)  # a line at 1 keeps its width
    axes.yaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1.0]))


def _bounds(
    axes: Axes, floor: float | None, ceiling: float | None, *, of: str = ""
) -> list[tuple[float, str, str]]:
    """Draw floor and ceiling; returns their names for the right edge, where no curve runs."""
    ends = []
    for bound, name in ((floor, "random play"), (ceiling, "optimal play")):
        if bound is not None:
            axes.axhline(bound, color=FAINT, linewidth=1.1, linestyle=(0, (5, 3)))
            ends.append((bound, f"{name}{of} {bound:.2f}", FAINT))
    return ends


def _phases(axes: Axes, phases: Iterable[Phase]) -> None:
    for phase in phases:
        axes.axvspan(phase.start, phase.end, color="#f1f3f5", linewidth=0, zorder=0)
        axes.annotate(
            phase.name,
            ((phase.start + phase.end) / 2, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
            color=FAINT,
        )


def _end_labels(axes: Axes, ends: Sequence[tuple[float, str, str]], *, bold: bool = False) -> None:
    """Names at the right edge, at the height of their line's end, pushed apart where too close."""
    bottom, top = axes.get_ylim()
    span = (top - bottom) or 1.0
    heights = spread([(y - bottom) / span for y, _, _ in ends], _LABEL_GAP)
    for height, (_, text, colour) in zip(heights, ends, strict=True):
        axes.annotate(
            text,
            (1, height),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colour,
            fontweight="bold" if bold and colour != FAINT else "normal",
            annotation_clip=False,
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Heights moved until any two are `gap` apart, order kept, between 0 and 1 where all fit."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = list(heights)
    for _ in range(_SWEEPS):
        for below, above in itertools.pairwise(order):
            missing = gap - (placed[above] - placed[below])
            if missing > 0:
                placed[below] -= missing / 2
                placed[above] += missing / 2
        for index in order:
            placed[index] = min(max(placed[index], 0.0), 1.0)
    return placed


def _bars(bars: Sequence[tuple[str, int, str]], *, total: int, title: str) -> bytes:
    figure, axes = _frame(title, "", "", size=(6.4, 0.8 + 0.3 * len(bars)))
    largest = max(n for _, n, _ in bars) or 1
    for row, (_, n, colour) in enumerate(bars):
        axes.barh(row, n, color=colour, height=0.66)
        share = f"  {n:,}  ({share_text(n, total)})" if total else f"  {n:,}"
        axes.text(n, row, share, va="center", fontsize=8.5, color=INK)
    axes.yaxis.set_major_locator(FixedLocator(range(len(bars))))
    axes.set_yticklabels([name for name, _, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, largest * 1.25)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value):,}"))
    axes.grid(axis="y", visible=False)
    return png(figure)


def share_text(n: int, total: int) -> str:
    """A share in per cent that says neither 0 nor 100 where it is neither."""
    if 0 < n < 0.0005 * total:
        return "<0.1%"
    if 0.9995 * total < n < total:
        return ">99.9%"
    return f"{n / total:.1%}"


def _short(value: float) -> str:
    """Two digits after the point, or two significant ones for small and three for large numbers."""
    if abs(value) < _NOISE:
        return "0"
    return f"{value:.2f}" if 0.01 <= abs(value) < 1000 else f"{value:.{2 if value < 1 else 3}g}"
