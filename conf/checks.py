"""What the types can't say: allowed words, ranges, and settings that contradict each other."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from conf.errors import ConfigError, unknown
from conf.schema import Config

OPTIMIZERS = ("adamw", "muon")
STATE_FORMATS = ("grid", "coords", "grid_coords")
BACKENDS = ("auto", "local", "verl")
CHOICES: dict[str, tuple[str, ...]] = {
    "log_level": ("debug", "info", "warning", "error"),
    "device": ("auto", "cpu", "cuda"),
    "model.dtype": ("float32", "bfloat16", "float16"),
    "prompt.response_format": ("world_model", "plain", "answer_only"),
    "prompt.style": ("full", "state_only"),
    "prompt.history": ("full", "last_k", "single_turn"),
    "prompt.state_shown": STATE_FORMATS,
    "prompt.observation": STATE_FORMATS,
    "prompt.prediction": STATE_FORMATS,
    "selfplay.policy": ("auto", "model", "random", "oracle"),
    "selfplay.states": ("truth", "self_belief"),
    "sft.target": ("states", "format"),
    "sft.state_loss": ("train", "mask", "strip"),
    "sft.backend": BACKENDS,
    "sft.optimizer": OPTIMIZERS,
    "sft.schedule": ("cosine", "constant"),
    "ppo.optimizer": OPTIMIZERS,
    "selfplay.prediction": ("sampled", "likeliest"),
    "ppo.backend": BACKENDS,
    "ppo.advantage": ("turn", "token"),
    "ppo.lr_schedule": ("constant", "linear", "cosine"),
    "evaluation.split": ("validation", "test"),
}
AT_LEAST_ONE = {
    "env": "max_turns max_actions_per_turn max_actions",
    "model": "hidden_size num_layers num_heads ffn_size max_positions",
    "prompt": "last_k",
    "sampling": "max_new_tokens max_model_len",
    "selfplay": "rounds env_groups group_size batches",
    "sft": "batch_size max_length",
    "ppo": "env_groups group_size ppo_epochs minibatch_size probe_samples",
    "evaluation": "puzzles samples bootstrap",
}
FRACTIONS = {
    "sampling": "top_p",
    "filter": "min_yield validation_share",
    "sft": "min_format_rate min_lr_ratio",
    "ppo": "gamma lam filter_ratio min_lr_ratio",
    "evaluation": "confidence",
}
MAY_BE_NEGATIVE = {"ppo.format_penalty", "ppo.ineffective_penalty"}


def check(config: Config) -> None:
    """Raise `ConfigError` at the first value that can't be meant."""
    values = flat(config)
    for key, allowed in CHOICES.items():
        if values[key] not in allowed:
            raise unknown(key, values[key], allowed)
    for key, value in values.items():
        _check_range(key, value)
    _check_agreement(config)


def flat(config: Config) -> dict[str, Any]:
    """Dotted key -> value, free-form sections (`env.kwargs`) as one value."""
    return dict(_walk(config, ""))


def _walk(section: Any, prefix: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        key = f"{prefix}{field.name}"
        pairs += _walk(value, f"{key}.") if dataclasses.is_dataclass(value) else [(key, value)]
    return pairs


def _check_range(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if not math.isfinite(value):
        raise ConfigError(f"{key}={value} is no finite number.")
    if _is_in(AT_LEAST_ONE, key) and value < 1:
        raise ConfigError(f"{key}={value} is below 1; give at least 1.")
    if _is_in(FRACTIONS, key) and not 0 <= value <= 1:
        raise ConfigError(f"{key}={value} is outside 0..1.")
    if value < 0 and key not in MAY_BE_NEGATIVE:
        raise ConfigError(f"{key}={value} is negative; give 0 or more.")
    if key in MAY_BE_NEGATIVE and value > 0:
        raise ConfigError(f"{key}={value} would reward what it should punish; give 0 or less.")


def _is_in(table: dict[str, str], key: str) -> bool:
    section, _, name = key.partition(".")
    return name in table.get(section, "").split()


def _check_agreement(config: Config) -> None:
    if not config.env.action_separator.strip():
        raise ConfigError(
            'env.action_separator is blank; give a sign between actions, such as "||".'
        )
    _check_scratch(config)
    _check_prompt(config)
    _check_pass_k(config)
    _check_ppo(config)


def _check_prompt(config: Config) -> None:
    prompt, sampling = config.prompt, config.sampling
    if prompt.style == "state_only" and prompt.history != "single_turn":
        raise ConfigError(
            f"prompt.style=state_only shows one bare state, so prompt.history={prompt.history} "
            "can't be shown; set prompt.history=single_turn or prompt.style=full."
        )
    if sampling.max_new_tokens >= sampling.max_model_len:
        raise ConfigError(
            f"sampling.max_new_tokens={sampling.max_new_tokens} leaves no room for a prompt in "
            f"sampling.max_model_len={sampling.max_model_len}; lower the first."
        )


def _check_scratch(config: Config) -> None:
    """A model that is built here must be one that can be built, and as long as its texts."""
    model, length = config.model, config.sampling.max_model_len
    if not model.from_scratch or model.path:
        return
    if model.hidden_size % model.num_heads:
        raise ConfigError(
            f"model.hidden_size={model.hidden_size} can't be shared out among model.num_heads="
            f"{model.num_heads}; give a multiple."
        )
    if length > model.max_positions:
        raise ConfigError(
            f"sampling.max_model_len={length} is more than model.max_positions="
            f"{model.max_positions}; raise the second, too."
        )


def _check_pass_k(config: Config) -> None:
    evaluation = config.evaluation
    if not evaluation.pass_k or min(evaluation.pass_k) < 1:
        raise ConfigError(f"evaluation.pass_k={evaluation.pass_k}; give one or more k >= 1.")
    if max(evaluation.pass_k) > evaluation.samples:
        raise ConfigError(
            f"evaluation.pass_k={evaluation.pass_k} needs more than evaluation.samples="
            f"{evaluation.samples} episodes a puzzle; raise samples or lower k."
        )


def _check_ppo(config: Config) -> None:
    """PPO's ratios are of the distribution that was sampled from: it must be the model's own."""
    sampling = config.sampling
    if sampling.temperature == 0 or sampling.top_p < 1:
        raise ConfigError(
            f"PPO can't learn from sampling.temperature={sampling.temperature} and sampling.top_p="
            f"{sampling.top_p}; set temperature above 0 and top_p=1 (to measure at another one, "
            "set evaluation.temperature)."
        )
    if config.ppo.group_size == 1 and config.ppo.filter_ratio < 1:
        raise ConfigError(
            f"ppo.filter_ratio={config.ppo.filter_ratio} chooses groups by the deviation of their "
            "rewards, and a group of one has none; set ppo.filter_ratio=1 or a larger "
            "ppo.group_size."
        )
    if config.ppo.filter_ratio == 0:
        raise ConfigError("ppo.filter_ratio=0 leaves no group to train on; give 1 for all groups.")
