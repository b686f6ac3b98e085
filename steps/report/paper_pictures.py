"""The table's rows as pictures: rates beside the paper's, and training curves of an environment."""

from __future__ import annotations

import re
from collections.abc import Sequence

from steps.report.arm_figures import Dot, DotPanel, Panel, dots, training
from steps.report.equal import SUCCESS, WINDOW, curve_of, line, own_budget
from steps.report.paper_rows import Row, estimate_text, value_of
from steps.report.published import text_of
from steps.report.series import Series
from steps.report.tables import number

CAPTION = (
    "Bar: interval of Pass@1 (one seed: bootstrap over puzzles; two: their range; three or more: "
    "Student's 95% over seeds).\n× and +: the paper's Pass@1 and Pass@8, in its own setting; ~ "
    "read off a plot."
)
HEADERS = ("Pass@1, Pass@8", "state, next state", "paper")
_WORLD = ("observation_exact", "prediction_possible")
_PASS_8 = "probe/pass@8"
_NO_BOUNDS = (None, None)
_PASS_1 = ("probe/success", "probe/pass@1")
_ALIKE = 0.005
"""Bounds of runs nearer than this are one line."""


def picture(rows: Sequence[Row]) -> bytes:
    """The table as a picture, a panel an environment."""
    panels = [
        DotPanel(title=env_id, dots=[_dot(row) for row in rows if row.env_id == env_id])
        for env_id in dict.fromkeys(row.env_id for row in rows)
    ]
    return dots(panels, headers=HEADERS, caption=CAPTION)


def curves(rows: Sequence[Row]) -> bytes:
    """Training of one environment's arms, over PPO's steps and over its seconds."""
    trained = [row for row in rows if any(map(curve_of, row.runs))]
    probe = _probe_key(trained)
    bounds = (_bound(trained, "floor"), _bound(trained, "ceiling"))
    budget = own_budget(trained)
    # The bounds are of the probes' puzzles and of evaluation's budget.
    of_play = _NO_BOUNDS if budget else bounds
    of_probe = bounds if probe in _PASS_1 else _NO_BOUNDS
    panels = [
        Panel(
            title="Success of play on fresh puzzles" + (f", {budget}" if budget else ""),
            over=_over(trained, SUCCESS, WINDOW),
            floor=of_play[0],
            ceiling=of_play[1],
        ),
        Panel(
            title=_probe_title(probe),
            over=_over(trained, probe, 1),
            floor=of_probe[0],
            ceiling=of_probe[1],
        ),
        Panel(
            title="Predicted next state possible",
            over=_over(trained, "rollout/prediction_possible", WINDOW),
        ),
        Panel(
            title="Entropy, nats a token",
            over=_over(trained, "actor/entropy", WINDOW),
            is_rate=False,
        ),
    ]
    title = f"{rows[0].env_id}: PPO, running means over {WINDOW} steps"
    if any(bound is not None for bound in of_play + of_probe):
        title += " (dashed: random and optimal play of the validation puzzles)"
    return training(panels, title=title)


def _dot(row: Row) -> Dot:
    rate, many = row.score("pass@1"), row.score("pass@8")
    assert rate is not None, row
    paper = row.published
    seeds = [float(run.summary["pass@1"]) for run in row.runs]
    world = (number(value_of(row.score(key))) for key in _WORLD)
    return Dot(
        name=f"{row.short_arm}\n{row.model}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}",
        rate=rate.value,
        low=rate.low,
        high=rate.high,
        seeds=seeds if len(seeds) > 1 else (),
        many=value_of(many),
        paper=None if paper is None else paper.after,
        floor=value_of(row.score("floor")),
        ceiling=value_of(row.score("ceiling")),
        texts=(
            f"{estimate_text(rate)}, {number(value_of(many))}",
            ", ".join(world),
            text_of(paper, is_short=True),
        ),
    )


def _over(rows: Sequence[Row], key: str, window: int) -> dict[str, dict[str, list[Series]]]:
    return {
        label: {arm_name(row, rows): _lines(row, key, unit, window) for row in rows}
        for label, unit in (("PPO steps", "steps"), ("seconds of PPO", "seconds"))
    }


def _lines(row: Row, key: str, unit: str, window: int) -> list[Series]:
    lines = (line(run, key, unit, window=window) for run in row.runs)
    return [each for each in lines if len(each.x)]


def arm_name(row: Row, rows: Sequence[Row]) -> str:
    """What a row is called among `rows`."""
    several = len({each.model for each in rows}) > 1
    seeds = f", {len(row.runs)} seeds" if len(row.runs) > 1 else ""
    return row.short_arm + (f", {row.model}" if several else "") + seeds


def _probe_key(rows: Sequence[Row]) -> str:
    """Pass@8 of the probes; where none has it the largest k, or plain success."""
    entries = [entry for row in rows for run in row.runs for entry in curve_of(run)]
    keys = {key for entry in entries for key in entry if re.fullmatch(r"probe/pass@\d+", key)}
    if _PASS_8 in keys or not keys:
        return _PASS_8 if keys else "probe/success"
    return max(keys, key=lambda key: int(key.split("@")[1]))


def _probe_title(key: str) -> str:
    name = key.removeprefix("probe/").replace("pass", "Pass").replace("success", "Success")
    return f"{name} of probes on validation puzzles"


def _bound(rows: Sequence[Row], key: str) -> float | None:
    """Random or optimal play on the probes' puzzles, where it is the same for all runs."""
    known = [run.ppo[key] for row in rows for run in row.runs if run.ppo.get(key) is not None]
    return known[0] if known and max(known) - min(known) < _ALIKE else None
