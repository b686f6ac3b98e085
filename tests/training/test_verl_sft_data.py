"""verl is given our tokens, our weights and our order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from steps.errors import DataError
from steps.storage.token_rows import TokenRows, read_token_rows, write_token_rows
from steps.training.batch_order import batch_rows
from steps.training.verl_sft_data import TokenRowsDataset

ROWS = TokenRows(token_ids=[[5, 6, 7], [8, 9]], weights=[[0, 0.25, 1], [0, 1]])


def dataset(path: Path, rows: TokenRows, **fields: object) -> TokenRowsDataset:
    write_token_rows(path, rows)
    return TokenRowsDataset(str(path), **fields)  # type: ignore[arg-type]


def test_rows_come_with_their_weights_and_with_positions(tmp_path: Path) -> None:
    rows = dataset(tmp_path / "rows.parquet", ROWS, config={"max_length": 3})
    assert len(rows) == 2
    first = rows[0]
    assert first["input_ids"].tolist() == [5, 6, 7]
    assert first["position_ids"].tolist() == [0, 1, 2]
    assert first["loss_mask"].tolist() == [0, 0.25, 1]
    assert {key: value.dtype for key, value in rows[1].items()} == {
        "input_ids": torch.long,
        "position_ids": torch.long,
        "loss_mask": torch.float32,
    }
    assert rows[1]["input_ids"].tolist() == [8, 9]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_verls_batches_are_those_of_the_local_backend(ranks: int, tmp_path: Path) -> None:
    batch_size, num_rows, steps, seed = 4, 10, 7, 3
    wanted = [batch_rows(seed, step, batch_size, num_rows) for step in range(steps)]
    rows = dataset(
        tmp_path / "rows.parquet",
        TokenRows(
            token_ids=[[100, row] for row in range(num_rows)],
            weights=[[0.0, 1.0]] * num_rows,
            order=[row for batch in wanted for row in batch],
        ),
    )
    shares: list[list[list[int]]] = [[] for _ in range(steps)]
    for rank in range(ranks):
        # as verl.trainer.sft_trainer builds it
        sampler = DistributedSampler(
            rows, shuffle=True, num_replicas=ranks, rank=rank, drop_last=True
        )
        sampler.set_epoch(epoch=0)
        loader = DataLoader(rows, batch_size=batch_size // ranks, sampler=sampler, drop_last=True)
        for step, batch in enumerate(loader):
            shares[step].append(batch["input_ids"][:, 1].tolist())
    assert [sorted(row for rank in share for row in rank) for share in shares] == [
        sorted(batch) for batch in wanted
    ]
    if ranks == 1:
        assert [share[0] for share in shares] == wanted


@pytest.mark.parametrize(
    ("ids", "weights", "words"),
    [
        ([[1, 2]], [[1.0, 1.0]], "row 0 of .*first token has a loss weight"),
        ([[1, 2], [3, 4]], [[0.0, 1.0], [0.0]], "row 1 of .*2 tokens, 1 weights"),
        ([[1]], [[0.0]], "row 0 of .*1 tokens"),
        ([[1, 2, 3, 4]], [[0.0] * 4], "4 tokens, more than 3"),
    ],
)
def test_rows_that_verl_would_get_wrong_are_refused(
    ids: list[list[int]], weights: list[list[float]], words: str, tmp_path: Path
) -> None:
    rows = TokenRows(token_ids=ids, weights=weights)
    with pytest.raises(DataError, match=words):
        dataset(tmp_path / "rows.parquet", rows, config={"max_length": 3})


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_token_rows(path, ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"rows\.parquet holds no tokenised rows"):
        read_token_rows(path)
