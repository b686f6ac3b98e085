"""Rows of the table: runs of one arm with several seeds, their means, and how sure those are.

A row's runs differ in their seed alone; where they differ in more they become several rows, and a
line says in what. An interval is one of three, by the number of seeds:

- one: the bootstrap over test puzzles that the evaluation made;
- two: the range of the two;
- three or more: Student's t over the seeds, at 95%, cut to 0..1.

The puzzles are the same for every seed, so that the last two don't hold the luck of the puzzles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import conf
from steps.report.exports import Played
from steps.report.published import Published, published_row
from steps.report.tables import NONE, number, pass_keys

ORDER = (
    "vanilla_rl",
    "state_estimation_rl",
    "vagen_reward",
    "spa",
    "spa_coords",
    "spa_masked_states",
    "spa_self_belief",
    "spa_random_coords",
    "spa_no_coords",
    "spa_random_policy",
    "spa_raw_unfiltered",
)
"""Arms as the paper tells of them; others follow by name."""
INCIDENTAL = ("seed", "cluster", "profile")
"""Settings that two runs of one row may differ in, besides those without effect."""
BEFORE = "after_sft"
"""The summary's name of the model that PPO started from."""
_MARKS = {"range": " r", "t": " t"}
_MIN_T = 3
_MAX_NAMED = 2
"""Settings that a split row is named by; the line below the table has all."""
# Student's t at 97.5% by degrees of freedom, from 1 on; beyond the table the last one, rounded up.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.043),
)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds with its interval; `kind` is bootstrap, range, t, or empty for none."""

    value: float
    low: float | None = None
    high: float | None = None
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Runs of one arm on one environment with one model, one a seed and model to start from."""

    env_id: str
    experiment: str
    model: str
    runs: tuple[Played, ...]
    variant: str = ""
    """What sets it apart from another row of the same arm."""

    @property
    def arm(self) -> str:
        """Experiment and what sets it apart."""
        return f"{self.experiment} ({self.variant})" if self.variant else self.experiment

    @property
    def short_arm(self) -> str:
        """The same for a picture: a split row's number."""
        place = self.variant.split(":")[0]
        return f"{self.experiment} ({place})" if place else self.experiment

    @property
    def published(self) -> Published | None:
        """The paper's row."""
        model = "" if self.runs[0].settings["model.from_scratch"] else self.model
        return published_row(self.experiment, self.env_id, model)

    @property
    def ks(self) -> list[int]:
        """Every k of Pass@k that all runs measured."""
        measured = [
            {int(key[5:]) for key in pass_keys(run.summary) if run.summary[key] is not None}
            for run in self.runs
        ]
        return sorted(set.intersection(*measured))

    def score(self, key: str, *, before: bool = False) -> Estimate | None:
        """Mean of a score of the final model, or of the one before PPO."""
        found = [_scores(run, before=before) for run in self.runs]
        if any(each.get(key) is None for each in found):
            return None
        values = [float(each[key]) for each in found]
        if len(values) == 1:
            low, high = (found[0].get(f"{key}_{end}") for end in ("low", "high"))
            kind = "" if low is None or high is None else "bootstrap"
            return Estimate(value=values[0], low=low, high=high, kind=kind)
        return estimate(values)

    def mean(self, of: Callable[[Played], float | None]) -> float | None:
        """Mean of a fact that every run has."""
        values = [of(run) for run in self.runs]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None

    @property
    def attainable(self) -> Estimate | None:
        """Share of the way from random to optimal play; an interval as that of Pass@1."""
        rate, floor, ceiling = (self.score(key) for key in ("pass@1", "floor", "ceiling"))
        if rate is None or floor is None or ceiling is None or ceiling.value <= floor.value:
            return None
        span = ceiling.value - floor.value
        low, high = (
            None if end is None else (end - floor.value) / span for end in (rate.low, rate.high)
        )
        return Estimate(value=(rate.value - floor.value) / span, low=low, high=high, kind=rate.kind)


def estimate(values: Sequence[float]) -> Estimate:
    """Mean over two or more seeds, with its range or, from three on, Student's interval."""
    mean = fmean(values)
    if len(values) < _MIN_T:
        return Estimate(value=mean, low=min(values), high=max(values), kind="range")
    reach = _T[min(len(values) - 1, len(_T)) - 1] * stdev(values) / math.sqrt(len(values))
    return Estimate(value=mean, low=max(0.0, mean - reach), high=min(1.0, mean + reach), kind="t")


