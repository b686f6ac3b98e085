"""From episodes to what an update learns from: samples with decisions, advantages and returns.

A *decision* is what one value estimate speaks of: a whole turn (`advantage: turn`) or one sampled
token (`advantage: token`). Its value is read where the critic has seen everything before it and
nothing of it: at the token before the decision's first. Turn-level decisions of one-turn samples
therefore need the critic on the prompt alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steps.agent.records import TokenSample, Trajectory
from steps.training.advantages import gae
from steps.training.tokenization import policy_samples


@dataclass(kw_only=True, slots=True)
class PPOSample:
    """One sequence of an update; the lists are filled by `fill_advantages`."""

    tokens: TokenSample
    positions: tuple[int, ...]
    """Index of the token at which each decision's value is read."""
    decision_of: tuple[int, ...]
    """Decision (index into `positions`) of each token, -1 where nothing is learned."""
    rewards: tuple[float, ...]
    """Reward that follows each decision."""
    episode: int
    """Index of the trajectory that it belongs to."""
    values: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray

    @property
    def critic_ids(self) -> tuple[int, ...]:
        """The tokens that the critic must read: up to the last decision's position."""
        return self.tokens.token_ids[: self.positions[-1] + 1]


def build_samples(
    trajectories: Sequence[Trajectory], *, level: str, whole_episode: bool
) -> list[PPOSample]:
    """The samples of all episodes, those of one episode together and in order of their turns."""
    samples = []
    for episode, trajectory in enumerate(trajectories):
        rewards = {turn.index: turn.reward + turn.penalty for turn in trajectory.turns}
        _pass_on_rewards(trajectory, rewards)
        for tokens in policy_samples(trajectory, whole_episode=whole_episode):
            samples.append(_sample(tokens, rewards, level=level, episode=episode))
    return samples


def _pass_on_rewards(trajectory: Trajectory, rewards: dict[int, float]) -> None:
    """A turn without sampled tokens (no room left) gives its reward to the turn before it."""
    last = None
    for turn in trajectory.turns:
        if turn.completion.token_ids:
            last = turn.index
        elif last is not None:
            rewards[last] += rewards[turn.index]


def _sample(
    tokens: TokenSample, rewards: dict[int, float], *, level: str, episode: int
) -> PPOSample:
    positions: list[int] = []
    decision_of: list[int] = []
    decision_rewards: list[float] = []
    turns = tokens.turn_of_token
    for index, turn in enumerate(turns):
        if turn < 0:
            decision_of.append(-1)
            continue
        is_first = turns[index - 1] != turn
        if level == "token" or is_first:
            positions.append(index - 1)
            decision_rewards.append(0.0)
        is_last = index + 1 == len(turns) or turns[index + 1] != turn
        if is_last:
            decision_rewards[-1] += rewards[turn]
        decision_of.append(len(positions) - 1)
    empty = np.zeros(len(positions))
    return PPOSample(
        tokens=tokens,
        positions=tuple(positions),
        decision_of=tuple(decision_of),
        rewards=tuple(decision_rewards),
        episode=episode,
        values=empty,
        advantages=empty,
        returns=empty,
    )


def fill_advantages(samples: Sequence[PPOSample], *, gamma: float, lam: float) -> None:
    """Chain GAE over all decisions of each episode, across its samples."""
    start = 0
    while start < len(samples):
        stop = start
        while stop < len(samples) and samples[stop].episode == samples[start].episode:
            stop += 1
        chain = samples[start:stop]
        advantages, returns = gae(
            np.concatenate([sample.rewards for sample in chain]),
            np.concatenate([sample.values for sample in chain]),
            gamma=gamma,
            lam=lam,
        )
        offset = 0
        for sample in chain:
            size = len(sample.positions)
            sample.advantages = advantages[offset : offset + size]
            sample.returns = returns[offset : offset + size]
            offset += size
        start = stop


def token_advantages(sample: PPOSample) -> list[float]:
    """`[T]` advantage of each token: its decision's, 0 where nothing is learned."""
    advantages = sample.advantages
    return [float(advantages[index]) if index >= 0 else 0.0 for index in sample.decision_of]


def split_evenly(order: Sequence[int] | np.ndarray, parts: int) -> list[list[int]]:
    """`order` in `parts` consecutive pieces whose sizes differ by one at most."""
    return [list(piece) for piece in np.array_split(np.asarray(order, dtype=np.int64), parts)]
