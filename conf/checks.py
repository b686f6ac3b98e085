"""What the types can't say: words and ranges (`conf.ranges`), and settings that must agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from conf.errors import ConfigError
from conf.ranges import check_values
from conf.schema import Config


def check(config: Config, *parts: str) -> None:
    """Raise `ConfigError` at the first value that can't be meant.

    `parts`, sections or single keys, leave the others out: what a stage asks that may have been
    called with settings that nothing composed.
    """
    values = {key: value for key, value in flat(config).items() if _is_part(key, parts)}
    check_values(values)
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
    if selfplay.policy == "auto" and config.sft.target == "format":
        raise ConfigError(
            "selfplay.states=self_belief teaches what a model believes, and with sft.target=format "
            "and selfplay.policy=auto random play answers in every round; set sft.target=states."
        )
    is_mute = config.model.from_scratch and not config.model.path
    if is_mute and selfplay.policy == "auto" and selfplay.rounds == 1:
        raise ConfigError(
            "selfplay.states=self_belief teaches nothing of it in the first round of a model from "
            "scratch, which is random play with true states; set selfplay.rounds=2."
        )


def _check_sft(config: Config) -> None:
    sft, response_format = config.sft, config.prompt.response_format
    kinds = ["answer", "tag"]
    if response_format != "answer_only":
        kinds = ["thought", *kinds]
    if response_format == "world_model" and sft.state_loss == "train":
        kinds = ["observation", "prediction", *kinds]
    if not any(getattr(sft, f"{kind}_weight") for kind in kinds):
        raise ConfigError(
            f"sft.{kinds[0]}_weight and its fellows are all 0 (with prompt.response_format="
            f"{response_format} and sft.state_loss={sft.state_loss}: {', '.join(kinds)}), which "
            "teaches nothing but to end a turn; raise one."
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
    has_choice = sft.eval_every > 0 or sft.epochs != 1
    if sft.max_steps > 0:
        has_choice = 0 < sft.eval_every < sft.max_steps
    if sft.keep == "best" and not has_choice:
        length = f"max_steps={sft.max_steps}" if sft.max_steps else f"epochs={sft.epochs}"
        raise ConfigError(
            f"sft.keep=best needs validation losses before the end, and of sft.{length} with "
            f"sft.eval_every={sft.eval_every} there are none; set sft.eval_every to fewer steps, "
            "or give the length in several epochs (sft.max_steps=0)."
        )


def _check_probes(config: Config) -> None:
    ppo = config.ppo
    if ppo.probe_every > 0 and ppo.probe_puzzles == 0:
        raise ConfigError(
            f"ppo.probe_puzzles=0 leaves probes (ppo.probe_every={ppo.probe_every}) nothing to "
            "play; raise it, or set ppo.probe_every=0 for none."
        )
    has_choice = ppo.total_steps == 0 or 0 < ppo.probe_every < ppo.total_steps
    if ppo.keep == "best" and not has_choice:
        raise ConfigError(
            f"ppo.keep=best goes by probes before the last step, and of ppo.total_steps="
            f"{ppo.total_steps} with ppo.probe_every={ppo.probe_every} there are none; set "
            "ppo.probe_every to fewer steps."
        )


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
    if 0 < config.ppo.total_steps <= config.ppo.critic_warmup:
        raise ConfigError(
            f"ppo.critic_warmup={config.ppo.critic_warmup} leaves none of ppo.total_steps="
            f"{config.ppo.total_steps} for the actor to learn in; lower it."
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
    ("env", _check_separator),
    ("model", _check_scratch),
    ("generation", _check_engine),
    ("prompt", _check_prompt),
    ("evaluation", _check_pass_k),
    ("ppo", _check_probe_pass_k),
    ("selfplay", _check_selfplay),
    ("sft", _check_sft),
    ("sft", _check_sft_keep),
    ("ppo", _check_probes),
    ("ppo", _check_ppo),
    ("ppo", _check_rewards),
    ("ppo", _check_grpo),
    ("ppo", _check_loss_on),
    ("verl", _check_told),
)
"""Section -> what its settings must agree with, among themselves and elsewhere."""
