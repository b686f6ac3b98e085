"""Success in each quarter of an evaluation's puzzles, as blocks: where does a model fail?"""

from __future__ import annotations

from collections.abc import Mapping

from steps.report.records import Block, Markdown, Table
from steps.report.tables import Result, number, pass_keys, score_text

DIFFICULTY_WORDS = (
    "Quarters of the puzzles, by how often random play solves each: the hardest it hardly ever "
    "solves, and a model that hasn't learned to plan neither."
)


def by_difficulty(models: Mapping[str, Result]) -> list[Block]:
    """Success in each quarter of the puzzles, a pair of columns a model."""
    known = {
        name: quarters for name, each in models.items() if (quarters := each.get("by_difficulty"))
    }
    if not known:
        return []
    first = next(iter(known.values()))
    keys = [key for key in pass_keys(first["hardest"]) if key != "pass@1"][-1:]
    shown = [(name, key) for name in known for key in ("pass@1", *keys)]
    rows = [
        (
            quarter,
            number(bounds["puzzles"]),
            number(bounds["floor"]),
            score_text(bounds, "ceiling"),
            *(score_text(known[name][quarter], key) for name, key in shown),
        )
        for quarter, bounds in first.items()
    ]
    columns = (f"{key.replace('pass', 'Pass')} {name}" for name, key in shown)
    headers = ("", "puzzles", "random play", "optimal play", *columns)
    return [
        Markdown(text=f"### Success by difficulty\n\n{DIFFICULTY_WORDS}"),
        Table(headers=headers, rows=tuple(rows)),
    ]
