"""Decisions, rewards and the chain of advantages over turns and tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steps.agent.records import Turn
from steps.training.ppo_batch import (
    build_samples,
    fill_advantages,
    fill_same_advantages,
    split_evenly,
    token_advantages,
)
from tests.training.episodes import make_trajectory as _trajectory
from tests.training.episodes import make_turn


def _turn(index: int, answer: int, reward: float, penalty: float = 0.0) -> Turn:
    return make_turn(index, answer=answer, reward=reward, penalty=penalty)


def test_turn_level_reads_the_value_at_the_prompts_last_token() -> None:
    (sample,) = build_samples([_trajectory(_turn(0, 3, 1.0))], level="turn", whole_episode=False)
    assert sample.positions == (1,)
    assert sample.critic_ids == (0, 1)
    assert sample.decision_of == (-1, -1, 0, 0, 0)
    assert sample.rewards == (1.0,)


def test_token_level_puts_the_reward_on_the_turns_last_token() -> None:
    (sample,) = build_samples(
        [_trajectory(_turn(0, 3, 1.0, penalty=-0.25))], level="token", whole_episode=False
    )
    assert sample.positions == (1, 2, 3)
    assert sample.rewards == (0.0, 0.0, 0.75)
    assert sample.decision_of == (-1, -1, 0, 1, 2)


def test_advantages_chain_over_the_turns_of_an_episode_and_not_beyond_it() -> None:
    episodes = [_trajectory(_turn(0, 2, 0.0), _turn(1, 1, 1.0)), _trajectory(_turn(0, 1, 5.0))]
    samples = build_samples(episodes, level="turn", whole_episode=False)
    fill_advantages(samples, gamma=0.5, lam=1.0)
    # values are 0: discounted returns, 0.5 * 1, then 1; the other episode stands alone
    assert [float(sample.advantages[0]) for sample in samples] == [0.5, 1.0, 5.0]
    assert token_advantages(samples[0]) == [0.0, 0.0, 0.5, 0.5]


def test_a_turn_without_tokens_gives_its_reward_to_the_turn_before() -> None:
    (sample,) = build_samples(
        [_trajectory(_turn(0, 2, 0.0), _turn(1, 0, 0.0, penalty=-0.5))],
        level="turn",
        whole_episode=False,
    )
    assert sample.rewards == (-0.5,)


def test_values_enter_the_chain() -> None:
    samples = build_samples(
        [_trajectory(_turn(0, 1, 0.0), _turn(1, 1, 1.0))], level="turn", whole_episode=False
    )
    samples[0].values, samples[1].values = np.array([0.5]), np.array([0.75])
    fill_advantages(samples, gamma=1.0, lam=0.0)
    assert samples[0].advantages == pytest.approx([0.25])
    assert samples[1].advantages == pytest.approx([0.25])
    assert samples[1].returns == pytest.approx([1.0])


def test_minibatches_cover_everything_once() -> None:
    assert split_evenly([3, 1, 4, 1, 5], 2) == [[3, 1, 4], [1, 5]]
    assert split_evenly([], 2) == [[], []]


def test_turns_end_at_their_last_token_whatever_they_earn() -> None:
    episode = _trajectory(_turn(0, 3, 0.0), _turn(1, 2, 1.0))
    first, second = build_samples([episode], level="bi_level", whole_episode=False)
    assert first.turn_ends == (False, False, True) and second.turn_ends == (False, True)
    first, second = build_samples([episode], level="turn", whole_episode=False)
    assert first.turn_ends == (True,) and second.turn_ends == (True,)


def test_bi_level_advantages_chain_over_the_samples_of_an_episode() -> None:
    episodes = [_trajectory(_turn(0, 2, 0.0), _turn(1, 1, 1.0)), _trajectory(_turn(0, 1, 5.0))]
    samples = build_samples(episodes, level="bi_level", whole_episode=False)
    samples[0].values, samples[1].values = np.array([0.5, 0.25]), np.array([0.5])
    fill_advantages(samples, gamma=0.5, lam=0.5, turn_level=(0.5, 1.0))
    # the numbers of the hand-computed episode in test_advantages.py; the other one stands alone
    got = [sample.advantages.tolist() for sample in samples]
    assert got == [[-0.3125, 0.25], [0.5], [5.0]]
    assert token_advantages(samples[0]) == [0.0, 0.0, -0.3125, 0.25]


def test_given_rewards_take_the_place_of_the_turns_own() -> None:
    episode = _trajectory(_turn(0, 2, 1.0), _turn(1, 1, 1.0))
    samples = build_samples([episode], level="turn", whole_episode=False, rewards=[[0.0, 7.0]])
    assert [sample.rewards for sample in samples] == [(0.0,), (7.0,)]


def test_an_episodes_reward_isnt_lost_with_a_last_turn_without_tokens() -> None:
    episode = _trajectory(_turn(0, 2, 1.0), _turn(1, 0, 0.0))
    (sample,) = build_samples([episode], level="token", whole_episode=False, rewards=[[0.0, 7.0]])
    assert sample.rewards == (0.0, 7.0)


def test_the_same_advantage_goes_to_every_turn_of_an_episode() -> None:
    episodes = [_trajectory(_turn(0, 2, 0.0), _turn(1, 1, 1.0)), _trajectory(_turn(0, 1, 5.0))]
    samples = build_samples(episodes, level="grpo", whole_episode=False)
    fill_same_advantages(samples, [-1.5, 0.5])
    assert [token_advantages(sample)[2:] for sample in samples] == [[-1.5, -1.5], [-1.5], [0.5]]


def test_with_context_every_token_after_the_system_message_is_learned() -> None:
    one = _turn(0, 2, 0.5)  # prompt 0 1, answer 0 1
    ids = one.completion.prompt_ids + one.completion.token_ids
    two = _turn(1, 1, 1.0)
    two = replace(two, completion=replace(two.completion, prompt_ids=(*ids, 7, 8)))
    episode = _trajectory(one, two)
    (sample,) = build_samples([episode], level="token", whole_episode=True, context_starts=[1])
    assert sample.tokens.token_ids == (0, 1, 0, 1, 7, 8, 0)
    assert sample.tokens.loss_mask == (0, 1, 1, 1, 1, 1, 1)
    assert sample.positions == (0, 1, 2, 3, 4, 5)
    assert sample.decision_of == (-1, 0, 1, 2, 3, 4, 5)
    # rewards stay behind the tokens that earned them, with the context's between them
    assert sample.rewards == (0, 0, 0.5, 0, 0, 1.0)
    assert sample.turn_ends == (False, False, True, False, False, True)


def test_the_first_token_has_nothing_before_it_and_is_never_learned() -> None:
    episode = _trajectory(_turn(0, 2, 0.5))
    (sample,) = build_samples([episode], level="token", whole_episode=True, context_starts=[0])
    assert sample.tokens.loss_mask == (0, 1, 1, 1) and sample.positions == (0, 1, 2)


def test_an_episode_in_several_sequences_learns_its_sampled_tokens_alone() -> None:
    episode = _trajectory(_turn(0, 2, 0.5), _turn(1, 1, 1.0))  # the second prompt is another text
    samples = build_samples([episode], level="token", whole_episode=True, context_starts=[1])
    assert [sample.tokens.loss_mask for sample in samples] == [(0, 0, 1, 1), (0, 0, 1)]
