"""Training on two processes is that of one: the same batches, gradients and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from conf.schema import Config
from steps import ppo_train, sft_train, storage
from steps.policies.loading import load_model
from steps.storage import TRAIN_FILE, VALIDATION_FILE
from steps.tracking import NullTracker
from steps.training.checkpoints import DirectoryCheckpoints
from steps.workers import run_ranks
from tests.training.descent import by_gradient_descent
from tests.training.toys import example, finetuned, toy_config, undecided_examples


@pytest.fixture
def on_ranks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of processes that stages ask for; they train by plain gradient descent."""
    sizes: list[int] = []

    def run(train: Any, *arguments: Any, size: int, main_only: tuple[Any, ...]) -> Any:
        sizes.append(size)
        return run_ranks(by_gradient_descent, train, *arguments, size=size, main_only=main_only)

    for stage in (sft_train, ppo_train):
        monkeypatch.setattr(stage, "run_ranks", run)
    return sizes


def short_config() -> Config:
    config = toy_config()
    config.evaluation.bootstrap, config.evaluation.teacher_forced_puzzles = 50, 4
    return config


def outputs(directory: Path) -> dict[str, Any]:
    return {
        "out_dir": directory / "out",
        "checkpoints": DirectoryCheckpoints(directory / "checkpoints"),
        "tracker": NullTracker(),
    }


def assert_alike(one: dict[str, Any], other: dict[str, Any], initial: str) -> None:
    """Of two results: each number of the curves, and how far the weights have come."""
    for mine, theirs in zip(one["curve"], other["curve"], strict=True):
        assert measured(mine) == pytest.approx(measured(theirs), rel=1e-4, abs=1e-6)
    start, first, second = (
        torch.cat([parameter.detach().flatten() for parameter in load_model(path).parameters()])
        for path in (initial, one["model"], other["model"])
    )
    assert (first - second).norm() < 1e-4 * (first - start).norm()


def measured(point: dict[str, float]) -> dict[str, float]:
    return {
        name: value
        for name, value in point.items()
        if not name.endswith("/seconds") and not name.startswith("timing_s/")
    }


def test_finetuning_on_two_processes_is_that_of_one(on_ranks: list[int], tmp_path: Path) -> None:
    """Batches of 5 rows: the ranks have 3 and 2 of each."""
    data = tmp_path / "data"
    storage.write_examples(data / TRAIN_FILE, undecided_examples(12))
    held_out = [example("AB"[i % 2], "Left", number=i, split="validation") for i in range(3)]
    storage.write_examples(data / VALIDATION_FILE, held_out)
    config = short_config()
    config.sft.lr, config.sft.max_steps, config.sft.batch_size = 0.5, 4, 5
    config.sft.eval_every, config.sft.thought_weight, config.sft.answer_weight = 1, 0.5, 2.0
    results = []
    for config.workers in (1, 2):
        directory = tmp_path / str(config.workers)
        results.append(
            sft_train.sft_train(config, data_dir=data, model_dir="", **outputs(directory))
        )
    assert on_ranks == [1, 2] and [result["processes"] for result in results] == [1, 2]
    assert_alike(*results, initial=str(tmp_path / "1" / "out" / "initial"))
    assert results[0]["probe"] == pytest.approx(results[1]["probe"], rel=1e-4)


def test_ppo_on_two_processes_is_that_of_one(on_ranks: list[int], tmp_path: Path) -> None:
    """Nine of ten groups are kept, and of five samples of a minibatch one rank learns three."""
    config = short_config()
    model_dir = finetuned(tmp_path / "finetuned", config)
    section = config.ppo
    section.total_steps, section.ppo_epochs, section.probe_every = 2, 2, 1
    section.env_groups, section.group_size, section.minibatch_size = 10, 2, 5
    section.filter_ratio, section.kl_coef, section.entropy_coef = 0.9, 0.05, 0.01
    section.lr, section.critic_lr, section.advantage = 0.05, 0.02, "token"
    section.max_grad_norm = 1000.0
    results = []
    for config.workers in (1, 2):
        directory = outputs(tmp_path / str(config.workers))
        results.append(ppo_train.ppo_train(config, model_dir=model_dir, **directory))
    assert on_ranks == [1, 2] and [result["processes"] for result in results] == [1, 2]
    assert_alike(*results, initial=model_dir)
