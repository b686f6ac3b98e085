"""What goes to a vLLM engine and what is made of its answers; the engine is played here."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from steps.agent.records import FinishReason, Message, PolicyRequest, ResponseFormat, Sampling
from steps.errors import ConfigError, ModelError
from steps.policies import parallel, vllm_engine
from steps.policies.base import PolicySpec
from steps.policies.chat_template import encode_prompts, end_of_turn_id
from steps.policies.constrained import AnswerGuide
from steps.policies.vllm_arguments import engine_arguments
from steps.policies.vllm_engine import (
    Library,
    VLLMPolicy,
    check_adapter_dtype,
    episodes_at_once,
)
from steps.training.tiny_model import build_tokenizer

TOKENIZER = build_tokenizer()
END = end_of_turn_id(TOKENIZER)
LEFT = TOKENIZER("Left")["input_ids"]


class Engine:
    """Answers `Left` and the end of a turn, out of order; `ends` are reasons by request number."""

    def __init__(self, ends: dict[int, str] | None = None) -> None:
        self.asked: dict[str, Any] = {}
        self.log: list[tuple[list[int], Any, Any]] = []
        self.aborted: list[str] = []
        self.ends = ends or {}
        self.rng = random.Random(1)

    def add_request(self, name: str, prompt: list[int], params: Any, *, lora_request: Any) -> None:
        self.asked[name] = params
        self.log.append((prompt, params, lora_request))

    def step(self) -> list[Any]:
        name = self.rng.choice(sorted(self.asked))
        self.asked.pop(name)
        reason = self.ends.get(int(name), "stop")
        tokens = [*LEFT, END] if reason == "stop" else LEFT
        # The flat form of vLLM: places of two candidates, the sampled one first.
        starts = [2 * i for i in range(len(tokens))]
        logprobs = [-0.5 * start for start in range(2 * len(tokens))]
        flat = SimpleNamespace(start_indices=starts, logprobs=logprobs)
        output = SimpleNamespace(token_ids=tokens, logprobs=flat, finish_reason=reason)
        unfinished = SimpleNamespace(request_id="other", finished=False, outputs=[])
        return [unfinished, SimpleNamespace(request_id=name, finished=True, outputs=[output])]

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        for name in names:
            self.asked.pop(name)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made = Library(
        LLM=None,
        LoRARequest=lambda name, number, path: (name, number, path),
        RequestOutputKind=SimpleNamespace(FINAL_ONLY="final"),
        SamplingParams=lambda **given: SimpleNamespace(**given),
        StructuredOutputsParams=lambda grammar: grammar,
        tokens_input=lambda ids: ids,
    )
    monkeypatch.setattr(vllm_engine, "_library", lambda: made)
    yield


def policy(engine: Engine, **kwargs: Any) -> VLLMPolicy:
    return VLLMPolicy(
        SimpleNamespace(llm_engine=engine),
        TOKENIZER,
        **{"max_model_len": 64, "logprobs": True, **kwargs},
    )


def request(text: str = "P_G", seed: int = 0) -> PolicyRequest:
    return PolicyRequest(
        messages=(Message(role="user", content=text),),
        seed=seed,
        response_format=ResponseFormat.ANSWER_ONLY,
        max_actions=1,
        action_names=("Left", "Right"),
    )


def test_a_batch_is_answered_in_its_order_with_ids_text_and_logprobs() -> None:
    engine = Engine({2: "length"})
    texts = ["P_G", "_PG", "G_P"]
    answers = policy(engine).complete([request(text) for text in texts], Sampling(max_new_tokens=9))
    prompts = encode_prompts(TOKENIZER, [request(text).messages for text in texts])
    assert [list(answer.prompt_ids) for answer in answers] == prompts
    assert [prompt for prompt, _, _ in engine.log] == prompts
    assert [answer.text for answer in answers] == ["Left"] * 3
    assert answers[0].token_ids == (*LEFT, END) and answers[1].token_ids == tuple(LEFT)
    assert answers[0].logprobs == (0.0, -1.0) and answers[1].logprobs == (0.0,)
    assert [answer.finish_reason for answer in answers] == [
        FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP,
    ]  # fmt: skip


def test_the_engine_is_told_seed_room_and_the_ends_of_a_turn() -> None:
    engine = Engine()
    chosen = policy(
        engine, max_model_len=len(encode_prompts(TOKENIZER, [request().messages])[0]) + 5
    )
    chosen.complete([request(seed=77)], Sampling(temperature=0.5, max_new_tokens=9))
    ((_, params, adapter),) = engine.log
    assert (params.seed, params.temperature, params.top_p, params.max_tokens) == (77, 0.5, 1.0, 5)
    assert (params.stop_token_ids, params.ignore_eos) == ([END], True)
    assert (params.logprobs, params.structured_outputs, params.detokenize) == (0, None, False)
    assert adapter is None


def test_log_probabilities_are_told_where_they_are_asked_for() -> None:
    engine = Engine()
    policy(engine, logprobs=False).complete([request()], Sampling(max_new_tokens=9))
    ((_, params, _),) = engine.log
    assert params.logprobs is None


@pytest.mark.parametrize(
    ("sampling", "seed", "logprobs"),
    [
        (Sampling(temperature=0.0, max_new_tokens=4), None, 0),
        (Sampling(temperature=0.0, top_p=0.5, max_new_tokens=4), None, 0),
        (Sampling(top_p=0.5, max_new_tokens=4), 3, None),
    ],
)
def test_greedy_needs_no_seed_and_a_cut_distribution_has_no_logprobs(
    sampling: Sampling, seed: int | None, logprobs: int | None
) -> None:
    engine = Engine()
    policy(engine).complete([request(seed=3)], sampling)
    assert (engine.log[0][1].seed, engine.log[0][1].logprobs) == (seed, logprobs)


def test_a_full_context_and_an_engines_failure_are_answers() -> None:
    engine = Engine({1: "abort"})
    long = request("P_" * 100)
    full, failed, done = policy(engine).complete(
        [long, request(), request()], Sampling(max_new_tokens=9)
    )
    assert len(engine.log) == 2  # the first never reached the engine
    assert (full.finish_reason, full.text, full.token_ids) == (FinishReason.CONTEXT, "", ())
    assert len(full.prompt_ids) > 64
    assert failed.finish_reason is FinishReason.ERROR and "'abort'" in failed.error
    assert done.text == "Left"


def test_what_is_given_up_is_forgotten() -> None:
    engine = Engine()
    chosen = policy(engine)
    for key in (4, 5):
        chosen.submit(key, request(), Sampling(max_new_tokens=4))
    chosen.submit(6, request("P" * 200), Sampling(max_new_tokens=4))
    chosen.abort()
    assert engine.aborted == ["1", "2"] and chosen.poll() == []


def test_a_constrained_answer_is_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = AnswerGuide(TOKENIZER, end_id=END, separator="||")
    least = guide.min_tokens(request(), 64)
    engine = Engine({1: "stop"})
    (answer,) = policy(engine, guide=guide).complete(
        [request(seed=5)], Sampling(max_new_tokens=least)
    )
    ((prompt, params, _),) = engine.log
    # No room for more than the tags and an action: the tags are written for it.
    tag = guide.vocabulary.spell(b"<answer>")
    assert prompt == [*answer.prompt_ids, *tag]
    assert params.structured_outputs.startswith('root ::= action "</answer>"')
    assert (params.ignore_eos, params.logprobs) == (False, None)
    assert params.seed != 5  # another part, other numbers
    assert answer.token_ids == (*tag, *LEFT, END) and answer.logprobs is None
    with pytest.raises(ConfigError, match="max_new_tokens=2 is too few"):
        policy(engine, guide=guide).complete([request()], Sampling(max_new_tokens=2))


def test_the_engine_is_started_with_what_the_spec_says(tmp_path: Path) -> None:
    spec = PolicySpec(
        kind="vllm", model_dir="m", device="cuda", dtype="bfloat16", max_batch=7,
        gpu_memory_utilization=0.5, tensor_parallel_size=2, enforce_eager=True,
    )  # fmt: skip
    given = engine_arguments(spec, 99)
    assert (given["model"], given["dtype"], given["max_model_len"]) == ("m", "bfloat16", 99)
    assert (given["max_num_seqs"], given["tensor_parallel_size"]) == (7, 2)
    assert (given["gpu_memory_utilization"], given["enforce_eager"]) == (0.5, True)
    assert given["enable_prefix_caching"] and given["load_format"] == "safetensors"
    assert given["trust_remote_code"] is False and given["logprobs_mode"] == "processed_logprobs"
    assert "enable_lora" not in given and "enable_chunked_prefill" not in given
    assert "compilation_config" not in given and "max_num_batched_tokens" not in given
    assert given["distributed_executor_backend"] == "mp"


def test_every_step_that_the_engine_can_make_has_a_graph() -> None:
    for max_batch, tokens in ((7, 2048), (4096, 4096)):
        spec = PolicySpec(kind="vllm", model_dir="m", device="cuda", max_batch=max_batch)
        assert engine_arguments(spec, 99)["max_num_batched_tokens"] == tokens
    sizes = engine_arguments(spec, 99)["compilation_config"]["cudagraph_capture_sizes"]
    assert sizes == sorted(set(sizes)) and sizes[-1] == 2048
    for tokens in range(1, 2049):
        padding = next(size for size in sizes if size >= tokens) - tokens
        assert padding <= max(7, tokens // 8), tokens
    on_cpu = PolicySpec(kind="vllm", model_dir="m", device="cpu", max_batch=7)
    assert not {"compilation_config", "distributed_executor_backend"} & {
        *engine_arguments(on_cpu, 99)
    }


def test_an_adapter_needs_room_for_its_rank_and_goes_with_each_request(tmp_path: Path) -> None:
    config = {"r": 12, "rank_pattern": {"q_proj": 20}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    spec = PolicySpec(kind="vllm", model_dir="m", adapter_dir=str(tmp_path))
    given = engine_arguments(spec, 99)
    assert (given["enable_lora"], given["max_lora_rank"]) == (True, 32)
    engine = Engine()
    policy(engine, adapter_dir=str(tmp_path)).complete([request()], Sampling(max_new_tokens=4))
    assert engine.log[0][2] == ("adapter", 1, str(tmp_path.resolve()))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"holds no LoRA adapter .*'r'"):
        engine_arguments(spec, 99)


class Counted:
    """A policy that notes how it begins and ends."""

    def __init__(self, spec: PolicySpec, log: list[str]) -> None:
        self.name, self.log = spec.model_dir, log
        log.append(f"start {Path(spec.model_dir).name}")

    def close(self) -> None:
        self.log.append(f"close {Path(self.name).name}")


def test_an_engine_is_kept_for_one_model_and_ended_with_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setattr(parallel, "make_policy", lambda spec: Counted(spec, log))
    monkeypatch.setattr(parallel, "_play", lambda specs, config, policy, *_: [policy.name])
    for name in "ab":
        (tmp_path / name).mkdir()

    def collect(name: str) -> None:
        spec = PolicySpec(kind="vllm", model_dir=str(tmp_path / name))
        settings: Any = None
        played = parallel.collect(
            [], config=settings, policy_spec=spec, settings=settings, workers=4
        )
        assert played == [spec.model_dir]

    collect("a")
    assert log == ["start a", "close a"]
    with parallel.kept_engine():
        for name in "aab":
            collect(name)
        (tmp_path / "b" / "model.safetensors").write_text("other weights")
        collect("b")
    assert log[2:] == ["start a", "close a", "start b", "close b", "start b", "close b"]


def model(directory: Path, *, weight: float = 0.0, size: int = 2, **config: Any) -> str:
    """Files that look like a model's."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (directory / "tokenizer_config.json").write_text("{}")
    save_file({"head.weight": np.full((size, 3), weight)}, directory / "model.safetensors")
    return str(directory)


