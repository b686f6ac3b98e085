"""From the resolved configuration to the settings that the agent loop takes. Pure functions.

The loop (`steps.agent`) knows no configuration file and the configuration knows no loop; this is
the one place where the two meet, so that self-play, finetuning, PPO and evaluation show a model
the same prompt. Words, ranges and contradictions are judged by `conf.checks`, when the
configuration is composed and again, of their own sections, in stages (`check_settings`); what only
an environment can judge, its id and arguments, is checked here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

import conf
import envs
from conf import checks
from conf.schema import Config
from envs import bounds_cache, solvers
from envs.base import TextEnv
from envs.errors import EnvironmentConfigError
from envs.errors import EnvironmentIdError as UnknownEnvironment
from steps.agent.prompts import History, PredictionSteps, PromptSettings, PromptStyle
from steps.agent.records import ResponseFormat, Sampling, StateFormat
from steps.agent.rollout import RolloutSettings
from steps.errors import ConfigError, EnvironmentIdError, unknown_name
from steps.policies.base import PolicySpec, check_library
from steps.policies.engines import check_engine, choose_engine
from steps.policies.model_directory import base_of_adapter, context_limit

MAX_CORES = 8
"""Beyond this many processes a model that fits on a laptop gains nothing."""
SEED_STRIDE = 100_000_000
"""Between the training puzzles of two runs' seeds: more than any run looks at."""
_SHAPE_KEYS = {
    "hidden_size": ("n_embd", "hidden_size"),
    "num_layers": ("n_layer", "num_hidden_layers"),
}
"""Sizes of a model by their names in ours and in the configurations of Hugging Face models."""
BASELINES = ("random", "oracle")
"""Policies that stand in for a model directory."""
_LIKE = (
    "name with --like the file of conf/model that it was trained with (tiny for the built-in one), "
    "or lower sampling.max_model_len with --override."
)


def prompt_settings(config: Config, *, selfplay: bool = False) -> PromptSettings:
    """What the model is shown and asked, the same in every stage.

    With one exception: `sft.state_loss: strip` takes the states out of what self-play wrote, and
    the stages after it play in plain answers.
    """
    prompt = config.prompt
    response_format = ResponseFormat(prompt.response_format)
    is_stripped = config.sft.state_loss == "strip" and not selfplay
    if is_stripped and response_format is ResponseFormat.WORLD_MODEL:
        response_format = ResponseFormat.PLAIN
    return PromptSettings(
        response_format=response_format,
        style=PromptStyle(prompt.style),
        history=History(prompt.history),
        last_k=prompt.last_k,
        state_shown=StateFormat(prompt.state_shown),
        observation=StateFormat(prompt.observation),
        prediction=StateFormat(prompt.prediction),
        prediction_steps=PredictionSteps(prompt.prediction_steps),
        random_coords=prompt.random_coords,
        max_actions_per_turn=config.env.max_actions_per_turn,
        separator=config.env.action_separator,
    )


def teaches_looks_alone(config: Config) -> bool:
    """Whether finetuning shows states that say nothing of the world (`steps.agent.lending`)."""
    has_states = config.prompt.response_format == ResponseFormat.WORLD_MODEL
    return config.sft.target == "format" and has_states and config.model.from_scratch


def sampling_settings(config: Config, *, temperature: float | None = None) -> Sampling:
    """How answers are drawn; `temperature` overrules the configured one."""
    sampling = config.sampling
    return Sampling(
        temperature=sampling.temperature if temperature is None else temperature,
        top_p=sampling.top_p,
        max_new_tokens=sampling.max_new_tokens,
    )


