"""An episode against a server of scripted answers: prompts, masks, ends, failures. No verl."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from conf.schema import Config, EnvSection, PPOSection, PromptSection, SamplingSection
from steps.agent.records import Completion, FinishReason, PolicyRequest, Sampling, StopReason
from steps.agent.rollout import Episode, EpisodeSpec, run_episodes
from steps.errors import DataError
from steps.policies.chat_template import encode_prompts
from steps.settings import env_factory, rollout_settings
from steps.training.verl_episode import Answer, Conversation, Player, sequences
from tests.training.templates import make_tokenizer

CONFIG = Config(
    env=EnvSection(
        id="frozenlake",
        kwargs={"map": ["SFFF", "FFFF", "FFFF", "FFFG"], "intended_prob": 1.0},
        max_turns=3,
        max_actions=4,
        max_actions_per_turn=2,
    ),
    prompt=PromptSection(response_format="answer_only", history="full"),
    sampling=SamplingSection(max_new_tokens=12, max_model_len=4000),
    ppo=PPOSection(format_penalty=-0.5, reward_at="turn"),
)
RIGHT, DOWN = "<answer>Right</answer>", "<answer>Down</answer>"
SPEC = EpisodeSpec(env_seed=5, group=2, member=1, sampling_seed=9)


class ScriptedServer:
    """Gives one text after the other, with the end of turn unless it has no room."""

    tells_logprobs = True

    def __init__(self, tokenizer: Any, end: str, texts: Sequence[str]) -> None:
        self.tokenizer, self.texts = tokenizer, list(texts)
        self.end = tokenizer.convert_tokens_to_ids(end)
        self.prompts: list[list[int]] = []
        self.allowed: list[int] = []

    async def __call__(self, prompt_ids: list[int], *, max_tokens: int, never_stop: bool) -> Answer:
        self.prompts.append(prompt_ids)
        self.allowed.append(max_tokens)
        ids = self.tokenizer(self.texts.pop(0), add_special_tokens=False)["input_ids"]
        ids = [*ids, self.end][:max_tokens]
        logprobs = tuple(-0.25 * (n + 1) for n in range(len(ids)))
        return Answer(token_ids=tuple(ids), logprobs=logprobs if self.tells_logprobs else None)


def play(
    server: ScriptedServer, config: Config = CONFIG, lengths: tuple[int, int] | None = None
) -> Any:
    settings = rollout_settings(config, for_ppo=True)
    player = Player(
        tokenizer=server.tokenizer,
        generate=server,
        sampling=settings.sampling,
        max_model_len=config.sampling.max_model_len,
        answer_lengths=lengths,
    )
    make_env = env_factory(config)
    return asyncio.run(player.play(lambda: Episode(0, SPEC, make_env(), settings), config.env.id))


def server_of(*texts: str, shape: str = "qwen2.5") -> ScriptedServer:
    tokenizer, end = make_tokenizer(shape)
    return ScriptedServer(tokenizer, end, texts)


@pytest.mark.parametrize("shape", ["qwen2.5", "smollm2", "llama3.2", "tiny"])
def test_prompts_are_those_of_the_other_stages_and_go_on_from_what_was_sampled(shape: str) -> None:
    server = server_of(RIGHT, RIGHT, DOWN, shape=shape)
    trajectory = play(server)
    shown = [turn.prompt for turn in trajectory.turns]
    assert server.prompts == encode_prompts(server.tokenizer, shown)
    assert [turn.completion.text for turn in trajectory.turns] == [RIGHT, RIGHT, DOWN]
    assert trajectory.stop_reason is StopReason.MAX_TURNS


def test_a_sampled_token_is_never_tokenised_again() -> None:
    """The same text in single characters is another sequence of tokens, and stays it."""
    server = server_of()
    spelled = [server.tokenizer(c, add_special_tokens=False)["input_ids"][0] for c in RIGHT]
    written = server.tokenizer(RIGHT, add_special_tokens=False)["input_ids"]
    conversation = Conversation(server.tokenizer)
    settings = rollout_settings(CONFIG)
    episode = Episode(0, SPEC, env_factory(CONFIG)(), settings)
    first = conversation.prompt(episode.ask().messages)
    conversation.answered(RIGHT, [*spelled, server.end])
    episode.take(Completion(text=RIGHT))
    second = conversation.prompt(episode.ask().messages)
    assert second[: len(first) + len(spelled) + 1] == [*first, *spelled, server.end]
    assert spelled != written


def test_a_cut_off_answer_is_closed_by_the_context() -> None:
    server = server_of(RIGHT, RIGHT, DOWN)
    config = replace(CONFIG, sampling=SamplingSection(max_new_tokens=2, max_model_len=4000))
    trajectory = play(server, config)
    first = trajectory.turns[0].completion
    assert first.finish_reason is FinishReason.LENGTH and len(first.token_ids) == 2
    assert server.prompts[1][len(server.prompts[0]) + 2] == server.end
    (sequence,) = sequences(trajectory, config.ppo, history="full")
    assert sequence.response_mask[:3] == [1, 1, 0]


def test_the_mask_covers_what_was_sampled_and_rewards_stand_at_the_ends_of_turns() -> None:
    server = server_of(RIGHT, "nonsense", DOWN)
    trajectory = play(server)
    (sequence,) = sequences(trajectory, CONFIG.ppo, history="full")
    assert sequence.prompt_ids == server.prompts[0]
    answers = [list(turn.completion.token_ids) for turn in trajectory.turns]
    sampled = [
        token
        for token, is_learned in zip(sequence.response_ids, sequence.response_mask, strict=True)
        if is_learned
    ]
    assert sampled == [token for answer in answers for token in answer]
    ends = [
        place
        for place, is_learned in enumerate(sequence.response_mask)
        if is_learned and sequence.response_mask[place + 1 : place + 2] != [1]
    ]
    assert ends[-1] == len(sequence.response_ids) - 1
    assert {place: r for place, r in enumerate(sequence.rewards) if r} == {ends[1]: -0.5}
    first = [-0.25 * (n + 1) for n in range(len(answers[0]))]
    assert sequence.logprobs[: ends[0] + 2] == [*first, 0.0]


@pytest.mark.parametrize("history", ["full", "single_turn"])
def test_a_server_need_not_tell_log_probabilities(history: str) -> None:
    server = server_of(RIGHT, DOWN)
    server.tells_logprobs = False
    config = replace(CONFIG, env=replace(CONFIG.env, max_turns=2))
    trajectory = play(server, replace(config, prompt=replace(config.prompt, history=history)))
    found = sequences(trajectory, config.ppo, history=history)
    assert [each.logprobs for each in found] == [None] * (1 if history == "full" else 2)


def test_the_return_follows_the_last_turn_where_rewards_are_of_episodes() -> None:
    server = server_of(RIGHT, "nonsense", DOWN)
    trajectory = play(server)
    ppo = replace(CONFIG.ppo, reward_at="episode")
    (sequence,) = sequences(trajectory, ppo, history="full")
    assert sequence.rewards == [0.0] * (len(sequence.rewards) - 1) + [-0.5]


def test_single_turns_are_one_sequence_each() -> None:
    config = replace(CONFIG, prompt=replace(CONFIG.prompt, history="single_turn"))
    server = server_of(RIGHT, "nonsense", DOWN)
    trajectory = play(server, config)
    found = sequences(trajectory, config.ppo, history="single_turn")
    assert [each.prompt_ids for each in found] == server.prompts
    assert [set(each.response_mask) for each in found] == [{1}, {1}, {1}]
    assert [each.rewards[-1] for each in found] == [0.0, -0.5, 0.0]


def test_an_episode_is_the_one_that_the_common_loop_plays() -> None:
    """Same world, turns and states; only who answers differs."""

    class Repeating:
        name = "repeating"

        def complete(
            self, requests: Sequence[PolicyRequest], sampling: Sampling
        ) -> list[Completion]:
            return [Completion(text=RIGHT) for _ in requests]

    (other,) = run_episodes(
        [SPEC],
        env_id=CONFIG.env.id,
        make_env=env_factory(CONFIG),
        policy=Repeating(),
        settings=rollout_settings(CONFIG, for_ppo=True),
    )
    trajectory = play(server_of(RIGHT, RIGHT, RIGHT))
    assert trajectory.trajectory_id == other.trajectory_id
    assert [turn.prompt for turn in trajectory.turns] == [turn.prompt for turn in other.turns]
    assert [turn.transitions for turn in trajectory.turns] == [
        turn.transitions for turn in other.turns
    ]


def test_a_full_context_ends_the_episode_and_the_budget_shrinks_before() -> None:
    server = server_of(RIGHT, RIGHT, DOWN)
    long = len(encode_prompts(server.tokenizer, [play(server).turns[1].prompt])[0])
    server = server_of(RIGHT, RIGHT, DOWN)
    config = replace(CONFIG, sampling=SamplingSection(max_new_tokens=12, max_model_len=long + 3))
    trajectory = play(server, config)
    assert trajectory.stop_reason is StopReason.CONTEXT_FULL
    assert server.allowed == [12, 3] and len(trajectory.turns) == 2


def test_a_first_prompt_without_room_leaves_nothing_to_learn_from() -> None:
    config = replace(CONFIG, sampling=SamplingSection(max_new_tokens=12, max_model_len=10))
    trajectory = play(server_of(RIGHT), config)
    with pytest.raises(DataError, match=r"nothing was sampled .*max_model_len"):
        sequences(trajectory, config.ppo, history="full")


def test_a_failing_server_fails_the_episode_and_closes_its_world() -> None:
    closed = []

    class Closing(Episode):
        def close(self) -> None:
            closed.append(True)
            super().close()

    settings = rollout_settings(CONFIG)
    server = server_of()  # has no answers: IndexError
    player = Player(
        tokenizer=server.tokenizer, generate=server, sampling=settings.sampling, max_model_len=4000
    )
    with pytest.raises(IndexError):
        asyncio.run(
            player.play(lambda: Closing(0, SPEC, env_factory(CONFIG)(), settings), "frozenlake")
        )
    assert closed == [True]


def test_drawn_lengths_depend_on_the_episode_alone_and_keep_the_end_of_turn() -> None:
    texts = ["a" * 40, f"<answer>Right</answer>{'b' * 40}", "c" * 40]
    one, two = server_of(*texts), server_of(*texts)
    trajectory = play(one, lengths=(3, 7))
    play(two, lengths=(3, 7))
    assert one.allowed == two.allowed and all(3 <= count <= 7 for count in one.allowed)
    assert all(turn.completion.finish_reason is FinishReason.LENGTH for turn in trajectory.turns)
    (sequence,) = sequences(trajectory, CONFIG.ppo, history="full")
    assert sum(sequence.response_mask) == sum(one.allowed)