def estimate_text(found: Estimate | None) -> str:
    """A mean with its interval; `r` after it marks a range, `t` Student's."""
    if found is None:
        return NONE
    if found.low is None or found.high is None or found.low == found.high:
        return number(found.value)
    return f"{found.value:.3f} [{found.low:.2f}, {found.high:.2f}]{_MARKS.get(found.kind, '')}"


def value_of(found: Estimate | None) -> float | None:
    """The mean alone."""
    return None if found is None else found.value


def rows_of(played: Iterable[Played]) -> tuple[list[Row], list[str]]:
    """Rows by environment and arm, and a line for each split and for each run left out."""
    groups: dict[tuple[str, str, str], list[Played]] = {}
    for run in sorted(played, key=lambda each: each.began):
        groups.setdefault((run.env_id, run.experiment, run.model), []).append(run)
    rows: list[Row] = []
    lines: list[str] = []
    for (env_id, experiment, model), runs in groups.items():
        parts = _split(runs)
        keys = differing(part[0].settings for part in parts)
        if len(parts) > 1:
            lines.append(_split_line(f"{experiment} on {env_id} with {model}", parts, keys))
        for index, part in enumerate(parts, start=1):
            row = Row(
                env_id=env_id,
                experiment=experiment,
                model=model,
                runs=_one_a_seed(part, lines),
                variant=_variant(index, part[0].settings, keys) if keys else "",
            )
            lines += _commit_lines(row)
            rows.append(row)
    return sorted(rows, key=_place), lines


def differing(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Keys that set some settings apart, but for those that don't matter to a result."""
    found = list(settings)
    keys = dict.fromkeys(key for each in found for key in each)
    return [
        key
        for key in keys
        if not _is_incidental(key) and any(each.get(key) != found[0].get(key) for each in found)
    ]


def _split(runs: Sequence[Played]) -> list[list[Played]]:
    parts: list[list[Played]] = []
    for run in runs:
        for part in parts:
            if not differing((part[0].settings, run.settings)):
                part.append(run)
                break
        else:
            parts.append([run])
    return parts


def _variant(index: int, settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    named = [f"{key} {_text(settings.get(key))}" for key in keys[:_MAX_NAMED]]
    return ", ".join([f"{index}: {named[0]}", *named[1:], *(["…"] * (len(keys) > _MAX_NAMED))])


def _split_line(what: str, parts: Sequence[Sequence[Played]], keys: Sequence[str]) -> str:
    differences = "; ".join(
        f"{key} " + " | ".join(_text(part[0].settings.get(key)) for part in parts) for key in keys
    )
    return (
        f"{what} is split into {len(parts)} rows, whose runs differ in more than the seed: "
        f"{differences}."
    )


def _one_a_seed(runs: Sequence[Played], lines: list[str]) -> tuple[Played, ...]:
    """The last run of each seed and origin: one that was run twice counts once."""
    last = {(run.seed, run.origin): run for run in runs}
    for run in runs:
        if last[run.seed, run.origin] is not run:
            other = last[run.seed, run.origin].name
            lines.append(f"{run.name}: seed {run.seed} was run again as {other}, which counts.")
    return tuple(last[key] for key in sorted(last))


def _commit_lines(row: Row) -> list[str]:
    """A line where the runs of a row are of different code."""
    names: dict[str, list[str]] = {}
    for run in row.runs:
        known = run.commit.partition("-")
        names.setdefault(known[0][:12] + "".join(known[1:]), []).append(run.name)
    if len(names.keys() - {"", "unknown"}) < 2:
        return []
    each = "; ".join(f"{commit or 'unknown'}: {', '.join(runs)}" for commit, runs in names.items())
    return [f"{row.arm} on {row.env_id} with {row.model} is of different commits: {each}."]


def _scores(run: Played, *, before: bool) -> Mapping[str, Any]:
    nested: Mapping[str, Any] = run.summary.get(BEFORE, {}) if before else run.summary
    return nested


def _place(row: Row) -> tuple[str, int, str, str, str]:
    place = ORDER.index(row.experiment) if row.experiment in ORDER else len(ORDER)
    return row.env_id, place, row.experiment, row.model, row.variant


def _is_incidental(key: str) -> bool:
    return key in INCIDENTAL or not conf.has_effect(key)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
