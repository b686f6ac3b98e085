"""Trajectories as bytes, to hand them from process to process without a file.

The columns are those of the Parquet files, in Arrow's stream format, so that what arrives is what a
file would hold; nothing in it is executed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from steps.agent.records import Trajectory
from steps.storage.schemas import TRAJECTORIES, record_batch, records, stamped


def to_bytes(trajectories: Sequence[Trajectory]) -> bytes:
    """The trajectories in order."""
    schema = stamped(TRAJECTORIES, "")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(record_batch(trajectories, schema, TRAJECTORIES, 0))
    return bytes(sink.getvalue().to_pybytes())


def from_bytes(data: bytes) -> list[Trajectory]:
    """The inverse of `to_bytes`."""
    with pa.ipc.open_stream(data) as reader:
        return [record for batch in reader for record in records(batch, TRAJECTORIES)]
