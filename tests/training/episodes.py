"""Episodes of made-up tokens, for the tests of what PPO makes of them."""

from __future__ import annotations

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


def make_turn(
    index: int, *, answer: int, reward: float, penalty: float = 0.0, prompt: int = 2
) -> Turn:
    """A turn of `prompt` and `answer` tokens; no answer is a turn that had no room for one."""
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


def make_trajectory(*turns: Turn, group: int = 0, member: int = 0) -> Trajectory:
    """An episode of these turns."""
    return Trajectory(
        trajectory_id=f"g{group}m{member}",
        env_id="frozenlake",
        env_seed=0,
        puzzle_hash="0" * 16,
        group=group,
        member=member,
        policy="hf",
        turns=turns,
        stop_reason=StopReason.MAX_TURNS,
        success=False,
        response_format=ResponseFormat.WORLD_MODEL,
    )
