"""A game of two states, a model that learns it in seconds, and a store that breaks off a training.

`Doors` shows `A` or `B`; the prize is behind the left door of `A` and the right one of `B`. An
answer is four tokens. Puzzles are many (the key holds a number that nobody sees), so that every
split has some.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.schema import (
    Config,
    EnvSection,
    ModelSection,
    PPOSection,
    PromptSection,
    SamplingSection,
    SFTSection,
)
from envs.base import GRID_COORDS, TextEnv, TextSpace
from steps.agent.parsing import spans
from steps.agent.records import Message, ResponseFormat, SFTExample
from steps.training.checkpoints import DirectoryCheckpoints, save_model
from steps.training.sft_local import train_sft
from steps.training.tiny_model import build_tiny
from steps.workers import Peers

PRIZES = {"A": "Left", "B": "Right"}


def verls_scale(overrides: dict[str, str], prefix: str, step: int) -> float:
    """`get_cosine_schedule_with_warmup` and `get_constant_schedule_with_warmup` of verl 0.9.1."""
    warmup = int(overrides[f"{prefix}.lr_warmup_steps"])
    if overrides[f"{prefix}.lr_scheduler_type"] == "constant":
        return min(1.0, step / max(1, warmup))
    total = int(overrides["trainer.total_training_steps"])
    least = float(overrides[f"{prefix}.min_lr_ratio"])
    if overrides[f"{prefix}.zero_indexed_step"] == "False":
        step += 1
    if step < warmup:
        return step / max(1, warmup)
    progress = (step - warmup) / max(1, total - warmup)
    x = math.cos(math.pi * float(overrides[f"{prefix}.num_cycles"]) * 2.0 * progress)
    return max(least, x * (1 - least) / 2 + (1 + least) / 2)


class Doors(TextEnv):
    instruction = "Open a door."
    action_names = ("Left", "Right")

    def __init__(self) -> None:
        self.action_space = TextSpace(self.action_names)
        self.observation_space = TextSpace()
        self.room, self.number = "A", 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.room = "AB"[int(self.np_random.integers(2))]
        self.number = int(self.np_random.integers(1 << 30))
        return self.room, {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        is_valid = action in self.action_names
        won = action == PRIZES[self.room]
        info = {"success": won, "action_is_valid": is_valid, "action_is_effective": is_valid}
        return self.room, float(won), is_valid, False, info

    def describe(self, state_format: str = GRID_COORDS) -> str:
        return self.room

    def state_key(self) -> str:
        return f"{self.room} {self.number}"

    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        return {self.room: 1.0}


def toy_config() -> Config:
    """One process, a model of 14 thousand parameters, answers of four tokens."""
    return Config(
        workers=1,
        device="cpu",
        env=EnvSection(
            id="tests.training.toys:Doors", max_turns=1, max_actions=1, max_actions_per_turn=1
        ),
        model=ModelSection(
            hidden_size=32, num_layers=1, num_heads=2, ffn_size=32, max_positions=24
        ),
        prompt=PromptSection(
            response_format="answer_only",
            style="state_only",
            history="single_turn",
            state_shown="grid",
        ),
        sampling=SamplingSection(max_new_tokens=6, max_model_len=24),
        sft=SFTSection(
            max_steps=40,
            batch_size=16,
            optimizer="muon",
            lr=1e-2,
            warmup_steps=4,
            weight_decay=0.0,
            max_length=24,
            probe_puzzles=8,
        ),
        ppo=PPOSection(
            total_steps=20,
            env_groups=32,
            group_size=2,
            minibatch_size=32,
            ppo_epochs=2,
            lr=3e-3,
            critic_lr=5e-3,
            probe_puzzles=8,
        ),
    )


def example(room: str, action: str, *, number: int = 0, split: str = "train") -> SFTExample:
    """One answer to imitate."""
    response = f"<answer>{action}</answer>"
    return SFTExample(
        prompt=(Message(role="user", content=room),),
        response=response,
        spans=spans(response, ResponseFormat.ANSWER_ONLY),
        trajectory_id=str(number),
        turn_index=0,
        puzzle_hash="0" * 16,
        split=split,
    )


def undecided_examples(count: int = 32) -> list[SFTExample]:
    """Well-formed answers that tell nothing of where the prize is."""
    rooms, actions = "AABB", ("Left", "Right", "Left", "Right")
    return [example(rooms[i % 4], actions[i % 4], number=i) for i in range(count)]


class PowerCutError(Exception):
    """Somebody switched the machine off."""


class BreakingOff(DirectoryCheckpoints):
    """Keeps checkpoints, and interrupts the training once that of `last_step` is kept."""

    def __init__(self, root: Path, *, last_step: int) -> None:
        super().__init__(root)
        self.last_step = last_step

    def save(
        self, directory: Path, *, step: int, fingerprint: str, best: int | None = None
    ) -> None:
        super().save(directory, step=step, fingerprint=fingerprint, best=best)
        if step == self.last_step:
            raise PowerCutError


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two models are equal in every bit."""
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@contextmanager
def batches_of(module: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[list[int]]]]:
    """The token rows of each forward pass in training mode, of models that `module` loads."""
    seen: list[list[list[int]]] = []
    load = module.load_model

    def record(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if model.training and torch.is_grad_enabled():
            seen.append(kwargs["input_ids"].tolist())

    def recording(*args: Any, **kwargs: Any) -> torch.nn.Module:
        model = load(*args, **kwargs)
        model.register_forward_pre_hook(record, with_kwargs=True)
        return model

    with monkeypatch.context() as patch:
        patch.setattr(module, "load_model", recording)
        yield seen


def untrained(directory: Path, config: Config) -> str:
    """A fresh model directory."""
    return str(build_tiny(config.model, directory))


def finetuned(directory: Path, config: Config) -> str:
    """A model directory whose answers are well formed and undecided."""
    model_dir = untrained(directory / "initial", config)
    run = train_sft(
        Peers(), config, undecided_examples(), [], model_dir, "toy", directory, None, None
    )
    save_model(directory / "model", run.model, run.tokenizer)
    return str(directory / "model")
