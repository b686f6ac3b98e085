"""Arrow schemas of the records, written out by hand, and the way from record to row and back.

A file's columns change only on purpose, and `SCHEMA_VERSION` rises with them. Each record has a
schema, a function to a row and one from a row, joined in a `Kind`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa

from steps.agent.records import (
    Completion,
    FinishReason,
    Message,
    ParsedResponse,
    ParseStatus,
    ResponseFormat,
    SFTExample,
    Span,
    SpanKind,
    StopReason,
    Trajectory,
    Transition,
    Turn,
)
from steps.errors import DataError
from steps.storage.digests import SCHEMA_VERSION, git_commit

Record = TypeVar("Record", Trajectory, SFTExample)
_UNFIT = (pa.ArrowException, TypeError, AttributeError, OverflowError)

_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
_COMPLETION = pa.struct(
    [
        ("text", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float64())),
        ("finish_reason", pa.string()),
        ("error", pa.string()),
    ]
)
_PARSED = pa.struct(
    [
        ("status", pa.string()),
        ("observation", pa.string()),
        ("thought", pa.string()),
        ("prediction", pa.string()),
        ("actions", pa.list_(pa.string())),
        ("num_emitted", pa.int32()),
    ]
)
_TRANSITION = pa.struct(
    [
        ("action", pa.string()),
        ("state_before", pa.string()),
        ("state_after", pa.string()),
        ("reward", pa.float64()),
        ("valid", pa.bool_()),
        ("effective", pa.bool_()),
        ("terminated", pa.bool_()),
        ("truncated", pa.bool_()),
    ]
)
_TURN = pa.struct(
    [
        ("index", pa.int32()),
        ("prompt", pa.list_(_MESSAGE)),
        ("state_shown", pa.string()),
        ("observation_truth", pa.string()),
        ("prediction_truth", pa.string()),
        ("completion", _COMPLETION),
        ("response", pa.string()),
        ("parsed", _PARSED),
        ("transitions", pa.list_(_TRANSITION)),
        ("possible_next", pa.map_(pa.string(), pa.float64())),
        ("reward", pa.float64()),
        ("penalty", pa.float64()),
        ("actions_left", pa.int32()),
    ]
)
_SPAN = pa.struct([("kind", pa.string()), ("start", pa.int32()), ("end", pa.int32())])
TRAJECTORY_SCHEMA = pa.schema(
    [
        ("trajectory_id", pa.string()),
        ("env_id", pa.string()),
        ("env_seed", pa.int64()),
        ("puzzle_hash", pa.string()),
        ("group", pa.int32()),
        ("member", pa.int32()),
        ("policy", pa.string()),
        ("turns", pa.list_(_TURN)),
        ("stop_reason", pa.string()),
        ("success", pa.bool_()),
        ("response_format", pa.string()),
        ("error", pa.string()),
        ("prediction_separator", pa.string()),
    ]
)
EXAMPLE_SCHEMA = pa.schema(
    [
        ("prompt", pa.list_(_MESSAGE)),
        ("response", pa.string()),
        ("spans", pa.list_(_SPAN)),
        ("trajectory_id", pa.string()),
        ("turn_index", pa.int32()),
        ("puzzle_hash", pa.string()),
        ("split", pa.string()),
        ("env_id", pa.string()),
        ("status", pa.string()),
        ("model_observation", pa.string()),
        ("model_prediction", pa.string()),
        ("true_observation", pa.string()),
        ("true_prediction", pa.string()),
    ]
)


@dataclass(frozen=True)
class Kind(Generic[Record]):
    """How one kind of record goes to and from its rows."""

    name: str
    schema: pa.Schema
    to_row: Callable[[Record], dict[str, Any]]
    from_row: Callable[[dict[str, Any]], Record]


def stamped(kind: Kind[Any], config_digest: str) -> pa.Schema:
    """The schema with our facts in its metadata."""
    facts = {
        "record": kind.name,
        "schema_version": str(SCHEMA_VERSION),
        "git_commit": git_commit(),
        "config_digest": config_digest,
    }
    return kind.schema.with_metadata({f"spa.{key}": value for key, value in facts.items()})


def metadata_of(schema: pa.Schema) -> dict[str, str]:
    """Our facts; empty for a file that isn't ours."""
    found = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    return {key[4:]: value for key, value in found.items() if key.startswith("spa.")}


