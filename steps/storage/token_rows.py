"""Tokenised finetuning rows for a trainer in another process: Parquet, with its order beside it.

The trainer reads token ids and never tokenises, so it learns what the rollout showed. A file is
scratch of one training and is thrown away with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steps.errors import DataError
from steps.storage.digests import replacing

_TYPES = {"token_ids": pa.int32(), "weights": pa.float32(), "kinds": pa.int8()}
_ORDER = b"spa.order"


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """Rows and the order in which they are trained on."""

    token_ids: Sequence[Sequence[int] | np.ndarray]
    weights: Sequence[Sequence[float] | np.ndarray]
    """Loss weight of each token, 0 on the prompt."""
    kinds: Sequence[Sequence[int] | np.ndarray] = field(default_factory=tuple)
    """Kind of span of each token, -1 for none; empty where nobody asks."""
    order: Sequence[int] = field(default_factory=tuple)
    """Row numbers, batch after batch; empty takes each row once."""


def write_token_rows(path: Path, rows: TokenRows) -> None:
    """Write a file; it appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        name: pa.array(getattr(rows, name), pa.list_(each))
        for name, each in _TYPES.items()
        if name != "kinds" or len(rows.kinds)
    }
    order = np.asarray(rows.order, dtype="<i8").tobytes()
    table = pa.table(columns).replace_schema_metadata({_ORDER: order})
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_token_rows(path: Path) -> TokenRows:
    """What `write_token_rows` wrote; the rows are numpy arrays. Raises `DataError`."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} holds no tokenised rows ({error}); train again from the start of the stage."
        ) from error
    order = np.frombuffer((table.schema.metadata or {}).get(_ORDER, b""), dtype="<i8")
    return TokenRows(
        token_ids=_rows(table.column("token_ids")),
        weights=_rows(table.column("weights")),
        kinds=_rows(table.column("kinds")) if "kinds" in table.column_names else (),
        order=order.tolist(),
    )


def _rows(column: pa.ChunkedArray) -> list[np.ndarray]:
    return [row for chunk in column.chunks for row in _split(chunk)]


def _split(chunk: pa.ListArray) -> list[np.ndarray]:
    values = chunk.flatten().to_numpy(zero_copy_only=False)
    ends = np.asarray(chunk.offsets)[1:-1] - chunk.offsets[0].as_py()
    return np.split(values, ends)
