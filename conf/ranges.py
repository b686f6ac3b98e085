"""What each setting may be by itself: allowed words, and the least and the most of a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from conf.errors import ConfigError, unknown

OPTIMIZERS = ("adamw", "muon")
STATE_FORMATS = ("grid", "coords", "grid_coords")
BACKENDS = ("auto", "local", "verl")
CHOICES: dict[str, tuple[str, ...]] = {
    "log_level": ("debug", "info", "warning", "error"),
    "device": ("auto", "cpu", "cuda"),
    "model.architecture": ("gpt2", "llama"),
    "model.dtype": ("float32", "bfloat16", "float16"),
    "generation.engine": ("auto", "hf", "vllm"),
    "prompt.response_format": ("world_model", "plain", "answer_only"),
    "prompt.style": ("full", "state_only"),
    "prompt.history": ("full", "last_k", "single_turn"),
    "prompt.state_shown": STATE_FORMATS,
    "prompt.observation": STATE_FORMATS,
    "prompt.prediction": STATE_FORMATS,
    "prompt.prediction_steps": ("last", "each"),
    "selfplay.policy": ("auto", "model", "random", "oracle"),
    "selfplay.states": ("truth", "self_belief"),
    "sft.target": ("states", "format"),
    "sft.state_loss": ("train", "mask", "strip"),
    "sft.backend": BACKENDS,
    "sft.keep": ("last", "best"),
    "sft.optimizer": OPTIMIZERS,
    "sft.schedule": ("cosine", "constant"),
    "ppo.optimizer": OPTIMIZERS,
    "selfplay.prediction": ("sampled", "likeliest"),
    "ppo.backend": BACKENDS,
    "ppo.keep": ("last", "best"),
    "ppo.advantage": ("turn", "token", "bi_level", "grpo"),
    "ppo.reward_at": ("turn", "episode"),
    "ppo.reward_norm": ("none", "mean", "mean_std", "asym_clip"),
    "ppo.reward_norm_group": ("state", "batch"),
    "ppo.filter_by": ("std", "std_rev"),
    "ppo.loss_on": ("sampled", "all"),
    "ppo.lr_schedule": ("constant", "linear", "cosine"),
    "verl.strategy": ("auto", "fsdp", "fsdp2"),
    "verl.dtype": ("bfloat16", "float16", "float32"),
    "verl.attention": ("auto", "flash_attention_2", "sdpa", "eager"),
    "verl.remove_padding": ("auto", "always", "never"),
    "evaluation.split": ("validation", "test"),
}
AT_LEAST_ONE = {
    "env": "max_turns max_actions_per_turn max_actions",
    "model": "hidden_size num_layers num_heads ffn_size max_positions",
    "prompt": "last_k",
    "sampling": "max_new_tokens max_model_len",
    "generation": "max_batch tensor_parallel_size",
    "selfplay": "rounds env_groups group_size batches",
    "sft": "batch_size max_length",
    "ppo": "env_groups group_size budget_factor ppo_epochs minibatch_size probe_samples",
    "verl": "n_gpus_per_node nnodes sequence_parallel_size tensor_parallel_size max_tokens_per_gpu"
    " micro_batch_size_per_gpu agent_workers",
    "evaluation": "puzzles samples bootstrap",
    "checkpoints": "keep_last",
}
FRACTIONS = {
    "sampling": "top_p",
    "generation": "gpu_memory_utilization",
    "filter": "min_yield max_ineffective validation_share",
    "sft": "min_format_rate min_lr_ratio warmup_ratio",
    "ppo": "gamma lam gamma_turn lam_turn filter_ratio min_lr_ratio",
    "verl": "gpu_memory_utilization max_failed_share",
}
BELOW_ONE = {"sft": "beta1 beta2", "ppo": "beta1 beta2", "evaluation": "confidence"}
"""From 0 on; at 1 an average never forgets, and an interval holds everything."""
ABOVE_ZERO = {"evaluation": "confidence"}
MAX_SEED = 1_000_000_000
"""Its training puzzles' seeds (`steps.settings.SEED_STRIDE`) still fit into 64 bits."""
MAY_BE_NEGATIVE = {
    *("ppo.format_penalty", "ppo.ineffective_penalty"),
    *("ppo.observation_penalty", "ppo.prediction_penalty"),
}


def check_values(values: Mapping[str, Any]) -> None:
    """Raise `ConfigError` at the first value, by its dotted key, that its setting can't have."""
    for key, allowed in CHOICES.items():
        if key in values and values[key] not in allowed:
            raise unknown(key, values[key], allowed)
    for key, value in values.items():
        _check_range(key, value)


def _check_range(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if not math.isfinite(value):
        raise ConfigError(f"{key}={value} is no finite number.")
    if _is_in(AT_LEAST_ONE, key) and value < 1:
        raise ConfigError(f"{key}={value} is below 1; give at least 1.")
    if _is_in(FRACTIONS, key) and not 0 <= value <= 1:
        raise ConfigError(f"{key}={value} is outside 0..1.")
    if _is_in(BELOW_ONE, key) and not 0 <= value < 1:
        raise ConfigError(f"{key}={value} isn't in 0..1, 1 left out; give less than 1.")
    if _is_in(ABOVE_ZERO, key) and value == 0:
        raise ConfigError(f"{key}={value} is too little; give more than 0.")
    if key == "seed" and value > MAX_SEED:
        raise ConfigError(f"seed={value} is above {MAX_SEED}; give a smaller one.")
    if value < 0 and key not in MAY_BE_NEGATIVE:
        raise ConfigError(f"{key}={value} is negative; give 0 or more.")
    if key in MAY_BE_NEGATIVE and value > 0:
        raise ConfigError(f"{key}={value} would reward what it should punish; give 0 or less.")


def _is_in(table: dict[str, str], key: str) -> bool:
    section, _, name = key.partition(".")
    return name in table.get(section, "").split()
