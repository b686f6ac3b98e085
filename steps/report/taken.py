"""The card of a stage that a run didn't compute because it starts from an earlier run's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steps.report.records import Block, Markdown
from steps.report.tables import Result, facts_table

Blocks = Callable[[Result], list[Block]]
FACTS = {
    "run": "run",
    "stage": "stage",
    "env": "environment",
    "directory": "directory",
    "digest": "digest of the files",
}


def unless_taken(blocks: Blocks) -> Blocks:
    """`blocks`, but for a result that was taken from an earlier run."""

    def chosen(result: Result) -> list[Block]:
        return taken_blocks(result) if "taken_from" in result else blocks(result)

    return chosen


def taken_blocks(result: Result) -> list[Block]:
    """Where a result comes from."""
    origin: dict[str, Any] = dict(result["taken_from"])
    facts = {name: origin.get(key) for key, name in FACTS.items()}
    facts |= {"parameters of the model": result.get("parameters")}
    return [
        Markdown(text="## Taken from an earlier run\n\nThis stage was not computed here."),
        facts_table(facts),
    ]
