"""What PPO learns from: rewards of turns and returns of episodes, as pure functions.

The trajectories stay those of the game: bonuses, normalisation and the place of a reward exist
here alone, so that success rates and stored episodes are the same with and without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from conf.schema import PPOSection
from steps.agent import worldmodel
from steps.agent.records import ResponseFormat, Trajectory, Turn
from steps.training.advantages import MIN_DEVIATION

ASYMMETRIC = (-1.0, 3.0)
"""Bounds of `asym_clip`: a rare success may count more than a rare failure (RAGEN)."""


def turn_rewards(trajectory: Trajectory, section: PPOSection) -> list[float]:
    """Reward of each turn: the game's, penalties, and what right and wrong states earn.

    The observation is right where it is the true state, character by character, the prediction
    where it is any state that the turn's actions could have led to (in a world without chance: the
    one that came); neither is in a malformed answer. Source of the rewards: state estimation and
    transition modelling in VAGEN (arXiv 2510.16907), there judged by a language model. Penalties
    are ours: a reward each turn pays for long episodes, a penalty doesn't.
    """
    rewards = [turn.reward + turn.penalty for turn in trajectory.turns]
    observation = (section.observation_penalty, section.observation_reward)
    prediction = (section.prediction_penalty, section.prediction_reward)
    has_states = trajectory.response_format == ResponseFormat.WORLD_MODEL
    if not has_states or not any((*observation, *prediction)):
        return rewards
    right = [_right_states(trajectory, turn) for turn in trajectory.turns]
    return [
        reward + observation[observed] + prediction[predicted]
        for reward, (observed, predicted) in zip(rewards, right, strict=True)
    ]


def _right_states(trajectory: Trajectory, turn: Turn) -> tuple[bool, bool]:
    """Whether the observation and the prediction are right, by the definitions of the report.

    Where the chances of several steps aren't known, the path that came is the right one.
    """
    scores = worldmodel.scores([replace(trajectory, turns=(turn,))])
    possible = scores["prediction_possible"]
    predicted = scores["prediction_exact"] if possible is None else possible
    return scores["observation_exact"] == 1.0, predicted == 1.0


def normalize_returns(
    returns: Sequence[float], groups: Sequence[int], *, method: str, grouping: str
) -> list[float]:
    """Returns of episodes, compared with those of their group (`state`) or with all (`batch`).

        mean       R - mean
        mean_std   (R - mean) / (std + 1e-6), and 0 where std <= 1e-6
        asym_clip  the same, cut to [-1, 3]

    `std` is the sample's (divided by n - 1). Source: RAGEN's reward normalisation; `none` is its
    `identity`. With `mean_std` and `state` these are the advantages of GRPO, Shao et al. 2024
    (arXiv 2402.03300), section 4.1.2, as verl computes them.
    """
    values = np.asarray(returns, dtype=np.float64)
    if method == "none":
        return [float(value) for value in values]
    keys = np.asarray(groups if grouping == "state" else [0] * len(values))
    normalized = np.zeros_like(values)
    for key in np.unique(keys):
        normalized[keys == key] = _normalized(values[keys == key], method)
    return [float(value) for value in normalized]


def _normalized(values: np.ndarray, method: str) -> np.ndarray:
    centred: np.ndarray = values - values.mean()
    if method == "mean":
        return centred
    std = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    if std <= MIN_DEVIATION:
        return np.zeros_like(values)
    scaled: np.ndarray = centred / (std + 1e-6)
    return scaled.clip(*ASYMMETRIC) if method == "asym_clip" else scaled


def at_last_turn(num_turns: int, value: float) -> list[float]:
    """Rewards of an episode whose turns count together: nothing, and `value` after the last."""
    return [0.0] * (num_turns - 1) + [value] * (num_turns > 0)
