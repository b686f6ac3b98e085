"""Our finetuning rows as verl's data set: `data.custom_cls` names the class below.

It hands out token ids and loss weights as they were written (`steps.storage.token_rows`), and asks
neither tokenizer nor chat template. Imports nothing of verl, whose trainer it is called by.

The order is ours. verl draws its batches through torch's `DistributedSampler`, which shuffles with
a fixed seed, epoch by epoch. Here a training is one epoch of exactly its steps: the class holds
each batch's rows one after the other, and the sampler's permutation is undone, so that batch s of
verl is batch s of the local backend, in a resumed training as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from steps.errors import DataError
from steps.storage.token_rows import TokenRows, read_token_rows

WEIGHTS, KINDS = "spa_weights", "spa_kinds"
"""Columns of held-out rows, for `verl_sft_validation`."""
VALIDATION = "val/loss"
"""verl's name of the loss on held-out rows."""
SAMPLER_SEED = 0
"""torch's default, which verl leaves."""


class TokenRowsDataset(Dataset[dict[str, torch.Tensor]]):
    """Rows with their own loss weights, for verl's `pad_mode: no_padding`.

    Held-out rows have their spans' kinds besides.
    """

    def __init__(
        self,
        parquet_files: str | Sequence[str],
        tokenizer: Any = None,
        config: Any = None,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        """verl's signature; one file, and of `config` only `max_length`."""
        paths = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        if len(paths) != 1:
            raise DataError(f"{len(paths)} files of rows were given; give one.")
        self.rows = read_token_rows(Path(paths[0]))
        _check(self.rows, Path(paths[0]), int(config["max_length"]) if config is not None else None)
        order = self.rows.order
        self._row_of = [0] * len(order) if order else list(range(len(self.rows.token_ids)))
        for index, row in zip(sampler_order(len(order)), order, strict=True):
            self._row_of[index] = row

    def __len__(self) -> int:
        return len(self._row_of)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self._row_of[index]
        token_ids = torch.tensor(self.rows.token_ids[row], dtype=torch.long)
        weights = torch.tensor(self.rows.weights[row], dtype=torch.float32)
        found = {
            "input_ids": token_ids,
            "position_ids": torch.arange(len(token_ids)),
            "loss_mask": weights,
        }
        if not self.rows.kinds:
            return found
        # Of held-out rows every token of an answer is told, whatever it weighs.
        kinds = torch.tensor(self.rows.kinds[row], dtype=torch.long)
        told = ((weights != 0) | (kinds >= 0)).float()
        return found | {"loss_mask": told, WEIGHTS: weights, KINDS: kinds}


def sampler_order(length: int) -> list[int]:
    """The indices that `DistributedSampler` asks for in its first epoch, over all ranks in turn."""
    generator = torch.Generator().manual_seed(SAMPLER_SEED)
    return [int(index) for index in torch.randperm(length, generator=generator)]


def _check(rows: TokenRows, path: Path, max_length: int | None) -> None:
    for index, (ids, weights) in enumerate(zip(rows.token_ids, rows.weights, strict=True)):
        if len(ids) != len(weights) or len(ids) < 2:
            raise DataError(f"row {index} of {path}: {len(ids)} tokens, {len(weights)} weights.")
        if weights[0] != 0:
            # verl shifts weights over the seams of packed rows: it would count for the row before.
            raise DataError(f"row {index} of {path}: its first token has a loss weight.")
        if max_length is not None and len(ids) > max_length:
            raise DataError(f"row {index} of {path}: {len(ids)} tokens, more than {max_length}.")
