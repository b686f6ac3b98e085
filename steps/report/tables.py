"""Scores in words and rows: the headline, the summary table, and how a number is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table as TerminalTable
from rich.text import Text

from steps.report.records import Table

Result = Mapping[str, Any]
NONE = "–"
MODEL_NAMES = {"final": "after PPO", "after_sft": "after SFT"}
BOUNDS = {
    "greedy_success": "success at temperature 0",
    "floor": "random play",
    "ceiling": "optimal play",
    "attainable": "share of the attainable",
    "n": "episodes",
    "puzzles": "puzzles",
}
WORLD_MODEL = {
    "format_rate": "well-formed answers",
    "observation_exact": "observation right",
    "observation_cells": "observation, cells right",
    "observation_entities": "observation, entities right",
    "prediction_exact": "prediction came true",
    "prediction_cells": "prediction, cells right",
    "prediction_entities": "prediction, entities right",
    "prediction_possible": "prediction was possible",
    "prediction_probability": "chance of the predicted state",
    "prediction_best": "chance of the likeliest state",
}
TEACHER_FORCED = {
    f"teacher_forced_{span}_{measure}": f"{span}: {words}"
    for span in ("observation", "thought", "prediction", "answer")
    for measure, words in (
        ("exact", "all tokens the first choice"),
        ("tokens", "tokens that are the first choice"),
        ("nll", "nats a token"),
    )
}

LEGEND = (
    "Pass@1: share of episodes solved. Pass@k: share of puzzles solved at least once in k tries. "
    "In brackets: confidence interval."
)
UNSOLVED = "unknown"
"""What stands for optimal play where the game has no exact solver."""
SHARED_STARTS = "new seeds; starts may be those of training"
SUCCESS_COLUMNS = ("Pass@1", "Pass@k", "random play", "optimal play", "episodes", "puzzles")
WORLD_MODEL_COLUMNS = ("well-formed", "observed", "came true", "possible", "chance", "best chance")


def summary_table(summary: Mapping[str, Result]) -> Group:
    """What the end of a run shows in the terminal: a table an environment, 80 columns wide."""
    tables = (_terminal_table(env_id, each) for env_id, each in summary.items())
    every = [scores for each in summary.values() for scores in models_of(each).values()]
    return Group(*tables, Text(_legend(every), style="dim"))


def _legend(every: Sequence[Result]) -> str:
    """What the rows are that are there."""
    sentences = [LEGEND]
    if any(each.get("attainable") is not None for each in every):
        sentences.append("Share of the attainable: of the way from random to optimal play.")
    if any(is_unsolved(each) for each in every):
        sentences.append("Optimal play is unknown where the game has no exact solver.")
    if any(each.get(key) is not None for each in every for key in [*WORLD_MODEL][1:]):
        sentences.append(
            "Rows on answers, observations and predictions: shares of all turns; no prediction can "
            "expect more than the likeliest state's chance."
        )
    elif any(each.get("format_rate") is not None for each in every):
        sentences.append("Well-formed answers: share of all turns.")
    return " ".join(sentences)


def _terminal_table(env_id: str, summary: Result) -> TerminalTable:
    by_model = models_of(summary)
    table = TerminalTable(title=env_id, title_justify="left", title_style="bold", min_width=60)
    table.add_column(f"measured on {puzzles_of(summary, 'unseen puzzles')}")
    for name in by_model:
        table.add_column(model_name(name), justify="right", style="bold" if name == "final" else "")
    for names in (BOUNDS, WORLD_MODEL):
        for row in score_rows(by_model, names, has_pass=names is BOUNDS):
            table.add_row(*row)
        table.add_section()
    return table


def puzzles_of(result: Result, unseen: str) -> str:
    """`unseen` puzzles; in a world of a handful of initial states what they are instead."""
    return SHARED_STARTS if result.get("few_puzzles") else unseen


def score_rows(
    by_model: Mapping[str, Result], names: Mapping[str, str], *, has_pass: bool = False
) -> list[tuple[str, ...]]:
    """A row a measure, a column a model: Pass@k where asked, and `names` that any model has."""
    columns = list(by_model.values())
    passes = [key for each in columns for key in pass_keys(each)] if has_pass else []
    keys = {key: key.replace("pass", "Pass") for key in passes}
    return [
        (name, *(score_text(each, key) for each in columns))
        for key, name in {**keys, **names}.items()
        if any(score_text(each, key) != NONE for each in columns)
    ]


def models_of(summary: Result) -> dict[str, Result]:
    """The scores of each model of a summary: the nested ones, then those of the final model."""
    nested = {name: each for name, each in summary.items() if isinstance(each, Mapping)}
    final = {key: value for key, value in summary.items() if key not in nested}
    return {**nested, "final": final}


def model_name(name: str) -> str:
    """How a model is called in pictures and tables."""
    return MODEL_NAMES.get(name, words(name))


def headline(scores: Result) -> str:
    """One sentence: the rate with all that it must not stand without."""
    if scores.get("pass@1") is None:
        return "No episode was measured."
    sentence = f"Pass@1 **{number(scores['pass@1'])}**{interval_text(scores, 'pass@1')}"
    for key in pass_keys(scores)[1:]:
        sentence += f", {key.replace('pass', 'Pass')} {number(scores[key])}"
    sentence += f" (n = {scores['n']:,} episodes of {scores['puzzles']:,} puzzles)"
    if scores.get("floor") is not None:
        sentence += (
            f"; random play reaches {score_text(scores, 'floor')}, "
            f"optimal play {score_text(scores, 'ceiling')}"
            + (" (the game has no exact solver)" if is_unsolved(scores) else "")
        )
    measured = f" Measured on {SHARED_STARTS}." if scores.get("few_puzzles") else ""
    return f"{sentence}.{measured}"


def success_row(scores: Result) -> tuple[str, ...]:
    """The cells of `SUCCESS_COLUMNS`."""
    largest = pass_keys(scores)[-1:]
    return (
        score_text(scores, "pass@1"),
        *(f"{number(scores[key])} (k={key.split('@')[1]})" for key in largest),
        *([] if largest else [NONE]),
        score_text(scores, "floor"),
        *(score_text(scores, key) for key in ("ceiling", "n", "puzzles")),
    )


def world_model_row(scores: Result) -> tuple[str, ...]:
    """The cells of `WORLD_MODEL_COLUMNS`."""
    keys = (
        "format_rate",
        "observation_exact",
        "prediction_exact",
        "prediction_possible",
        "prediction_probability",
        "prediction_best",
    )
    return tuple(number(scores.get(key)) for key in keys)


def pass_keys(scores: Result) -> list[str]:
    """`pass@1`, `pass@8`, ... as far as they are there, without those of the intervals."""
    keys = [key for key in scores if key.startswith("pass@") and key[5:].isdigit()]
    return sorted(keys, key=lambda key: int(key[5:]))


def is_unsolved(scores: Result) -> bool:
    """Whether optimal play isn't known where random play is: the game has no exact solver."""
    return scores.get("floor") is not None and scores.get("ceiling") is None


