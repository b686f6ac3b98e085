"""The language model as a player: an answer is its prompt's and seed's, whatever else is asked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from conf.schema import ModelSection
from steps.agent.records import (
    Completion,
    FinishReason,
    Message,
    PolicyRequest,
    ResponseFormat,
    Sampling,
)
from steps.policies.base import PolicySpec, make_policy
from steps.policies.hf import HFPolicy
from steps.training.tiny_model import build_model, build_tokenizer
from steps.training.tiny_tokenizer import ACTIONS, COLUMN_PARTS, ROW_PARTS, TAGS

CONTEXT = 48
TOKENIZER = build_tokenizer((*TAGS, *ACTIONS, *ROW_PARTS, *COLUMN_PARTS))
"""Without the words of single games: random weights depend on how many tokens there are."""
END = TOKENIZER.convert_tokens_to_ids("<|end|>")
PROMPTS = ("P_\n_G", "P", "_P__\nO__G\n____", "XG", "P_G", "(1,2) (3,", "_P\nG_X")
"""Texts of seven lengths, 5 1 14 2 3 4 6 tokens: all but the longest are padded."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random weights, made to end some answers soon and to let others run on."""
    section = ModelSection(hidden_size=32, num_heads=2, ffn_size=32, max_positions=CONTEXT)
    model = build_model(section, TOKENIZER)
    with torch.no_grad():
        model.transformer.wte.weight[END] *= 4.0
    directory = tmp_path_factory.mktemp("model")
    model.save_pretrained(directory)
    TOKENIZER.save_pretrained(directory)
    return str(directory)


@pytest.fixture(scope="module")
def policy(model_dir: str) -> HFPolicy:
    made = make_policy(PolicySpec(kind="hf", model_dir=model_dir))
    assert isinstance(made, HFPolicy)
    return made


def request(text: str, seed: int = 0) -> PolicyRequest:
    return PolicyRequest(
        messages=(Message(role="user", content=text),),
        seed=seed,
        response_format=ResponseFormat.WORLD_MODEL,
        max_actions=1,
    )


REQUESTS = [request(text, seed) for seed, text in enumerate(PROMPTS)]
SAMPLING = Sampling(max_new_tokens=20)


def same(one: Sequence[Completion], other: Sequence[Completion]) -> bool:
    """Equal in every token, and in log-probabilities but for the last bits."""
    return all(
        (a.text, a.prompt_ids, a.token_ids, a.finish_reason)
        == (b.text, b.prompt_ids, b.token_ids, b.finish_reason)
        and a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
        for a, b in zip(one, other, strict=True)
    )


def plain_logprobs(policy: HFPolicy, completion: Completion, temperature: float) -> list[float]:
    """One whole forward pass without cache, padding or mask."""
    ids = torch.tensor([completion.prompt_ids + completion.token_ids])
    with torch.no_grad():
        scores = torch.log_softmax(policy.model(input_ids=ids).logits[0] / temperature, -1)
    start = len(completion.prompt_ids)
    return [float(scores[start + i - 1, token]) for i, token in enumerate(completion.token_ids)]


def test_an_answer_is_the_same_alone_and_among_others_in_any_order(policy: HFPolicy) -> None:
    together = policy.complete(REQUESTS, SAMPLING)
    assert len({len(completion.prompt_ids) for completion in together}) == 7
    alone = [policy.complete([each], SAMPLING)[0] for each in REQUESTS]
    backwards = policy.complete(REQUESTS[::-1], SAMPLING)[::-1]
    longer = request("_" * 25 + "P")
    among_longer = policy.complete([longer, *REQUESTS[:3], longer], SAMPLING)[1:4]
    assert same(together, alone)
    assert same(together, backwards)
    assert same(together[:3], among_longer)


def test_answers_in_small_batches_are_those_of_a_large_one(policy: HFPolicy) -> None:
    small = HFPolicy(policy.model, policy.tokenizer, max_batch=2)
    assert same(small.complete(REQUESTS, SAMPLING), policy.complete(REQUESTS, SAMPLING))


def test_some_answers_end_early_and_leave_the_rest_as_they_are(policy: HFPolicy) -> None:
    asked = [request("P", seed) for seed in range(24)]
    answers = policy.complete(asked, SAMPLING)
    lengths = [len(answer.token_ids) for answer in answers]
    stopped = [answer.finish_reason is FinishReason.STOP for answer in answers]
    assert 6 <= sum(stopped) < 24 and min(lengths) < 5 and max(lengths) == 20
    assert [END in answer.token_ids for answer in answers] == stopped
    assert [END in answer.token_ids[:-1] for answer in answers] == [False] * 24
    assert all("<|end|>" not in answer.text for answer in answers)
    assert same(answers, [policy.complete([each], SAMPLING)[0] for each in asked])


