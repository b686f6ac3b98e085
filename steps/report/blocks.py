"""Card blocks of each stage: neutral records that a flow turns into its cards.

Input are the plain results of the stages (artifacts, read years later perhaps), so that a missing
key leaves a line out instead of failing. A success rate never stands alone: with it come its
interval, the number of episodes and puzzles, random play and optimal play.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steps.report import figures
from steps.report.episodes import episode_blocks, episode_text, fenced
from steps.report.figures import Series
from steps.report.records import Block, Image, Markdown, Table
from steps.report.tables import (
    BOUNDS,
    SUCCESS_COLUMNS,
    TEACHER_FORCED,
    WORLD_MODEL,
    WORLD_MODEL_COLUMNS,
    Result,
    duration,
    headline,
    model_name,
    models_of,
    number,
    score_rows,
    success_row,
    summary_table,
    words,
    world_model_row,
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
TEACHER_FORCED_WORDS = (
    "The true answers to random play on puzzles that aren't trained on, read by the model token by "
    "token. A prediction stands before its action, so that its tokens hold the choice of the "
    "action, too; the answer is read after the true prediction."
)
WORLD_MODEL_WORDS = (
    "Shares of all turns; a malformed answer counts as wrong. *Came true*: what was predicted is "
    "what happened. *Possible*: it could have happened. *Chance*: how likely the predicted state "
    "was; a perfect model reaches the likeliest state's chance, and no more."
)


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
        _facts(facts),
        *episode_blocks(result, env_kwargs=result.get("env_kwargs")),
    ]


def filter_blocks(result: Result) -> list[Block]:
    """Kept and dropped rows by reason, with examples of each reason."""
    kept, dropped = result.get("kept", 0), result.get("dropped") or {}
    facts = {
        "turns played": result.get("rows"),
        "turns kept": kept,
        "kept for training": result.get("train_rows"),
        "kept for validation": result.get("validation_rows"),
        "puzzles": result.get("puzzles"),
        "puzzles for validation only": result.get("validation_puzzles"),
    }
    blocks: list[Block] = [
        _heading("Filter", "Only turns with a well-formed answer are learned from, each one once."),
        _facts(facts),
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


def sft_blocks(result: Result) -> list[Block]:
    """Losses of the finetuning and what its probe measured."""
    curve = result.get("curve") or []
    losses = {"sft/loss": "training", "sft/validation_loss": "validation"}
    by_part = _lines_below(curve, "sft/validation_loss_")
    return [
        _heading("Supervised finetuning (SFT)", "The model learns to answer as in self-play."),
        _training_facts(result),
        *_picture(
            _lines(curve, losses),
            "Loss, nats a token",
            "Validation is on turns of puzzles that aren't trained on.",
        ),
        *_by_part(by_part),
        *_world_model(result.get("probe")),
        *_probe_breakdowns(result.get("probe") or {}),
        *_teacher_forced({"after SFT": _without_prefix(result.get("probe") or {}, "probe/")}),
        *(block for each in result.get("rounds") or () for block in _round_blocks(each)),
    ]


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
    success = {"rollout/success": "training puzzles", "probe/success": "validation puzzles"}
    world = {
        "rollout/format_rate": "well-formed",
        "rollout/observation_exact": "observation right",
        "rollout/prediction_exact": "prediction came true",
        "rollout/prediction_possible": "prediction possible",
        "rollout/prediction_probability": "chance of prediction",
    }
    forced = {
        "probe/teacher_forced_observation_exact": "observation",
        "probe/teacher_forced_prediction_exact": "prediction and choice of action",
        "probe/teacher_forced_answer_exact": "answer after true prediction",
    }
    anchor = {
        "actor/reference_kl": "from the SFT model",
        "actor/approx_kl": "from the step before",
        "actor/approx_kl_k1": "from the step before (mean of -log ratio)",
    }
    return [
        _heading(
            "Reinforcement learning (PPO)", "Each step plays new puzzles and learns from them."
        ),
        _training_facts(result),
        *_picture(
            _lines(curve, success),
            "Success, share of episodes",
            f"Dashed: random and optimal play on the validation puzzles, {_how_known(result)}."
            if result.get("floor") is not None
            else "Training puzzles are new at every step.",
            is_rate=True,
            floor=result.get("floor"),
            ceiling=result.get("ceiling"),
        ),
        *_pass_over_training(curve, result),
        *_picture(
            _lines(curve, world),
            "World model while it learns to act, share of turns",
            "Falling lines: the model forgets how its world works.",
            is_rate=True,
        ),
        *_picture(
            _lines(curve, forced),
            "True answers that are the model's first choice, share of turns",
            TEACHER_FORCED_WORDS,
            is_rate=True,
        ),
        *_probe_breakdowns(_last_probe(curve)),
        *_picture(
            _lines(curve, anchor),
            "KL divergence, nats a token",
            "How far the model has moved; a sudden rise is a bad sign.",
        ),
        *_picture(
            _lines(curve, {"actor/entropy": "entropy"}),
            "Entropy, nats a token",
            "How undecided the model is; near zero it no longer explores.",
        ),
    ]


def evaluate_blocks(result: Result) -> list[Block]:
    """The measures of every model between floor and ceiling, and three episodes of the last."""
    summary, models = result.get("summary", result), result.get("models") or {}
    by_model = models_of(summary)
    blocks: list[Block] = [Markdown(text=f"## Evaluation\n\n{headline(summary)}")]
    blocks += _between_bounds(summary, title="Pass@1")
    blocks += [_score_table(by_model, BOUNDS, has_pass=True), *_gains(result.get("gains"))]
    if any(scores.get("format_rate") is not None for scores in by_model.values()):
        blocks.append(Markdown(text=f"### World model\n\n{WORLD_MODEL_WORDS}"))
        blocks.append(_score_table(by_model, WORLD_MODEL))
    final = models.get("final") or {}
    for key, name in CLASSES.items():
        blocks += _breakdown(final.get(key), name, title=f"World model {model_name('final')}")
    blocks += _teacher_forced({model_name(name): each for name, each in by_model.items()})
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
    picture = figures.between_bounds(rates, floor=floor, ceiling=ceiling, title=title)
    return [Image(png=picture, label="Share of episodes solved, and its interval")]


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


def _breakdown(classes: Mapping[str, Result] | None, name: str, *, title: str) -> list[Block]:
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


def _probe_breakdowns(probe: Result) -> list[Block]:
    """The same of a probe, whose keys are `probe/by_action/Up/prediction_exact`."""
    blocks: list[Block] = []
    for key, name in CLASSES.items():
        classes: dict[str, dict[str, Any]] = {}
        for path, value in _without_prefix(probe, f"probe/{key}/").items():
            each, _, score = path.rpartition("/")
            classes.setdefault(each, {})[score] = value
        blocks += _breakdown(classes, name, title="World model on puzzles it hasn't seen")
    return blocks


def _how_known(result: Result) -> str:
    return "computed exactly" if result.get("floor_exact", True) else "random play by simulation"


def _last_probe(curve: Sequence[Result]) -> Result:
    """The last row of a curve that has a probe."""
    return next((row for row in reversed(curve) if "probe/success" in row), {})


def _teacher_forced(by_model: Mapping[str, Result]) -> list[Block]:
    """Likelihoods of true answers, a column a model."""
    known = {name: each for name, each in by_model.items() if any(map(each.get, TEACHER_FORCED))}
    if not known:
        return []
    rows = score_rows(known, TEACHER_FORCED)
    return [
        Markdown(text=f"### True answers, read by the model\n\n{TEACHER_FORCED_WORDS}"),
        Table(headers=("", *known), rows=tuple(rows)),
    ]


def _pass_over_training(curve: Sequence[Result], result: Result) -> list[Block]:
    """Pass@k of the probes, where it was measured for more than one k."""
    keys = sorted(
        {
            key
            for row in curve
            for key in row
            if key.startswith("probe/pass@") and key[11:].isdigit()
        },
        key=lambda key: int(key[11:]),
    )
    if len(keys) < 2:
        return []
    return _picture(
        _lines(curve, {key: f"Pass@{key[11:]}" for key in keys}),
        "Pass@k over training, validation puzzles",
        "Bands: intervals over puzzles. Dashed: a single try of random and of optimal play.",
        is_rate=True,
        floor=result.get("floor"),
        ceiling=result.get("ceiling"),
    )


def _without_prefix(result: Result, prefix: str) -> dict[str, Any]:
    return {
        key.removeprefix(prefix): value for key, value in result.items() if key.startswith(prefix)
    }


def _training_facts(result: Result) -> Table:
    known = {**result, "time": duration(result.get("seconds"))}
    return _facts({name: known.get(key) for key, name in TRAINING.items()})


def _by_part(lines: Sequence[Series]) -> list[Block]:
    """Validation loss of tags, states and actions: a table where it was measured only once."""
    title = "Validation loss by part of the answer, nats a token"
    if any(len(line.x) > 1 for line in lines):
        return _picture(lines, title, "The parts of an answer are learned at different speeds.")
    if not lines:
        return []
    return [Markdown(text=f"### {title}"), _facts({line.name: line.y[-1] for line in lines})]


def _world_model(scores: Result | None) -> list[Block]:
    known = {name: (scores or {}).get(f"probe/{key}") for key, name in WORLD_MODEL.items()}
    if all(value is None for value in known.values()):
        return []
    return [
        Markdown(text=f"### World model on puzzles it hasn't seen\n\n{WORLD_MODEL_WORDS}"),
        _facts(known),
    ]


def _picture(
    series: Sequence[Series],
    title: str,
    caption: str,
    *,
    is_rate: bool = False,
    floor: float | None = None,
    ceiling: float | None = None,
) -> list[Block]:
    """A curve, where there is anything to draw."""
    if not series:
        return []
    png = figures.curve(series, title=title, is_rate=is_rate, floor=floor, ceiling=ceiling)
    if is_rate and any(len(each.x) >= figures.NOISY_POINTS for each in series):
        caption += " Faint: single steps; bold: their running mean."
    return [Image(png=png, label=caption)]


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
    ends = [
        [row[f"{key}_{end}"] for row in curve if row.get(f"{key}_{end}") is not None]
        for end in ("low", "high")
    ]
    has_band = all(len(end) == len(points) for end in ends)
    low, high = ends if has_band else ((), ())
    return [Series(name=name, x=steps, y=values, low=low, high=high)]


def _facts(facts: Mapping[str, Any]) -> Table:
    """Known facts in two columns."""
    rows = ((name, number(value)) for name, value in facts.items() if value is not None)
    return Table(headers=("", ""), rows=tuple(rows))