def rollout_settings(
    config: Config,
    *,
    splice: bool = False,
    selfplay: bool = False,
    for_ppo: bool = False,
    temperature: float | None = None,
) -> RolloutSettings:
    """How episodes are played; `for_ppo`: those that PPO learns from, its probes not among them.

    These alone count penalties and have the longer budget of `ppo.budget_factor`; they aren't
    stored, and without predictions nothing in them asks what could have come. Only self-play
    splices the truth.
    """
    env = config.env

    def budget(number: int) -> int:
        factor = config.ppo.budget_factor if for_ppo else 1.0
        return math.ceil(round(factor * number, 6))  # 1.1 * 10 is a little more than 11

    return RolloutSettings(
        prompt=prompt_settings(config, selfplay=selfplay),
        sampling=sampling_settings(config, temperature=temperature),
        max_turns=budget(env.max_turns),
        max_actions_per_turn=env.max_actions_per_turn,
        max_actions=budget(env.max_actions),
        separator=env.action_separator,
        lenient=config.prompt.lenient,
        splice=splice,
        splice_likeliest=config.selfplay.prediction == "likeliest",
        foresight=not for_ppo,
        format_penalty=config.ppo.format_penalty if for_ppo else 0.0,
        ineffective_penalty=config.ppo.ineffective_penalty if for_ppo else 0.0,
    )


def env_factory(config: Config) -> Callable[[], gymnasium.Env[str, str]]:
    """Makes a new environment at each call; it can be pickled, so worker processes take it, too."""
    return partial(_make_env, config.env.id, dict(config.env.kwargs))


def has_few_puzzles(config: Config) -> bool:
    """Whether stages share the starts of this world, so that a test's are no new ones."""
    env = env_factory(config)()
    game = env.unwrapped
    env.close()
    return isinstance(game, TextEnv) and game.few_puzzles


def training_seed(config: Config, base_seed: int) -> int:
    """Where a run's training puzzles begin: each `--seed` trains on puzzles of its own.

    Seed 0 begins at `base_seed`. Puzzles that only measure are drawn from `base_seed` itself, the
    same for every seed, so that seeds can be compared and averaged.
    """
    return base_seed + config.seed * SEED_STRIDE


def policy_spec(config: Config, model_dir: str, *, selfplay: bool = False) -> PolicySpec:
    """Who answers: a model directory, or one of `BASELINES` by its name.

    `generation.engine` says which engine plays a model (`steps.policies.engines`). A directory with
    a LoRA adapter is played on top of the model that it names, by vLLM alone. Only in self-play are
    a model's answers forced to be well-formed, where the settings ask for it, and random answers as
    long as `selfplay.random_actions_per_turn` says; raises `ConfigError` where what is asked for
    can't be done.
    """
    if model_dir in BASELINES:
        return PolicySpec(
            kind=model_dir,
            separator=config.env.action_separator,
            actions_per_turn=config.selfplay.random_actions_per_turn if selfplay else 0,
            thought=config.selfplay.random_thought if selfplay else "",
        )
    if selfplay:
        check_generation(config)
    engine, base = choose_engine(config), base_of_adapter(model_dir)
    if base and engine != "vllm":
        raise ConfigError(
            f"{model_dir!r} holds a LoRA adapter, which vLLM alone can play: set "
            "generation.engine=vllm, or merge it into its model."
        )
    return PolicySpec(
        kind=engine,
        model_dir=base or model_dir,
        adapter_dir=model_dir if base else "",
        device=config.device,
        dtype=config.model.dtype,
        max_model_len=config.sampling.max_model_len,
        revision=config.model.revision,
        trust_remote_code=config.model.trust_remote_code,
        max_batch=config.generation.max_batch,
        separator=config.env.action_separator,
        constrained=selfplay and config.generation.constrained,
        max_span_chars=config.generation.max_span_chars,
        logprobs=config.generation.logprobs,
        gpu_memory_utilization=config.generation.gpu_memory_utilization,
        tensor_parallel_size=config.generation.tensor_parallel_size,
        enforce_eager=config.generation.enforce_eager,
    )


def check_generation(config: Config) -> None:
    """Raise `ConfigError` where a library that is asked for is missing."""
    check_engine(config)
    if config.generation.constrained:
        check_library()


def floor_and_ceiling(config: Config, seeds: Sequence[int]) -> dict[str, float | None]:
    """Success of random and of optimal play on these puzzles, kept in the user's cache.

    The keys are those of `solvers.floor_and_ceiling`: a floor that isn't exact has an interval, a
    ceiling that isn't known is None.
    """
    return solvers.summary(bounds_of_puzzles(config, seeds))


