"""What the types can't say: allowed words, ranges, and settings that contradict each other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from conf.errors import ConfigError, unknown
from conf.schema import Config

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
    "evaluation": "confidence",
}
MAX_SEED = 1_000_000_000
"""Its training puzzles' seeds (`steps.settings.SEED_STRIDE`) still fit into 64 bits."""
MAY_BE_NEGATIVE = {
    *("ppo.format_penalty", "ppo.ineffective_penalty"),
    *("ppo.observation_penalty", "ppo.prediction_penalty"),
}


def check(config: Config, *parts: str) -> None:
    """Raise `ConfigError` at the first value that can't be meant.

    `parts`, sections or single keys, leave the others out: what a stage asks that may have been
    called with settings that nothing composed.
    """
    values = {key: value for key, value in flat(config).items() if _is_part(key, parts)}
    for key, allowed in CHOICES.items():
        if key in values and values[key] not in allowed:
            raise unknown(key, values[key], allowed)
    for key, value in values.items():
        _check_range(key, value)
    for section, agree in AGREEMENTS:
        if _is_part(section, parts):
            agree(config)


def _is_part(key: str, parts: Sequence[str]) -> bool:
    return not parts or any(f"{key}.".startswith(f"{part}.") for part in parts)


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


def _check_seed(config: Config) -> None:
    if config.seed > MAX_SEED:
        raise ConfigError(f"seed={config.seed} is above {MAX_SEED}; give a smaller one.")


def _check_separator(config: Config) -> None:
    if not config.env.action_separator.strip():
        raise ConfigError(
            'env.action_separator is blank; give a sign between actions, such as "||".'
        )


def _check_prompt(config: Config) -> None:
    prompt, sampling = config.prompt, config.sampling
    if prompt.style == "state_only" and prompt.history != "single_turn":
        raise ConfigError(
            f"prompt.style=state_only shows one bare state, so prompt.history={prompt.history} "
            "can't be shown; set prompt.history=single_turn or prompt.style=full."
        )
    formats = (prompt.state_shown, prompt.observation, prompt.prediction)
    if prompt.random_coords and set(formats) == {"grid"}:
        raise ConfigError(
            "prompt.random_coords=true draws coordinates, and no state has any: set "
            "prompt.state_shown, prompt.observation or prompt.prediction to grid_coords or coords."
        )
    each = prompt.prediction_steps == "each" and config.env.max_actions_per_turn > 1
    if each and config.selfplay.prediction == "likeliest":
        raise ConfigError(
            "selfplay.prediction=likeliest knows one state after all of a turn's actions, and "
            "prompt.prediction_steps=each wants one after each of "
            f"{config.env.max_actions_per_turn}; set selfplay.prediction=sampled (where nothing is "
            "left to chance it is the same)."
        )
    if sampling.max_new_tokens >= sampling.max_model_len:
        raise ConfigError(
            f"sampling.max_new_tokens={sampling.max_new_tokens} leaves no room for a prompt in "
            f"sampling.max_model_len={sampling.max_model_len}; lower the first."
        )