def check_metadata(path: Path, schema: pa.Schema, kind: Kind[Any]) -> None:
    """Raise a DataError where a file holds other records, or another version of them."""
    facts = metadata_of(schema)
    record, version = facts.get("record"), facts.get("schema_version")
    if record != kind.name:
        raise DataError(
            f"{path} holds {record or 'no records of this project'}; a file of {kind.name} is "
            "needed here."
        )
    if version != str(SCHEMA_VERSION):
        raise DataError(
            f"{path} has schema version {version}, this code reads {SCHEMA_VERSION}; make the "
            "file anew, or read it with the code of commit "
            f"{facts.get('git_commit', 'unknown')}."
        )
    if not schema.equals(kind.schema):
        raise DataError(
            f"{path} has other columns than {kind.name} of schema version {version}; make the "
            "file anew."
        )


def record_batch(
    records: Sequence[Record], schema: pa.Schema, kind: Kind[Record], first: int
) -> pa.RecordBatch:
    """One Arrow batch; a record that doesn't fit is named by its place and id."""
    try:
        return pa.RecordBatch.from_pylist([kind.to_row(record) for record in records], schema)
    except _UNFIT:
        for offset, record in enumerate(records):
            _check_record(record, schema, kind, first + offset)
        raise


def _check_record(record: Record, schema: pa.Schema, kind: Kind[Record], place: int) -> None:
    try:
        pa.RecordBatch.from_pylist([kind.to_row(record)], schema)
    except _UNFIT as error:
        raise DataError(
            f"record {place} ({record.trajectory_id}) doesn't fit the schema of {kind.name}: "
            f"{error}; the values must be of the record's declared types."
        ) from error


def records(batch: pa.RecordBatch, kind: Kind[Record]) -> Iterator[Record]:
    """The records of one Arrow batch."""
    columns = [_values(column) for column in batch.columns]
    names = batch.schema.names
    for values in zip(*columns, strict=True):
        yield kind.from_row(dict(zip(names, values, strict=True)))


def _values(array: pa.Array) -> list[Any]:
    """Python values of a column: `to_pylist`, ten times as fast for nested columns of numbers."""
    kind = array.type
    if pa.types.is_map(kind):
        keys, items = _values(array.keys), _values(array.items)
        return [dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in _slices(array)]
    if pa.types.is_list(kind):
        flat = _values(array.values)
        return _with_nulls(array, [tuple(flat[a:b]) for a, b in _slices(array)])
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [_values(column) for column in array.flatten()]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    if array.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return list(array.to_pylist())
    return list(array.to_numpy().tolist())


def _slices(array: pa.Array) -> Iterator[tuple[int, int]]:
    """Start and end of each row of a list or map column, in its flat values."""
    return pairwise(array.offsets.to_numpy().tolist())


def _with_nulls(array: pa.Array, found: list[Any]) -> list[Any]:
    if not array.null_count:
        return found
    valid = array.is_valid().to_pylist()
    return [value if present else None for value, present in zip(found, valid, strict=True)]


def _message_row(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.content}


def _completion_row(completion: Completion) -> dict[str, Any]:
    return {
        "text": completion.text,
        "prompt_ids": completion.prompt_ids,
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "finish_reason": completion.finish_reason.value,
        "error": completion.error,
    }


def _parsed_row(parsed: ParsedResponse) -> dict[str, Any]:
    return {
        "status": parsed.status.value,
        "observation": parsed.observation,
        "thought": parsed.thought,
        "prediction": parsed.prediction,
        "actions": parsed.actions,
        "num_emitted": parsed.num_emitted,
    }