def bounds_of_puzzles(config: Config, seeds: Sequence[int]) -> list[solvers.PuzzleBounds]:
    """The same of each puzzle."""
    env = config.env
    return solvers.bounds_of_puzzles(
        env.id,
        solvers.Budget(env.max_actions, env.max_turns, env.max_actions_per_turn),
        seeds,
        cache=bounds_cache.cache_directory(),
        **env.kwargs,
    )


def cores(config: Config) -> int:
    """Processes to use: `config.workers` where set, else this branch's share of our cores.

    At most `MAX_CORES`. The branches of a run that are on one machine share its cores evenly.
    """
    if config.workers > 0:
        return config.workers
    return max(1, min(available_cores() // max(1, config.branches), MAX_CORES))


def available_cores(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores of this process by affinity and, in a container, by the quota of its control group."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _cgroup_quota(cgroup_root)
    return count if quota is None else max(1, min(count, int(quota)))


def check_settings(config: Config, *parts: str) -> None:
    """Raise `ConfigError` where these sections or keys can't be meant (`conf.checks`).

    Composition asks the same of all; a stage asks it again of what it reads, since it may be called
    with a `Config` made by hand.
    """
    try:
        checks.check(config, *parts)
    except conf.ConfigError as error:
        raise ConfigError(str(error)) from error


def check_context(config: Config, model: str, *, advice: str = _LIKE) -> None:
    """Raise `ConfigError` where an episode may be longer than the model reads.

    It would lose every such episode without a word. `advice` is what to do about it.
    """
    limit = context_limit(model)
    if limit is not None and config.sampling.max_model_len > limit:
        raise ConfigError(
            f"the model in {model} reads at most {limit} tokens, and {config.env.id} is played "
            f"with sampling.max_model_len={config.sampling.max_model_len}; {advice}"
        )


def check_shape(config: Config, model_dir: str, *, option: str, advice: str) -> None:
    """Raise `ConfigError` where a directory's model has other sizes than the one built here.

    Its settings would be another's. `option` is the one that named these.
    """
    path = Path(model_dir) / "config.json"
    if config.model.path or not config.model.from_scratch or not path.is_file():
        return
    found = json.loads(path.read_text("utf-8"))
    for name, keys in _SHAPE_KEYS.items():
        size = next((found[key] for key in keys if key in found), None)
        wanted = getattr(config.model, name)
        if size is not None and size != wanted:
            raise ConfigError(
                f"the model in {model_dir} has {name} {size}, and {option} {config.model.name} has "
                f"{wanted}; {advice}"
            )


def model_source(model: str) -> str:
    """The directory or hub name that a command's `--model` leads to.

    Raises `conf.ConfigError` for what is neither, nor a file of `conf/model` (the hub would be
    asked for a misspelt word for a minute), and `ConfigError` for one that has learned nothing.
    """
    if Path(model).is_dir():
        return model
    path = conf.compose(model=model).model.path
    if not path:
        raise ConfigError(
            f"--model {model} is built here and has learned nothing; give the directory of one "
            f"that was trained, with --like {model}."
        )
    return path


def one_of(where: str, word: str, known: Iterable[str]) -> str:
    """`word`, or a ConfigError with the nearest known one; `where` is the setting's name."""
    names = tuple(known)
    if word not in names:
        raise ConfigError(unknown_name(where, word, names))
    return word


def _make_env(env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env[str, str]:
    try:
        return envs.make(env_id, **kwargs)
    except UnknownEnvironment as error:
        raise EnvironmentIdError(str(error)) from error
    except EnvironmentConfigError as error:
        raise ConfigError(f"env.kwargs of {env_id!r}: {error}") from error


def _cgroup_quota(root: Path) -> float | None:
    """CPU quota in cores, version 2 (`cpu.max`) or 1 (`cpu.cfs_quota_us`); None is no limit."""
    try:
        words = (root / "cpu.max").read_text().split()
    except OSError:
        words = _version_1_words(root / "cpu")
    if len(words) != 2 or words[0] in ("max", "-1"):
        return None
    try:
        quota, period = (int(word) for word in words)
    except ValueError:
        return None
    return quota / period if period > 0 else None


def _version_1_words(directory: Path) -> list[str]:
    try:
        return [
            (directory / name).read_text().strip()
            for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        ]
    except OSError:
        return []
