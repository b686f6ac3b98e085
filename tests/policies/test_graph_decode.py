"""The static decoder draws what the growing one draws; capturing needs a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conf.schema import ModelSection
from steps.agent.records import Sampling
from steps.policies.base import PolicySpec
from steps.policies.drawing import draw
from steps.policies.graph_decode import GraphDecoder
from steps.policies.hf import HFPolicy
from steps.training.tiny_model import build_tiny

PROMPTS = [[260, 5, 6, 7, 8, 9], [11, 12], [260, *range(20, 40)], [3]]
BUDGET = 24


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> HFPolicy:
    directory = tmp_path_factory.mktemp("model")
    build_tiny(ModelSection(max_positions=96, init_std=0.3), directory)
    return HFPolicy.from_spec(PolicySpec(kind="hf", model_dir=str(directory)))


def decoder_of(policy: HFPolicy, **options: bool) -> GraphDecoder:
    return GraphDecoder(
        policy.model,
        draw=draw,
        stop_ids=policy.stop_ids,
        pad_id=policy.tokenizer.pad_token_id,
        max_positions=96,
        **options,
    )


def uniforms(rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, BUDGET, generator=generator, dtype=torch.float64)


def alone(
    policy: HFPolicy, prompt: list[int], numbers: torch.Tensor, sampling: Sampling
) -> list[int]:
    """Token by token with no cache and no padding: the whole text is read for each token."""
    ids = list(prompt)
    for step in range(BUDGET):
        with torch.inference_mode():
            logits = policy.model(input_ids=torch.tensor([ids])).logits[:, -1].float()
        token, _ = draw(logits, numbers[step : step + 1], sampling)
        ids.append(int(token))
    return ids[len(prompt) :]


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_rows_of_a_padded_batch_are_those_of_each_prompt_alone(
    policy: HFPolicy, temperature: float
) -> None:
    sampling = replace(Sampling(), temperature=temperature)
    numbers = uniforms(len(PROMPTS), seed=1)
    tokens, logprobs = decoder_of(policy, capture=False).decode(
        PROMPTS, numbers, sampling, budget=BUDGET
    )
    for prompt, row, row_numbers in zip(PROMPTS, tokens, numbers, strict=True):
        assert row.tolist() == alone(policy, prompt, row_numbers, sampling)
    assert all(value <= 0 for row in logprobs for value in row)


def test_buffers_forget_the_batch_before(policy: HFPolicy) -> None:
    used = decoder_of(policy, capture=False)
    numbers = uniforms(len(PROMPTS), seed=2)
    used.decode(PROMPTS[::-1], uniforms(len(PROMPTS), seed=3), Sampling(), budget=BUDGET)
    again = used.decode(PROMPTS, numbers, Sampling(), budget=BUDGET)
    fresh = decoder_of(policy, capture=False).decode(PROMPTS, numbers, Sampling(), budget=BUDGET)
    assert all(map(torch.equal, again, fresh))


def test_decoding_ends_when_every_row_has_stopped(policy: HFPolicy) -> None:
    """With every token a stop, the host looks after eight steps and leaves the rest padded."""
    decoder = decoder_of(policy, capture=False)
    decoder.stop = torch.arange(policy.model.config.vocab_size)
    tokens, _ = decoder.decode(PROMPTS, uniforms(len(PROMPTS), 4), Sampling(), budget=BUDGET)
    pad = policy.tokenizer.pad_token_id
    assert all(row[8:].tolist() == [pad] * (BUDGET - 8) for row in tokens)


@pytest.mark.gpu
def test_a_captured_graph_plays_the_weights_of_the_moment(tmp_path: Path) -> None:
    build_tiny(ModelSection(max_positions=96, init_std=0.3), tmp_path)
    spec = PolicySpec(kind="hf", model_dir=str(tmp_path), device="cuda")
    policy = HFPolicy.from_spec(spec)
    graph, plain = decoder_of(policy), decoder_of(policy, capture=False)
    for seed in range(3):
        numbers = uniforms(len(PROMPTS), seed)
        found = [
            each.decode(PROMPTS, numbers, Sampling(), budget=BUDGET) for each in (graph, plain)
        ]
        assert all(map(torch.equal, *found))
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
