"""Checkpoints: Hugging Face directories, trainer state beside them, a marker written last.

A directory is complete when its marker file exists: everything is written under a temporary name,
the marker last, and the whole is moved into place. Weights are safetensors; trainer state
(optimizers, counters) is `torch.save`d tensors and plain values, loaded with
`weights_only=True`.

Stages are handed a `CheckpointStore` and never know where it keeps things: `DirectoryCheckpoints`
is the plain one, `steps.orchestration.checkpoint_store` the one over Metaflow.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers.utils import logging as transformers_logging

import conf
from conf.schema import Config
from steps.errors import CheckpointError

MARKER = "complete.json"
STATE_FILE = "trainer_state.pt"
KEEP_LAST = 2


class CheckpointStore(Protocol):
    """Where a stage leaves its checkpoints, and finds those of its own fingerprint again."""

    def save(
        self, directory: Path, *, step: int, fingerprint: str, best: int | None = None
    ) -> None:
        """Keep a copy of `directory` as the checkpoint of `step`, and prune old ones.

        The last ones stay, and beside them that of step `best`.
        """

    def newest(self, fingerprint: str) -> tuple[int, Path] | None:
        """Step and directory of the newest complete checkpoint of `fingerprint`, or None."""

    def at(self, step: int, fingerprint: str) -> Path | None:
        """The complete checkpoint of one step, or None."""


class DirectoryCheckpoints:
    """Checkpoints under `root/<fingerprint>/step_<n>`: the last `keep_last`, and the best."""

    def __init__(self, root: Path, *, keep_last: int = KEEP_LAST) -> None:
        self.root = root
        self.keep_last = keep_last

    def save(
        self, directory: Path, *, step: int, fingerprint: str, best: int | None = None
    ) -> None:
        """Copy `directory` under a temporary name, then move it into place and prune old ones."""
        parent = self.root / fingerprint
        parent.mkdir(parents=True, exist_ok=True)
        target = parent / f"step_{step:08d}"
        temporary = parent / f".{target.name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(directory, temporary)
        (temporary / MARKER).write_text(json.dumps({"step": step, "fingerprint": fingerprint}))
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        names = [path.name for path in parent.glob("step_*")]
        for old in outdated(names, keep_last=self.keep_last, best=best):
            shutil.rmtree(parent / old, ignore_errors=True)

    def newest(self, fingerprint: str) -> tuple[int, Path] | None:
        """The newest directory that has its marker; others are passed over."""
        for directory in sorted((self.root / fingerprint).glob("step_*"), reverse=True):
            step = _marked_step(directory)
            if step is not None:
                return step, directory
        return None

    def at(self, step: int, fingerprint: str) -> Path | None:
        """The checkpoint of one step, where it has its marker."""
        directory = self.root / fingerprint / f"step_{step:08d}"
        return None if _marked_step(directory) is None else directory


def outdated(names: Sequence[str], *, keep_last: int, best: int | None) -> list[str]:
    """Which of the folders `step_<n>` may go: all but the last ones and that of step `best`."""
    return [name for name in sorted(names)[:-keep_last] if name != f"step_{best or 0:08d}"]


def _marked_step(directory: Path) -> int | None:
    """The step that the marker names, or None where it is missing or cut off."""
    try:
        return int(json.loads((directory / MARKER).read_text())["step"])
    except (OSError, ValueError):
        return None


def save_model(directory: Path, model: Any, tokenizer: Any) -> None:
    """Write an ordinary Hugging Face directory."""
    transformers_logging.disable_progress_bar()
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def save_trainer_state(directory: Path, state: Mapping[str, Any]) -> None:
    """Write optimizer states and counters: tensors, numbers, strings and containers of them."""
    with (directory / STATE_FILE).open("wb") as file:  # else torch hides that a disk is full
        torch.save(dict(state), file)


def load_trainer_state(directory: Path) -> dict[str, Any]:
    """Read what `save_trainer_state` wrote; nothing in it is executed."""
    path = directory / STATE_FILE
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        raise CheckpointError(
            f"the trainer state {path.name} in {directory} can't be read ({error}): delete that "
            "checkpoint, the stage then goes on from the one before it."
        ) from error


def fingerprint_of(
    *, stage: str, config: Config, sections: Sequence[str], inputs: Mapping[str, str]
) -> str:
    """16 hexadecimal digits that name a stage's work: its settings and its inputs' digests."""
    settings = {
        key: value
        for key, value in conf.flat(config).items()
        if key.split(".")[0] in sections and conf.has_effect(key)
    }
    facts = {"stage": stage, "settings": settings, "inputs": dict(inputs)}
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
