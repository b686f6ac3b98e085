"""What sets a run's setting apart from the paper's, read off the settings of both.

The paper's are composed as a run of the `paper` profile on the world that its code configures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import conf
import envs
from envs.errors import EnvironmentConfigError, EnvironmentIdError
from steps.report.paper_rows import Row
from steps.report.published import LARGE_LAKE_MODEL, Published, is_same_model

WORLDS = {"frozenlake": "frozenlake_upstream", "sokoban": "sokoban", "sudoku": "sudoku"}
"""Game -> the world that the published code configures."""
SPECIAL_WORLDS = {"cross_complexity": "sokoban_harder", "easy_to_hard": "frozenlake_6x6_upstream"}
LARGE_LAKE_WORLD = "frozenlake_6x6_upstream"
"""That of `LARGE_LAKE_MODEL`."""
SETTINGS = {
    "env.max_turns": "turns",
    "env.max_actions_per_turn": "actions a turn",
    "env.max_actions": "action budget",
    "prompt.style": "prompt",
    "prompt.history": "history",
    "prompt.state_shown": "state shown",
    "prompt.observation": "observation",
    "prompt.prediction": "prediction",
    "selfplay.rounds": "self-play rounds",
    "selfplay.prediction": "predicted state taught",
    "selfplay.random_actions_per_turn": "actions a turn of random self-play",
    "ppo.total_steps": "PPO steps",
    "ppo.filter_ratio": "share of groups trained on",
    "ppo.budget_factor": "PPO's actions an episode, times",
    "ppo.advantage": "advantage",
    "ppo.gamma": "gamma",
    "ppo.reward_at": "reward at",
    "ppo.kl_coef": "KL weight",
    "ppo.target_kl": "KL that ends an update",
    "ppo.observation_reward": "reward for an observation",
    "ppo.prediction_reward": "reward for a prediction",
    "ppo.observation_penalty": "penalty for a wrong observation",
    "ppo.prediction_penalty": "penalty for a wrong prediction",
    "model.lora_rank": "rank of adapters",
    "verl.overrides": "told to verl",
    "verl.sft_overrides": "told to verl for finetuning",
    "evaluation.puzzles": "test puzzles",
    "evaluation.split": "measured on puzzles of",
    "evaluation.temperature": "measured at temperature",
    "start.stage": "starts from",
    "start.env": "of",
}
"""Settings that are compared, and what they are called."""
COUNTED = ("prompt", "sampling", "generation", "selfplay", "filter", "sft", "ppo")
"""Sections whose other settings are counted where they differ, but for these names in them:"""
SHOWN_ELSEWHERE = (
    *("selfplay.policy", "selfplay.env_groups", "selfplay.group_size", "selfplay.batches"),
    *("sft.max_steps", "sft.epochs", "sft.batch_size", "ppo.env_groups", "ppo.group_size"),
)
INCIDENTAL = (
    *("backend", "base_seed", "save_every", "eval_every", "max_batch", "num_examples"),
    *("probe_every", "probe_puzzles", "probe_samples", "probe_pass_k", "min_format_rate"),
)
WORLD = {
    "size": "board size",
    "intended_prob": "chance to go where one wants",
    "frozen_prob": "share of ice",
    "dim_room": "room",
    "num_boxes": "boxes",
}
"""Arguments of a world by their names in words; others keep their own."""


def differences(row: Row, published: Published | None) -> list[str]:
    """`turns 10 (5)`: ours, in brackets the paper's; nothing where the paper has no such row."""
    if published is None:
        return []
    ours = row.runs[0].settings
    world = SPECIAL_WORLDS.get(row.experiment, WORLDS[published.family])
    if (published.family, published.model) == ("frozenlake", LARGE_LAKE_MODEL):
        world = LARGE_LAKE_WORLD
    theirs = _paper_settings(row.experiment, world if world in conf.known("env") else "default")
    found = {
        "model": (row.model, published.model),
        **_worlds(row.env_id, ours["env.kwargs"], world),
        **_self_play(ours, theirs),
        **{name: (ours.get(key), theirs.get(key)) for key, name in SETTINGS.items()},
        "episodes a PPO step": (_episodes(ours), _episodes(theirs)),
    }
    if is_same_model(row.model, published.model):
        del found["model"]
    notes = [
        f"{name} {_text(own)}" + ("" if other is None else f" ({_text(other)})")
        for name, (own, other) in found.items()
        if own is not None and own != other
    ]
    return notes + _others(ours, theirs)


def _others(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """How many settings differ that have no words of their own, and where."""
    sections = [
        key.split(".")[0]
        for key, value in theirs.items()
        if key not in (*SETTINGS, *SHOWN_ELSEWHERE)
        and key.split(".")[-1] not in INCIDENTAL
        and ours.get(key) != value
    ]
    where = [section for section in COUNTED if section in sections]
    num = sum(section in COUNTED for section in sections)
    noun = "setting" if num == 1 else "settings"
    return [f"{num} other {noun} of {', '.join(where)}"] if num else []


@cache
def _paper_settings(experiment: str, env: str) -> Mapping[str, Any]:
    known = experiment if experiment in conf.known("experiment") else "spa"
    return conf.flat(conf.compose(profile="paper", env=env, experiment=known))


def _worlds(env_id: str, kwargs: Mapping[str, Any], published: str) -> dict[str, tuple[Any, Any]]:
    """Arguments of both worlds, as far as they can be told."""
    try:
        ours, theirs = {**envs.spec_of(env_id), **kwargs}, envs.spec_of(published)
    except (EnvironmentIdError, EnvironmentConfigError):
        return {"world": (env_id, published)}
    return {
        WORLD.get(key, key.replace("_", " ")): (ours.get(key), theirs.get(key))
        for key in {**theirs, **ours}
    }


def _self_play(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Who plays for the data, how much, and how long is finetuned on it."""
    return {
        "first round played by": (_player(ours), _player(theirs)),
        "episodes of self-play": (_self_played(ours), _self_played(theirs)),
        "finetuning": (_length(ours), _length(theirs)),
    }


def _player(settings: Mapping[str, Any]) -> str:
    policy = str(settings["selfplay.policy"])
    if policy != "auto":
        return policy
    is_random = settings["model.from_scratch"] or settings["sft.target"] == "format"
    return "random" if is_random else "model"


def _self_played(settings: Mapping[str, Any]) -> int:
    keys = ("env_groups", "group_size", "batches")
    return math.prod(int(settings[f"selfplay.{key}"]) for key in keys)


def _length(settings: Mapping[str, Any]) -> str:
    if settings["sft.target"] == "format" and not settings["model.from_scratch"]:
        return "none"
    steps, rows = settings["sft.max_steps"], settings["sft.batch_size"]
    length = f"{steps} steps" if steps else f"{settings['sft.epochs']} epochs"
    return f"{length} of batch {rows}"


def _episodes(settings: Mapping[str, Any]) -> int:
    return int(settings["ppo.env_groups"]) * int(settings["ppo.group_size"])


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
