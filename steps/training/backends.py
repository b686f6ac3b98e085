"""Who trains, and in how many processes.

`auto` is decided inside the step, on the machine that trains: by model size, GPUs and what is
installed, none of which needs torch. When the flow starts, only the settings can be judged
(`check_backend`), and on a machine of one's own whether there is a GPU at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conf.ranges import BACKENDS
from conf.schema import Config
from steps.errors import ConfigError
from steps.settings import cores, one_of
from steps.training import verl_ppo_limits
from steps.training.machine import Gpu, Machine, installed, visible_gpus
from steps.training.model_size import num_parameters
from steps.training.verl_ours import contradicted
from steps.training.verl_preflight import FOR_SFT, NEEDED, check_gpus, check_versions

MIN_VERL_PARAMETERS = {"sft": 100_000_000, "ppo": 200_000_000}
"""Of a model that `auto` leaves to verl. Measured on an H200 (docs/benchmarks.md): at 135 million
verl finetunes 1.3 times as fast, and a step of PPO with one sequence a turn takes 1.2 times as
long as the local backend's. What verl takes to start, half a minute and four, comes on top."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What `auto` is decided by."""

    parameters: int
    """Of the model; one that isn't on this machine counts as large."""
    gpus: int
    has_verl: bool


def facts(config: Config) -> Facts:
    """Of this machine and the configured model."""
    return Facts(
        parameters=_parameters(config),
        gpus=0 if config.device == "cpu" else visible_gpus(),
        has_verl="verl" in installed(),
    )


def choose_backend(config: Config, stage: str, found: Facts | None = None) -> str:
    """`local` or `verl` for stage `sft` or `ppo`, by `<stage>.backend`; `found` replaces `facts`.

    Raises `ConfigError` where the settings can't be trained by the one that is asked for.
    """
    wanted = check_backend(config, stage)
    if wanted != "auto":
        return wanted
    if config.model.lora_rank > 0:  # the local backend has none
        return "verl"
    found = found or facts(config)
    is_large = found.parameters >= MIN_VERL_PARAMETERS[stage]
    if found.gpus > 0 and found.has_verl and is_large and not _verl_lacks(config, stage):
        return "verl"
    return "local"


def check_backend(config: Config, stage: str) -> str:
    """The word of `<stage>.backend`; raises `ConfigError` where the other settings forbid it."""
    wanted = one_of(f"{stage}.backend", getattr(config, stage).backend, BACKENDS)
    if wanted == "local" and config.model.lora_rank > 0:
        raise ConfigError(
            f"model.lora_rank is {config.model.lora_rank}, but the local backend trains every "
            f"parameter: set model.lora_rank=0, or {stage}.backend=verl."
        )
    vain = contradicted(config, stage) if wanted == "auto" else ""
    if vain:  # to leave it to the local backend then would be a surprise
        raise ConfigError(f"{stage} by verl: {vain}")
    needs_verl = wanted == "verl" or (wanted == "auto" and config.model.lora_rank > 0)
    lacks = _verl_lacks(config, stage) if needs_verl else ""
    if lacks and wanted == "auto":
        raise ConfigError(
            f"model.lora_rank is {config.model.lora_rank}, which verl alone trains, and {lacks} "
            "Or set model.lora_rank=0."
        )
    if lacks:
        raise ConfigError(f"{stage} by verl: {lacks}")
    return wanted


def check_backends(config: Config) -> None:
    """What can be said of both trainers before any work; raises `ConfigError`.

    Tasks of a local run are processes of this machine, so that it must have GPUs and libraries,
    too; what memory they need is judged by the step. PPO on a Ray cluster (`verl.ray_address`) has
    that one's GPUs. `device=cuda` is for torch to judge where no GPU's device file is seen.
    """
    for stage, libraries in (("sft", FOR_SFT), ("ppo", tuple(NEEDED))):
        check_backend(config, stage)
        if config.cluster == "local" and choose_backend(config, stage) == "verl":
            seen = (Gpu(name="by its device file", total=0, free=0),) * visible_gpus()
            here = Machine(gpus=seen, versions=installed())
            if stage == "sft" or not config.verl.ray_address:
                check_gpus(here, 1, config)
            check_versions(here, libraries)
    needs_gpu = (
        config.device == "cuda" and config.cluster == "local" and not config.verl.ray_address
    )
    if needs_gpu and not visible_gpus():
        from steps.policies.loading import resolve_device  # brings torch

        resolve_device(config.device)


def _verl_lacks(config: Config, stage: str) -> str:
    """What a setting asks for that verl doesn't do, as a sentence; empty where it does all."""
    section, model = getattr(config, stage), config.model
    if config.device == "cpu":
        return f"device is cpu; set device=cuda, or {stage}.backend=local."
    if model.from_scratch and not model.path and model.architecture == "gpt2":
        return (
            "the model built from scratch is a GPT-2, which it can't train; set "
            f"model.architecture=llama, give --model another model, or set {stage}.backend=local."
        )
    if section.optimizer != "adamw":
        return (
            f"{stage}.optimizer is {section.optimizer}, which it doesn't have; set "
            f"{stage}.optimizer=adamw, or {stage}.backend=local."
        )
    if model.trust_remote_code:
        return (
            "model.trust_remote_code runs a stranger's code in all of its processes, and isn't "
            f"handed on; set it to false, or {stage}.backend=local."
        )
    if stage == "sft":
        return _uneven(config) or contradicted(config, stage)
    return verl_ppo_limits.lacks(config)


def _uneven(config: Config) -> str:
    gpus, sequence = config.verl.n_gpus_per_node, config.verl.sequence_parallel_size
    if gpus % sequence != 0:
        return (
            f"verl.n_gpus_per_node={gpus} isn't a multiple of "
            f"verl.sequence_parallel_size={sequence}."
        )
    if config.sft.batch_size % (gpus // sequence) != 0:
        return (
            f"sft.batch_size={config.sft.batch_size} can't be shared evenly by {gpus // sequence} "
            "GPUs; make it a multiple."
        )
    return ""


def signature(config: Config, stage: str, backend: str) -> str:
    """What of the choice changes a result, for fingerprints: not how many GPUs or which kernels."""
    if backend == "local":
        return backend
    verl = config.verl
    overrides = verl.sft_overrides if stage == "sft" else verl.overrides
    return f"verl {installed().get('verl', '')} {verl.dtype} {' '.join(overrides)}"


def num_ranks(config: Config) -> int:
    """Processes of the local backend: one on a GPU, else one a core."""
    from steps.policies.loading import resolve_device  # brings torch

    return 1 if resolve_device(config.device) == "cuda" else cores(config)


def _parameters(config: Config) -> int:
    model = config.model
    if not model.path and model.from_scratch:
        return 0
    directory = Path(model.path)
    return num_parameters(directory) if directory.is_dir() else max(MIN_VERL_PARAMETERS.values())
