"""What can be judged before any work: a run that can't end well is refused in its first second.

The types, words and ranges of settings are checked where they are composed (`conf.checks`); here
is what only environments, files and the tracking store can tell. Loads no large library.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace

import numpy as np

from conf.schema import Config
from envs import splits
from envs.base import COORDS, STATE_FORMATS, TextEnv
from envs.errors import EnvironmentConfigError
from steps.agent.game_errors import RAISED, check_step, game_error
from steps.agent.parsing import find_tags, parse_response
from steps.agent.records import ResponseFormat
from steps.agent.splice import write_response
from steps.agent.states import PLACE
from steps.errors import ConfigError, SPAError
from steps.policies.engines import choose_engine, may_take_gpus
from steps.policies.model_directory import check_model, check_model_directory
from steps.settings import check_context, check_generation, check_shape, env_factory
from steps.tracking import check_tracking
from steps.training.backends import check_backend, check_backends, choose_backend, facts
from steps.training.row_lengths import check_world
from steps.training.verl_told import check_told

_TRAINING = {"sft_train": "sft", "ppo_train": "ppo"}
"""Steps that train, and their section of the settings."""
_PLAYING = ("selfplay_generate", "sft_train", "evaluate")
"""Steps in which `generation.engine` answers; the second in later rounds."""


def check(config: Config) -> None:
    """Raise a `SPAError` for the first thing that one environment's run would fail at later."""
    _check_model(config)  # whose files say how large it is
    check_backends(config)
    check_generation(config)
    check_told(config, _by_verl(config))
    _check_words(config)
    _check_puzzles(config)
    check_world(config)
    check_tracking(config)


def check_task(config: Config, step: str) -> None:
    """What the host that launched a run couldn't check, in the first task on a cluster."""
    if config.cluster != "local" and step == "selfplay_generate":
        check_told(config, _by_verl(config))


def _by_verl(config: Config) -> list[str]:
    """The stages that verl trains; of a cluster those that it may train there."""
    if config.cluster == "local":
        return [stage for stage in _TRAINING.values() if choose_backend(config, stage) == "verl"]
    return [stage for stage in _TRAINING.values() if check_backend(config, stage) != "local"]


def check_together(configs: Sequence[Config], max_workers: int) -> None:
    """Raise `ConfigError` where branches on this machine would each take its GPUs for themselves.

    vLLM wants most of a GPU's memory, and verl's trainer all GPUs; what the local backend and `hf`
    need, several branches have beside one another.
    """
    alone = {config.env.id: who for config in configs if (who := _takes_gpus(config))}
    if len(alone) > 1 and max_workers > 1:
        raise ConfigError(
            f"--env {','.join(config.env.id for config in configs)} plays and trains the "
            f"environments at once, and {' and '.join(dict.fromkeys(alone.values()))} would take "
            "this machine's GPUs in each of them; add --max-workers 1, which does one task at a "
            "time (give it to `resume`, too), or start a run for each."
        )


def _takes_gpus(config: Config) -> str:
    """Who in a local run has this machine's GPUs to itself; empty for nobody."""
    if config.cluster != "local" or facts(config).gpus == 0:
        return ""
    if "verl" in (choose_backend(config, "sft"), choose_backend(config, "ppo")):
        return "verl"
    return "vLLM" if may_take_gpus(config) else ""


def settled(config: Config, step: str) -> Config:
    """The settings with `auto` replaced by who trains, and who answers, on this machine.

    Decided before the stage's fingerprint is taken, so that it counts there. Where it can't be
    decided, the stage itself says why.
    """
    if step in _PLAYING:
        with suppress(SPAError):
            engine = choose_engine(config)
            config = replace(config, generation=replace(config.generation, engine=engine))
    stage = _TRAINING.get(step)
    if stage is not None:
        with suppress(SPAError):
            chosen = replace(getattr(config, stage), backend=choose_backend(config, stage))
            config = replace(config, **{stage: chosen})
    return config


