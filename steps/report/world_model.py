"""World-model scores as blocks: of an evaluation's models and of a training's probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steps.report.records import Block, Markdown, Table
from steps.report.tables import (
    TEACHER_FORCED,
    WORLD_MODEL,
    Result,
    facts_table,
    number,
    puzzles_of,
    score_rows,
)

BY_CLASS = (
    "observation_exact",
    "prediction_exact",
    "prediction_entities",
    "prediction_possible",
    "prediction_best",
)
"""Scores that are told by class of turns."""
CLASSES = {"by_action": "action", "by_num_actions": "actions ahead", "by_effect": "effect"}
"""Breakdowns of the world model's scores: key in a report -> what its classes are of."""
UNSEEN = "puzzles it hasn't seen"
TEACHER_FORCED_WORDS = (
    "The true answers to random play on held-out puzzles, read by the model token by "
    "token. A prediction stands before its action, so that its tokens hold the choice of the "
    "action, too; the answer is read after the true prediction."
)
WORLD_MODEL_WORDS = (
    "Shares of all turns; a malformed answer counts as wrong. *Came true*: what was predicted is "
    "what happened. *Possible*: it could have happened. *Chance*: how likely the predicted state "
    "was; a perfect model reaches the likeliest state's chance, and no more."
)


def probed_world_model(result: Result) -> list[Block]:
    """What a stage's probe measured of it, where it measured any."""
    scores = result.get("probe") or {}
    known = {name: scores.get(f"probe/{key}") for key, name in WORLD_MODEL.items()}
    if all(value is None for value in known.values()):
        return []
    return [
        Markdown(text=f"### {_title(result)}\n\n{WORLD_MODEL_WORDS}"),
        facts_table(known),
    ]


def breakdown(classes: Mapping[str, Result] | None, name: str, *, title: str) -> list[Block]:
    """World-model scores of each class of turns, where there is more than one."""
    if not classes or len(classes) < 2:
        return []
    keys = [
        key for key in WORLD_MODEL if any(each.get(key) is not None for each in classes.values())
    ]
    keys = [key for key in keys if key in BY_CLASS]
    counts = any("turns" in each for each in classes.values())
    rows = [
        (
            each,
            *([number(scores.get("turns"))] if counts else []),
            *(number(scores.get(key)) for key in keys),
        )
        for each, scores in classes.items()
    ]
    headers = (name, *(["turns"] if counts else []), *(WORLD_MODEL[key] for key in keys))
    return [Markdown(text=f"### {title}, by {name}"), Table(headers=headers, rows=tuple(rows))]


def probe_breakdowns(probe: Result, result: Result) -> list[Block]:
    """The same of a probe, whose keys are `probe/by_action/Up/prediction_exact`, of that stage."""
    blocks: list[Block] = []
    for key, name in CLASSES.items():
        classes: dict[str, dict[str, Any]] = {}
        for path, value in without_prefix(probe, f"probe/{key}/").items():
            each, _, score = path.rpartition("/")
            classes.setdefault(each, {})[score] = value
        blocks += breakdown(classes, name, title=_title(result))
    return blocks


def _title(result: Result) -> str:
    return f"World model on {puzzles_of(result, UNSEEN)}"


def teacher_forced(by_model: Mapping[str, Result]) -> list[Block]:
    """Likelihoods of true answers, a column a model."""
    known = {name: each for name, each in by_model.items() if any(map(each.get, TEACHER_FORCED))}
    if not known:
        return []
    rows = score_rows(known, TEACHER_FORCED)
    return [
        Markdown(text=f"### True answers, read by the model\n\n{TEACHER_FORCED_WORDS}"),
        Table(headers=("", *known), rows=tuple(rows)),
    ]


def without_prefix(result: Result, prefix: str) -> dict[str, Any]:
    """What stands under keys that begin so, without their beginning."""
    return {
        key.removeprefix(prefix): value for key, value in result.items() if key.startswith(prefix)
    }
