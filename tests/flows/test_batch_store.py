"""Batches in the datastore: this run's, its origins', and no others."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from metaflow.plugins.datastores.local_storage import LocalStorage

from steps.orchestration.batch_store import MetaflowBatches
from steps.orchestration.checkpoint_store import MetaflowCheckpoints
from steps.orchestration.directory_store import DirectoryStore
from tests.flows.test_directory_store import Elsewhere


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryStore:
    kind = LocalStorage if request.param == "local" else Elsewhere
    return DirectoryStore(kind(str(tmp_path / "root")), tmp_path / "scratch")


def batches(store: DirectoryStore, *roots: str, work: str = "w") -> MetaflowBatches:
    return MetaflowBatches(store, roots=roots, work=work)


def keep(to: MetaflowBatches, tmp_path: Path, index: int, text: str) -> None:
    path = tmp_path / "made" / text
    path.mkdir(parents=True)
    (path / "episodes").write_text(text)
    to.save(path, index=index, fingerprint="f")


def text_of(found: Path | None) -> str:
    return "" if found is None else (found / "episodes").read_text()


def file_of(store: DirectoryStore, root: str, index: int) -> Path:
    key = f"{root}/batches/w/f/batch_{index + 1:06d}/episodes"
    return Path(store.transport.full_uri(key))


def test_each_batch_is_found_by_its_number(store: DirectoryStore, tmp_path: Path) -> None:
    kept = batches(store, "run1/selfplay")
    assert kept.find(0, "f") is None
    keep(kept, tmp_path, 0, "zero")
    keep(kept, tmp_path, 10, "ten")
    assert (text_of(kept.find(0, "f")), text_of(kept.find(10, "f"))) == ("zero", "ten")
    assert kept.find(1, "f") is None
    assert kept.find(0, "g") is None


def test_keeping_one_more_writes_nothing_that_was_there(
    store: DirectoryStore, tmp_path: Path
) -> None:
    kept = batches(store, "run1/selfplay")
    keep(kept, tmp_path, 0, "zero")
    before = file_of(store, "run1/selfplay", 0).stat()
    keep(kept, tmp_path, 1, "one")
    after = file_of(store, "run1/selfplay", 0).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_run_that_takes_up_others_finds_the_batches_of_all_and_keeps_its_own(
    store: DirectoryStore, tmp_path: Path
) -> None:
    keep(batches(store, "run1/selfplay"), tmp_path, 0, "run 1")
    keep(batches(store, "run2/selfplay"), tmp_path, 1, "run 2")
    last = batches(store, "run3/selfplay", "run2/selfplay", "run1/selfplay")
    keep(last, tmp_path, 2, "run 3")
    assert [text_of(last.find(index, "f")) for index in range(4)] == ["run 1", "run 2", "run 3", ""]
    assert file_of(store, "run3/selfplay", 2).exists()
    assert not file_of(store, "run3/selfplay", 0).exists()


def test_batches_of_another_run_or_of_other_work_are_not_found(
    store: DirectoryStore, tmp_path: Path
) -> None:
    keep(batches(store, "run1/selfplay"), tmp_path, 0, "run 1")
    assert batches(store, "run2/selfplay").find(0, "f") is None
    assert batches(store, "run1/selfplay", work="other code").find(0, "f") is None


def test_a_damaged_batch_is_passed_over_for_a_whole_one_elsewhere(
    store: DirectoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(batches(store, "run1/selfplay"), tmp_path, 0, "run 1")
    resumed = batches(store, "run2/selfplay", "run1/selfplay")
    keep(resumed, tmp_path, 0, "run 2")
    file_of(store, "run2/selfplay", 0).write_text("run Z")
    with caplog.at_level(logging.WARNING):
        assert text_of(resumed.find(0, "f")) == "run 1"
    assert "kept batch 1 can't be used" in caplog.text
    file_of(store, "run1/selfplay", 0).unlink()
    assert resumed.find(0, "f") is None


def test_a_remote_datastore_is_not_listed_at_each_batch_or_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On S3 a listing starts a process, and takes most of a second."""
    store = DirectoryStore(Elsewhere(str(tmp_path / "root")), tmp_path / "scratch")
    monkeypatch.delattr(Elsewhere, "list_content")
    monkeypatch.delattr(LocalStorage, "list_content")
    kept = batches(store, "run1/selfplay")
    keep(kept, tmp_path, 0, "zero")
    assert (text_of(kept.find(0, "f")), kept.find(1, "f")) == ("zero", None)
    checkpoints = MetaflowCheckpoints(store, roots=["run1/selfplay"])
    checkpoints.save(tmp_path / "made" / "zero", step=3, fingerprint="f")


def test_they_are_removed_once_the_stage_is_done_and_checkpoints_stay(tmp_path: Path) -> None:
    store = DirectoryStore(LocalStorage(str(tmp_path / "root")), tmp_path / "scratch")
    keep(batches(store, "run1/selfplay"), tmp_path, 0, "run 1")
    kept = batches(store, "run2/selfplay", "run1/selfplay")
    keep(kept, tmp_path, 1, "run 2")
    checkpoints = MetaflowCheckpoints(store, roots=["run2/selfplay"])
    checkpoints.save(tmp_path / "made" / "run 2", step=3, fingerprint="f")
    kept.discard()
    assert kept.find(0, "f") is None and kept.find(1, "f") is None
    found = checkpoints.newest("f")
    assert found is not None and found[0] == 3
