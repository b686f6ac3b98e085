"""What SFT and PPO by verl share: Hydra overrides, the model's part of them, the environment.

Pure but for `environment`. verl's keys were read in version 0.9.1.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.schema import Config, VerlSection
from steps.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
"""Where `conf`, `envs` and `steps` are imported from."""
FLASH = "flash_attention_2"
MAX_ANSWERING = 512
"""Most requests that one copy of the model answers at once, however many episodes there are."""
NO_CLIP = 1e9
"""A bound that nothing reaches, for verl has no word for none."""
Value = str | int | float | bool | None | Sequence["Value"]
_PLAIN = re.compile(r"[A-Za-z_/][\w./:@-]*")
_BEFORE_QUOTE = re.compile(r"(\\+)('|$)")
_RESERVED = {"null", "true", "false", "nan", "inf", "none", "yes", "no", "on", "off"}
QUIET = {
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """How attention is computed."""

    attention: str
    """flash_attention_2 | sdpa | eager"""
    remove_padding: bool
    """Rows are packed into one sequence, without padding between them."""


def kernels(section: VerlSection, *, has_flash_attn: bool) -> Kernels:
    """The words `auto` resolved; raises `ConfigError` for what would need flash-attn.

    Only flash-attn's kernels take packed rows as they are. Others would build a mask of every
    token against every other, and verl tests none of them.
    """
    attention = section.attention
    can_flash = has_flash_attn and section.dtype != "float32"
    if attention == "auto":
        attention = FLASH if can_flash else "sdpa"
    if attention == FLASH and not has_flash_attn:
        raise ConfigError(
            "verl.attention is flash_attention_2, and flash-attn isn't installed: "
            "pip install 'spa-agents[flash-attn]', or set verl.attention=auto."
        )
    if attention == FLASH and not can_flash:
        raise ConfigError(
            "verl.attention is flash_attention_2, whose kernels know half precision alone, and "
            "verl.dtype is float32: set verl.attention=sdpa, or verl.dtype=bfloat16."
        )
    is_packed = attention == FLASH and section.remove_padding != "never"
    if section.remove_padding == "always" and not is_packed:
        raise ConfigError(
            f"verl.remove_padding=always needs flash-attn, and verl.attention is {attention}: "
            "set verl.remove_padding=auto."
        )
    if section.sequence_parallel_size > 1 and not is_packed:
        raise ConfigError(
            f"verl.sequence_parallel_size is {section.sequence_parallel_size}: it needs flash-attn "
            "and rows without padding (verl.remove_padding=auto). Install flash-attn, or set it "
            "to 1."
        )
    return Kernels(attention=attention, remove_padding=is_packed)


def precision(prefix: str, dtype: str) -> dict[str, Value]:
    """What an engine of verl's under `prefix` computes in; it adds up in float32.

    verl scales losses by itself where that is float16.
    """
    words = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    return {
        f"{prefix}.model_dtype": "fp32",
        f"+{prefix}.mixed_precision.param_dtype": words[dtype],
        f"+{prefix}.mixed_precision.reduce_dtype": "fp32",
        f"+{prefix}.mixed_precision.buffer_dtype": "fp32",
    }


def override(key: str, value: Value) -> str:
    """`key=value` in Hydra's grammar; a leading `+` of the key adds one that verl doesn't list."""
    return f"{key}={_text(value)}"


def _text(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
            return value
        # In quotes a backslash means itself, but before a quote.
        return "'" + _BEFORE_QUOTE.sub(r"\1\1\2", value).replace("'", "\\'") + "'"
    return "[" + ",".join(_text(item) for item in value) + "]"


def model_overrides(config: Config, prefix: str, model_dir: str, chosen: Kernels) -> list[str]:
    """The model under `prefix` (`model`, `actor_rollout_ref.model`): weights, attention, LoRA."""
    pairs: dict[str, Value] = {
        f"{prefix}.path": model_dir,
        f"{prefix}.trust_remote_code": False,
        f"{prefix}.use_remove_padding": chosen.remove_padding,
        f"+{prefix}.override_config.attn_implementation": chosen.attention,
        f"{prefix}.enable_gradient_checkpointing": config.verl.gradient_checkpointing,
    }
    if config.model.lora_rank > 0:
        pairs |= {
            f"{prefix}.lora_rank": config.model.lora_rank,
            f"{prefix}.lora_alpha": config.model.lora_alpha,
            f"{prefix}.target_modules": "all-linear",
        }
    return [override(key, value) for key, value in pairs.items()]


def schedule(
    prefix: str, kind: str, *, total_steps: int, warmup_steps: int, min_lr_ratio: float
) -> dict[str, Value]:
    """Learning rates of `steps.training.schedules`, constant or cosine; `prefix` ends in `optim`.

    verl's cosine, shifted and stretched until it is ours; without cycles it is constant. Its own
    constant schedule begins a warm-up at 0.
    """
    decay_steps = total_steps - warmup_steps
    cycles = 0.5 * max(1, decay_steps - 1) / max(1, decay_steps)
    return {
        f"{prefix}.lr_scheduler_type": "cosine",
        f"{prefix}.num_cycles": cycles if kind == "cosine" else 0.0,
        f"{prefix}.lr_warmup_steps": warmup_steps + 1,
        f"{prefix}.lr_warmup_steps_ratio": 0.0,
        f"{prefix}.zero_indexed_step": False,
        f"{prefix}.min_lr_ratio": min_lr_ratio,
    }


def sharding(config: Config) -> str:
    """fsdp or fsdp2, of `verl.strategy`."""
    if config.verl.strategy != "auto":
        return config.verl.strategy
    return "fsdp2" if config.model.lora_rank > 0 else "fsdp"


def micro_batch(config: Config, rows_per_gpu: int) -> int:
    """Rows of a micro-batch: the most that are allowed and divide a GPU's share of the batch."""
    most = min(config.verl.micro_batch_size_per_gpu, rows_per_gpu)
    return next(size for size in range(most, 0, -1) if rows_per_gpu % size == 0)


def max_answering(config: Config) -> int:
    """Most requests that one copy of the model answers at once in PPO."""
    ppo, verl = config.ppo, config.verl
    copies = max(1, verl.n_gpus_per_node * verl.nnodes // verl.tensor_parallel_size)
    return min(MAX_ANSWERING, max(8, -(-ppo.env_groups * ppo.group_size // copies)))


def environment(metrics: Path, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The subprocess's environment: ours, our modules on its path, verl's metrics to `metrics`."""
    inherited = dict(os.environ if given is None else given)
    # A world given as `module:Class` is found where this process finds it.
    paths = [str(ROOT), *(path for path in sys.path if path and Path(path).is_dir())]
    added = [path for path in paths if not _is_interpreters(Path(path))]
    known = inherited.get("PYTHONPATH", "").split(os.pathsep)
    ordered = dict.fromkeys(path for path in (*added, os.getcwd(), *known) if path)
    return {
        **inherited,
        **QUIET,
        "PYTHONPATH": os.pathsep.join(ordered),
        "VERL_FILE_LOGGER_PATH": str(metrics),
    }


def _is_interpreters(path: Path) -> bool:
    return any(path.is_relative_to(prefix) for prefix in {sys.prefix, sys.base_prefix})
