"""Card blocks of each stage: neutral records that a flow turns into its cards.

Input are the plain results of the stages (artifacts, read years later perhaps), so that a missing
key leaves a line out instead of failing. A success rate never stands alone: with it come its
interval, the number of episodes and puzzles, random play and optimal play.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steps.report import figures
from steps.report.boards import boards, has_boards
from steps.report.figures import Series
from steps.report.tables import (
    BOUNDS,
    SUMMARY_COLUMNS,
    WORLD_MODEL,
    Result,
    headline,
    model_name,
    models_of,
    number,
    score_rows,
    summary_row,
    summary_table,
    words,
)

__all__ = [
    "Block",
    "Image",
    "Markdown",
    "Table",
    "evaluate_blocks",
    "filter_blocks",
    "join_blocks",
    "ppo_blocks",
    "selfplay_blocks",
    "sft_blocks",
    "summary_table",
]

TRAINING = {
    "rows": "rows",
    "steps": "steps",
    "seconds": "seconds",
    "parameters": "parameters",
    "backend": "backend",
    "processes": "processes",
}
PLAY = {
    "turns_per_episode": "turns an episode",
    "actions_per_episode": "actions an episode",
    "effective_actions": "actions that changed something",
    "response_chars": "characters an answer",
    "response_tokens": "tokens an answer",
    "errors": "episodes broken by the policy",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Markdown:
    """Text in Markdown."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of text under headers."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """A picture as PNG bytes, and what it says in words."""

    png: bytes
    label: str


Block = Markdown | Table | Image


def selfplay_blocks(result: Result) -> list[Block]:
    """Counts of a self-play round and three of its episodes."""
    facts = {
        "episodes": result.get("trajectories"),
        "turns": result.get("turns"),
        "success rate": result.get("success_rate"),
        "well-formed answers": result.get("format_rate"),
        "puzzles": result.get("puzzles"),
        "broken by the policy": result.get("broken"),
        "played by": result.get("policy"),
        "round": result.get("round"),
        "seeds": " to ".join(map(str, result.get("seeds") or ())) or None,
        "seconds": result.get("seconds"),
    }
    return [
        Markdown(text="## Self-play\n\nEpisodes that the finetuning data are made from."),
        _facts(facts),
        *_episodes(result),
    ]


def filter_blocks(result: Result) -> list[Block]:
    """Kept and dropped rows by reason, with examples of each reason."""
    kept, dropped = result.get("kept", 0), result.get("dropped") or {}
    facts = {
        "rows": result.get("rows"),
        "kept": kept,
        "of them for training": result.get("train_rows"),
        "of them for validation": result.get("validation_rows"),
        "puzzles": result.get("puzzles"),
        "of them for validation only": result.get("validation_puzzles"),
    }
    blocks: list[Block] = [
        Markdown(text="## Filter\n\nOne row is one turn; only well-formed ones are learned from."),
        _facts(facts),
        Image(
            png=figures.drop_reasons(kept, dropped, title="Rows kept and dropped"),
            label=f"{kept} rows kept, {sum(dropped.values())} dropped",
        ),
    ]
    for reason, texts in (result.get("examples") or {}).items():
        if texts:
            blocks.append(Markdown(text=f"### Dropped: {words(reason)}"))
            blocks.extend(Markdown(text=_fenced(text)) for text in texts)
    return blocks


def sft_blocks(result: Result) -> list[Block]:
    """Losses of the finetuning and what its probe measured."""
    curve = result.get("curve") or []
    losses = {"sft/loss": "training", "sft/validation_loss": "validation"}
    by_part = _lines_below(curve, "sft/validation_loss_")
    return [
        Markdown(text="## Supervised finetuning\n\nThe answers of self-play are imitated."),
        _facts({name: result.get(key) for key, name in TRAINING.items()}),
        *_picture(_lines(curve, losses), "Loss, nats a token"),
        *_picture(by_part, "Validation loss by part of the answer, nats a token"),
        *_world_model(result.get("probe")),
    ]


def ppo_blocks(result: Result) -> list[Block]:
    """Success, world model and health of the training, over its steps."""
    curve = result.get("curve") or []
    success = {"rollout/success": "training puzzles", "probe/success": "validation puzzles"}
    world = {
        "rollout/format_rate": "well-formed",
        "rollout/observation_exact": "observation right",
        "rollout/prediction_exact": "prediction came true",
        "rollout/prediction_possible": "prediction possible",
        "rollout/prediction_probability": "its chance",
    }
    anchor = {"actor/reference_kl": "to the SFT model", "actor/approx_kl": "to the step before"}
    return [
        Markdown(text="## Reinforcement learning\n\nEach step plays fresh puzzles."),
        _facts({name: result.get(key) for key, name in TRAINING.items()}),
        *_picture(
            _lines(curve, success), "Success", True, result.get("floor"), result.get("ceiling")
        ),
        *_picture(_lines(curve, world), "World model while it learns to act", True),
        *_picture(_lines(curve, anchor), "Divergence, nats a token"),
        *_picture(_lines(curve, {"actor/entropy": "entropy"}), "Entropy, nats a token"),
    ]


