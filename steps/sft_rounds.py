"""Finetuning in rounds (`selfplay.rounds`): from the second on, the model makes its own data.

The first round learns from what the stages before left; each later one plays with the model of the
round before, filters, and goes on learning. The first round's play is on the card of self-play,
those of the later rounds are in this result's `rounds`. Steps count on from round to round: those
of finetuning, self-play's batches, and the filter's one step a round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conf.schema import Config
from steps.filter_format import filter_format
from steps.selfplay_generate import selfplay_generate
from steps.sft_train import sft_train
from steps.tracking import RoundTracker, Tracker


def sft_rounds(
    config: Config,
    *,
    data_dir: Path,
    out_dir: Path,
    checkpoints: Any,
    batches: Any,
    tracker: Tracker,
) -> dict[str, Any]:
    """The last round's result of `sft_train`; `data_dir` holds the rows of the first.

    Its `seconds`, `steps`, `kept_step` and `curve` are those of all rounds' finetuning. With it go,
    as `rounds`, what self-play and filter of each later round counted: a list of
    `{"round", "selfplay", "filter"}`.
    `checkpoints` and `batches` are the stores of those stages.
    """
    model_dir, played, seconds, steps = config.model.path, [], 0.0, 0
    curve: list[dict[str, float]] = []
    result: dict[str, Any] = {}
    for index in range(1, config.selfplay.rounds + 1):
        out = out_dir / f"round_{index}"
        if index > 1:
            episodes = selfplay_generate(
                config,
                model_dir=model_dir,
                out_dir=out / "selfplay",
                round_index=index,
                tracker=RoundTracker(tracker, config.selfplay.batches * (index - 1)),
                batches=batches,
            )
            data_dir = out / "data"
            kept = filter_format(
                config,
                trajectories=[out / "selfplay" / episodes["file"]],
                out_dir=data_dir,
                tracker=RoundTracker(tracker, index - 1),
            )
            played.append({"round": index, "selfplay": episodes, "filter": kept})
        result = sft_train(
            config,
            data_dir=data_dir,
            model_dir=model_dir,
            out_dir=out,
            checkpoints=checkpoints,
            tracker=RoundTracker(tracker, steps),
        )
        model_dir = str(result["model"])
        curve += [{**point, "step": steps + point["step"]} for point in result["curve"]]
        kept_step = steps + result["kept_step"]
        steps += result["steps"]
        seconds += result["seconds"]
    over_all = {"steps": steps, "kept_step": kept_step, "curve": curve, "seconds": seconds}
    return {**result, **over_all, "rounds": played}
