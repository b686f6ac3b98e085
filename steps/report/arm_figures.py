"""Pictures of several arms: their rates beside the paper's, and their training side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steps.report.figures import COLOURS, FAINT, INK, grid, png, style
from steps.report.series import Floats, Series, mean_curve

_ROW = 0.46
"""Inches a row."""
_PANEL = 0.85
"""Inches of a panel besides its rows: title and axis."""
_WIDTHS = (1.0, 0.8)
"""Of the axes and of the text beside them."""
_TEXT_X = (0.0, 0.4, 0.66)
"""Where the columns of text begin, as shares of its width."""
_SHADE = 0.16
_LEGEND = ("Pass@1", "each seed", "Pass@8", "the paper's Pass@1", "the paper's Pass@8")
_PAPER_BELOW = 0.25
"""Rows between our rates and the paper's."""
_FEW_POINTS = 40
"""A line of so few points shows where they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """One row: our rates with their interval, each seed's, and the paper's."""

    name: str
    rate: float
    low: float | None = None
    high: float | None = None
    seeds: Sequence[float] = ()
    many: float | None = None
    """Pass@8."""
    paper: tuple[float, float] | None = None
    floor: float | None = None
    """What random play reaches in the same setting, and optimal play below."""
    ceiling: float | None = None
    texts: Sequence[str] = ()
    """Columns beside the row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DotPanel:
    """The rows of one environment."""

    title: str
    dots: Sequence[Dot]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One metric over two axes: arm -> a line a seed, for each x."""

    title: str
    over: Mapping[str, Mapping[str, Sequence[Series]]]
    """Label of the x axis -> arm -> lines."""
    is_rate: bool = True
    floor: float | None = None
    ceiling: float | None = None


def dots(panels: Sequence[DotPanel], *, headers: Sequence[str] = (), caption: str = "") -> bytes:
    """Filled: Pass@1 with its interval, a tick a seed. Ring: Pass@8. Crosses: the paper's."""
    heights = [_PANEL + _ROW * len(panel.dots) for panel in panels]
    figure, axes = grid((11.5, sum(heights) + 0.9), heights, _WIDTHS)
    drawn: dict[str, Any] = {}
    for (place, beside), panel in zip(axes, panels, strict=True):
        drawn |= _dot_panel(place, panel)
        place.tick_params(labelbottom=True)
        _texts(beside, panel, headers)
    names = [name for name in _LEGEND if name in drawn]
    figure.legend(
        [drawn[name] for name in names],
        names,
        loc="outside upper left",
        ncols=len(names),
        frameon=False,
        fontsize=8.5,
    )
    if caption:
        figure.supxlabel(caption, fontsize=8, color=FAINT, ha="left", x=0.01)
    return png(figure)


def training(panels: Sequence[Panel], *, title: str = "") -> bytes:
    """A metric a row, an x axis a column; lines are arms' means, shaded their seeds' range."""
    xlabels = list(panels[0].over)
    size = (5.2 * len(xlabels), 2.35 * len(panels) + 0.8)
    figure, axes = grid(size, [1.0] * len(panels), [1.0] * len(xlabels))
    arms = list(
        dict.fromkeys(arm for panel in panels for over in panel.over.values() for arm in over)
    )
    colours = {arm: COLOURS[index % len(COLOURS)] for index, arm in enumerate(arms)}
    drawn: dict[str, Any] = {}
    for row, panel in enumerate(panels):
        for column, (xlabel, over) in enumerate(panel.over.items()):
            is_last = row == len(panels) - 1
            place = axes[row, column]
            style(place, panel.title if column == 0 else "", xlabel if is_last else "")
            for arm, lines in over.items():
                drawn |= _arm_line(place, arm, lines, colours[arm])
            _finish(place, panel, named=column == len(xlabels) - 1)
    names = [arm for arm in arms if arm in drawn]
    figure.legend(
        [drawn[arm] for arm in names],
        names,
        loc="outside upper left",
        ncols=min(len(names), 4) or 1,
        frameon=False,
        fontsize=9,
        title=title,
        title_fontproperties={"weight": "bold", "size": 11},
        alignment="left",
    )
    return png(figure)


def seeds_range(lines: Sequence[Series]) -> tuple[Floats, Floats, Floats, Floats]:
    """x, mean, lowest and highest over the stretch that every seed covers."""
    x, mean = mean_curve(lines)
    if not len(x):
        return x, mean, mean, mean
    values = np.array([np.interp(x, *_points(line)) for line in lines])
    return x, mean, values.min(axis=0), values.max(axis=0)


