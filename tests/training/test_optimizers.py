"""AdamW and Muon as one optimizer: who gets which weights, rates, and what is saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conf.schema import ModelSection
from steps.training.optimizers import (
    Optimizers,
    build_optimizers,
    clip_gradient,
    hidden_matrices,
)
from steps.training.tiny_model import build_model, build_tokenizer
from tests.training.toys import same_weights

SMALL = ModelSection(hidden_size=8, num_layers=2, num_heads=2, ffn_size=16, max_positions=16)
IDS = torch.tensor([[5, 6, 7, 8], [9, 5, 9, 5]])


def make_model() -> Any:
    return build_model(SMALL, build_tokenizer())


def build(model: torch.nn.Module, kind: str = "muon", weight_decay: float = 0.1) -> Optimizers:
    return build_optimizers(
        model, kind=kind, lr=0.01, muon_lr=0.02, betas=(0.9, 0.95), weight_decay=weight_decay
    )


def train(model: Any, optimizers: Optimizers, steps: int) -> None:
    for _ in range(steps):
        optimizers.zero_grad()
        model(input_ids=IDS, labels=IDS, attention_mask=torch.ones_like(IDS)).loss.backward()
        optimizers.step()


def test_hidden_matrices_are_those_of_the_blocks_and_no_embedding_head_norm_or_bias() -> None:
    model = make_model()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert [names[id(parameter)] for parameter in hidden_matrices(model)] == [
        f"transformer.h.{layer}.{name}.weight"
        for layer in (0, 1)
        for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    ]


@pytest.mark.parametrize(("kind", "num_parts"), [("adamw", 1), ("muon", 2)])
def test_every_weight_belongs_to_exactly_one_part(kind: str, num_parts: int) -> None:
    model = make_model()
    optimizers = build(model, kind)
    owned = [
        id(parameter)
        for part in optimizers.parts
        for group in part.param_groups
        for parameter in group["params"]
    ]
    assert len(optimizers.parts) == num_parts
    assert sorted(owned) == sorted(id(parameter) for parameter in model.parameters())


def test_a_model_without_hidden_matrices_has_no_muon() -> None:
    assert len(build(torch.nn.Embedding(4, 2)).parts) == 1


def test_rates_scale_from_what_they_were_made_with_not_from_the_last() -> None:
    optimizers = build(make_model())
    for scale, adamw, muon in [(0.5, 0.005, 0.01), (0.1, 0.001, 0.002), (1.0, 0.01, 0.02)]:
        optimizers.scale_lr(scale)
        rates = [part.param_groups[0]["lr"] for part in optimizers.parts]
        assert rates == pytest.approx([adamw, muon])
        assert optimizers.lr == pytest.approx(adamw)


def test_adamws_first_step_is_decay_and_one_rate_against_the_gradients_sign() -> None:
    layer = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -2.0]]))
    layer.weight.grad = torch.tensor([[3.0, -0.5]])
    build(layer, "adamw").step()
    # w * (1 - 0.01 * 0.1) - 0.01 * sign(g)
    assert layer.weight.tolist()[0] == pytest.approx([0.999 - 0.01, -1.998 + 0.01], abs=1e-6)


def test_muons_step_has_the_same_size_for_small_and_for_large_gradients() -> None:
    steps = []
    for size in (1e-3, 1e3):
        model = make_model()
        (matrix, *_) = hidden_matrices(model)
        before = matrix.detach().clone()
        matrix.grad = size * torch.randn(matrix.shape, generator=torch.Generator().manual_seed(0))
        build(model, weight_decay=0.0).step()
        steps.append(matrix.detach() - before)
    assert float(steps[0].norm()) > 1e-3
    # orthogonalised in bfloat16: two digits
    assert float((steps[0] - steps[1]).norm()) < 0.03 * float(steps[0].norm())


def test_zero_grad_drops_gradients() -> None:
    model = make_model()
    optimizers = build(model)
    train(model, optimizers, 1)
    optimizers.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_saved_and_loaded_it_goes_on_as_if_it_had_never_stopped() -> None:
    whole, first = make_model(), make_model()
    train(whole, build(whole), 4)
    optimizers = build(first)
    train(first, optimizers, 2)
    second = make_model()
    second.load_state_dict(first.state_dict())
    resumed = build(second)
    resumed.load_state_dict(optimizers.state_dict())
    train(second, resumed, 2)
    assert same_weights(second, whole)


@pytest.mark.parametrize(("limit", "length"), [(0.5, 0.5), (10.0, 5.0), (0.0, 5.0)])
def test_a_gradient_is_cut_to_the_limit_and_zero_is_none(limit: float, length: float) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    assert float(clip_gradient(model, limit)) == pytest.approx(5.0)
    assert float(model.weight.grad.norm()) == pytest.approx(length, rel=1e-4)
