"""Records on disk: nothing changes on the way, and a damaged file is refused."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steps import storage
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
from steps.storage.schemas import metadata_of

BOARD = "P_\n_√"


def turn(index: int = 0, **changes: object) -> Turn:
    transition = Transition(
        action="Down",
        state_before=BOARD,
        state_after="__\nP√",
        reward=0.1,
        valid=True,
        effective=True,
        terminated=False,
        truncated=False,
    )
    made = Turn(
        index=index,
        prompt=(Message(role="system", content="Play."), Message(role="user", content=BOARD)),
        state_shown=BOARD,
        observation_truth=BOARD,
        prediction_truth="__\nP√",
        completion=Completion(
            text="<answer>Down</answer>", token_ids=(5, 7, 2), logprobs=(-0.1, -1 / 3, -1e-9)
        ),
        response="<answer>Down</answer>",
        parsed=ParsedResponse(status=ParseStatus.OK, actions=("Down",), num_emitted=1),
        transitions=(transition,),
        possible_next={"__\nP√": 0.9, BOARD: 0.1},
        reward=0.1,
        penalty=-0.05,
        actions_left=9,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def trajectory(name: str = "t0", *turns: Turn) -> Trajectory:
    return Trajectory(
        trajectory_id=name,
        env_id="frozenlake",
        env_seed=2**40,
        puzzle_hash="0123456789abcdef",
        group=3,
        member=1,
        policy="random",
        turns=turns,
        stop_reason=StopReason.MAX_TURNS,
        success=True,
        response_format=ResponseFormat.ANSWER_ONLY,
        error="",
        prediction_separator="||",
    )


def example(name: str = "t0", response: str = "<answer>Down</answer>") -> SFTExample:
    return SFTExample(
        prompt=(Message(role="user", content=BOARD),),
        response=response,
        spans=(
            Span(kind=SpanKind.TAG, start=0, end=8),
            Span(kind=SpanKind.ANSWER, start=8, end=12),
        ),
        trajectory_id=name,
        turn_index=4,
        puzzle_hash="0123456789abcdef",
        split="validation",
        env_id="frozenlake",
        status=ParseStatus.WRONG_ORDER,
        model_observation=None,
        model_prediction="",
        true_observation=BOARD,
        true_prediction="__\nP√",
    )


def test_trajectories_come_back_equal_with_their_empty_and_missing_parts(tmp_path: Path) -> None:
    written = [
        trajectory("full", turn(0), turn(1)),
        trajectory("no turns"),
        trajectory(
            "bare",
            turn(
                0,
                completion=Completion(
                    text="", finish_reason=FinishReason.ERROR, error="gone", logprobs=None
                ),
                parsed=ParsedResponse(status=ParseStatus.NO_ANSWER, observation=""),
                transitions=(),
                possible_next={},
            ),
            turn(1, completion=Completion(text="x", logprobs=())),
        ),
    ]
    storage.write_trajectories(tmp_path / "t.parquet", written)
    assert storage.read_trajectories(tmp_path / "t.parquet") == written


def test_a_template_can_read_what_comes_back(tmp_path: Path) -> None:
    storage.write_examples(tmp_path / "s.parquet", [example()])
    (found,) = storage.read_examples(tmp_path / "s.parquet")
    assert found == example()
    assert type(found.prompt) is tuple
    assert found.prompt[0].as_dict() == {"role": "user", "content": BOARD}
    assert type(found.spans[0].start) is int


@given(
    text=st.text(),
    logprob=st.floats(allow_nan=False),
    chances=st.dictionaries(st.text(), st.floats(0, 1), max_size=4),
)
def test_any_text_and_number_survives(
    tmp_path_factory: pytest.TempPathFactory,
    text: str,
    logprob: float,
    chances: dict[str, float],
) -> None:
    path = tmp_path_factory.mktemp("any") / "t.parquet"
    completion = Completion(text=text, token_ids=(1,), logprobs=(logprob,))
    written = [trajectory("t", turn(0, completion=completion, possible_next=chances))]
    storage.write_trajectories(path, written)
    assert storage.read_trajectories(path) == written


def test_the_order_of_possible_states_is_kept(tmp_path: Path) -> None:
    chances = {"b": 0.5, "a": 0.25, "c": 0.25}
    storage.write_trajectories(
        tmp_path / "t.parquet", [trajectory("t", turn(0, possible_next=chances))]
    )
    (found,) = storage.read_trajectories(tmp_path / "t.parquet")
    assert list(found.turns[0].possible_next) == ["b", "a", "c"]


def test_batches_become_row_groups_and_metadata_tell_the_origin(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with storage.TrajectoryWriter(path, config_digest="c0ffee") as writer:
        writer.write([trajectory("a"), trajectory("b")])
        writer.write([])
        writer.write([trajectory("c")])
        assert not path.exists()
    assert pq.ParquetFile(path).num_row_groups == 2
    assert [each.trajectory_id for each in storage.iter_trajectories(path)] == ["a", "b", "c"]
    assert metadata_of(pq.read_schema(path)) == {
        "record": "trajectories",
        "schema_version": "2",
        "git_commit": storage.git_commit(),
        "config_digest": "c0ffee",
    }
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.parquet"]


def test_the_commit_is_that_of_this_source_tree() -> None:
    root = Path(__file__).parents[1]
    words = ["git", "-C", str(root), "rev-parse", "HEAD"]
    commit = ""
    if (root / ".git").exists():
        commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert storage.git_commit().removesuffix("-dirty") == (commit or "unknown")


def test_an_empty_file_of_rows_can_be_read(tmp_path: Path) -> None:
    storage.write_examples(tmp_path / "s.parquet", [])
    assert storage.read_examples(tmp_path / "s.parquet") == []


def test_an_exception_leaves_no_file_and_keeps_the_finished_batches(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with pytest.raises(RuntimeError), storage.TrajectoryWriter(path) as writer:
        writer.write([trajectory("a", turn())])
        raise RuntimeError("the policy died")
    assert not path.exists()
    assert storage.recover_trajectories(path) == [trajectory("a", turn())]
    with pytest.raises(DataError, match=r"in t\.parquet\.partial, with steps\.storage\.recover_"):
        storage.read_trajectories(path)
    storage.write_trajectories(path, storage.recover_trajectories(path))
    assert storage.read_trajectories(path) == [trajectory("a", turn())]
    assert not storage.partial_path(path).exists()


KILLED = """
import sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
from test_storage import trajectory, turn
from steps.storage import TrajectoryWriter
writer = TrajectoryWriter(Path({path!r}))
writer.write([trajectory("a", turn()), trajectory("b")])
writer.write([trajectory("c", turn(0), turn(1))])
print("written", flush=True)
time.sleep(60)
"""


def test_finished_batches_survive_a_kill(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "t.parquet"
    code = KILLED.format(paths=[str(root), str(root / "tests")], path=str(path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        child.send_signal(signal.SIGKILL)
    found = storage.recover_trajectories(path)
    assert found == [
        trajectory("a", turn()),
        trajectory("b"),
        trajectory("c", turn(0), turn(1)),
    ]


def test_a_batch_cut_in_the_middle_costs_that_batch_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    writer = storage.TrajectoryWriter(path)
    writer.write([trajectory("a", turn())])
    whole = storage.partial_path(path).stat().st_size
    writer.write([trajectory("b", turn())])
    size = storage.partial_path(path).stat().st_size
    for cut in (whole, whole + 1, (whole + size) // 2, size - 1):
        left = tmp_path / f"cut{cut}.parquet"
        data = storage.partial_path(path).read_bytes()[:cut]
        storage.partial_path(left).write_bytes(data)
        assert [each.trajectory_id for each in storage.recover_trajectories(left)] == ["a"]
    writer.close()


def test_nothing_to_recover_is_an_empty_list(tmp_path: Path) -> None:
    assert storage.recover_trajectories(tmp_path / "t.parquet") == []
    storage.partial_path(tmp_path / "t.parquet").write_bytes(b"\xff\xff")
    assert storage.recover_trajectories(tmp_path / "t.parquet") == []


def test_a_truncated_or_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    storage.write_trajectories(path, [trajectory(f"t{i}", turn()) for i in range(50)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="truncated or no Parquet file"):
        storage.read_trajectories(path)
    flipped = bytearray(whole)
    flipped[60] ^= 0xFF
    path.write_bytes(bytes(flipped))
    with pytest.raises(DataError):
        storage.read_trajectories(path)


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is missing"):
        storage.read_examples(tmp_path / "s.parquet")


def test_another_schema_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    storage.write_examples(path, [example()])
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, b"spa.schema_version": b"7"}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(DataError, match="has schema version 7, this code reads 2"):
        storage.read_examples(path)


def test_other_columns_of_the_same_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    storage.write_examples(path, [example()])
    pq.write_table(pq.read_table(path).drop_columns(["status"]), path)
    with pytest.raises(DataError, match="other columns"):
        storage.read_examples(path)


def test_records_of_the_other_kind_and_foreign_files_are_refused(tmp_path: Path) -> None:
    storage.write_examples(tmp_path / "s.parquet", [example()])
    with pytest.raises(DataError, match="holds finetuning rows; a file of trajectories"):
        storage.read_trajectories(tmp_path / "s.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "foreign.parquet")
    with pytest.raises(DataError, match="no records of this project"):
        storage.read_trajectories(tmp_path / "foreign.parquet")


def test_a_record_that_does_not_fit_is_named_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    bad = replace(example("bad"), response=["a", "list"])  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"record 1 \(bad\)"):
        storage.write_examples(path, [example(), bad])
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_two_thousand_episodes_take_seconds(tmp_path: Path) -> None:
    completion = Completion(
        text="x" * 200,
        prompt_ids=tuple(range(30)),
        token_ids=tuple(range(80)),
        logprobs=(-0.5,) * 80,
    )
    turns = [turn(index, completion=completion) for index in range(7)]
    written = [trajectory(f"t{i}", *turns) for i in range(2000)]
    started = time.process_time()
    storage.write_trajectories(tmp_path / "t.parquet", written)
    found = storage.read_trajectories(tmp_path / "t.parquet")
    assert time.process_time() - started < 8
    assert found[-1] == written[-1]


def test_json_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    storage.atomic_write_json(path, {"√": [1, 2.5, None]})
    assert storage.read_json(path) == {"√": [1, 2.5, None]}
    with pytest.raises(TypeError):
        storage.atomic_write_json(path, {"bad": object()})
    assert json.loads(path.read_text("utf-8")) == {"√": [1, 2.5, None]}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_broken_or_missing_json_file_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(DataError, match="is no JSON"):
        storage.read_json(tmp_path / "a.json")
    with pytest.raises(DataError, match="is missing"):
        storage.read_json(tmp_path / "b.json")


def test_a_file_digest_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert storage.file_digest(tmp_path / "a") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_a_directory_digest_depends_on_names_and_contents(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        (directory / "sub").mkdir(parents=True)
        (directory / "sub" / "b").write_bytes(b"abc")
        (directory / "a").write_bytes(b"")
    empty, abc = hashlib.sha256(b"").hexdigest(), hashlib.sha256(b"abc").hexdigest()
    expected = hashlib.sha256(f"{empty}  a\n{abc}  sub/b\n".encode()).hexdigest()
    assert storage.directory_digest(one) == storage.directory_digest(two) == expected
    (two / "a").rename(two / "c")
    assert storage.directory_digest(two) != expected


def test_a_json_digest_ignores_the_order_of_keys() -> None:
    assert storage.json_digest({"a": 1, "b": [2]}) == storage.json_digest({"b": [2], "a": 1})
    assert storage.json_digest({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()


def test_a_manifest_finds_changed_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"abc")
    (tmp_path / "tokens").write_bytes(b"")
    before = storage.directory_digest(tmp_path)
    manifest = storage.write_manifest(tmp_path, step=7)
    assert manifest["step"] == 7
    assert manifest["digest"] == before == storage.directory_digest(tmp_path)
    assert manifest["files"]["weights"]["bytes"] == 3
    assert storage.check_manifest(tmp_path) == manifest
    (tmp_path / "weights").write_bytes(b"abd")
    with pytest.raises(DataError, match="weights is not the file that was written"):
        storage.check_manifest(tmp_path)
    (tmp_path / "weights").unlink()
    with pytest.raises(DataError, match="weights is missing"):
        storage.check_manifest(tmp_path)
