"""Card blocks of each stage: neutral records that a flow turns into its cards.

Input are the plain results of the stages (artifacts, read years later perhaps), so that a missing
key leaves a line out instead of failing. A success rate never stands alone: with it come its
interval, the number of episodes and puzzles, random play and optimal play.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steps.report import figures
from steps.report.curves import last_probe, lines, lines_below, pass_over_training, picture
from steps.report.difficulty import by_difficulty
from steps.report.episodes import episode_blocks, episode_text, fenced
from steps.report.records import Block, Image, Markdown, Table
from steps.report.series import Series
from steps.report.tables import (
    BOUNDS,
    SUCCESS_COLUMNS,
    WORLD_MODEL,
    WORLD_MODEL_COLUMNS,
    Result,
    duration,
    facts_table,
    headline,
    model_name,
    models_of,
    puzzles_of,
    score_rows,
    success_row,
    summary_table,
    words,
    world_model_row,
)
from steps.report.world_model import (
    CLASSES,
    TEACHER_FORCED_WORDS,
    WORLD_MODEL_WORDS,
    breakdown,
    probe_breakdowns,
    probed_world_model,
    teacher_forced,
    without_prefix,
)

__all__ = [
    "Block",
    "Image",
    "Markdown",
    "Table",
    "episode_text",
    "evaluate_blocks",
    "filter_blocks",
    "join_blocks",
    "ppo_blocks",
    "selfplay_blocks",
    "sft_blocks",
    "summary_table",
]

TRAINING = {
    "rows": "turns to imitate",
    "steps": "steps",
    "time": "time",
    "parameters": "parameters of the model",
    "backend": "training backend",
    "processes": "processes",
}
PLAY = {
    "return": "return of an episode",
    "turns_per_episode": "turns an episode",
    "actions_per_episode": "actions an episode",
    "effective_actions": "actions that changed something",
    "valid_actions": "actions that the game knows",
    "response_chars": "characters an answer",
    "response_tokens": "tokens an answer",
    "errors": "episodes broken by the policy",
}
SUCCESS = {"rollout/success": "training puzzles", "probe/success": "validation puzzles"}
WORLD = {
    "rollout/format_rate": "well-formed",
    "rollout/observation_exact": "observation right",
    "rollout/prediction_exact": "prediction came true",
    "rollout/prediction_possible": "prediction possible",
    "rollout/prediction_probability": "chance of prediction",
}
FORCED = {
    "probe/teacher_forced_observation_exact": "observation",
    "probe/teacher_forced_prediction_exact": "prediction and choice of action",
    "probe/teacher_forced_answer_exact": "answer after true prediction",
}
ANCHOR = {
    "actor/reference_kl": "from the SFT model",
    "actor/approx_kl": "from the step before",
    "actor/approx_kl_k1": "from the step before (mean of -log ratio)",
}
"""Metrics of a curve of PPO -> the names of their lines, a picture each."""


def selfplay_blocks(result: Result) -> list[Block]:
    """Counts of a self-play round and three of its episodes."""
    facts = {
        "episodes": result.get("trajectories"),
        "turns": result.get("turns"),
        "success rate": result.get("success_rate"),
        "well-formed answers": result.get("format_rate"),
        "puzzles": result.get("puzzles"),
        "episodes broken by the policy": result.get("broken"),
        "played by": result.get("policy"),
        "round": result.get("round"),
        "seeds": " to ".join(map(str, result.get("seeds") or ())) or None,
        "time": duration(result.get("seconds")),
    }
    truth = ", with the true states written in" if result.get("states") == "truth" else ""
    return [
        _heading("Self-play", f"Episodes of the game, whose turns finetuning imitates{truth}."),
        facts_table(facts),
        *episode_blocks(result, env_kwargs=result.get("env_kwargs")),
    ]


def filter_blocks(result: Result) -> list[Block]:
    """Kept and dropped rows by reason, with examples of each reason."""
    kept, dropped = result.get("kept", 0), result.get("dropped") or {}
    facts = {
        "turns played": result.get("rows"),
        "turns kept": kept,
        "of these different in prompt or answer": result.get("distinct"),
        "kept for training": result.get("train_rows"),
        "kept for validation": result.get("validation_rows"),
        "puzzles": result.get("puzzles"),
        "puzzles for validation only": result.get("validation_puzzles"),
    }
    blocks: list[Block] = [
        _heading("Filter", _filter_words(result.get("settings") or {})),
        facts_table(facts),
        Image(
            png=figures.drop_reasons(kept, dropped, title="Turns kept and dropped"),
            label=f"{kept:,} turns kept, {sum(dropped.values()):,} dropped",
        ),
    ]
    for reason, texts in (result.get("examples") or {}).items():
        if texts:
            blocks.append(Markdown(text=f"### Dropped: {words(reason)}"))
            blocks.extend(Markdown(text=fenced(text)) for text in texts)
    return blocks


def _filter_words(chosen: Result) -> str:
    """What is kept, by the filter's own settings, as far as an artifact holds them."""
    if not chosen.get("enabled", True):
        return "Every turn with an answer is learned from, well-formed or not: the filter is off."
    sentence = "Only turns with a well-formed answer are learned from"
    if "deduplicate" in chosen:
        repeated = "each one once" if chosen["deduplicate"] else "as often as they were played"
        sentence += f", {repeated}"
    share = chosen.get("max_ineffective", 1)
    if share < 1:
        sentence += f"; at most {share:.0%} of them changed nothing (filter.max_ineffective)"
    return f"{sentence}."


