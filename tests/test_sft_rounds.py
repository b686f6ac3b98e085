"""Rounds of finetuning, with stages that take no time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conf import compose
from steps import sft_rounds as rounds
from steps.tracking import NullTracker


def test_seconds_are_those_of_all_rounds_and_each_plays_with_the_model_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played_with: list[str] = []

    def selfplay(config: Any, *, model_dir: str, **_: Any) -> dict[str, Any]:
        played_with.append(model_dir)
        return {"file": "t.parquet"}

    def finetune(config: Any, *, model_dir: str, out_dir: Path, **_: Any) -> dict[str, Any]:
        number = int(out_dir.name.removeprefix("round_"))
        return {"model": f"{model_dir}+{number}", "seconds": 100.0 * number, "steps": number}

    monkeypatch.setattr(rounds, "selfplay_generate", selfplay)
    monkeypatch.setattr(rounds, "filter_format", lambda *_, **__: {"kept": 1})
    monkeypatch.setattr(rounds, "sft_train", finetune)
    config = compose(profile="smoke", overrides=["selfplay.rounds=3"])
    config.model.path = "m"
    result = rounds.sft_rounds(
        config,
        data_dir=tmp_path,
        out_dir=tmp_path,
        checkpoints=None,
        batches=None,
        tracker=NullTracker(),
    )
    assert (result["model"], result["steps"], result["seconds"]) == ("m+1+2+3", 3, 600.0)
    assert played_with == ["m+1", "m+1+2"]
    assert [each["round"] for each in result["rounds"]] == [2, 3]
