"""`keep: best`: the checkpoint with the best measure stays and is what the stage leaves."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf import checks
from conf.errors import ConfigError
from conf.schema import Config
from steps.policies.loading import load_model
from steps.training import probe
from steps.training.best import ppo_best, sft_best
from steps.training.checkpoints import DirectoryCheckpoints, outdated
from steps.training.keeping import Keeping
from steps.training.ppo_local import PPORun, train_ppo
from steps.training.sft_local import SFTRun, evaluate_loss, train_sft
from steps.training.tokenization import tokenize_examples
from steps.workers import Peers
from tests.training.toys import (
    BreakingOff,
    PowerCutError,
    example,
    finetuned,
    same_weights,
    toy_config,
    untrained,
)

KNOWN = [example(room, action) for room, action in (("A", "Left"), ("B", "Right"))] * 8
CONTRARY = [example(room, action) for room, action in (("A", "Right"), ("B", "Left"))]
"""The opposite of what is trained: its loss falls while the format is learned, then rises."""


def steps_in(root: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in (root / "f").glob("step_*"))


def test_of_equals_the_earliest_is_the_best_and_points_without_the_number_dont_count() -> None:
    losses: list[dict[str, float]] = [{"step": 1, "sft/validation_loss": 2.0}, {"step": 2}]
    losses += [{"step": 3, "sft/validation_loss": 0.5}, {"step": 4, "sft/validation_loss": 0.5}]
    assert sft_best("best").step(losses) == 3
    assert sft_best("last").step(losses) is None
    assert sft_best("best").step([{"step": 1}]) is None
    success = [{"step": 10, "probe/success": 0.25}, {"step": 20, "probe/success": 0.75}]
    success += [{"step": 30, "probe/success": 0.75}]
    assert ppo_best("best").step(success) == 20
    before = {"step": 0, "probe/success": 1.0}  # of no checkpoint
    assert ppo_best("best").step([before, *success]) == 20
    assert ppo_best("best").step([before]) is None


@pytest.mark.parametrize(
    ("keep_last", "best", "gone"),
    [
        (2, None, ["step_00000001", "step_00000002"]),
        (2, 1, ["step_00000002"]),
        (2, 4, ["step_00000001", "step_00000002"]),
        (1, 2, ["step_00000001", "step_00000003"]),
        (9, None, []),
    ],
)
def test_old_checkpoints_go_and_the_best_stays(
    keep_last: int, best: int | None, gone: list[str]
) -> None:
    names = [f"step_{step:08d}" for step in (3, 1, 4, 2)]
    assert outdated(names, keep_last=keep_last, best=best) == gone


def test_a_checkpoint_is_kept_where_it_is_due_or_the_best_so_far(tmp_path: Path) -> None:
    keeping = Keeping(
        store=DirectoryCheckpoints(tmp_path / "store", keep_last=9),
        fingerprint="f",
        scratch=tmp_path / "scratch",
        judge=ppo_best("best"),
        save_every=3,
    )
    written: list[int] = []

    def write(directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        written.append(len(curve))

    curve: list[dict[str, float]] = []
    assert keeping.newest(Peers()) == (0, "")
    for step, success in enumerate((0.5, 0.75, 0.25, 0.5, 1.0), start=1):
        curve.append({"step": step, "probe/success": success})
        keeping.keep(step, curve, write)
        replace(keeping, store=None).keep(step, curve, write)
    assert written == steps_in(tmp_path / "store") == [1, 2, 3, 5]
    assert keeping.newest(Peers()) == (5, str(tmp_path / "store/f/step_00000005"))


# Finetuning


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory) -> str:
    return untrained(tmp_path_factory.mktemp("best"), toy_config())


def settings(keep: str = "best") -> Config:
    config = toy_config()
    config.sft.keep, config.sft.eval_every, config.sft.save_every = keep, 2, 7
    return config


def finetune(
    config: Config, initial: str, work: Path, store: DirectoryCheckpoints | None
) -> SFTRun:
    return train_sft(Peers(), config, KNOWN, CONTRARY, initial, "f", work, None, store)


def lowest(run: SFTRun) -> tuple[float, int]:
    points = [point for point in run.curve if "sft/validation_loss" in point]
    return min((point["sft/validation_loss"], int(point["step"])) for point in points)


def loss_of(run: SFTRun) -> float:
    rows = tokenize_examples(CONTRARY, run.tokenizer, max_length=24)
    found = evaluate_loss(Peers(), run.model, rows, pad=run.tokenizer.pad_token_id)
    return float(found["sft/validation_loss"])


def test_finetuning_leaves_the_model_of_the_lowest_validation_loss(
    initial: str, tmp_path: Path
) -> None:
    run = finetune(settings(), initial, tmp_path, DirectoryCheckpoints(tmp_path / "store"))
    loss, step = lowest(run)
    assert 2 < step < 38, "the toy should overfit in the middle"
    assert (run.steps, run.kept_step) == (40, step)
    assert loss_of(run) == pytest.approx(loss, abs=1e-6)
    assert steps_in(tmp_path / "store") == [step, 28, 35]


def test_by_default_the_last_model_is_left_and_the_best_one_is_pruned(
    initial: str, tmp_path: Path
) -> None:
    config = settings("last")
    run = finetune(config, initial, tmp_path, DirectoryCheckpoints(tmp_path / "store"))
    assert run.kept_step == run.steps == 40
    assert loss_of(run) == pytest.approx(run.curve[-1]["sft/validation_loss"], abs=1e-6)
    assert steps_in(tmp_path / "store") == [28, 35]


def test_resumed_behind_its_best_step_it_leaves_the_same_model(
    initial: str, tmp_path: Path
) -> None:
    whole = finetune(settings(), initial, tmp_path / "a", DirectoryCheckpoints(tmp_path / "whole"))
    with pytest.raises(PowerCutError):
        finetune(settings(), initial, tmp_path / "b", BreakingOff(tmp_path / "cut", last_step=35))
    resumed = finetune(settings(), initial, tmp_path / "c", DirectoryCheckpoints(tmp_path / "cut"))
    assert resumed.kept_step == whole.kept_step < 35
    assert same_weights(resumed.model, whole.model)


# PPO


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return finetuned(tmp_path_factory.mktemp("ppo"), toy_config())


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the probes will find; fill it before training. Step 0 finds what no later one does."""
    found: list[float] = [1.0]
    remaining: Iterator[float] = iter(found)
    monkeypatch.setattr(
        probe, "run_probe", lambda *_args, **_kwargs: {"probe/success": next(remaining)}
    )
    return found


