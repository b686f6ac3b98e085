# ruff: noqa: E402 (verl may be missing)
"""An engine whose output matrix is cut gives what verl's own gives, numbers and gradients."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

import torch
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.utils import torch_functional
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from benchmarks.update import nested
from steps.training import verl_head
from tests.training.llamas import untrained_llama

LENGTHS = (5, 9, 3)
ANSWERS = [[1, 0, 1], [1, 1, 0, 0, 1], [1]]
"""Of the last tokens of each row, which are learned."""
WEIGHTS = [[0.0, 0.0, 0.5, 0.0, 2.0], [0.0] * 4 + [1.0, 1.0, 0.0, 0.0, 0.1], [0.0, 0.0, 3.0]]
"""Of all tokens."""


class Whole(FSDPEngineWithLMHead):
    """verl's engine without FSDP."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.module = model
        self.engine_config = SimpleNamespace(
            entropy_checkpointing=False, entropy_from_logits_with_chunking=False
        )
        self.compute_entropy_from_logits = torch_functional.entropy_from_logits
        self.pad_to_length = self.use_ulysses_sp = False

    def run(self, micro_batch: Any) -> dict[str, torch.Tensor]:
        inputs, told = self.prepare_model_inputs(micro_batch=micro_batch)
        output = self.module(**inputs, use_cache=False)
        self.logits = output.logits
        found: dict[str, torch.Tensor] = self.prepare_model_outputs(
            output=output, output_args=told, micro_batch=micro_batch, logits_processor_func=None
        )
        return found


class Cut(Whole):
    """The same, mended."""


verl_head.mend(Cut)


def batch_of(mask: list[Any] | None, temperature: Any = 1.0, **told: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    columns = {
        "input_ids": nested([torch.randint(5, 60, (n,), generator=generator) for n in LENGTHS]),
        "position_ids": nested([list(range(n)) for n in LENGTHS]),
    }
    if mask is not None:
        columns["loss_mask"] = nested(mask)
    plain = {"use_remove_padding": False, "calculate_entropy": True}
    if isinstance(temperature, list):  # one a row
        columns["temperature"] = torch.tensor(temperature)
    else:
        plain["temperature"] = temperature
    return tu.get_tensordict(columns, plain | told)


def model_of(directory: Path, **unsaid: Any) -> torch.nn.Module:
    source = untrained_llama(directory, **unsaid)
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(source)
    return model


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.5, [0.5, 1.0, 2.0]])
@pytest.mark.parametrize("mask", [ANSWERS, WEIGHTS])
def test_learned_places_have_verls_numbers_and_gradients(
    tmp_path: Path, mask: list[Any], temperature: Any, tied: bool, packed: bool
) -> None:
    results = []
    for kind in (Whole, Cut):
        model = model_of(tmp_path, tie_word_embeddings=tied)
        engine = kind(model)
        found = engine.run(batch_of(mask, temperature, use_remove_padding=packed))
        assert found["log_probs"].offsets().tolist() == [0, 5, 14, 17]
        total, numbers = torch.zeros(()), []
        for row, weights in enumerate(mask):
            # A weight speaks of a token, whose numbers stand one place before it.
            places = [LENGTHS[row] - len(weights) + j - 1 for j, w in enumerate(weights) if w]
            for name, slope in (("log_probs", 1.0), ("entropy", 0.3)):
                told = found[name].unbind()[row][places]
                numbers += told.tolist()
                total = total + slope * (told * torch.arange(1.0, len(told) + 1)).sum()
        total.backward()
        slopes = [p.grad for p in model.parameters() if p.grad is not None]
        results.append((numbers, slopes, engine.logits.shape))
    (theirs, their_slopes, whole), (mine, my_slopes, cut) = results
    assert theirs == pytest.approx(mine, abs=1e-5)
    assert len(their_slopes) == len(my_slopes) > 0
    for one, other in zip(their_slopes, my_slopes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert whole[:2] == ((1, 17) if packed else (3, 9)) and cut[:2] == (1, 6)


@pytest.mark.parametrize("packed", [False, True])
def test_the_numbers_of_other_places_are_zero(tmp_path: Path, packed: bool) -> None:
    found = Cut(model_of(tmp_path)).run(batch_of(ANSWERS, use_remove_padding=packed))
    for name in ("log_probs", "entropy"):
        told = found[name].values() != 0
        assert told.nonzero()[:, 0].tolist() == [1, 3, 8, 9, 12, 15]


@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_that_teaches_nothing_has_a_gradient_of_zero(tmp_path: Path, packed: bool) -> None:
    """verl fills minibatches up with such rows, and FSDP waits for each process."""
    model = model_of(tmp_path)
    found = Cut(model).run(batch_of([[0, 0], [0], [0]], use_remove_padding=packed))
    found["log_probs"].values().sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("name", ["use_fused_kernels", "distillation_use_topk", ""])
def test_other_batches_stay_verls(name: str) -> None:
    batch = batch_of(ANSWERS, **{name: True}) if name else batch_of(None)
    assert not verl_head.is_cut(batch) and verl_head.is_cut(batch_of(ANSWERS))


def test_processes_that_share_a_sequence_have_each_place_once() -> None:
    """Seventeen tokens and one of padding, nine a process; the seam is within the second row."""
    batch = batch_of(ANSWERS)
    places = verl_head.learned_places(batch["input_ids"], batch["loss_mask"])
    first, second = (verl_head.of_share(places, rank=rank, length=9) for rank in (0, 1))
    assert first.tokens.tolist() == first.inputs.tolist() == [1, 3, 8]
    assert second.tokens.tolist() == [9, 12, 15] and second.inputs.tolist() == [0, 3, 6]
    assert [*first.rows, *second.rows] == [*places.rows]


def test_an_engine_answers_whole_batches_after_one_that_is_cut(tmp_path: Path) -> None:
    model = model_of(tmp_path)
    mine, theirs = Cut(model), Whole(model)
    for _ in range(2):
        mine.run(batch_of(ANSWERS))
        found = [engine.run(batch_of(None))["log_probs"].values() for engine in (mine, theirs)]
        torch.testing.assert_close(*found)
        assert found[0].all()


def test_a_critic_is_not_cut(tmp_path: Path) -> None:
    class Critic(Cut):
        def prepare_model_outputs(self, output: Any, **_: Any) -> Any:
            return {"values": output.logits}

    found = Critic(model_of(tmp_path)).run(batch_of(ANSWERS))
    assert found["values"].shape[:2] == (3, 9)