def test_finished_answers_are_no_longer_computed(
    policy: HFPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    forward = policy.model.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        sizes.append(len(kwargs["input_ids"]))
        return forward(*args, **kwargs)

    monkeypatch.setattr(policy.model, "forward", counting)
    answers = policy.complete([request("P", seed) for seed in range(24)], SAMPLING)
    for step, size in enumerate(sizes):
        running = sum(len(answer.token_ids) > step for answer in answers)
        assert running <= size <= running / 0.75 + 1


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_those_of_a_plain_forward_pass(
    temperature: float, policy: HFPolicy
) -> None:
    answers = policy.complete(REQUESTS, Sampling(temperature=temperature, max_new_tokens=20))
    for answer in answers:
        expected = plain_logprobs(policy, answer, temperature)
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_the_seed_decides_and_equal_seeds_give_equal_answers(policy: HFPolicy) -> None:
    first, again, other = policy.complete(
        [request("P_", 5), request("P_", 5), request("P_", 6)], SAMPLING
    )
    assert same([first], [again])
    assert first.token_ids != other.token_ids


def test_greedy_answers_are_those_of_transformers_generate(policy: HFPolicy) -> None:
    answers = policy.complete(REQUESTS, Sampling(temperature=0.0, max_new_tokens=12))
    for answer in answers:
        prompt = torch.tensor([answer.prompt_ids])
        generated = policy.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=END,
        )
        assert list(answer.token_ids) == generated[0, prompt.shape[1] :].tolist()


def test_the_text_is_that_of_the_tokens_without_the_end_of_turn(policy: HFPolicy) -> None:
    for answer in policy.complete(REQUESTS, SAMPLING):
        written = [token for token in answer.token_ids if token != END]
        assert answer.text == TOKENIZER.decode(written)


def test_the_prompt_is_the_rendered_chat(policy: HFPolicy) -> None:
    chat = (Message(role="system", content="Play."), Message(role="user", content="P"))
    asked = PolicyRequest(
        messages=chat, seed=0, response_format=ResponseFormat.PLAIN, max_actions=1
    )
    (answer,) = policy.complete([asked], SAMPLING)
    rendered = TOKENIZER.decode(list(answer.prompt_ids))
    assert rendered == "<|system|>Play.<|end|><|user|>P<|end|><|assistant|>"


def test_a_prompt_that_fills_the_context_gets_no_answer_and_stops_nobody(
    policy: HFPolicy,
) -> None:
    # role, text, end and role: 45 bytes make a prompt of 48 tokens, 44 leave room for one
    full, nearly = request("_" * 45), request("_" * 44)
    answers = policy.complete([REQUESTS[0], full, nearly], SAMPLING)
    assert [len(answer.prompt_ids) for answer in answers[1:]] == [48, 47]
    assert answers[1].finish_reason is FinishReason.CONTEXT
    assert (answers[1].token_ids, answers[1].text, answers[1].logprobs) == ((), "", None)
    assert len(answers[2].token_ids) == 1
    assert same(answers[:1], policy.complete(REQUESTS[:1], SAMPLING))


def test_an_answer_ends_where_the_context_does_though_others_go_on(policy: HFPolicy) -> None:
    crowded = request("_" * 42)
    short = [request("P", seed) for seed in range(24)]
    sampling = Sampling(max_new_tokens=40)
    answers = policy.complete([crowded, *short], sampling)
    assert len(answers[0].prompt_ids) == 45 and len(answers[0].token_ids) <= 3
    assert max(len(answer.token_ids) for answer in answers[1:]) > 10
    assert same(answers[:1], policy.complete([crowded], sampling))
    assert answers[0].logprobs == pytest.approx(plain_logprobs(policy, answers[0], 1.0), abs=1e-4)


def test_the_configured_length_limits_prompt_and_answer_together(policy: HFPolicy) -> None:
    short = HFPolicy(policy.model, policy.tokenizer, max_model_len=10)
    unlimited = HFPolicy(policy.model, policy.tokenizer, max_model_len=3600)
    assert (short.max_model_len, unlimited.max_model_len) == (10, CONTEXT)
    for answer in short.complete([request("P", seed) for seed in range(8)], SAMPLING):
        assert len(answer.prompt_ids) == 4 and len(answer.token_ids) <= 6


def test_nothing_asked_is_nothing_answered(policy: HFPolicy) -> None:
    assert policy.complete([], SAMPLING) == []


def test_tokens_that_look_like_padding_bring_no_warning(
    policy: HFPolicy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    logging.Logger.warning_once.cache_clear()  # transformers warns once a process
    first = TOKENIZER.convert_tokens_to_ids("<|user|>")
    monkeypatch.setattr(policy.model.config, "pad_token_id", first)
    policy.complete([request("P"), request("G")], SAMPLING)
    assert not caplog.records
