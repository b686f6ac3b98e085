# ruff: noqa: E402 (verl may be missing)
"""verl's critic, its inputs and what it takes from logits are mended where they are imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from verl.utils import seqlen_balancing, tensordict_utils, torch_functional
from verl.workers.utils.padding import no_padding_2_padding

from steps.training import verl_hooks
from steps.training.label_logprobs import label_logprobs, token_entropies
from steps.training.verl_hooks import load_critic, padded_answers, select_rows, without_mask
from tests.training.llamas import untrained_llama

ROOT = Path(__file__).resolve().parents[2]
AFTERWARDS = """
from steps.training import verl_hooks
verl_hooks.install()
verl_hooks.install()
from verl.utils.model import load_valuehead_model
assert load_valuehead_model is verl_hooks.load_critic, load_valuehead_model
"""
BEFORE = """
import verl.utils.model
from steps.training import verl_hooks
verl_hooks.install()
assert verl.utils.model.load_valuehead_model is verl_hooks.load_critic
"""
LOGPROBS = """
import torch
from verl.workers.engine.fsdp import transformer_impl
from steps.training.label_logprobs import label_logprobs, token_entropies
import verl.utils.torch_functional as functional
assert functional.logprobs_from_logits_v2 is label_logprobs
assert transformer_impl.verl_F.entropy_from_logits is token_entropies
method = transformer_impl.FSDPEngineWithValueHead.prepare_model_inputs
assert method.__module__ == "steps.training.verl_head", method.__module__
method = transformer_impl.FSDPEngineWithLMHead.prepare_model_outputs
assert method.__module__ == "steps.training.verl_head", method.__module__
select = transformer_impl.tu.index_select_tensor_dict
assert select.__module__ == "steps.training.verl_hooks", select
from verl.utils import seqlen_balancing
from verl.workers.utils import losses
for padded in (losses.no_padding_2_padding, seqlen_balancing.get_seqlen_balanced_partitions):
    assert padded.__module__ == "steps.training.verl_hooks", padded