def sft_blocks(result: Result) -> list[Block]:
    """Losses of the finetuning and what its probe measured."""
    curve = result.get("curve") or []
    losses = {"sft/loss": "training", "sft/validation_loss": "validation"}
    by_part = lines_below(curve, "sft/validation_loss_")
    held_out = puzzles_of(result, "puzzles that aren't trained on")
    return [
        _heading("Supervised finetuning (SFT)", "The model learns to answer as in self-play."),
        _training_facts(result),
        *picture(
            lines(curve, losses),
            "Loss, nats a token",
            f"Validation is on turns of {held_out}.",
        ),
        *_by_part(by_part),
        *probed_world_model(result),
        *probe_breakdowns(result.get("probe") or {}, result),
        *teacher_forced({"after SFT": without_prefix(result.get("probe") or {}, "probe/")}),
        *(block for each in result.get("rounds") or () for block in _round_blocks(each)),
    ]


def _by_part(parts: Sequence[Series]) -> list[Block]:
    """Validation loss of tags, states and actions: a table where it was measured only once."""
    title = "Validation loss by part of the answer, nats a token"
    if any(len(line.x) > 1 for line in parts):
        return picture(parts, title, "The parts of an answer are learned at different speeds.")
    if not parts:
        return []
    return [Markdown(text=f"### {title}"), facts_table({line.name: line.y[-1] for line in parts})]


def _round_blocks(played: Result) -> list[Block]:
    """Self-play and filter of a later round, which have no card of their own."""
    number_of = played["round"]
    heading = f"## Round {number_of}\n\nThe model of round {number_of - 1} plays for this one."
    return [
        Markdown(text=heading),
        *selfplay_blocks(played["selfplay"]),
        *filter_blocks(played["filter"]),
    ]


def ppo_blocks(result: Result) -> list[Block]:
    """Success, world model and health of the training, over its steps."""
    curve = result.get("curve") or []
    return [
        _heading(
            "Reinforcement learning (PPO)", "Each step plays new puzzles and learns from them."
        ),
        _training_facts(result),
        *_success(curve, result),
        *pass_over_training(curve, result),
        *picture(
            lines(curve, WORLD),
            "World model while it learns to act, share of turns",
            "Falling lines: the model forgets how its world works.",
            is_rate=True,
        ),
        *picture(
            lines(curve, FORCED),
            "True answers that are the model's first choice, share of turns",
            TEACHER_FORCED_WORDS,
            is_rate=True,
        ),
        *probe_breakdowns(last_probe(curve), result),
        *picture(
            lines(curve, ANCHOR),
            "KL divergence, nats a token",
            "How far the model has moved; a sudden rise is a bad sign.",
        ),
        *picture(
            lines(curve, {"actor/entropy": "entropy"}),
            "Entropy, nats a token",
            "How undecided the model is; near zero it no longer explores.",
        ),
    ]


