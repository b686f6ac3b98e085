"""What is settled before a model is loaded: the trainer, its processes, and that a model is there.

Decided inside the step, where the GPU is seen.
"""

from __future__ import annotations

from pathlib import Path

from conf.schema import Config
from steps.errors import ConfigError
from steps.policies.hf import check_model_directory, resolve_device
from steps.settings import cores, one_of


def choose_backend(config: Config, wanted: str, stage: str) -> str:
    """`local` for `auto` and `local`; `verl` is refused until its trainers exist."""
    one_of(f"{stage}.backend", wanted, ("auto", "local", "verl"))
    if wanted == "verl":
        raise ConfigError(
            f"{stage}.backend is verl, which isn't built yet: set {stage}.backend=local."
        )
    if config.model.lora_rank > 0:
        raise ConfigError(
            f"model.lora_rank is {config.model.lora_rank}, but the local backend trains every "
            "parameter: set model.lora_rank=0."
        )
    return "local"


def check_model(source: str) -> None:
    """Raise `ModelError` where `source` is a path without a usable model; hub names pass."""
    if Path(source).exists() or source.startswith(("/", ".", "~")):
        check_model_directory(source)


def num_ranks(config: Config) -> int:
    """Processes of the local backend: one on a GPU, else one a core."""
    return 1 if resolve_device(config.device) == "cuda" else cores(config)
