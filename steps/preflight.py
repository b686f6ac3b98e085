"""What can be judged before any work: a run that can't end well is refused in its first second.

The types, words and ranges of settings are checked where they are composed (`conf.checks`); here
is what only environments, files and the tracking store can tell. Loads no large library.
"""

from __future__ import annotations

from conf.schema import Config
from envs import splits
from envs.errors import EnvironmentConfigError
from steps.errors import ConfigError
from steps.policies.model_directory import check_model
from steps.settings import env_factory
from steps.tracking import check_tracking
from steps.training.backends import choose_backend


def check(config: Config) -> None:
    """Raise a `SPAError` for the first thing that one environment's run would fail at later."""
    choose_backend(config, config.sft.backend, "sft")
    choose_backend(config, config.ppo.backend, "ppo")
    _check_model(config)
    _check_puzzles(config)
    check_tracking(config)


def _check_model(config: Config) -> None:
    model = config.model
    if model.path:
        check_model(model.path)
    elif not model.from_scratch:
        raise ConfigError(
            f"model {model.name!r} has no path and isn't built from scratch: give --model a "
            "Hugging Face directory or a hub name (owner/name)."
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