def test_an_engine_takes_the_weights_of_a_model_of_the_same_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: False)
    log: list[object] = []
    spec = PolicySpec(kind="vllm", model_dir=model(tmp_path / "one"), device="cuda")
    aside: dict[str, Any] = {
        "dtype": "float32",
        "transformers_version": "9",
        "attn_implementation": "sdpa",
    }
    aside |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "rope_scaling": None}
    other = model(tmp_path / "other", weight=1.0, **aside)
    is_empty = True

    class LLM:
        llm_engine = Engine()

        def collective_rpc(self, name: str, kwargs: dict[str, str]) -> None:
            log.append((name, kwargs))

        def reset_prefix_cache(self) -> bool:
            log.append("reset")
            return is_empty

    def taken(**changes: Any) -> bool:
        chosen = VLLMPolicy(LLM(), TOKENIZER, max_model_len=64, spec=spec)
        return chosen.take_weights(replace(spec, **{"model_dir": other, **changes}))

    assert taken()
    assert log == [("reload_weights", {"weights_path": other}), "reset"]
    assert taken(model_dir=spec.model_dir)
    is_empty = False  # vLLM keeps the cache, and says so, while it has anything to answer
    assert not taken()
    is_empty = True
    log.clear()
    assert not taken(max_batch=3) and not taken(adapter_dir=str(tmp_path))
    assert not taken(model_dir=model(tmp_path / "larger", size=4))
    assert not taken(model_dir=model(tmp_path / "changed", rope_theta=1.0))
    assert not taken(model_dir="a/hub-name")
    words = model(tmp_path / "words")
    (tmp_path / "words" / "tokenizer.json").write_text("{}")
    assert not taken(model_dir=words)
    with pytest.raises(ModelError, match="no model at"):
        taken(model_dir=str(tmp_path / "nowhere"))
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: True)
    assert not taken()
    assert log == []
    assert not VLLMPolicy(LLM(), TOKENIZER, max_model_len=64).take_weights(spec)


