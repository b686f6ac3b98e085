"""What steps of finetuning compute, and how long they took. Pure.

Utilisation (MFU) is PaLM's (arXiv 2204.02311, appendix B): what forward and backward pass need at
least, over what the card could have done meanwhile. Padding isn't work, nor is what gradient
checkpointing computes anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steps.training.batch_order import batch_rows
from steps.training.model_size import ModelSize
from steps.training.tokenization import SFTRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """What is counted of a training."""

    after: int
    last: int
    """Steps `after + 1` to `last`."""
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What some steps are given."""

    tokens: int
    """Of prompts and answers, without padding."""
    trained: int
    """Those with a loss weight."""
    squares: int
    """Squared lengths of the rows, summed."""

    @property
    def mean_length(self) -> float:
        """Length of the row that a token stands in, mean over tokens."""
        return self.squares / self.tokens


def stretch(rows: Sequence[tuple[int, float]], warmup: int) -> Stretch:
    """From the first row of metrics (step, second) at step `warmup` or later to the last row."""
    after, began = next(row for row in rows if row[0] >= warmup)
    last, ended = rows[-1]
    return Stretch(after=after, last=last, seconds=ended - began)


def work_of(rows: Sequence[SFTRow], *, seed: int, batch_size: int, after: int, last: int) -> Work:
    """Of the steps `after + 1` to `last`, whose rows both backends take in this order."""
    taken = [
        rows[index]
        for step in range(after, last)
        for index in batch_rows(seed, step, batch_size, len(rows))
    ]
    return Work(
        tokens=sum(len(row.token_ids) for row in taken),
        trained=sum(weight > 0 for row in taken for weight in row.weights),
        squares=sum(len(row.token_ids) ** 2 for row in taken),
    )


def flops_parameters(size: ModelSize, *, is_tied: bool) -> int:
    """Parameters that are multiplied with: an embedding is one where it is the output matrix, too.

    One that is nothing else is looked up.
    """
    return size.parameters - (0 if is_tied else size.vocab * size.hidden)


def flops(work: Work, *, parameters: int, layers: int, hidden: int) -> float:
    """Operations: 6 a parameter and token, 12 x layers x hidden a token and token of its row.

    As in the paper attention counts whole, without its causal half taken off.
    """
    return 6 * parameters * work.tokens + 12 * layers * hidden * work.squares