def ppo(model_dir: str, tmp_path: Path, store: DirectoryCheckpoints, keep: str = "best") -> PPORun:
    config = toy_config()
    config.ppo.total_steps, config.ppo.env_groups = 8, 8
    config.ppo.probe_every, config.ppo.keep, config.ppo.save_every = 2, keep, 3
    return train_ppo(Peers(), config, model_dir, "f", tmp_path / "work", None, store)


def test_ppo_leaves_the_model_of_the_highest_probe(
    model_dir: str, tmp_path: Path, scores: list[float]
) -> None:
    scores += [0.5, 0.75, 0.25, 0.625]
    run = ppo(model_dir, tmp_path, DirectoryCheckpoints(tmp_path / "store"))
    assert (run.steps, run.kept_step) == (8, 4)
    assert steps_in(tmp_path / "store") == [4, 6]
    assert same_weights(run.model, load_model(str(tmp_path / "store" / "f" / "step_00000004")))
    assert not same_weights(run.model, load_model(str(tmp_path / "store" / "f" / "step_00000006")))


def test_the_last_step_may_be_the_best(model_dir: str, tmp_path: Path, scores: list[float]) -> None:
    scores += [0.5, 0.25, 0.25, 0.75]
    best = ppo(model_dir, tmp_path, DirectoryCheckpoints(tmp_path / "store"))
    scores += [1.0, 0.5, 0.25, 0.25, 0.75]
    last = ppo(model_dir, tmp_path, DirectoryCheckpoints(tmp_path / "other"), "last")
    assert best.kept_step == last.kept_step == 8
    assert same_weights(best.model, last.model)


def test_where_the_best_checkpoint_is_lost_the_last_model_is_left_with_a_warning(
    model_dir: str, tmp_path: Path, scores: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    class Losing(DirectoryCheckpoints):
        def save(self, directory: Path, **arguments: Any) -> None:
            super().save(directory, **arguments)
            shutil.rmtree(self.root / "f" / "step_00000004", ignore_errors=True)

    scores += [0.5, 0.75, 0.25, 0.625]
    with caplog.at_level(logging.WARNING):
        run = ppo(model_dir, tmp_path, Losing(tmp_path / "store"))
    assert run.kept_step == 8
    assert "the best checkpoint, of step 4, is missing or damaged" in caplog.text


# Settings


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sft.keep": "best"}, "set sft.eval_every"),
        ({"sft.keep": "best", "sft.max_steps": 0, "filter.validation_share": 0.0}, "is 0; raise"),
        ({"sft.keep": "best", "sft.eval_every": 40}, "sft.max_steps=40 with sft.eval_every=40"),
        ({"sft.keep": "best", "sft.max_steps": 0, "sft.epochs": 1}, "sft.epochs=1 with"),
        ({"ppo.keep": "best"}, "set ppo.probe_every"),
        ({"ppo.keep": "best", "ppo.probe_every": 20}, "ppo.total_steps=20 with ppo.probe_every=20"),
        ({"checkpoints.keep_last": 0}, "checkpoints.keep_last"),
        ({"sft.keep": "newest"}, "sft.keep"),
    ],
)
def test_a_best_that_cannot_be_found_is_refused(changes: dict[str, Any], said: str) -> None:
    config = toy_config()
    for key, value in changes.items():
        section, name = key.split(".")
        setattr(getattr(config, section), name, value)
    with pytest.raises(ConfigError, match=said):
        checks.check(config)


@pytest.mark.parametrize(
    "changes",
    [
        {"sft.keep": "best", "sft.eval_every": 39},
        {"sft.keep": "best", "sft.max_steps": 0, "sft.epochs": 2},
        {"ppo.keep": "best", "ppo.probe_every": 19},
        {"ppo.keep": "best", "ppo.total_steps": 0},
    ],
)
def test_a_best_of_two_can_be_found(changes: dict[str, Any]) -> None:
    config = toy_config()
    for key, value in changes.items():
        section, name = key.split(".")
        setattr(getattr(config, section), name, value)
    checks.check(config)