def score_text(scores: Result, key: str) -> str:
    """A score with its interval, where it has one."""
    if key == "ceiling" and is_unsolved(scores):
        return UNSOLVED
    return f"{number(scores.get(key))}{interval_text(scores, key)}"


def interval_text(scores: Result, key: str) -> str:
    """The interval of a score in brackets, a blank before it; empty where there is none.

    That of random play is there where it was simulated (`floor_exact` is False), and is narrow
    enough for a third digit.
    """
    low, high = scores.get(f"{key}_low"), scores.get(f"{key}_high")
    if key == "floor":
        is_played = not scores.get("floor_exact", True) and low is not None and high is not None
        return f" [{low:.3f}, {high:.3f}]" if is_played else ""
    return "" if low is None or low == high or high is None else f" [{low:.2f}, {high:.2f}]"


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns for a terminal, the first to the left and the others to the right."""
    lines = [headers, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def facts_table(facts: Mapping[str, Any]) -> Table:
    """Known facts in two columns."""
    rows = ((name, number(value)) for name, value in facts.items() if value is not None)
    return Table(headers=("", ""), rows=tuple(rows))


def number(value: Any) -> str:
    """Three digits after the point for rates, separators for counts, a dash for None."""
    if value is None:
        return NONE
    if isinstance(value, float):
        if value.is_integer() and abs(value) >= 10:
            return f"{int(value):,}"
        return f"{value:.3f}" if 0.001 <= abs(value) < 10 or value == 0 else f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def duration(seconds: float | None) -> str | None:
    """Time as it is said; None stays None."""
    if seconds is None:
        return None
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{seconds:.1f} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def words(name: str) -> str:
    """A key as it is read."""
    return name.replace("_", " ")


def final_scores(summary: Mapping[str, Any]) -> dict[str, float]:
    """What a list of runs is compared by."""
    found = {
        f"{env_id}/{name}{key}": scores.get(key)
        for env_id, each in summary.items()
        for name, scores in {"": each, "after_sft/": each.get("after_sft", {})}.items()
        for key in ("pass@1", "floor", "ceiling")
        if not (name and key != "pass@1")
    }
    return {key: value for key, value in found.items() if value is not None}
