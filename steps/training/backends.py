"""What is settled before a model is loaded: the trainer and its processes.

The trainer is chosen when the flow starts, too, so that one that isn't there is refused at once;
the number of processes is decided inside the step, where the GPU is seen.
"""

from __future__ import annotations

from conf.schema import Config
from steps.errors import ConfigError
from steps.settings import cores, one_of


def choose_backend(config: Config, wanted: str, stage: str) -> str:
    """`local` for `auto` and `local`; `verl` is refused until its trainers exist."""
    one_of(f"{stage}.backend", wanted, ("auto", "local", "verl"))
    if wanted == "verl":
        raise ConfigError(
            f"{stage}.backend is verl, which isn't built yet (profile {config.profile}): set "
            "sft.backend=local ppo.backend=local, or take the profile laptop."
        )
    if config.model.lora_rank > 0:
        raise ConfigError(
            f"model.lora_rank is {config.model.lora_rank}, but the local backend trains every "
            "parameter: set model.lora_rank=0."
        )
    return "local"


def num_ranks(config: Config) -> int:
    """Processes of the local backend: one on a GPU, else one a core."""
    from steps.policies.hf import resolve_device  # brings torch

    return 1 if resolve_device(config.device) == "cuda" else cores(config)
