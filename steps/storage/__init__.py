"""Records on disk: Parquet for trajectories and finetuning rows, JSON for manifests, SHA-256.

One row is an episode (its turns nested) or a finetuning row; the columns stand in `schemas`. The
file's metadata hold schema version, git commit and configuration digest, and a file of another
schema version is refused.

A file under its final name is complete: it is written under another name and moved. While a
`TrajectoryWriter` is open, finished batches stand in `<name>.partial`, an Arrow stream that is
flushed after each batch. If the process is killed, `recover_trajectories` reads every finished
batch from it (a power loss may cost more: nothing is synced to the disk). That is for calls from
Python: a stage that goes on does so from its batch store (`steps.storage.batches`), and the flow
never reads a stream that was left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from steps.agent.records import SFTExample, Trajectory
from steps.errors import DataError
from steps.storage.digests import (
    MANIFEST,
    SCHEMA_VERSION,
    atomic_write_json,
    check_manifest,
    directory_digest,
    file_digest,
    git_commit,
    json_digest,
    model_digest,
    read_json,
    read_manifest,
    replacing,
    write_manifest,
)
from steps.storage.refused import check_out, refused, write_out
from steps.storage.schemas import (
    EXAMPLES,
    TRAJECTORIES,
    Kind,
    Record,
    check_metadata,
    record_batch,
    records,
    stamped,
)

__all__ = [
    "MANIFEST",
    "SCHEMA_VERSION",
    "TRAIN_FILE",
    "VALIDATION_FILE",
    "TrajectoryWriter",
    "atomic_write_json",
    "check_manifest",
    "check_out",
    "directory_digest",
    "file_digest",
    "git_commit",
    "iter_trajectories",
    "json_digest",
    "model_digest",
    "partial_path",
    "read_examples",
    "read_json",
    "read_manifest",
    "read_trajectories",
    "recover_trajectories",
    "refused",
    "write_examples",
    "write_manifest",
    "write_out",
    "write_trajectories",
]

TRAIN_FILE, VALIDATION_FILE = "sft_train.parquet", "sft_validation.parquet"
"""The filter's rows, which finetuning reads."""
PARTIAL_SUFFIX = ".partial"
_ROW_GROUP = 1024
_COMPRESSION = "zstd"


# Trajectories


class TrajectoryWriter:
    """Writes trajectories batch by batch; the file appears under its name when it is closed.

    Used as a context manager, an exception leaves the finished batches in `<name>.partial` and
    no file under the final name.
    """

    def __init__(self, path: Path, *, config_digest: str = "") -> None:
        self.path = path
        self.num_trajectories = 0
        self._partial = partial_path(path)
        self._schema = stamped(TRAJECTORIES, config_digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._sink: BinaryIO = self._partial.open("wb")
        self._stream = pa.ipc.new_stream(
            self._sink, self._schema, options=pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
        )

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        """Append one batch (a row group of the file); after this it survives a kill."""
        if not trajectories:
            return
        batch = record_batch(trajectories, self._schema, TRAJECTORIES, self.num_trajectories)
        self._stream.write_batch(batch)
        self._sink.flush()
        self.num_trajectories += len(trajectories)

    def close(self) -> None:
        """Turn the stream into the Parquet file and remove the stream."""
        self._close_stream()
        with replacing(self.path) as temporary, _parquet_writer(temporary, self._schema) as out:
            for batch in _stream_batches(self._partial):
                out.write_batch(batch)
        self._partial.unlink()

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._close_stream()

    def _close_stream(self) -> None:
        self._stream.close()
        self._sink.close()


def write_trajectories(
    path: Path, trajectories: Sequence[Trajectory], *, config_digest: str = ""
) -> None:
    """Write a whole file at once."""
    with TrajectoryWriter(path, config_digest=config_digest) as writer:
        for start in range(0, len(trajectories), _ROW_GROUP):
            writer.write(trajectories[start : start + _ROW_GROUP])


def read_trajectories(path: Path) -> list[Trajectory]:
    """Every trajectory of a file, in the order of writing."""
    return list(iter_trajectories(path))


def iter_trajectories(path: Path) -> Iterator[Trajectory]:
    """The same, with one row group in memory at a time."""
    yield from _iter_records(path, TRAJECTORIES)


def recover_trajectories(path: Path) -> list[Trajectory]:
    """The finished batches that a killed writer of `path` left behind; none where it left none."""
    partial = partial_path(path)
    if not partial.exists():
        return []
    found: list[Trajectory] = []
    with suppress(pa.ArrowInvalid, OSError):
        for batch in _stream_batches(partial):
            check_metadata(partial, batch.schema, TRAJECTORIES)
            found.extend(records(batch, TRAJECTORIES))
    return found


def partial_path(path: Path) -> Path:
    """Where the finished batches stand until the file is complete."""
    return path.with_name(path.name + PARTIAL_SUFFIX)


# Finetuning rows


def write_examples(path: Path, examples: Sequence[SFTExample], *, config_digest: str = "") -> None:
    """Write finetuning rows; the file appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = stamped(EXAMPLES, config_digest)
    with replacing(path) as temporary, _parquet_writer(temporary, schema) as out:
        for start in range(0, len(examples), _ROW_GROUP):
            rows = examples[start : start + _ROW_GROUP]
            out.write_batch(record_batch(rows, schema, EXAMPLES, start))


def read_examples(path: Path) -> list[SFTExample]:
    """Every finetuning row of a file, in the order of writing."""
    return list(_iter_records(path, EXAMPLES))


# Files


def _parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, compression=_COMPRESSION, write_page_checksum=True)


def _stream_batches(path: Path) -> Iterator[pa.RecordBatch]:
    with path.open("rb") as source, pa.ipc.open_stream(source) as stream:
        yield from stream


@contextmanager
def _open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    if not path.is_file():
        left = partial_path(path)
        hint = (
            f" Or read what its killed writer had finished, in {left.name}, with "
            "steps.storage.recover_trajectories (docs/reliability.md)."
        )
        raise DataError(
            f"{path} is missing; run the step that writes it again.{hint if left.exists() else ''}"
        )
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is truncated or no Parquet file ({error}); run the step that writes it again."
        ) from error


def _iter_records(path: Path, kind: Kind[Record]) -> Iterator[Record]:
    with _open_parquet(path) as file:
        check_metadata(path, file.schema_arrow, kind)
        for index in range(file.num_row_groups):
            for batch in file.read_row_group(index).combine_chunks().to_batches():
                yield from records(batch, kind)
