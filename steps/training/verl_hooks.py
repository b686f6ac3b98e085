"""What every process of verl does first: mend some of its functions. Imports libraries late.

verl 0.9.1 loads every critic with flash-attention whatever its configuration says, and gives it a
head of random weights. Ours has the attention that is configured and starts at value 0, as the
local backend's does. It computes logits of all tokens, of which few are learned (`verl_head`), and
entropies of a whole micro-batch at once in float32; ours are in bounded memory (`label_logprobs`).
Without flash-attention's kernels

- it takes log-probabilities token by token in Python; ours are vectorised;
- it hands sdpa a mask of rows that are padded behind. A causal model never looks there, and without
  a mask torch has its fast kernels (`without_mask`).

To make micro-batches it takes all rows of all columns apart, for each of them anew: seconds of a
step where an episode is many short sequences. Ours takes what is asked for (`select_rows`). Its
losses cut each answer from the model's output by itself: eight operations and three waits for the
GPU for each, forward and backward; ours cut all at once (`padded_answers`). And it shares rows
among ranks by comparing elements of a tensor; ours compare numbers.

A function is exchanged when its module is imported, which costs the processes that never import it
nothing. Ray's workers call `install` themselves, finetuning processes in `verl_sft_driver`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def install() -> None:
    """Ray's `worker_process_setup_hook`; a second call changes nothing."""
    for name, mend in MENDED.items():
        module = sys.modules.get(name)
        if module is not None:
            _mend_once(module, mend)
        elif not any(isinstance(each, _Finder) and each.name == name for each in sys.meta_path):
            sys.meta_path.insert(0, _Finder(name, mend))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find one module, and mends it once it is loaded."""

    def __init__(self, name: str, mend: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.mend = mend

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            _after_loading(spec.loader, self.mend)
        return spec


def _after_loading(loader: Any, mend: Callable[[ModuleType], None]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        _mend_once(module, mend)

    loader.exec_module = exec_module


def _mend_once(module: ModuleType, mend: Callable[[ModuleType], None]) -> None:
    if not module.__dict__.get("spa_mended"):
        mend(module)
        module.__dict__["spa_mended"] = True


def _mend_critic(module: ModuleType) -> None:
    module.__dict__["load_valuehead_model"] = load_critic


def _mend_logprobs(module: ModuleType) -> None:
    """`logprobs_from_logits` calls it where there is no kernel, whoever imported that before."""
    from steps.training.label_logprobs import label_logprobs, token_entropies

    module.__dict__["logprobs_from_logits_v2"] = label_logprobs
    module.__dict__["entropy_from_logits"] = token_entropies


def _mend_engine(module: ModuleType) -> None:
    """Actor, critic and finetuning share it."""
    from steps.training import verl_head

    engine = module.__dict__["FSDPEngineWithLMHead"]
    prepare = engine.prepare_model_inputs

    def prepare_model_inputs(self: Any, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs, told = prepare(self, micro_batch)
        model = getattr(self.module, "module", self.module)
        return without_mask(inputs, model.config._attn_implementation), told

    engine.prepare_model_inputs = prepare_model_inputs
    verl_head.mend(engine)


def _mend_rows(module: ModuleType) -> None:
    others = module.__dict__["index_select_tensor_dict"]

    def index_select_tensor_dict(batch: Any, indices: Any) -> Any:
        return select_rows(batch, indices, others=others)

    module.__dict__["index_select_tensor_dict"] = index_select_tensor_dict


def _mend_padding(module: ModuleType) -> None:
    """`losses` has it by name, and may have been imported before."""
    others = module.__dict__["no_padding_2_padding"]

    def no_padding_2_padding(tensor: Any, data: Any) -> Any:
        return padded_answers(tensor, data, others=others)

    module.__dict__["no_padding_2_padding"] = no_padding_2_padding


def _mend_balance(module: ModuleType) -> None:
    balance = module.__dict__["get_seqlen_balanced_partitions"]

    def get_seqlen_balanced_partitions(seqlen_list: Any, *others: Any, **named: Any) -> Any:
        lengths = seqlen_list.tolist() if hasattr(seqlen_list, "tolist") else seqlen_list
        return balance(lengths, *others, **named)

    module.__dict__["get_seqlen_balanced_partitions"] = get_seqlen_balanced_partitions


MENDED: Mapping[str, Callable[[ModuleType], None]] = {
    "verl.utils.model": _mend_critic,
    "verl.utils.seqlen_balancing": _mend_balance,
    "verl.utils.tensordict_utils": _mend_rows,
    "verl.utils.torch_functional": _mend_logprobs,
    "verl.workers.engine.fsdp.transformer_impl": _mend_engine,
    "verl.workers.utils.losses": _mend_padding,
    "verl.workers.utils.padding": _mend_padding,
}
"""Module of verl -> what exchanges its function."""


def without_mask(inputs: dict[str, Any], attention: str) -> dict[str, Any]:
    """A causal model's inputs, less mask and positions where these say no more than none do.

    That is so where each row `[rows, length]` has its padding behind, and positions from 0 on.
    """
    import torch

    mask, positions = inputs.get("attention_mask"), inputs.get("position_ids")
    if attention != "sdpa" or mask is None or mask.dim() != 2:
        return inputs
    kept = mask.bool()
    wrong = (kept[:, 1:] & ~kept[:, :-1]).any()
    if positions is not None:
        if positions.dim() != 2:
            return inputs
        counted = torch.arange(mask.shape[1], device=mask.device)
        wrong = wrong | (kept & (positions != counted)).any()
    return inputs if bool(wrong) else inputs | {"attention_mask": None, "position_ids": None}


def select_rows(batch: Any, indices: Any, *, others: Callable[[Any, Any], Any]) -> Any:
    """Rows of a TensorDict, in the order of `indices` `[rows]`; verl's `index_select_tensor_dict`.

    Columns of rows of any length (jagged, `[rows, *]`) are cut from their values at once; `others`,
    verl's own function, takes the rest.
    """
    import torch

    if batch is None:
        return others(batch, indices)
    chosen = torch.as_tensor(indices)
    jagged = {
        name: _jagged_rows(column, chosen)
        for name, column in batch.items()
        if isinstance(column, torch.Tensor)
        and column.layout is torch.jagged
        and column.dim() == 2
        and column.is_contiguous()
    }
    return others(batch.exclude(*jagged), chosen).update(jagged)


def _jagged_rows(column: Any, chosen: Any) -> Any:
    import torch

    offsets = column.offsets()
    chosen = chosen.to(offsets.device)
    lengths = offsets.diff()[chosen]
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    shifts = (offsets[:-1][chosen] - ends[:-1]).repeat_interleave(lengths)
    places = torch.arange(len(shifts), device=shifts.device) + shifts
    return torch.nested.nested_tensor_from_jagged(
        column.values()[places],
        offsets=ends,
        # Without these torch pads to the length of all rows together.
        min_seqlen=int(lengths.min()),
        max_seqlen=int(lengths.max()),
    )


def padded_answers(tensor: Any, data: Any, *, others: Callable[[Any, Any], Any]) -> Any:
    """Answers `[rows, longest, ...]` of a model's output; verl's `no_padding_2_padding`.

    `tensor` is jagged or its values `[tokens, ...]`, of rows of prompt and answer; what stands at a
    token is of the next one. Prompts and answers that are padded, and what verl refuses, are left
    to `others`, verl's own function.
    """
    import torch

    prompts, responses = data["prompts"], data["responses"]
    if not (prompts.is_nested and responses.is_nested):
        return others(tensor, data)
    values = tensor.values() if tensor.is_nested else tensor
    asked, spoken = prompts.offsets().diff(), responses.offsets().diff()
    ends = (asked + spoken).cumsum(0)
    if bool((asked == 0).any() | (ends[-1] != len(values))):
        return others(tensor, data)
    told = data.get("max_response_len", -1)
    longest = getattr(told, "data", told)
    counted = torch.arange(int(spoken.max()) if longest < 0 else longest, device=ends.device)
    places = (ends - spoken - 1)[:, None] + counted
    beyond = counted >= spoken[:, None]
    found = values[places.masked_fill(beyond, 0)]
    return found.masked_fill(beyond[(..., *[None] * (values.dim() - 1))], 0)


def load_critic(
    local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool
) -> Any:
    """A transformer with one number a token, 0 at first; verl's signature."""
    import torch
    from transformers import AutoModelForTokenClassification

    model = AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation=model_config._attn_implementation,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
    )
    head = model.score
    if not head.weight.is_meta:
        torch.nn.init.zeros_(head.weight)
        if head.bias is not None:
            torch.nn.init.zeros_(head.bias)
    return model