def test_an_engine_that_takes_weights_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    class Willing(Counted):
        def take_weights(self, spec: PolicySpec) -> bool:
            log.append(f"take {Path(spec.model_dir).name}")
            return "other" not in spec.model_dir

    monkeypatch.setattr(parallel, "make_policy", lambda spec: Willing(spec, log))
    engine = parallel.Engine()
    made = [
        engine.policy(PolicySpec(kind="vllm", model_dir=str(tmp_path / name)))
        for name in ("a", "a", "b", "b", "other")
    ]
    engine.close()
    assert log == ["start a", "take b", "take other", "close a", "start other", "close other"]
    assert made[0] is made[3] and made[3] is not made[4]


def test_an_adapter_in_float32_is_refused_before_the_engine_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = PolicySpec(kind="vllm", adapter_dir="/adapter", device="cuda")
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: False)
    with pytest.raises(ConfigError, match=r"model\.dtype=bfloat16"):
        check_adapter_dtype(spec)
    check_adapter_dtype(replace(spec, dtype="bfloat16"))
    check_adapter_dtype(replace(spec, adapter_dir=""))
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: True)
    check_adapter_dtype(spec)


@pytest.mark.parametrize(
    ("blocks", "episodes"), [(None, 10), (50, 10), (75, 15), (100, 20), (1000, 30)]
)
def test_as_many_episodes_run_as_conversations_fit(blocks: int | None, episodes: int) -> None:
    cache = SimpleNamespace(num_gpu_blocks=blocks, block_size=16)
    engine = SimpleNamespace(vllm_config=SimpleNamespace(cache_config=cache))
    llm = SimpleNamespace(llm_engine=engine)
    assert episodes_at_once(llm, max_batch=10, max_model_len=80) == episodes
