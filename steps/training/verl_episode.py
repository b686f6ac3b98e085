"""One episode against an inference server that takes and gives token ids; no verl here.

The episode is that of `steps.agent.rollout`, the prompt that of `steps.policies.chat_template`. In
a long conversation a prompt goes on from the ids that were shown and sampled before: only what came
since is tokenised, and a sampled token never is. Where a chat template rewrites what was said
(Qwen3 drops earlier thoughts), the prompt is encoded afresh and the episode becomes one sequence a
turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from conf.schema import PPOSection
from steps.agent.records import (
    Completion,
    FinishReason,
    Message,
    PolicyRequest,
    Sampling,
    TokenSample,
    Trajectory,
)
from steps.agent.rollout import Episode
from steps.errors import DataError
from steps.policies.chat_template import end_of_turn_id, stop_token_ids
from steps.training.ppo_batch import build_samples
from steps.training.rewards import at_last_turn, turn_rewards

POLICY_NAME = "verl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the server wrote."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """None where the server wasn't asked for them."""


class Generate(Protocol):
    """Asks the server; `never_stop` writes `max_tokens` tokens whatever they are."""

    def __call__(
        self, prompt_ids: list[int], *, max_tokens: int, never_stop: bool
    ) -> Awaitable[Answer]:
        """The answer, which ends with the end-of-turn token or has `max_tokens` tokens."""
        ...


@lru_cache(maxsize=4)
def stop_ids(tokenizer: Any) -> tuple[int, ...]:
    """`stop_token_ids`, worked out once a tokenizer."""
    return tuple(stop_token_ids(tokenizer))


@lru_cache(maxsize=4)
def _end_id(tokenizer: Any) -> int:
    return end_of_turn_id(tokenizer)


class Conversation:
    """The token ids of a chat that grows."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.end_id = _end_id(tokenizer)
        self._text = ""
        self._ids: list[int] = []

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the chat with the generation prompt."""
        text = str(
            self.tokenizer.apply_chat_template(
                [message.as_dict() for message in messages],
                add_generation_prompt=True,
                tokenize=False,
            )
        )
        if self._ids and text.startswith(self._text):
            added = self._encode(text[len(self._text) :])
            if self._ids[-1] == self.end_id and added[:1] == [self.end_id]:
                added = added[1:]  # it was sampled
            self._ids = [*self._ids, *added]
        else:
            self._ids = self._encode(text)
        self._text = text
        return list(self._ids)

    def answered(self, text: str, token_ids: Sequence[int]) -> None:
        """Note what was written after the last prompt: its text, and the ids that were sampled."""
        self._text += text
        self._ids = [*self._ids, *token_ids]

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass(kw_only=True)
class Player:
    """Plays one episode."""

    tokenizer: Any
    generate: Generate
    sampling: Sampling
    max_model_len: int
    answer_lengths: tuple[int, int] | None = None
    """Draw the length of each answer between these, whatever is written; for benchmarks."""
    env_seconds: float = field(default=0.0, init=False)
    """Spent outside the server."""

    async def play(self, make_episode: Callable[[], Episode], env_id: str) -> Trajectory:
        """The finished episode. Boards, rules and texts are worked out beside the event loop."""
        episode: Episode = await self._beside(make_episode)
        conversation = Conversation(self.tokenizer)
        try:
            while episode.stop_reason is None:
                request = await self._beside(episode.ask)
                prompt = await self._beside(conversation.prompt, request.messages)
                completion = await self._complete(request, prompt)
                conversation.answered(completion.text, completion.token_ids)
                await self._beside(episode.take, completion)
        finally:
            episode.close()
        return episode.trajectory(env_id, POLICY_NAME)

    async def _complete(self, request: PolicyRequest, prompt: list[int]) -> Completion:
        room = min(self.sampling.max_new_tokens, self.max_model_len - len(prompt))
        if room < 1:
            return Completion(text="", prompt_ids=tuple(prompt), finish_reason=FinishReason.CONTEXT)
        never_stop = self.answer_lengths is not None
        if self.answer_lengths is not None:
            low, high = self.answer_lengths
            room = min(room, int(np.random.default_rng(request.seed).integers(low, high + 1)))
        answer = await self.generate(prompt, max_tokens=room, never_stop=never_stop)
        return self._completion(prompt, answer, never_stop)

    def _completion(self, prompt: list[int], answer: Answer, never_stop: bool) -> Completion:
        sampled = answer.token_ids
        has_ended = bool(sampled) and sampled[-1] in stop_ids(self.tokenizer) and not never_stop
        return Completion(
            text=self.tokenizer.decode(
                sampled[:-1] if has_ended else sampled, skip_special_tokens=False
            ),
            prompt_ids=tuple(prompt),
            token_ids=sampled,
            logprobs=answer.logprobs,
            finish_reason=FinishReason.STOP if has_ended else FinishReason.LENGTH,
        )

    async def _beside(self, function: Callable[..., Any], *arguments: Any) -> Any:
        began = asyncio.get_running_loop().time()
        try:
            return await asyncio.to_thread(function, *arguments)
        finally:
            self.env_seconds += asyncio.get_running_loop().time() - began


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedSequence:
    """One sequence of an episode in verl's two halves; the response ends on a sampled token."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    logprobs: list[float] | None
    rewards: list[float]
    """Of each response token: that of a turn stands at the turn's last token."""


def sequences(
    trajectory: Trajectory, section: PPOSection, *, history: str
) -> list[TrainedSequence]:
    """What verl trains on of an episode, in order of its turns, by the local backend's own code.

    Raises `DataError` for an episode without a sampled token.
    """
    rewards = turn_rewards(trajectory, section)
    if section.reward_at == "episode":
        rewards = at_last_turn(len(rewards), sum(rewards))
    samples = build_samples(
        [trajectory], level="token", whole_episode=history == "full", rewards=[rewards]
    )
    if not samples:
        raise DataError(
            f"nothing was sampled in episode {trajectory.trajectory_id} ("
            f"{trajectory.stop_reason}): its first prompt leaves no room for an answer. Raise "
            "sampling.max_model_len or show the state in fewer words (prompt.state_shown)."
        )
    return [_halves(sample.tokens, iter(sample.rewards)) for sample in samples]


def _halves(tokens: TokenSample, rewards: Iterator[float]) -> TrainedSequence:
    start = tokens.loss_mask.index(1.0)
    mask = [int(weight) for weight in tokens.loss_mask[start:]]
    return TrainedSequence(
        prompt_ids=list(tokens.token_ids[:start]),
        response_ids=list(tokens.token_ids[start:]),
        response_mask=mask,
        logprobs=list(tokens.logprobs[start:]) if tokens.logprobs else None,
        rewards=[next(rewards) if is_learned else 0.0 for is_learned in mask],
    )