before = [losses.no_padding_2_padding, select]
verl_hooks.install()
assert before == [losses.no_padding_2_padding, transformer_impl.tu.index_select_tensor_dict]
functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = False
found = transformer_impl.logprobs_from_logits(torch.zeros(3, 4).bfloat16(), torch.tensor([0, 1, 2]))
assert found.dtype is torch.float32, found
"""


@pytest.mark.parametrize("program", [AFTERWARDS + LOGPROBS, BEFORE + LOGPROBS])
def test_the_function_is_exchanged_whenever_the_module_is_imported(program: str) -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr


def test_a_finetuning_process_is_verls_program() -> None:
    driver = [sys.executable, "-W", "ignore", "-m", "steps.training.verl_sft_driver"]
    found = subprocess.run(
        [*driver, "--cfg", "job", "--package", "data", "data.train_batch_size=7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    assert "train_batch_size: 7" in found.stdout.splitlines()


def test_a_critic_starts_at_zero_with_the_configured_attention(tmp_path: Path) -> None:
    source = untrained_llama(tmp_path)
    config = AutoConfig.from_pretrained(source, num_labels=1, attn_implementation="eager")
    critic = load_critic(source, torch.float32, config, False)
    ids = torch.tensor([[1, 2, 3]])
    assert critic(input_ids=ids).logits.tolist() == [[[0.0], [0.0], [0.0]]]
    assert critic.config._attn_implementation == "eager"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_and_gradients_are_verls(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 300, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(300, (50,), generator=generator)
    rounding = {} if dtype is torch.float32 else {"atol": 0.02, "rtol": 0.01}
    mine = label_logprobs(logits, labels)
    slopes = torch.randn(50, generator=generator)
    (gradient,) = torch.autograd.grad(mine, logits, slopes)
    for theirs in (
        torch_functional.logprobs_from_logits_v2,
        torch_functional.logprobs_from_logits_naive,
    ):
        assert theirs is not label_logprobs
        found = theirs(logits, labels)
        torch.testing.assert_close(mine, found.float(), **rounding)
        (other,) = torch.autograd.grad(found, logits, slopes.to(found.dtype))
        torch.testing.assert_close(gradient, other, **rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_entropies_and_gradients_are_verls(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 300, generator=generator).to(dtype).requires_grad_()
    slopes = torch.randn(50, generator=generator)
    theirs = torch_functional.entropy_from_logits_with_chunking(logits, chunk_size=7)
    mine = token_entropies(logits)
    torch.testing.assert_close(mine, theirs)
    pairs = [torch.autograd.grad(each, logits, slopes)[0] for each in (mine, theirs)]
    torch.testing.assert_close(*pairs, atol=1e-4, rtol=1e-2)


MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
POSITIONS = torch.tensor([[0, 1, 2, 3], [0, 1, 0, 0]])


def test_rows_that_are_padded_behind_need_no_mask(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        untrained_llama(tmp_path), attn_implementation="sdpa"
    )
    ids = torch.tensor([[5, 6, 7, 8], [9, 8, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": MASK, "position_ids": POSITIONS}
    bare = without_mask(inputs, "sdpa")
    assert (bare["attention_mask"], bare["position_ids"]) == (None, None)
    assert bare["input_ids"] is ids
    with torch.no_grad():
        masked, unmasked = model(**inputs).logits, model(**bare).logits
    torch.testing.assert_close(masked[MASK.bool()], unmasked[MASK.bool()])


@pytest.mark.parametrize(
    ("mask", "positions", "attention"),
    [
        (MASK.flip(1), POSITIONS, "sdpa"),  # padded before
        (MASK, POSITIONS + 1, "sdpa"),
        (MASK, POSITIONS.expand(3, 2, 4), "sdpa"),  # of images
        (MASK, POSITIONS, "flash_attention_2"),
        (None, POSITIONS, "sdpa"),  # packed
    ],
)
def test_other_rows_keep_mask_and_positions(
    mask: torch.Tensor | None, positions: torch.Tensor, attention: str
) -> None:
    inputs = {"attention_mask": mask, "position_ids": positions}
    assert without_mask(inputs, attention) is inputs


def rows_of_all_kinds() -> Any:
    lengths = (3, 0, 4, 1)
    jagged = [torch.arange(10.0 * row, 10.0 * row + size) for row, size in enumerate(lengths)]
    return tensordict_utils.get_tensordict(
        {
            "ids": torch.nested.as_nested_tensor(jagged, layout=torch.jagged),
            "wide": torch.nested.as_nested_tensor(
                [torch.stack([row, row]).T for row in jagged], layout=torch.jagged
            ),
            "flat": torch.arange(8).reshape(4, 2),
            "names": list("abcd"),
        },
        {"temperature": 1.0},
    )


@pytest.mark.parametrize("indices", [[2, 0, 1], [3, 3], torch.tensor([1])])
def test_rows_are_those_that_verl_selects(indices: list[int] | torch.Tensor) -> None:
    batch = rows_of_all_kinds()
    theirs = tensordict_utils.index_select_tensor_dict(batch, indices)
    mine = select_rows(batch, indices, others=tensordict_utils.index_select_tensor_dict)
    assert mine.batch_size == theirs.batch_size and set(mine.keys()) == set(theirs.keys())
    for name in ("ids", "wide"):
        assert mine[name].layout is torch.jagged
        for one, other in zip(mine[name].unbind(), theirs[name].unbind(), strict=True):
            assert torch.equal(one, other)
        widths = [each[name].to_padded_tensor(-1.0) for each in (mine, theirs)]
        assert torch.equal(*widths)
    assert torch.equal(mine["flat"], theirs["flat"]) and mine["names"] == theirs["names"]
    assert tensordict_utils.unwrap_non_tensor_data(mine["temperature"]) == 1.0
    assert batch["ids"].size(0) == 4  # as it was
    assert select_rows(None, indices, others=tensordict_utils.index_select_tensor_dict) is None


def output_of(asked: tuple[int, ...], spoken: tuple[int, ...], *sizes: int) -> tuple[Any, Any]:
    """A model's output for prompts and answers of these lengths, and the batch."""

    def rows(lengths: tuple[int, ...]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(
            [torch.zeros(length) for length in lengths], layout=torch.jagged
        )

    torch.manual_seed(0)
    values = torch.randn(sum(asked) + sum(spoken), *sizes, requires_grad=True)
    data = {"prompts": rows(asked), "responses": rows(spoken)}
    return values, tensordict_utils.get_tensordict(data, {})


@pytest.mark.parametrize("jagged", [True, False])
@pytest.mark.parametrize("sizes", [(), (2,)])
@pytest.mark.parametrize("longest", [-1, 6])
@pytest.mark.parametrize("spoken", [(3, 1, 4), (2, 0, 2), (5, 5, 5)])
def test_answers_and_their_gradients_are_those_that_verl_cuts(
    spoken: tuple[int, ...], longest: int, sizes: tuple[int, ...], jagged: bool
) -> None:
    values, data = output_of((2, 3, 1), spoken, *sizes)
    tensordict_utils.assign_non_tensor(data, max_response_len=longest)
    lengths = data["prompts"].offsets() + data["responses"].offsets()
    output = torch.nested.nested_tensor_from_jagged(values, lengths) if jagged else values
    found, gradients = [], []
    for cut in (no_padding_2_padding, lambda *both: padded_answers(*both, others=refused)):
        answers = cut(output, data)
        weights = torch.arange(1.0, answers.numel() + 1).reshape(answers.shape)
        gradients += torch.autograd.grad((answers * weights).sum(), values)
        found.append(answers)
    assert found[0].dtype is found[1].dtype and torch.equal(*found)
    assert torch.equal(*gradients)


def refused(tensor: Any, data: Any) -> Any:
    raise AssertionError("verl's own function")


@pytest.mark.parametrize("asked", [(2, 0, 1), (2, 3, 9)])
def test_what_verl_refuses_to_cut_is_left_to_it(asked: tuple[int, ...]) -> None:
    values, data = output_of((2, 3, 1), (3, 1, 4))
    data["prompts"] = output_of(asked, (1, 1, 1))[1]["prompts"]
    with pytest.raises(AssertionError, match="verl's own"):
        padded_answers(values, data, others=refused)


def test_an_output_is_cut_with_as_many_operations_for_any_number_of_rows() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.number += 1
            return func(*args, **(kwargs or {}))

    counted = []
    for rows in (3, 300):
        values, data = output_of((2,) * rows, (3,) * rows)
        with Count() as count:
            padded_answers(values, data, others=refused).sum().backward()
        counted.append(count.number)
    assert counted[0] == counted[1] < 60, counted


def test_rows_are_shared_as_by_verl_with_lengths_of_a_tensor() -> None:
    lengths = torch.randint(1, 99, (64,), generator=torch.Generator().manual_seed(0))
    module = ModuleType("balancing")
    theirs = seqlen_balancing.get_seqlen_balanced_partitions
    seen = []

    def noted(seqlen_list: Any, **named: Any) -> Any:
        seen.append(seqlen_list)
        return theirs(seqlen_list, **named)

    module.__dict__["get_seqlen_balanced_partitions"] = noted
    verl_hooks.MENDED["verl.utils.seqlen_balancing"](module)
    for equal in (True, False):
        named = {"k_partitions": 4, "equal_size": equal}
        found = module.__dict__["get_seqlen_balanced_partitions"](lengths, **named)
        assert found == theirs(lengths, **named)
    assert seen == [lengths.tolist()] * 2