def _dot_panel(axes: Any, panel: DotPanel) -> dict[str, Any]:
    """Draw a panel; returns what stands for each name of the legend."""
    style(axes, panel.title)
    drawn: dict[str, Any] = {}
    for row, dot in enumerate(panel.dots):
        if dot.low is not None and dot.high is not None:
            axes.plot([dot.low, dot.high], [row, row], color=COLOURS[0], linewidth=6, alpha=0.25)
        points: dict[str, tuple[Sequence[float], float, dict[str, Any]]] = {
            "each seed": (dot.seeds, row, {"marker": "|", "markersize": 10}),
            "Pass@1": ([dot.rate], row, {"marker": "o", "markersize": 7}),
            "Pass@8": (_known(dot.many), row, {"marker": "o", "fillstyle": "none"}),
        }
        for name, marker, value in zip(_LEGEND[3:], "x+", dot.paper or (None, None), strict=True):
            paper = {"marker": marker, "color": COLOURS[1], "markeredgewidth": 1.6}
            points[name] = (_known(value), row + _PAPER_BELOW, paper)
        for name, (values, height, look) in points.items():
            if len(values):
                looks = {"linestyle": "none", "color": COLOURS[0], "markersize": 6.5, **look}
                (drawn[name],) = axes.plot(values, [height] * len(values), **looks)
    axes.set_yticks(range(len(panel.dots)), [dot.name for dot in panel.dots])
    axes.set_ylim(len(panel.dots) - 0.5, -0.6)
    axes.set_xlim(-0.02, 1.02)
    axes.grid(axis="y", visible=False)
    _uprights(axes, panel)
    return drawn


def _known(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _texts(axes: Any, panel: DotPanel, headers: Sequence[str]) -> None:
    """Columns of text at the height of the rows."""
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(panel.dots) - 0.5, -0.6)
    for row, dot in enumerate(panel.dots):
        for x, text in zip(_TEXT_X, dot.texts, strict=False):
            axes.text(x, row, text, va="center", fontsize=8.5, color=INK)
    for x, text in zip(_TEXT_X, headers, strict=False):
        axes.text(x, -0.68, text, va="bottom", fontsize=8.5, color=FAINT)


def _uprights(axes: Any, panel: DotPanel) -> None:
    """Random and optimal play: through the panel, or row by row where the rows' settings differ."""
    for name, bounds in (
        ("random", [dot.floor for dot in panel.dots]),
        ("optimal", [dot.ceiling for dot in panel.dots]),
    ):
        known = [(row, bound) for row, bound in enumerate(bounds) if bound is not None]
        for row, bound in known:
            ends = [row - 0.5, row + 0.5]
            axes.plot([bound] * 2, ends, ":", color=FAINT, linewidth=1.4, zorder=0)
        if known:
            is_one = len({round(bound, 3) for _, bound in known}) == 1
            _above(axes, known[0][1], f"{name} {known[0][1]:.2f}" if is_one else name)


def _above(axes: Any, x: float, text: str) -> None:
    axes.annotate(
        text,
        (x, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
        color=FAINT,
    )


def _arm_line(axes: Any, arm: str, lines: Sequence[Series], colour: str) -> dict[str, Any]:
    x, mean, low, high = seeds_range(lines)
    if not len(x):
        return {}
    most = max(len(line.x) for line in lines)
    marker = "o" if len(lines) == 1 and most <= _FEW_POINTS else None
    if len(lines) == 1:
        x, mean = _points(lines[0])
    else:
        axes.fill_between(x, low, high, color=colour, alpha=_SHADE, linewidth=0)
    (drawn,) = axes.plot(x, mean, color=colour, linewidth=2, marker=marker, markersize=3.5)
    return {arm: drawn}


def _finish(axes: Any, panel: Panel, *, named: bool) -> None:
    if panel.is_rate:
        axes.set_ylim(0, 1.03)
        axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.set_xlim(left=0)
    if not axes.lines:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=FAINT)
    for bound, name in ((panel.floor, "random play"), (panel.ceiling, "optimal play")):
        if bound is None:
            continue
        axes.axhline(bound, color=FAINT, linewidth=1.1, linestyle=(0, (5, 3)))
        if named:  # beside the axes, where no curve runs
            axes.annotate(
                f"{name} {bound:.2f}",
                (1, bound),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=FAINT,
                annotation_clip=False,
            )


def _points(line: Series) -> tuple[Floats, Floats]:
    return np.array(line.x, dtype=float), np.array(line.y, dtype=float)
