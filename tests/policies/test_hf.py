"""The language model as a player: an answer is its prompt's and seed's, whatever else is asked."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
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
from steps.errors import ConfigError, ModelError
from steps.policies import hf
from steps.policies.base import PolicySpec, make_policy
from steps.policies.hf import HFPolicy, draw
from steps.training.tiny_model import (
    ACTIONS,
    COLUMN_PARTS,
    ROW_PARTS,
    TAGS,
    build_model,
    build_tokenizer,
)

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


# Drawing a token


LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()


def drawn(uniform: float, sampling: Sampling, logits: torch.Tensor = LOGITS) -> tuple[int, float]:
    token, logprob = draw(logits, torch.tensor([uniform]), sampling)
    return int(token), float(logprob)


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (0.94, 2), (0.96, 3), (0.9999, 3)],
)
def test_a_token_owns_its_probability_of_the_unit_interval(uniform: float, token: int) -> None:
    assert drawn(uniform, Sampling()) == (
        token,
        pytest.approx(float(LOGITS[0, token]), abs=1e-6),
    )


@pytest.mark.parametrize(
    ("top_p", "uniform", "token"),
    [
        # 0.5 and 0.3 reach 0.7: of 0.8, the first owns 0.625
        *((0.7, 0.62, 0), (0.7, 0.63, 1), (0.7, 0.9999, 1)),
        # 0.5 alone reaches these
        *((0.49, 0.9999, 0), (0.1, 0.9999, 0)),
        # three of them reach 0.9: of 0.95, the first two own 0.842
        *((0.9, 0.84, 1), (0.9, 0.85, 2), (0.9, 0.9999, 2)),
    ],
)
def test_top_p_drops_the_tail_and_reports_the_whole_distributions_probability(
    top_p: float, uniform: float, token: int
) -> None:
    assert drawn(uniform, Sampling(top_p=top_p)) == (
        token,
        pytest.approx(float(LOGITS[0, token]), abs=1e-6),
    )


def test_top_p_keeps_the_likeliest_wherever_they_stand() -> None:
    logits = torch.tensor([[0.05, 0.5, 0.15, 0.3]]).log()
    assert [drawn(u, Sampling(top_p=0.7), logits)[0] for u in (0.0, 0.62, 0.63, 0.999)] == [
        *(1, 1, 3, 3)
    ]


def test_temperature_sharpens_or_flattens() -> None:
    logits = torch.tensor([[0.25, 0.75]]).log()
    # squared, 1 to 9; square-rooted, 1 to sqrt(3)
    cold, hot = Sampling(temperature=0.5), Sampling(temperature=2.0)
    assert [drawn(u, cold, logits)[0] for u in (0.09, 0.11)] == [0, 1]
    assert drawn(0.11, cold, logits)[1] == pytest.approx(-0.10536, abs=1e-4)
    assert [drawn(u, hot, logits)[0] for u in (0.36, 0.37)] == [0, 1]
    assert drawn(0.37, hot, logits)[1] == pytest.approx(-0.45575, abs=1e-4)


def test_temperature_zero_takes_the_likeliest_and_reports_the_models_own_probability() -> None:
    token, logprob = drawn(0.99, Sampling(temperature=0.0))
    assert (token, logprob) == (0, pytest.approx(-0.693147, abs=1e-5))


# Directories


@pytest.mark.parametrize(
    ("removed", "named"),
    [
        ("config.json", "config.json"),
        ("tokenizer_config.json", "tokenizer_config.json"),
        ("model.safetensors", r"\*.safetensors"),
    ],
)
def test_a_directory_that_is_no_model_is_refused_and_told_what_is_missing(
    removed: str, named: str, model_dir: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model_dir, copy)
    (copy / removed).unlink()
    with pytest.raises(ModelError, match=f"missing {named}"):
        make_policy(PolicySpec(kind="hf", model_dir=str(copy)))


def test_a_tokenizer_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"the tokenizer of .* can't be loaded: ") as caught:
        hf.load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_directory_that_isnt_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model at .*nowhere"):
        make_policy(PolicySpec(kind="hf", model_dir=str(tmp_path / "nowhere")))


def test_weights_in_another_format_than_safetensors_are_refused(
    model_dir: str, policy: HFPolicy, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model_dir, copy)
    (copy / "model.safetensors").unlink()
    torch.save(policy.model.state_dict(), copy / "pytorch_model.bin")
    with pytest.raises(ModelError, match="other weight formats are not loaded"):
        make_policy(PolicySpec(kind="hf", model_dir=str(copy)))
    with pytest.raises(OSError, match="safetensors"):
        hf.load_model(str(copy))


def test_a_tokenizer_without_chat_template_is_refused(model_dir: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model_dir, copy)
    (copy / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="has no chat template"):
        make_policy(PolicySpec(kind="hf", model_dir=str(copy)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_isnt_there_is_a_clear_error() -> None:
    assert hf.resolve_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="device=auto"):
        hf.resolve_device("cuda")


def test_loading_draws_no_progress_bar(model_dir: str, capfd: pytest.CaptureFixture[str]) -> None:
    hf.load_model(model_dir)
    assert capfd.readouterr().err == ""


def test_a_hub_name_is_loaded_at_its_revision(
    model_dir: str, policy: HFPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    class Hub:
        def __init__(self, found: Any) -> None:
            self.found = found

        def from_pretrained(self, name: str, *, revision: str, **_: Any) -> Any:
            asked.append((name, revision))
            return self.found

    monkeypatch.setattr(hf, "AutoTokenizer", Hub(policy.tokenizer))
    monkeypatch.setattr(hf, "AutoModelForCausalLM", Hub(policy.model))
    for revision in ("v1", ""):
        make_policy(PolicySpec(kind="hf", model_dir="owner/name", revision=revision))
    assert asked == [("owner/name", "v1")] * 2 + [("owner/name", "main")] * 2
