"""Rounds of finetuning, with stages that take no time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conf import compose
from steps import sft_rounds as rounds
from steps.tracking import NullTracker


@pytest.fixture
def played_with(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that played; every stage logs as the real one does."""
    found: list[str] = []

    def selfplay(config: Any, *, model_dir: str, tracker: Any, **_: Any) -> dict[str, Any]:
        found.append(model_dir)
        for batch in range(config.selfplay.batches):
            tracker.log({"selfplay/success": 0.5}, step=batch + 1)
        return {"file": "t.parquet"}

    def sieve(*_: Any, tracker: Any, **__: Any) -> dict[str, Any]:
        tracker.log({"filter/yield": 0.5}, step=0)
        return {"kept": 1}

    def finetune(
        config: Any, *, model_dir: str, out_dir: Path, tracker: Any, **_: Any
    ) -> dict[str, Any]:
        number = int(out_dir.name.removeprefix("round_"))
        curve = [{"step": step + 1, "sft/loss": 1 / number} for step in range(number + 1)]
        for point in curve:
            tracker.log({"sft/loss": point["sft/loss"]}, point["step"])
        facts = {"steps": number + 1, "kept_step": 1, "curve": curve}
        return {"model": f"{model_dir}+{number}", "seconds": 100.0 * number, **facts}

    monkeypatch.setattr(rounds, "selfplay_generate", selfplay)
    monkeypatch.setattr(rounds, "filter_format", sieve)
    monkeypatch.setattr(rounds, "sft_train", finetune)
    return found


def run(tmp_path: Path, num_rounds: int) -> tuple[dict[str, Any], NullTracker]:
    """Result, and what was logged."""
    tracker = NullTracker()
    overrides = [f"selfplay.rounds={num_rounds}", "selfplay.batches=2"]
    config = compose(profile="smoke", overrides=overrides)
    config.model.path = "m"
    result = rounds.sft_rounds(
        config, data_dir=tmp_path, out_dir=tmp_path, checkpoints=None, batches=None, tracker=tracker
    )
    return result, tracker


def test_seconds_are_those_of_all_rounds_and_each_plays_with_the_model_before(
    tmp_path: Path, played_with: list[str]
) -> None:
    result, _ = run(tmp_path, 3)
    assert (result["model"], result["seconds"]) == ("m+1+2+3", 600.0)
    assert played_with == ["m+1", "m+1+2"]
    assert [each["round"] for each in result["rounds"]] == [2, 3]


def test_steps_count_on_from_round_to_round(tmp_path: Path, played_with: list[str]) -> None:
    """MLflow keeps the first value of a step: a second one would be lost."""
    result, tracker = run(tmp_path, 3)
    found: dict[str, list[int]] = {}
    for step, metrics in tracker.logged:
        for name in metrics:
            found.setdefault(name, []).append(step)
    assert found == {
        "sft/loss": list(range(1, 10)),
        "selfplay/success": [3, 4, 5, 6],
        "filter/yield": [1, 2],
    }
    assert [(point["step"], point["sft/loss"]) for point in result["curve"]] == [
        (step, metrics["sft/loss"]) for step, metrics in tracker.logged if "sft/loss" in metrics
    ]
    assert (result["steps"], result["kept_step"]) == (9, 6)


def test_one_round_is_what_finetuning_says(tmp_path: Path, played_with: list[str]) -> None:
    result, tracker = run(tmp_path, 1)
    losses = [(1, {"sft/loss": 1.0}), (2, {"sft/loss": 1.0})]
    assert tracker.logged == losses
    assert result == {
        "model": "m+1",
        "steps": 2,
        "kept_step": 1,
        "seconds": 100.0,
        "curve": [{"step": step, **point} for step, point in losses],
        "rounds": [],
    }
