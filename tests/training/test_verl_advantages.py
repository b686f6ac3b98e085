"""Advantages over rows as verl holds them: values by hand, and the local backend's on the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steps.training.ppo_batch import build_samples, fill_advantages
from steps.training.verl_advantages import (
    Discounts,
    episode_advantages,
    estimator_name,
    estimators,
    group_advantages,
)
from tests.training.episodes import make_trajectory, make_turn

# Two turns of two tokens with one of context between, then padding.
MASK = torch.tensor([[1, 1, 0, 1, 1, 0]])
REWARDS = torch.tensor([[0.0, 1.0, 0.0, 0.0, 2.0, 0.0]])
VALUES = torch.tensor([[0.5, 0.25, 9.0, 1.0, 0.5, 9.0]])
WHOLE = [("e", 0)]


def test_token_level_skips_the_context() -> None:
    advantages, returns = episode_advantages(
        REWARDS,
        VALUES,
        MASK,
        WHOLE,
        level="token",
        discounts=Discounts(gamma=1.0, lam=0.5),
        normalize=False,
    )
    # From the last token: 2 - 0.5; 0.5 - 1 + 0.5 * 1.5; 1 + 1 - 0.25 + 0.5 * 0.25;
    # 0.25 - 0.5 + 0.5 * 1.875.
    assert advantages[0].tolist() == pytest.approx([0.6875, 1.875, 0.0, 0.25, 1.5, 0.0])
    assert returns[0].tolist() == pytest.approx([1.1875, 2.125, 0.0, 1.25, 2.0, 0.0])


def test_turn_level_gives_a_turn_one_advantage_from_the_value_before_it() -> None:
    advantages, returns = episode_advantages(
        REWARDS,
        VALUES,
        MASK,
        WHOLE,
        level="turn",
        discounts=Discounts(gamma=0.5, lam=1.0),
        normalize=False,
    )
    # Turn 1: 2 - 1 = 1. Turn 0: 1 + 0.5 * 1 - 0.5 + 0.5 * 1 = 1.5.
    assert advantages[0].tolist() == pytest.approx([1.5, 1.5, 0.0, 1.0, 1.0, 0.0])
    assert returns[0].tolist() == pytest.approx([2.0, 2.0, 0.0, 2.0, 2.0, 0.0])


def test_bi_level_chains_turns_then_tokens() -> None:
    advantages, _ = episode_advantages(
        REWARDS,
        VALUES,
        MASK,
        WHOLE,
        level="bi_level",
        discounts=Discounts(gamma=1.0, lam=1.0, gamma_turn=0.5, lam_turn=1.0),
        normalize=False,
    )
    # Turn ends: V = 0.25 and 0.5. A(1) = 2 - 0.5 = 1.5, G(1) = 2; A(0) = 1 + 0.25 - 0.25 + 0.75 =
    # 1.75, G(0) = 2. Tokens: 2 - 0.25; 0.25 - 0.5 + 1.75; 2 - 0.5; 0.5 - 1 + 1.5.
    assert advantages[0].tolist() == pytest.approx([1.5, 1.75, 0.0, 1.0, 1.5, 0.0])


@pytest.mark.parametrize("level", ["token", "turn", "bi_level"])
def test_without_a_critic_values_are_zero(level: str) -> None:
    estimate = estimators()[estimator_name(level)]
    words = ("gamma", "lam", "gamma_turn", "lam_turn")
    settings = {**dict.fromkeys(words, 0.5), "normalize_advantages": False}
    given = (REWARDS, MASK, settings)
    found, _ = estimate(*given, index=["e"], places=WHOLE)
    zeros, _ = estimate(*given, index=["e"], places=WHOLE, values=torch.zeros(1, 6))
    other, _ = estimate(*given, index=["e"], places=WHOLE, values=VALUES)
    assert torch.equal(found, zeros) and not torch.equal(found, other)


@pytest.mark.parametrize("level", ["token", "turn", "bi_level"])
def test_an_episode_in_several_rows_is_chained_whatever_their_order(level: str) -> None:
    settings = {
        "level": level,
        "discounts": Discounts(gamma=0.9, lam=0.8, gamma_turn=0.7, lam_turn=0.6),
        "normalize": True,
    }
    whole, _ = episode_advantages(REWARDS, VALUES, MASK, WHOLE, **settings)
    # The second turn comes first, and a row of padding lies between.
    mask = torch.tensor([[1, 1], [0, 0], [1, 1]])
    rewards = torch.tensor([[0.0, 2.0], [0.0, 0.0], [0.0, 1.0]])
    values = torch.tensor([[1.0, 0.5], [7.0, 7.0], [0.5, 0.25]])
    places = [("e", 1), ("pad", 0), ("e", 0)]
    parts, _ = episode_advantages(rewards, values, mask, places, **settings)
    assert torch.allclose(parts[2], whole[0, :2]) and torch.allclose(parts[0], whole[0, 3:5])
    assert parts[1].tolist() == [0.0, 0.0]


def test_normalised_over_decisions() -> None:
    """A turn counts once, however long it is."""
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])
    rewards = torch.tensor([[0.0, 0.0, 3.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    values = torch.zeros(2, 4)
    places = [("a", 0), ("b", 0)]
    by_turn, _ = episode_advantages(
        rewards, values, mask, places, level="turn", discounts=Discounts(), normalize=True
    )
    assert by_turn[:, 0].tolist() == pytest.approx([1.0, -1.0])
    by_token, _ = episode_advantages(
        rewards, values, mask, places, level="token", discounts=Discounts(), normalize=True
    )
    # 3, 3, 3, 1: mean 2.5, deviation sqrt(0.75).
    assert by_token[0, 0].item() == pytest.approx(0.5 / 0.75**0.5)
    assert by_token[1].tolist() == pytest.approx([-1.5 / 0.75**0.5, 0.0, 0.0, 0.0])


def test_grpo_compares_episodes_within_their_group() -> None:
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1], [0, 0]])
    rewards = torch.tensor([[0.0, 3.0], [1.0, 0.0], [0.0, 4.0], [0.0, 1.0], [0.0, 0.0]])
    groups = ["g", "g", "h", "h", "pad"]
    # Episode x has two rows: its return is 3 + 1.
    places = [("x", 0), ("x", 1), ("y", 0), ("z", 0), ("p", 0)]
    advantages, returns = group_advantages(rewards, mask, groups, places)
    # Group h: 4 and 1, mean 2.5, sample deviation 3 / sqrt(2). Group g has one episode: 0.
    scale = 1.5 / (3 / 2**0.5 + 1e-6)
    assert advantages.tolist() == [
        [0.0, 0.0],
        [0.0, 0.0],
        pytest.approx([scale, scale]),
        pytest.approx([-scale, -scale]),
        [0.0, 0.0],
    ]
    assert torch.equal(advantages, returns)


@pytest.mark.parametrize("level", ["token", "turn", "bi_level"])
def test_equal_to_the_local_backend(level: str) -> None:
    trajectory = make_trajectory(
        make_turn(0, answer=3, reward=1.0),
        make_turn(1, answer=2, reward=0.0, penalty=-0.1),
        make_turn(2, answer=4, reward=2.0),
    )
    samples = build_samples([trajectory], level=level, whole_episode=False)
    rng = np.random.default_rng(0)
    table = rng.normal(size=(3, 4))
    for row, sample in enumerate(samples):
        sample.values = table[row, : len(sample.positions)]
    fill_advantages(
        samples, gamma=0.9, lam=0.8, turn_level=(0.7, 0.6) if level == "bi_level" else None
    )
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
    rewards = torch.zeros(3, 4)
    rewards[0, 2], rewards[1, 1], rewards[2, 3] = 1.0, -0.1, 2.0
    advantages, returns = episode_advantages(
        rewards,
        torch.from_numpy(table),
        mask,
        [("e", 0), ("e", 1), ("e", 2)],
        level=level,
        discounts=Discounts(gamma=0.9, lam=0.8, gamma_turn=0.7, lam_turn=0.6),
        normalize=False,
    )
    for row, sample in enumerate(samples):
        learned = [index for index in sample.decision_of if index >= 0]
        count = len(learned)
        assert advantages[row, :count].tolist() == pytest.approx(
            sample.advantages[learned], abs=1e-6
        )
        assert returns[row, :count].tolist() == pytest.approx(sample.returns[learned], abs=1e-6)


def test_the_registered_functions_read_verls_section() -> None:
    config = {
        "gamma": 1.0,
        "lam": 0.5,
        "gamma_turn": 1.0,
        "lam_turn": 1.0,
        "normalize_advantages": False,
    }
    found = estimators()
    assert sorted(found) == ["spa_bi_level", "spa_grpo", "spa_token", "spa_turn"]
    advantages, _ = found["spa_token"](
        token_level_rewards=REWARDS,
        response_mask=MASK,
        config=config,
        index=["g"],
        places=WHOLE,
        values=VALUES,
    )
    assert advantages[0].tolist() == pytest.approx([0.6875, 1.875, 0.0, 0.25, 1.5, 0.0])
