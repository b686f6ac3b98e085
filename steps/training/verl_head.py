"""Gives verl's engines the output matrix of learned places alone.

verl multiplies each hidden state by the output matrix, those of the prompts too, copies the logits
to drop the padding, and reads them once for log-probabilities and once for entropies. Of a step of
PPO a third of the tokens, of finetuning often fewer, count in a loss. So the hidden states are cut
before the matrix (`Cut`), both numbers come from one look at the logits, and 0 stands elsewhere:
losses and metrics are masked there. Rows are padded, or packed into one sequence of which a process
may have a share (Ulysses); batches of another kind (verl's fused kernels, distillation) stay
verl's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.ulysses import get_ulysses_sequence_parallel_rank

from steps.training.label_logprobs import label_logprobs, logprobs_and_entropies

WHOLE = ("use_fused_kernels", "calculate_sum_pi_squared", "distillation_use_topk")
"""What needs all logits, or none; `distillation_only` comes with the last."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the next token is learned, `[places]` each, in order."""

    rows: torch.Tensor
    """Rows of the micro-batch."""
    tokens: torch.Tensor
    """Among the tokens of all rows, one row after the other."""
    inputs: torch.Tensor
    """Among those of the output matrix, flat: `[rows, longest]`, or this process's tokens."""


def learned_places(ids: torch.Tensor, mask: torch.Tensor) -> Places:
    """Of rows `ids` and of what is learned of each, which are jagged: `[rows, *]`.

    A row of `mask` speaks of the last tokens of the row: of its answer, or of all.
    """
    offsets, lengths = ids.offsets(), ids.offsets().diff()
    spoken = mask.offsets().diff()
    rows = torch.arange(len(spoken), device=lengths.device).repeat_interleave(spoken)
    counted = torch.arange(len(rows), device=lengths.device)
    # The token after a place is the learned one.
    places = counted - mask.offsets()[:-1][rows] + (lengths - spoken)[rows] - 1
    kept = (mask.values() != 0) & (places >= 0)
    rows, places = rows[kept], places[kept]
    return Places(
        rows=rows,
        tokens=offsets[:-1][rows] + places,
        inputs=rows * lengths.max() + places,
    )


def of_share(places: Places, *, rank: int, length: int) -> Places:
    """Those in the `rank`-th `length` tokens of all rows packed into one sequence."""
    inputs = places.tokens - rank * length
    here = (inputs >= 0) & (inputs < length)
    return Places(rows=places.rows[here], tokens=places.tokens[here], inputs=inputs[here])


class Cut:
    """Cuts an output matrix's input to the places of the micro-batch in hand, if any."""

    def __init__(self, head: torch.nn.Module) -> None:
        self.places: Places | None = None
        head.register_forward_pre_hook(self)

    def __call__(
        self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """`[rows, length, width]` becomes `[1, places, width]`."""
        if self.places is None:
            return inputs
        hidden = inputs[0].flatten(0, 1).index_select(0, self.places.inputs)
        return (hidden[None], *inputs[1:])


def is_cut(micro_batch: TensorDict) -> bool:
    """Whether the micro-batch's loss can do with the learned places."""
    mask = micro_batch.get("loss_mask", None)
    if mask is None or not mask.is_nested:
        return False
    return not any(tu.get_non_tensor_data(micro_batch, name, default=False) for name in WHOLE)


def outputs(
    logits: torch.Tensor,
    places: Places,
    micro_batch: TensorDict,
    told: Mapping[str, Any],
    gather: Callable[[torch.Tensor, int], torch.Tensor],
) -> dict[str, torch.Tensor]:
    """What verl's `prepare_model_outputs` gives: `log_probs` and, if asked for, `entropy`.

    `logits` `[1, places, vocabulary]`; `told` is what verl's `prepare_model_inputs` said of them,
    and `gather` makes one sequence of those of the processes that share it.
    """
    ids = micro_batch["input_ids"]
    logits = logits.squeeze(0)  # an index would copy the gradient
    if not told["temperature_is_one"]:
        if is_packed(told):
            temperatures = told["temperature_rmpad"][places.inputs, None]
        else:
            temperatures = told["temperature"][places.rows, None]
        logits = logits / temperatures.clamp(min=1e-8).to(logits.dtype)
    labels = ids.values()[places.tokens + 1]

    def spread(numbers: torch.Tensor) -> torch.Tensor:
        """Rows as long as those of `ids`, 0 where no number is."""
        if is_packed(told):
            share = numbers.new_zeros(len(told["input_ids_rmpad_rolled"]))
            whole = gather(share.scatter(0, places.inputs, numbers), told["pad_size"])
        else:
            whole = numbers.new_zeros(len(ids.values())).scatter(0, places.tokens, numbers)
        return torch.nested.nested_tensor_from_jagged(whole, ids.offsets())

    if not tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False):
        return {"log_probs": spread(label_logprobs(logits, labels))}
    logprobs, entropies = logprobs_and_entropies(logits, labels)
    return {"log_probs": spread(logprobs), "entropy": spread(entropies)}


def is_packed(told: Mapping[str, Any]) -> bool:
    """Whether what `prepare_model_inputs` tells is of rows that are one sequence."""
    return "pad_size" in told


def mend(engine: Any) -> None:
    """Put the methods in their places; a critic's engine has outputs of its own, and isn't cut."""
    prepare_inputs, prepare_outputs = engine.prepare_model_inputs, engine.prepare_model_outputs

    def prepare_model_inputs(self: Any, micro_batch: TensorDict) -> Any:
        inputs, told = prepare_inputs(self, micro_batch)
        if type(self).prepare_model_outputs is prepare_model_outputs and is_cut(micro_batch):
            places = learned_places(micro_batch["input_ids"], micro_batch["loss_mask"])
            if is_packed(told):
                rank = get_ulysses_sequence_parallel_rank()
                length = len(told["input_ids_rmpad_rolled"])
                places = of_share(places, rank=rank, length=length)
            _cut_of(self).places = places
        return inputs, told

    def prepare_model_outputs(
        self: Any, output: Any, output_args: Any, micro_batch: TensorDict, **others: Any
    ) -> Any:
        cut = _cut_of(self)
        places, cut.places = cut.places, None
        if places is None:
            return prepare_outputs(self, output, output_args, micro_batch, **others)
        gather = self._gather_and_unpad_packed
        return outputs(output.logits, places, micro_batch, output_args, gather)

    engine.prepare_model_inputs = prepare_model_inputs
    engine.prepare_model_outputs = prepare_model_outputs


def _cut_of(engine: Any) -> Cut:
    """The one of an engine's model."""
    if not hasattr(engine, "spa_cut"):
        engine.spa_cut = Cut(engine.module.get_output_embeddings())
    found: Cut = engine.spa_cut
    return found
