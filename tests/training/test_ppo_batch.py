"""Decisions, rewards and the chain of advantages over turns and tokens."""

from __future__ import annotations

import numpy as np
import pytest

from steps.agent.records import (
    Completion,
    FinishReason,
    ParsedResponse,
    ParseStatus,
    ResponseFormat,
    StopReason,
    Trajectory,
    Turn,
)
from steps.training.ppo_batch import (
    build_samples,
    fill_advantages,
    split_evenly,
    token_advantages,
)


def _turn(index: int, answer: int, reward: float, penalty: float = 0.0, prompt: int = 2) -> Turn:
    return Turn(
        index=index,
        prompt=(),
        state_shown="",
        observation_truth="",
        prediction_truth="",
        completion=Completion(
            text="",
            prompt_ids=tuple(range(prompt)),
            token_ids=tuple(range(answer)),
            logprobs=(-1.0,) * answer,
            finish_reason=FinishReason.STOP if answer else FinishReason.CONTEXT,
        ),
        response="",
        parsed=ParsedResponse(status=ParseStatus.OK),
        reward=reward,
        penalty=penalty,
    )


def _trajectory(*turns: Turn) -> Trajectory:
    return Trajectory(
        trajectory_id="e",
        env_id="frozenlake",
        env_seed=0,
        puzzle_hash="0" * 16,
        group=0,
        member=0,
        policy="hf",
        turns=turns,
        stop_reason=StopReason.MAX_TURNS,
        success=False,
        response_format=ResponseFormat.WORLD_MODEL,
    )


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