def _check_model(config: Config) -> None:
    model = config.model
    if model.path:
        check_model(model.path)
    elif not model.from_scratch:
        raise ConfigError(
            f"model {model.name!r} has no path and isn't built from scratch: give --model a "
            "Hugging Face directory or a hub name (owner/name)."
        )


def _check_words(config: Config) -> None:
    """The answer format must hold what the world says: its actions, and its first state.

    One step is played, too: its values must be those that an episode reads.
    """
    with closing(env_factory(config)()) as env:
        world = env.unwrapped
        assert isinstance(world, TextEnv), world
        try:
            env.reset(seed=0)
            states = {each: world.describe(each) for each in STATE_FORMATS}
            actions = world.legal_actions() or ()
            check_step(env.step(_any_action(world, actions)), world)
        except RAISED as error:
            found = game_error(error, world, 0)
            if found is None:
                raise
            raise found from error
    _check_actions(config, actions)
    for state_format, text in states.items():
        if not isinstance(text, str):
            raise ConfigError(
                f"describe({state_format!r}) of {config.env.id} is {text!r}; it must be a text."
            )
        tags = find_tags(text, ResponseFormat.WORLD_MODEL)
        if tags:
            raise ConfigError(
                f"the first state of {config.env.id} in {state_format} holds a tag of the "
                f"answer format, {tags[0].name!r}: no answer could repeat it and be read; "
                "write the state without it."
            )
    if config.prompt.random_coords and not PLACE.search(states[COORDS]):
        raise ConfigError(
            "prompt.random_coords=true draws places such as (0,1) anew, and the first state of "
            f"{config.env.id} has none; set it to false."
        )


def _any_action(world: TextEnv, legal: Sequence[str]) -> str:
    """Some action; a text that is none is a step, too, in a game that draws no actions."""
    if legal:
        return legal[0]
    with suppress(NotImplementedError):
        return world.sample_action(np.random.default_rng(0))
    return ""


def _check_actions(config: Config, names: Sequence[str]) -> None:
    separator, response_format = config.env.action_separator, config.prompt.response_format
    for name in names:
        answer = write_response(
            response_format, observation="s", prediction="s", actions=[name], separator=separator
        )
        parsed = parse_response(answer, response_format, action_names=names, separator=separator)
        if not parsed.is_well_formed or parsed.actions != (name,):
            read = ", ".join(map(repr, parsed.actions)) or parsed.status.value
            raise ConfigError(
                f"the action {name!r} of {config.env.id} is read back from an answer as {read}: "
                f"rename it, so that it holds neither tags nor env.action_separator={separator!r}, "
                "or change the separator."
            )


def _check_puzzles(config: Config) -> None:
    """The world is made, and each stage's distinct puzzles are drawn, as the stages draw them."""
    sft, ppo, test = config.sft, config.ppo, config.evaluation
    make_env = env_factory(config)
    make_env().close()
    wanted = {
        "evaluation.puzzles": (test.split, test.puzzles, test.base_seed),
        "sft.probe_puzzles": ("validation", sft.probe_puzzles, ppo.base_seed),
        "ppo.probe_puzzles": ("validation", ppo.probe_puzzles, ppo.base_seed),
    }
    if ppo.probe_every == 0:
        del wanted["ppo.probe_puzzles"]
    for key, (split, count, base_seed) in wanted.items():
        try:
            splits.draw_seeds(make_env, split, count, base_seed, distinct=True)
        except EnvironmentConfigError as error:
            raise ConfigError(f"{key}={count} on {config.env.id}: {error}") from error


def check_start(config: Config, model_dir: str) -> None:
    """Raise a `SPAError` where an earlier run's model can't go on with this run's settings."""
    check_model_directory(model_dir)
    check_context(
        config,
        model_dir,
        advice="train the earlier run with a larger model.max_positions, or lower "
        "sampling.max_model_len.",
    )
    advice = "give --model as the earlier run did."
    check_shape(config, model_dir, option="--model", advice=advice)
