"""From episodes to what an update learns from: samples with decisions, advantages and returns.

A *decision* is what one value estimate speaks of: a whole turn (`advantage: turn` and `grpo`) or
one learned token (`token` and `bi_level`). Its value is read where the critic has seen everything
before it and nothing of it: at the token before the decision's first. Turn-level decisions of
one-turn samples therefore need the critic on the prompt alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from conf.schema import PPOSection
from steps.agent.records import TokenSample, Trajectory
from steps.training.advantages import bi_level_gae, gae
from steps.training.rewards import turn_rewards
from steps.training.tokenization import policy_samples

TOKEN_LEVEL = ("token", "bi_level")
"""Words of `ppo.advantage` whose decisions are tokens."""


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
    turn_ends: tuple[bool, ...]
    """Whether each decision is the last of its turn."""
    episode: int
    """Index of the trajectory that it belongs to."""
    group: int
    """That trajectory's group; one rank has played all of it."""
    values: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    reference: np.ndarray | None = None
    """`[T]` log-probability of each token under the model that `ppo.kl_coef` anchors to."""

    @property
    def critic_ids(self) -> tuple[int, ...]:
        """The tokens that the critic must read: up to the last decision's position."""
        return self.tokens.token_ids[: self.positions[-1] + 1]


def build_samples(
    trajectories: Sequence[Trajectory],
    *,
    level: str,
    whole_episode: bool,
    rewards: Sequence[Sequence[float]] | None = None,
    context_starts: Sequence[int] | None = None,
) -> list[PPOSample]:
    """The samples of all episodes, those of one episode together and in order of their turns.

    `level` is a word of `ppo.advantage`. `rewards` holds those of each episode's turns; None takes
    the trajectory's own. With `context_starts` an episode's every token from that place on is
    learned, too, if the episode is one sequence; else only what was sampled is.
    """
    samples = []
    for episode, trajectory in enumerate(trajectories):
        own = turn_rewards(trajectory, PPOSection()) if rewards is None else rewards[episode]
        by_turn = {turn.index: r for turn, r in zip(trajectory.turns, own, strict=True)}
        _pass_on_rewards(trajectory, by_turn)
        sequences = policy_samples(trajectory, whole_episode=whole_episode)
        if context_starts is not None and len(sequences) == 1:
            sequences = [_with_context(sequences[0], context_starts[episode])]
        for tokens in sequences:
            samples.append(
                _sample(tokens, by_turn, level=level, episode=episode, group=trajectory.group)
            )
    return samples


def _with_context(tokens: TokenSample, start: int) -> TokenSample:
    """The sequence with all its tokens learned from `start` on; the first one never is."""
    start = max(start, 1)
    mask = (0.0,) * start + (1.0,) * (len(tokens.token_ids) - start)
    return replace(tokens, loss_mask=mask)


def _pass_on_rewards(trajectory: Trajectory, rewards: dict[int, float]) -> None:
    """A turn without sampled tokens (no room left) gives its reward to the turn before it."""
    last = None
    for turn in trajectory.turns:
        if turn.completion.token_ids:
            last = turn.index
        elif last is not None:
            rewards[last] += rewards[turn.index]


def _sample(
    tokens: TokenSample, rewards: dict[int, float], *, level: str, episode: int, group: int
) -> PPOSample:
    positions: list[int] = []
    decision_of: list[int] = []
    decision_rewards: list[float] = []
    turn_ends: list[bool] = []
    turns = tokens.turn_of_token
    for index, turn in enumerate(turns):
        if not tokens.loss_mask[index]:
            decision_of.append(-1)
            continue
        is_first = turns[index - 1] != turn
        if level in TOKEN_LEVEL or is_first:
            positions.append(index - 1)
            decision_rewards.append(0.0)
            turn_ends.append(False)
        is_last = turn >= 0 and (index + 1 == len(turns) or turns[index + 1] != turn)
        if is_last:
            decision_rewards[-1] += rewards[turn]
            turn_ends[-1] = True
        decision_of.append(len(positions) - 1)
    empty = np.zeros(len(positions))
    return PPOSample(
        tokens=tokens,
        positions=tuple(positions),
        decision_of=tuple(decision_of),
        rewards=tuple(decision_rewards),
        turn_ends=tuple(turn_ends),
        episode=episode,
        group=group,
        values=empty,
        advantages=empty,
        returns=empty,
    )


def fill_advantages(
    samples: Sequence[PPOSample],
    *,
    gamma: float,
    lam: float,
    turn_level: tuple[float, float] | None = None,
) -> None:
    """Chain GAE over all decisions of each episode, across its samples.

    With `turn_level` (its gamma and lambda) GAE is bi-level: `gamma` and `lam` hold inside a turn.
    """
    start = 0
    while start < len(samples):
        stop = start
        while stop < len(samples) and samples[stop].episode == samples[start].episode:
            stop += 1
        chain = samples[start:stop]
        rewards = np.concatenate([sample.rewards for sample in chain])
        values = np.concatenate([sample.values for sample in chain])
        if turn_level is None:
            advantages, returns = gae(rewards, values, gamma=gamma, lam=lam)
        else:
            advantages, returns = bi_level_gae(
                rewards,
                values,
                [is_end for sample in chain for is_end in sample.turn_ends],
                gamma=gamma,
                lam=lam,
                gamma_turn=turn_level[0],
                lam_turn=turn_level[1],
            )
        offset = 0
        for sample in chain:
            size = len(sample.positions)
            sample.advantages = advantages[offset : offset + size]
            sample.returns = returns[offset : offset + size]
            offset += size
        start = stop


def fill_same_advantages(samples: Sequence[PPOSample], by_episode: Sequence[float]) -> None:
    """Give every decision of an episode the same advantage (GRPO)."""
    for sample in samples:
        sample.advantages = np.full(len(sample.positions), by_episode[sample.episode])
        sample.returns = sample.advantages + sample.values


def token_advantages(sample: PPOSample) -> list[float]:
    """`[T]` advantage of each token: its decision's, 0 where nothing is learned."""
    advantages = sample.advantages
    return [float(advantages[index]) if index >= 0 else 0.0 for index in sample.decision_of]


def split_evenly(order: Sequence[int] | np.ndarray, parts: int) -> list[list[int]]:
    """`order` in `parts` consecutive pieces whose sizes differ by one at most."""
    return [list(piece) for piece in np.array_split(np.asarray(order, dtype=np.int64), parts)]
