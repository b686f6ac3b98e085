"""Gives verl's engines the output matrix of learned places alone.

verl multiplies each hidden state by the output matrix, those of the prompts too, copies the logits
to drop the padding, and reads them once for log-probabilities and once for entropies. Of a step of
PPO a third of the tokens, of finetuning often fewer, count in a loss. So the hidden states are cut
before the matrix (`Cut`), both numbers come from one look at the logits, and 0 stands elsewhere:
losses and metrics are masked there. Batches of another kind (packed ones, verl's fused kernels,
distillation) stay verl's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from steps.training.label_logprobs import label_logprobs, logprobs_and_entropies

WHOLE = ("use_fused_kernels", "calculate_sum_pi_squared", "distillation_use_topk")
"""What needs all logits, or none; `distillation_only` comes with the last."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the next token is learned, `[places]` each, in order."""

    rows: torch.Tensor
    """Rows of the micro-batch."""
    packed: torch.Tensor
    """Among the tokens of all rows, one row after the other."""
    padded: torch.Tensor
    """In `[rows, longest]`, flat."""


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
        packed=offsets[:-1][rows] + places,
        padded=rows * lengths.max() + places,
    )


class Cut:
    """Cuts an output matrix's input to the places of the micro-batch in hand, if any."""

    def __init__(self, head: torch.nn.Module) -> None:
        self.places: Places | None = None
        head.register_forward_pre_hook(self)

    def __call__(
        self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """`[rows, longest, width]` becomes `[1, places, width]`."""
        if self.places is None:
            return inputs
        hidden = inputs[0].flatten(0, 1).index_select(0, self.places.padded)
        return (hidden[None], *inputs[1:])


def is_cut(micro_batch: TensorDict) -> bool:
    """Whether the micro-batch's loss can do with the learned places."""
    mask = micro_batch.get("loss_mask", None)
    if mask is None or not mask.is_nested:
        return False
    asked = [tu.get_non_tensor_data(micro_batch, name, default=False) for name in WHOLE]
    return not any(asked) and not tu.get_non_tensor_data(
        micro_batch, "use_remove_padding", default=True
    )


def outputs(
    logits: torch.Tensor, places: Places, micro_batch: TensorDict, told: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """What verl's `prepare_model_outputs` gives: `log_probs` and, if asked for, `entropy`.

    `logits` `[1, places, vocabulary]`; `told` is what verl's `prepare_model_inputs` said of them.
    """
    ids = micro_batch["input_ids"]
    logits = logits.squeeze(0)  # an index would copy the gradient
    if not told["temperature_is_one"]:
        temperatures = told["temperature"].clamp(min=1e-8).to(logits.dtype)
        logits = logits / temperatures[places.rows, None]
    labels = ids.values()[places.packed + 1]
    if not tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False):
        return {"log_probs": _spread(label_logprobs(logits, labels), places, ids)}
    logprobs, entropies = logprobs_and_entropies(logits, labels)
    return {
        "log_probs": _spread(logprobs, places, ids),
        "entropy": _spread(entropies, places, ids),
    }


def _spread(numbers: torch.Tensor, places: Places, ids: torch.Tensor) -> torch.Tensor:
    """Rows as long as those of `ids`, 0 where no number is."""
    whole = numbers.new_zeros(len(ids.values())).scatter(0, places.packed, numbers)
    return torch.nested.nested_tensor_from_jagged(whole, ids.offsets())


def mend(engine: Any) -> None:
    """Put the methods in their places; a critic's engine has outputs of its own, and isn't cut."""
    prepare_inputs, prepare_outputs = engine.prepare_model_inputs, engine.prepare_model_outputs

    def prepare_model_inputs(self: Any, micro_batch: TensorDict) -> Any:
        found = prepare_inputs(self, micro_batch)
        if type(self).prepare_model_outputs is prepare_model_outputs and is_cut(micro_batch):
            _cut_of(self).places = learned_places(
                micro_batch["input_ids"], micro_batch["loss_mask"]
            )
        return found

    def prepare_model_outputs(
        self: Any, output: Any, output_args: Any, micro_batch: TensorDict, **others: Any
    ) -> Any:
        cut = _cut_of(self)
        places, cut.places = cut.places, None
        if places is None:
            return prepare_outputs(self, output, output_args, micro_batch, **others)
        return outputs(output.logits, places, micro_batch, output_args)

    engine.prepare_model_inputs = prepare_model_inputs
    engine.prepare_model_outputs = prepare_model_outputs


def _cut_of(engine: Any) -> Cut:
    """The one of an engine's model."""
    if not hasattr(engine, "spa_cut"):
        engine.spa_cut = Cut(engine.module.get_output_embeddings())
    found: Cut = engine.spa_cut
    return found