def _success(curve: Sequence[Result], result: Result) -> list[Block]:
    caption = "Training puzzles are new at every step."
    if result.get("floor") is not None:
        is_exact = result.get("floor_exact", True)
        known = "computed exactly" if is_exact else "random play by simulation"
        caption += " Dashed, of other puzzles: random and optimal play on the validation puzzles, "
        caption += f"{known}."
    factor = result.get("budget_factor", 1.0)
    if factor != 1:
        caption += f" Training puzzles are played with {factor:g} times the actions."
    return picture(
        lines(curve, SUCCESS),
        "Success, share of episodes",
        caption,
        is_rate=True,
        floor=result.get("floor"),
        ceiling=result.get("ceiling"),
    )


def evaluate_blocks(result: Result) -> list[Block]:
    """The measures of every model between floor and ceiling, and three episodes of the last."""
    summary, models = result.get("summary", result), result.get("models") or {}
    by_model = models_of(summary)
    blocks: list[Block] = [Markdown(text=f"## Evaluation\n\n{headline(summary)}")]
    blocks += _between_bounds(summary, title="Pass@1")
    blocks += [_score_table(by_model, BOUNDS, has_pass=True), *_gains(result.get("gains"))]
    blocks += by_difficulty({model_name(name): each for name, each in models.items()})
    if any(scores.get("format_rate") is not None for scores in by_model.values()):
        blocks.append(Markdown(text=f"### World model\n\n{WORLD_MODEL_WORDS}"))
        blocks.append(_score_table(by_model, WORLD_MODEL))
    final = models.get("final") or {}
    for key, name in CLASSES.items():
        blocks += breakdown(final.get(key), name, title=f"World model {model_name('final')}")
    blocks += teacher_forced({model_name(name): each for name, each in by_model.items()})
    if any(scores.get(key) is not None for scores in by_model.values() for key in PLAY):
        blocks += [Markdown(text="### Play"), _score_table(by_model, PLAY)]
    settings = result.get("settings") or {}
    return blocks + episode_blocks(final, env_kwargs=settings.get("env_kwargs"))


def join_blocks(summary: Mapping[str, Result]) -> list[Block]:
    """All environments of a run."""
    blocks: list[Block] = [Markdown(text="# Results")]
    for env_id, scores in summary.items():
        blocks.append(Markdown(text=f"**{env_id}**: {headline(scores)}"))
        blocks += _between_bounds(scores, title=f"{env_id}: Pass@1")
    measured = {
        (env_id, model_name(name)): scores
        for env_id, each in summary.items()
        for name, scores in models_of(each).items()
    }
    success = [(*names, *success_row(scores)) for names, scores in measured.items()]
    world = [(*names, *world_model_row(scores)) for names, scores in measured.items()]
    return [
        *blocks,
        Markdown(text="### Success"),
        Table(headers=("environment", "model", *SUCCESS_COLUMNS), rows=tuple(success)),
        Markdown(text=f"### World model\n\n{WORLD_MODEL_WORDS}"),
        Table(headers=("environment", "model", *WORLD_MODEL_COLUMNS), rows=tuple(world)),
    ]


def _heading(title: str, text: str) -> Markdown:
    return Markdown(text=f"## {title}\n\n{text}")


def _training_facts(result: Result) -> Table:
    known = {**result, "time": duration(result.get("seconds"))}
    return facts_table({name: known.get(key) for key, name in TRAINING.items()})


def _between_bounds(summary: Result, *, title: str) -> list[Block]:
    """Pass@1 of each model between random and optimal play."""
    rates = {
        model_name(name): (scores["pass@1"], scores["pass@1_low"], scores["pass@1_high"])
        for name, scores in models_of(summary).items()
        if scores.get("pass@1") is not None
    }
    if not rates:
        return []
    floor, ceiling = summary.get("floor"), summary.get("ceiling")
    png = figures.between_bounds(rates, floor=floor, ceiling=ceiling, title=title)
    return [Image(png=png, label="Share of episodes solved, and its interval")]


def _score_table(
    by_model: Mapping[str, Result], names: Mapping[str, str], *, has_pass: bool = False
) -> Table:
    rows = score_rows(by_model, names, has_pass=has_pass)
    return Table(headers=("", *map(model_name, by_model)), rows=tuple(rows))


def _gains(gains: Mapping[str, Result | None] | None) -> list[Block]:
    return [
        Markdown(
            text=f"Gain in Pass@1 since the model {model_name(name)}, puzzle by puzzle: "
            f"**{each['gain']:+.3f}** [{each['low']:+.3f}, {each['high']:+.3f}] over "
            f"{each['puzzles']} puzzles."
        )
        for name, each in (gains or {}).items()
        if each is not None
    ]