def _check_engine(config: Config) -> None:
    generation = config.generation
    if generation.engine == "vllm" and generation.gpu_memory_utilization == 0:
        raise ConfigError(
            "generation.gpu_memory_utilization=0 leaves vLLM no memory; give a share up to 1."
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


def _check_probe_pass_k(config: Config) -> None:
    section = config.ppo
    if not section.probe_pass_k or min(section.probe_pass_k) < 1:
        raise ConfigError(f"ppo.probe_pass_k={section.probe_pass_k}; give one or more k >= 1.")
    if max(section.probe_pass_k) > section.probe_samples:
        raise ConfigError(
            f"ppo.probe_pass_k={section.probe_pass_k} needs more than ppo.probe_samples="
            f"{section.probe_samples} episodes a puzzle; raise probe_samples or lower k."
        )


def _check_selfplay(config: Config) -> None:
    """A baseline has no beliefs, and a model from scratch none in its first round."""
    selfplay = config.selfplay
    if selfplay.states != "self_belief":
        return
    if selfplay.policy in ("random", "oracle"):
        raise ConfigError(
            f"selfplay.policy={selfplay.policy} has no beliefs to teach for "
            "selfplay.states=self_belief; set selfplay.policy=auto."
        )
    is_mute = config.model.from_scratch and not config.model.path
    if is_mute and selfplay.policy == "auto" and selfplay.rounds == 1:
        raise ConfigError(
            "selfplay.states=self_belief teaches nothing of it in the first round of a model from "
            "scratch, which is random play with true states; set selfplay.rounds=2."
        )


def _check_sft(config: Config) -> None:
    sft = config.sft
    kinds = ["thought", "answer", "tag"]
    if sft.state_loss == "train":
        kinds = ["observation", "prediction", *kinds]
    if not any(getattr(sft, f"{kind}_weight") for kind in kinds):
        raise ConfigError(
            f"sft.{kinds[0]}_weight and its fellows are all 0 (with sft.state_loss="
            f"{sft.state_loss}), which teaches nothing but to end a turn; raise one."
        )
    _check_format(config)
    if sft.state_loss != "strip" or config.prompt.response_format != "world_model":
        return
    if config.prompt.style != "state_only":
        raise ConfigError(
            f"sft.state_loss=strip takes the states out of the answers, but prompt.style="
            f"{config.prompt.style} asks for them in every prompt; set prompt.style=state_only, or "
            "prompt.response_format=plain (self-play then writes none either)."
        )
    if config.selfplay.rounds > 1:
        raise ConfigError(
            f"after sft.state_loss=strip the model writes no states, so it can't play round 2 of "
            f"selfplay.rounds={config.selfplay.rounds}; set selfplay.rounds=1."
        )


def _check_sft_keep(config: Config) -> None:
    """The best checkpoint is found by measures that the settings must ask for."""
    sft = config.sft
    if sft.keep == "best" and config.filter.validation_share == 0:
        raise ConfigError(
            "sft.keep=best goes by the validation loss, but filter.validation_share is 0; raise it."
        )
    if sft.keep == "best" and sft.max_steps > 0 and sft.eval_every == 0:
        raise ConfigError(
            "sft.keep=best needs validation losses before the end; set sft.eval_every, or give the "
            "length in epochs (sft.max_steps=0)."
        )


def _check_ppo_keep(config: Config) -> None:
    if config.ppo.keep == "best" and config.ppo.probe_every == 0:
        raise ConfigError("ppo.keep=best goes by probes; set ppo.probe_every.")


def _check_format(config: Config) -> None:
    """Earlier answers in a prompt would show the true states that are taken out of the rows."""
    prompt, has_rows = config.prompt, config.model.from_scratch
    if config.sft.target != "format" or not has_rows or prompt.response_format != "world_model":
        return
    if prompt.history != "single_turn":
        raise ConfigError(
            f"sft.target=format teaches a model from scratch what states look like and nothing of "
            f"what is true, but prompt.history={prompt.history} shows it earlier answers, true "
            "states in them; set prompt.history=single_turn, or sft.target=states."
        )


def _check_ppo(config: Config) -> None:
    """PPO's ratios are of the distribution that was sampled from: it must be the model's own."""
    sampling = config.sampling
    if sampling.temperature == 0 or sampling.top_p < 1:
        raise ConfigError(
            f"PPO can't learn from sampling.temperature={sampling.temperature} and sampling.top_p="
            f"{sampling.top_p}; set temperature above 0 and top_p=1 (to measure at another "
            "temperature, set evaluation.temperature)."
        )
    if config.ppo.group_size == 1 and config.ppo.filter_ratio < 1:
        raise ConfigError(
            f"ppo.filter_ratio={config.ppo.filter_ratio} chooses groups by the deviation of their "
            "rewards, and a group of one has none; set ppo.filter_ratio=1 or a larger "
            "ppo.group_size."
        )
    if config.ppo.group_size == 1 and config.ppo.exclude_zero_variance:
        raise ConfigError(
            "ppo.exclude_zero_variance leaves no group of one; set it to false or raise "
            "ppo.group_size."
        )
    if config.ppo.critic_warmup > 0 and not config.ppo.use_critic:
        raise ConfigError(
            f"ppo.critic_warmup={config.ppo.critic_warmup} lets the critic alone learn, and "
            "ppo.use_critic=false has none; set ppo.critic_warmup=0."
        )
    if 0 < config.ppo.dual_clip <= 1:
        raise ConfigError(
            f"ppo.dual_clip={config.ppo.dual_clip:g} bounds the loss of a worse action below what "
            "it is at first, so that nothing is learned of it; set it above 1, or 0 for none."
        )
    if config.ppo.filter_ratio == 0:
        raise ConfigError("ppo.filter_ratio=0 leaves no group to train on; give 1 for all groups.")


def _check_rewards(config: Config) -> None:
    ppo, response_format = config.ppo, config.prompt.response_format
    if config.sft.state_loss == "strip":
        response_format = "plain"
    for kind in ("observation", "prediction"):
        value = getattr(ppo, f"{kind}_reward")
        if value and response_format != "world_model":
            raise ConfigError(
                f"ppo.{kind}_reward={value} pays for states, and {response_format} answers hold "
                f"none; set prompt.response_format=world_model or ppo.{kind}_reward=0."
            )
    if ppo.reward_norm == "none":
        return
    if ppo.reward_at != "episode":
        raise ConfigError(
            f"ppo.reward_norm={ppo.reward_norm} is of episodes' returns, and ppo.reward_at="
            f"{ppo.reward_at} keeps each turn's own reward; set ppo.reward_at=episode."
        )
    if ppo.group_size == 1 and ppo.reward_norm_group == "state":
        raise ConfigError(
            f"ppo.reward_norm={ppo.reward_norm} makes every return of a group of one zero; set "
            "ppo.reward_norm_group=batch or raise ppo.group_size."
        )


def _check_grpo(config: Config) -> None:
    ppo = config.ppo
    if ppo.advantage != "grpo":
        return
    if ppo.use_critic or ppo.normalize_advantages or ppo.reward_norm != "none":
        raise ConfigError(
            "ppo.advantage=grpo has no critic and normalises returns itself; set "
            "ppo.use_critic=false ppo.normalize_advantages=false ppo.reward_norm=none."
        )
    if ppo.group_size == 1:
        raise ConfigError(
            "ppo.advantage=grpo compares the episodes of a group, and a group of one has nothing "
            "to compare with; raise ppo.group_size."
        )


def _check_loss_on(config: Config) -> None:
    ppo, history = config.ppo, config.prompt.history
    if ppo.loss_on == "sampled":
        return
    if history != "full" or ppo.advantage != "token":
        raise ConfigError(
            f"ppo.loss_on=all is for whole episodes, token by token, not for prompt.history="
            f"{history}, ppo.advantage={ppo.advantage}; set prompt.history=full "
            "ppo.advantage=token, or ppo.loss_on=sampled."
        )


def _check_told(config: Config) -> None:
    """What is handed on to verl, Hydra must be able to read."""
    for key in ("overrides", "sft_overrides"):
        for text in getattr(config.verl, key):
            from conf.overrides import is_readable

            if not is_readable(text):
                raise ConfigError(
                    f"{text!r} among verl.{key} isn't one of Hydra's overrides; write "
                    "key=value with one value, for example 'critic.model.use_liger=True'."
                )


AGREEMENTS: tuple[tuple[str, Callable[[Config], None]], ...] = (
    ("seed", _check_seed),
    ("env", _check_separator),
    ("model", _check_scratch),
    ("generation", _check_engine),
    ("prompt", _check_prompt),
    ("evaluation", _check_pass_k),
    ("ppo", _check_probe_pass_k),
    ("selfplay", _check_selfplay),
    ("sft", _check_sft),
    ("sft", _check_sft_keep),
    ("ppo", _check_ppo_keep),
    ("ppo", _check_ppo),
    ("ppo", _check_rewards),
    ("ppo", _check_grpo),
    ("ppo", _check_loss_on),
    ("verl", _check_told),
)
"""Section -> what its settings must agree with, among themselves and elsewhere."""
