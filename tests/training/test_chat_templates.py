"""What finetuning learns is what the rollout shows, token for token, for several chat templates.

A model that recites given tokens plays a whole episode through the rollout and the `hf` policy;
its turns become finetuning rows by the filter's own function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import conf
from conf.schema import Config
from steps.agent.parsing import spans
from steps.agent.records import Message, ResponseFormat, SFTExample, Trajectory
from steps.agent.rollout import EpisodeSpec, run_episodes
from steps.filter_format import to_row
from steps.policies.chat_template import end_of_turn_id
from steps.policies.hf import HFPolicy
from steps.settings import env_factory, rollout_settings
from steps.training.tokenization import (
    SFTRow,
    policy_samples,
    span_weights,
    system_length,
    tokenize_examples,
)
from tests.training.templates import SHAPES, make_tokenizer

GRID, NEXT = "P__\n_O_\n__G", "_P_\n_O_\n__G"
RESPONSE = (
    f"<think><observation>{GRID}</observation>go on<prediction>{NEXT}</prediction></think>"
    "<answer>Right</answer>"
)
ONE = (Message(role="system", content="Rules."), Message(role="user", content=GRID))
CHATS = {
    "without_rules": ONE[1:],
    "one_turn": ONE,
    "three_turns": (
        *ONE,
        Message(role="assistant", content=RESPONSE),
        Message(role="user", content="Turn 2\n"),
        Message(role="assistant", content="<answer>Down</answer>"),
        Message(role="user", content="Turn 3"),
    ),
}
ENDINGS = {
    "qwen2.5": "<|im_start|>assistant\n",
    "smollm2": "<|im_start|>assistant\n",
    "llama3.2": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "tiny": "<|assistant|>",
}
"""What each prompt ends with."""


def make_example(chat: Sequence[Message], response: str = RESPONSE) -> SFTExample:
    return SFTExample(
        prompt=tuple(chat),
        response=response,
        spans=spans(response, ResponseFormat.WORLD_MODEL),
        trajectory_id="t",
        turn_index=0,
        puzzle_hash="0" * 16,
        split="train",
    )


def learned(row: SFTRow) -> list[int]:
    return [token for token, weight in zip(row.token_ids, row.weights, strict=True) if weight]


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_response_and_the_end_of_turn_are_learned_and_nothing_else(
    shape: str, chat: str
) -> None:
    tokenizer, end = make_tokenizer(shape)
    (row,) = tokenize_examples([make_example(CHATS[chat])], tokenizer)
    assert tokenizer.decode(learned(row)) == RESPONSE + end
    first = row.weights.index(1.0)
    assert set(row.weights[:first]) == {0.0} and set(row.weights[first:]) == {1.0}
    prompt = tokenizer.apply_chat_template(
        [message.as_dict() for message in CHATS[chat]], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(row.token_ids[:first]) == prompt
    assert prompt.endswith(ENDINGS[shape])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_token_of_the_answer_is_learned_and_the_end_of_turn_is_the_last_of_all(
    shape: str,
) -> None:
    tokenizer, end = make_tokenizer(shape)
    (row,) = tokenize_examples([make_example(ONE)], tokenizer)
    assert tokenizer.decode(learned(row)[:1]) == "<think>"
    assert row.token_ids[-1] == tokenizer.convert_tokens_to_ids(end) == end_of_turn_id(tokenizer)
    assert row.token_ids.count(row.token_ids[-1]) == 3  # of rules, question and answer


@pytest.mark.parametrize("shape", SHAPES)
def test_the_system_message_ends_before_the_users_header(shape: str) -> None:
    tokenizer, end = make_tokenizer(shape)
    turn = play(shape, splice=False).turns[1]
    length = system_length(tokenizer, turn)
    system = tokenizer.decode(turn.completion.prompt_ids[:length])
    assert turn.prompt[0].content in system
    assert system.rstrip("\n").endswith(end) and system.count(end) == 1
    rest = tokenizer.decode(turn.completion.prompt_ids[length:])
    assert rest.startswith(("<|im_start|>user", "<|start_header_id|>user", "<|user|>"))


class Reciter(torch.nn.Module):
    """A model that gives one answer after the other, token by token, whatever it is asked."""

    def __init__(self, answers: Sequence[Sequence[int]], vocab_size: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(max_position_embeddings=1 << 20, vocab_size=vocab_size)
        self.device = torch.device("cpu")
        self.answers = iter(answers)
        self.left: Iterator[int] = iter(())

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        if input_ids.shape[1] > 1:  # a prompt: the next answer begins
            self.left = iter(next(self.answers))
        logits = torch.zeros(1, 1, self.config.vocab_size)
        logits[0, 0, next(self.left)] = 100.0
        return SimpleNamespace(logits=logits)


def config(*changes: str) -> Config:
    lake = ["P___", "____", "____", "___G"]
    return conf.compose(
        profile="smoke",
        env="frozenlake_deterministic",
        overrides=[
            f"+env.kwargs={{map: {lake}}}",
            "env.max_turns=3",
            "prompt.style=full",
            "prompt.history=full",
            "model.max_positions=8192",
            "sampling.max_model_len=8192",
            "sampling.max_new_tokens=400",
            *changes,
        ],
    )


ANSWERS = [
    f"<think><observation>wrong\n{i}</observation>√ 猫 \\1<prediction>next</prediction></think>"
    f"<answer>{action}</answer>"
    for i, action in enumerate(("Right", "Down", "Left"))
]


def play(shape: str, *, splice: bool) -> Trajectory:
    """Three turns of the recited answers, by way of the rollout and the policy."""
    tokenizer, end = make_tokenizer(shape)
    settings = config()
    recited = [tokenizer(answer + end, add_special_tokens=False)["input_ids"] for answer in ANSWERS]
    policy = HFPolicy(Reciter(recited, len(tokenizer)), tokenizer)
    (trajectory,) = run_episodes(
        [EpisodeSpec(env_seed=1)],
        env_id=settings.env.id,
        make_env=env_factory(settings),
        policy=policy,
        settings=rollout_settings(settings, splice=splice),
    )
    return trajectory


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_is_token_for_token_what_the_policy_saw_and_wrote(shape: str) -> None:
    tokenizer, _ = make_tokenizer(shape)
    trajectory = play(shape, splice=False)
    assert [turn.response for turn in trajectory.turns] == ANSWERS
    rows = tokenize_examples([to_row(trajectory, turn) for turn in trajectory.turns], tokenizer)
    for turn, row in zip(trajectory.turns, rows, strict=True):
        seen, written = turn.completion.prompt_ids, turn.completion.token_ids
        assert row.token_ids == seen + written
        assert row.weights == (0.0,) * len(seen) + (1.0,) * len(written)


@pytest.mark.parametrize("shape", SHAPES)
def test_with_true_states_spliced_in_the_prompt_is_still_what_the_policy_saw(shape: str) -> None:
    tokenizer, end = make_tokenizer(shape)
    trajectory = play(shape, splice=True)
    examples = [to_row(trajectory, turn) for turn in trajectory.turns]
    rows = tokenize_examples(examples, tokenizer)
    for turn, example, row in zip(trajectory.turns, examples, rows, strict=True):
        seen = turn.completion.prompt_ids
        assert row.token_ids[: len(seen)] == seen
        assert tokenizer.decode(row.token_ids[len(seen) :]) == example.response + end
        assert turn.observation_truth in example.response and "wrong" not in example.response
    last_prompt = tokenizer.decode(trajectory.turns[2].completion.prompt_ids)
    assert all(example.response + end in last_prompt for example in examples[:2])


@pytest.mark.parametrize("shape", SHAPES)
def test_an_episode_of_whole_history_is_one_sequence(shape: str) -> None:
    trajectory = play(shape, splice=False)
    (sample,) = policy_samples(trajectory, whole_episode=True)
    last = trajectory.turns[-1].completion
    assert sample.token_ids == last.prompt_ids + last.token_ids
    tokenizer, end = make_tokenizer(shape)
    sampled = [t for t, weight in zip(sample.token_ids, sample.loss_mask, strict=True) if weight]
    assert tokenizer.decode(sampled) == "".join(answer + end for answer in ANSWERS)


@pytest.mark.parametrize("shape", SHAPES)
def test_masked_states_leave_exactly_the_states_out(shape: str) -> None:
    tokenizer, end = make_tokenizer(shape)
    section = config("sft.state_loss=mask").sft
    (row,) = tokenize_examples([make_example(ONE)], tokenizer, weights=span_weights(section))
    assert tokenizer.decode(learned(row)) == (
        "<think><observation></observation>go on<prediction></prediction></think>"
        f"<answer>Right</answer>{end}"
    )