def evaluate_blocks(result: Result) -> list[Block]:
    """The measures of every model between floor and ceiling, and three episodes of the last."""
    summary, models = result.get("summary", result), result.get("models") or {}
    by_model = models_of(summary)
    rates = {
        model_name(name): (scores["pass@1"], scores["pass@1_low"], scores["pass@1_high"])
        for name, scores in by_model.items()
        if scores.get("pass@1") is not None
    }
    blocks: list[Block] = [Markdown(text=f"## Evaluation\n\n{headline(summary)}")]
    if rates:
        picture = figures.between_bounds(
            rates, floor=summary.get("floor"), ceiling=summary.get("ceiling"), title="Pass@1"
        )
        blocks.append(Image(png=picture, label="Pass@1 of each model, random and optimal play"))
    blocks += [_score_table(by_model), *_gains(result.get("gains"))]
    final = models.get("final") or {}
    blocks += _breakdown(final.get("by_action"), "Action")
    if len(final.get("by_num_actions") or {}) > 1:
        blocks += _breakdown(final["by_num_actions"], "Actions ahead")
    return blocks + _episodes(final)


def join_blocks(summary: Mapping[str, Result]) -> list[Block]:
    """All environments of a run."""
    blocks: list[Block] = [Markdown(text="# Results")]
    for env_id, scores in summary.items():
        blocks.append(Markdown(text=f"**{env_id}**: {headline(scores)}"))
    rows = [
        (env_id, model_name(name), *summary_row(scores))
        for env_id, each in summary.items()
        for name, scores in models_of(each).items()
    ]
    blocks.append(Table(headers=("environment", "model", *SUMMARY_COLUMNS), rows=tuple(rows)))
    return blocks


def _score_table(by_model: Mapping[str, Result]) -> Table:
    rows = score_rows(by_model, {**BOUNDS, **WORLD_MODEL, **PLAY})
    return Table(headers=("", *map(model_name, by_model)), rows=tuple(rows))


def _gains(gains: Mapping[str, Result | None] | None) -> list[Block]:
    return [
        Markdown(
            text=f"Against {model_name(name)}, puzzle by puzzle: {each['gain']:+.3f} "
            f"[{each['low']:+.3f}, {each['high']:+.3f}] over {each['puzzles']} puzzles."
        )
        for name, each in (gains or {}).items()
        if each is not None
    ]


def _breakdown(classes: Mapping[str, Result] | None, name: str) -> list[Block]:
    """World-model scores of each class of turns."""
    if not classes:
        return []
    keys = ["observation_exact", "prediction_exact", "prediction_possible", "prediction_best"]
    rows = [
        (each, number(scores["turns"]), *(number(scores[key]) for key in keys))
        for each, scores in classes.items()
    ]
    headers = (name, "turns", *(WORLD_MODEL[key] for key in keys))
    return [Table(headers=headers, rows=tuple(rows))]


def _world_model(scores: Result | None) -> list[Block]:
    known = {name: (scores or {}).get(f"probe/{key}") for key, name in WORLD_MODEL.items()}
    if all(value is None for value in known.values()):
        return []
    return [Markdown(text="### On puzzles it hasn't learned from"), _facts(known)]


def _episodes(result: Result) -> list[Block]:
    """Sample episodes as pictures of their boards; as text where states have none."""
    blocks: list[Block] = []
    for episode in result.get("sample") or ():
        ending = "success" if episode["success"] else "failure"
        title = f"{episode['env_id']}, seed {episode['env_seed']}: {ending}"
        title += f" ({words(episode['stop_reason'])})"
        if has_boards(episode):
            blocks.append(Image(png=boards(episode, title=title), label=title))
        else:
            blocks.append(Markdown(text=f"**{title}**"))
        blocks.append(Markdown(text=_fenced(episode_text(episode))))
    return blocks


def episode_text(episode: Result, *, max_turns: int = 10) -> str:
    """A transcript to read, an answer as the model wrote it under each state."""
    lines = []
    for turn in episode["turns"][:max_turns]:
        actions = ", ".join(turn["actions"]) or "none"
        chance = turn.get("chance")
        predicted = "" if chance is None else f", predicted state's chance {chance:.2f}"
        lines += [
            f"-- turn {turn['index'] + 1} ({turn['status']})",
            turn["state"],
            turn["response"],
            f"-> played {actions}, reward {turn['reward']:g}{predicted}",
            "",
        ]
    left = len(episode["turns"]) - max_turns
    return "\n".join([*lines, f"and {left} more turns"] if left > 0 else lines).rstrip()


def _picture(
    series: Sequence[Series],
    title: str,
    is_rate: bool = False,
    floor: float | None = None,
    ceiling: float | None = None,
) -> list[Block]:
    """A curve, where there is anything to draw."""
    if not series:
        return []
    png = figures.curve(series, title=title, is_rate=is_rate, floor=floor, ceiling=ceiling)
    return [Image(png=png, label=f"{title}: {', '.join(each.name for each in series)}")]


def _lines(curve: Sequence[Result], names: Mapping[str, str]) -> list[Series]:
    """The lines of those metrics of a curve that are there; `names` says what to call them."""
    return [line for key, name in names.items() for line in _line(curve, key, name)]


def _lines_below(curve: Sequence[Result], prefix: str) -> list[Series]:
    """A line for every metric whose name begins so."""
    keys = dict.fromkeys(key for row in curve for key in row if key.startswith(prefix))
    return [line for key in keys for line in _line(curve, key, words(key.removeprefix(prefix)))]


def _line(curve: Sequence[Result], key: str, name: str) -> list[Series]:
    points = [(row["step"], row[key]) for row in curve if row.get(key) is not None]
    if not points:
        return []
    steps, values = zip(*points, strict=True)
    return [Series(name=name, x=steps, y=values)]


def _facts(facts: Mapping[str, Any]) -> Table:
    """Known facts in two columns."""
    rows = ((name, number(value)) for name, value in facts.items() if value is not None)
    return Table(headers=("", ""), rows=tuple(rows))


def _fenced(text: str) -> str:
    """A code block that no text inside can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
