"""Advantages of sequences as verl holds them, by the functions of `steps.training.advantages`.

verl's rows are responses padded on the right, with a mask of the sampled tokens. A run of ones is a
turn: between two turns stands at least the head of a user's message. An episode is one row (history
`full`) or several, one a turn; GAE is then chained across them, which verl itself can't do.

`values_BT[b, t]` is the critic's output at the token *before* response token `t`, as everywhere in
verl. Two things differ from the local backend:
1. With `turn` verl's critic learns the turn's return at each of its tokens, not at the first alone:
   its loss has no mask of its own.
2. All arithmetic is in float64, what comes back is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from steps.training.advantages import ADVANTAGES, bi_level_gae, gae, whiten
from steps.training.rewards import normalize_returns

Place = tuple[Hashable, int]
"""The episode of a row, and which of its rows it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Discounts:
    """The numbers of `ppo.gamma` and its like."""

    gamma: float = 1.0
    lam: float = 1.0
    gamma_turn: float = 1.0
    lam_turn: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chain:
    """The learned tokens of one episode, in order, as indices into the batch."""

    rows: np.ndarray
    columns: np.ndarray
    ends: np.ndarray
    """Whether each token is its turn's last."""

    @property
    def turn_of(self) -> np.ndarray:
        """Turn of each token, from 0."""
        turns: np.ndarray = np.cumsum(self.ends) - self.ends
        return turns


def estimator_name(advantage: str) -> str:
    """The name under which a word of `ppo.advantage` is registered with verl."""
    return f"spa_{advantage}"


def estimators() -> dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]]:
    """Registered name -> function with the signature of verl's estimators."""
    return {estimator_name(level): _estimator(level) for level in ADVANTAGES}


def _estimator(level: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def estimate(
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        config: Mapping[str, Any],
        *,
        index: Sequence[Hashable],
        places: Sequence[Place],
        values: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`index` is the group of each row; `config` is verl's section `algorithm`.

        Without a critic all values are 0, as in the local backend.
        """
        if level == "grpo":
            return group_advantages(token_level_rewards, response_mask, index, places)
        return episode_advantages(
            token_level_rewards,
            torch.zeros_like(token_level_rewards) if values is None else values,
            response_mask,
            places,
            level=level,
            discounts=Discounts(
                gamma=config["gamma"],
                lam=config["lam"],
                gamma_turn=config["gamma_turn"],
                lam_turn=config["lam_turn"],
            ),
            normalize=config["normalize_advantages"],
        )

    estimate.__name__ = estimator_name(level)
    return estimate


def episode_advantages(
    rewards_BT: torch.Tensor,
    values_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    places: Sequence[Place],
    *,
    level: str,
    discounts: Discounts,
    normalize: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and value targets `[B, T]`, 0 where nothing was sampled.

    `level` is `token`, `bi_level` or `turn`. `normalize` gives them zero mean and unit deviation
    over all decisions: tokens, or turns with `turn`.
    """
    rewards, values, mask = _array(rewards_BT), _array(values_BT), _array(mask_BT) > 0
    advantages, returns = np.zeros_like(values), np.zeros_like(values)
    decisions: list[np.ndarray] = []
    for chain in _chains(mask, places):
        cells = chain.rows, chain.columns
        own, targets = _decided(rewards[cells], values[cells], chain, level, discounts)
        advantages[cells], returns[cells] = own, targets
        decisions.append(own[chain.ends] if level == "turn" else own)
    if normalize and decisions:
        flat = np.concatenate(decisions)
        advantages = whiten(advantages, mean=float(flat.mean()), std=float(flat.std())) * mask
    return _tensor(advantages, rewards_BT), _tensor(returns, rewards_BT)


def group_advantages(
    rewards_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    groups: Sequence[Hashable],
    places: Sequence[Place],
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO: each sampled token has its episode's return, normalised within its group; twice."""
    rewards, mask = _array(rewards_BT), _array(mask_BT) > 0
    sums: dict[Hashable, float] = {}
    group_of: dict[Hashable, Hashable] = {}
    for row, (episode, _) in enumerate(places):
        sums[episode] = sums.get(episode, 0.0) + float((rewards[row] * mask[row]).sum())
        group_of[episode] = groups[row]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(group_of.values()))}
    standings = normalize_returns(
        list(sums.values()),
        [numbers[group_of[episode]] for episode in sums],
        method="mean_std",
        grouping="state",
    )
    by_episode = dict(zip(sums, standings, strict=True))
    column = np.array([by_episode[episode] for episode, _ in places])
    advantages = column[:, None] * mask
    return _tensor(advantages, rewards_BT), _tensor(advantages, rewards_BT)


def _chains(mask: np.ndarray, places: Sequence[Place]) -> Iterable[_Chain]:
    """The episodes of a batch whose rows may be in any order; none without a sampled token."""
    assert len(places) == len(mask), (len(places), len(mask))
    rows_of: dict[Hashable, list[tuple[int, int]]] = {}
    for row, (episode, index) in enumerate(places):
        rows_of.setdefault(episode, []).append((index, row))
    following = np.pad(mask[:, 1:], ((0, 0), (0, 1)))
    for members in rows_of.values():
        rows, columns = [], []
        for _, row in sorted(members):
            found = np.flatnonzero(mask[row])
            rows.append(np.full(len(found), row))
            columns.append(found)
        cells = np.concatenate(rows), np.concatenate(columns)
        if len(cells[0]):
            yield _Chain(rows=cells[0], columns=cells[1], ends=~following[cells])


def _decided(
    rewards: np.ndarray, values: np.ndarray, chain: _Chain, level: str, discounts: Discounts
) -> tuple[np.ndarray, np.ndarray]:
    """Advantage and value target of each token of an episode."""
    gamma, lam = discounts.gamma, discounts.lam
    if level == "token":
        return gae(rewards, values, gamma=gamma, lam=lam)
    if level == "bi_level":
        return bi_level_gae(
            rewards,
            values,
            chain.ends.tolist(),
            gamma=gamma,
            lam=lam,
            gamma_turn=discounts.gamma_turn,
            lam_turn=discounts.lam_turn,
        )
    assert level == "turn", level
    turn_of = chain.turn_of
    starts = np.concatenate(([True], chain.ends[:-1]))
    advantages, returns = gae(
        np.bincount(turn_of, weights=rewards), values[starts], gamma=gamma, lam=lam
    )
    return advantages[turn_of], returns[turn_of]


def _array(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().double().numpy()
    return array


def _tensor(values: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values).to(device=like.device, dtype=torch.float32)