def _transition_row(transition: Transition) -> dict[str, Any]:
    return {
        "action": transition.action,
        "state_before": transition.state_before,
        "state_after": transition.state_after,
        "reward": transition.reward,
        "valid": transition.valid,
        "effective": transition.effective,
        "terminated": transition.terminated,
        "truncated": transition.truncated,
    }


def _turn_row(turn: Turn) -> dict[str, Any]:
    return {
        "index": turn.index,
        "prompt": [_message_row(message) for message in turn.prompt],
        "state_shown": turn.state_shown,
        "observation_truth": turn.observation_truth,
        "prediction_truth": turn.prediction_truth,
        "completion": _completion_row(turn.completion),
        "response": turn.response,
        "parsed": _parsed_row(turn.parsed),
        "transitions": [_transition_row(transition) for transition in turn.transitions],
        "possible_next": list(turn.possible_next.items()),
        "reward": turn.reward,
        "penalty": turn.penalty,
        "actions_left": turn.actions_left,
    }


def _trajectory_row(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory.trajectory_id,
        "env_id": trajectory.env_id,
        "env_seed": trajectory.env_seed,
        "puzzle_hash": trajectory.puzzle_hash,
        "group": trajectory.group,
        "member": trajectory.member,
        "policy": trajectory.policy,
        "turns": [_turn_row(turn) for turn in trajectory.turns],
        "stop_reason": trajectory.stop_reason.value,
        "success": trajectory.success,
        "response_format": trajectory.response_format.value,
        "error": trajectory.error,
        "prediction_separator": trajectory.prediction_separator,
    }


def _example_row(example: SFTExample) -> dict[str, Any]:
    return {
        "prompt": [_message_row(message) for message in example.prompt],
        "response": example.response,
        "spans": [
            {"kind": span.kind.value, "start": span.start, "end": span.end}
            for span in example.spans
        ],
        "trajectory_id": example.trajectory_id,
        "turn_index": example.turn_index,
        "puzzle_hash": example.puzzle_hash,
        "split": example.split,
        "env_id": example.env_id,
        "status": example.status.value,
        "model_observation": example.model_observation,
        "model_prediction": example.model_prediction,
        "true_observation": example.true_observation,
        "true_prediction": example.true_prediction,
    }


def _messages(rows: Iterable[dict[str, Any]]) -> tuple[Message, ...]:
    return tuple(Message(**row) for row in rows)


def _turn(row: dict[str, Any]) -> Turn:
    completion, parsed = row["completion"], row["parsed"]
    completion["finish_reason"] = FinishReason(completion["finish_reason"])
    parsed["status"] = ParseStatus(parsed["status"])
    row["prompt"] = _messages(row["prompt"])
    row["completion"] = Completion(**completion)
    row["parsed"] = ParsedResponse(**parsed)
    row["transitions"] = tuple(Transition(**transition) for transition in row["transitions"])
    return Turn(**row)


def _trajectory(row: dict[str, Any]) -> Trajectory:
    row["turns"] = tuple(_turn(turn) for turn in row["turns"])
    row["stop_reason"] = StopReason(row["stop_reason"])
    row["response_format"] = ResponseFormat(row["response_format"])
    return Trajectory(**row)


def _example(row: dict[str, Any]) -> SFTExample:
    row["prompt"] = _messages(row["prompt"])
    row["spans"] = tuple(
        Span(kind=SpanKind(span["kind"]), start=span["start"], end=span["end"])
        for span in row["spans"]
    )
    row["status"] = ParseStatus(row["status"])
    return SFTExample(**row)


TRAJECTORIES: Kind[Trajectory] = Kind(
    "trajectories", TRAJECTORY_SCHEMA, _trajectory_row, _trajectory
)
EXAMPLES: Kind[SFTExample] = Kind("finetuning rows", EXAMPLE_SCHEMA, _example_row, _example)
