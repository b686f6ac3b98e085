"""A trainer that writes each step's batch to files, for comparison with the local backend.

verl, Ray and all: imported only where a GPU test runs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq

from steps.storage import write_trajectories
from steps.training.verl_groups import episodes_of, place_of
from steps.training.verl_trainer import SPATrainer

DIRECTORY = "SPA_TEST_DUMP"
"""Environment variable with the directory."""
FIELDS = (
    "prompts",
    "responses",
    "response_mask",
    "rm_scores",
    "rollout_log_probs",
    "old_log_probs",
    "values",
    "advantages",
    "returns",
)


class DumpingTrainer(SPATrainer):
    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        keys = [
            key
            for key, tag in zip(batch.keys, batch.tags, strict=True)
            if not tag.get("is_padding", False)
        ]
        real = type(batch)(
            partition_id=batch.partition_id,
            keys=sorted(keys, key=place_of),
            tags=[{} for _ in keys],
        )
        episodes = episodes_of(real)
        order = [f"{session}_0" for session in episodes]
        data = tq.kv_batch_get(
            keys=order, partition_id=batch.partition_id, select_fields=list(FIELDS)
        )
        rows = {name: [torch.as_tensor(row) for row in data[name]] for name in FIELDS}
        directory = Path(os.environ[DIRECTORY])
        write_trajectories(directory / f"step_{self.global_steps}.parquet", list(episodes.values()))
        torch.save(rows, directory / f"step_{self.global_steps}.pt")
        return batch
