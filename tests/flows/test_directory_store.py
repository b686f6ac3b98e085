import errno
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from metaflow.plugins.datastores.local_storage import LocalStorage

from steps.errors import CheckpointError, DataError
from steps.orchestration.checkpoint_store import MetaflowCheckpoints, lineage
from steps.orchestration.directory_store import DirectoryStore
from steps.storage import refused


class Elsewhere(LocalStorage):  # type: ignore[misc]
    """A datastore that is only reached by sending and fetching, and lists folders as S3 does."""

    TYPE = "elsewhere"

    def list_content(self, paths: list[str]) -> list[Any]:
        found = super().list_content(paths)
        return [each if each.is_file else each._replace(path=f"{each.path}/") for each in found]


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryStore:
    kind = LocalStorage if request.param == "local" else Elsewhere
    return DirectoryStore(kind(str(tmp_path / "root")), tmp_path / "scratch")


def directory(tmp_path: Path, text: str = "weights") -> Path:
    path = tmp_path / "made" / text
    (path / "tokenizer").mkdir(parents=True)
    (path / "model.safetensors").write_text(text)
    (path / "tokenizer" / "vocab.json").write_text("{}")
    return path


def stored(store: DirectoryStore, key: str) -> Path:
    return Path(store.transport.full_uri(key))


def test_what_was_put_comes_back_byte_for_byte(store: DirectoryStore, tmp_path: Path) -> None:
    reference = store.put(directory(tmp_path), "a/b", stage="sft_train")
    assert (reference["files"], reference["bytes"]) == (2, 9)  # "weights" and "{}"
    back = store.get(reference["key"], reference["digest"])
    assert (back / "model.safetensors").read_text() == "weights"
    assert (back / "tokenizer" / "vocab.json").read_text() == "{}"


def test_putting_again_replaces_all_that_was_there(store: DirectoryStore, tmp_path: Path) -> None:
    first = store.put(directory(tmp_path, "first"), "a")
    second = store.put(directory(tmp_path, "second"), "a")
    assert (store.get("a", second["digest"]) / "model.safetensors").read_text() == "second"
    with pytest.raises(DataError, match="other files"):
        store.get("a", first["digest"])


def test_a_changed_missing_or_unfinished_directory_is_refused(
    store: DirectoryStore, tmp_path: Path
) -> None:
    store.put(directory(tmp_path), "a")
    (stored(store, "a") / "model.safetensors").write_text("weightz")
    with pytest.raises(DataError, match=f"^{stored(store, 'a')}/model.safetensors is not the file"):
        store.get("a")
    (stored(store, "a") / "model.safetensors").unlink()
    with pytest.raises(DataError, match="missing"):
        store.get("a")
    (stored(store, "a") / "manifest.json").unlink()
    with pytest.raises(DataError, match="missing"):
        store.get("a")
    with pytest.raises(DataError, match="missing"):
        store.get("never")


def test_a_stage_writes_below_a_folder_of_this_machine(store: DirectoryStore) -> None:
    disk = stored(store, "") if store.is_local else Path(tempfile.gettempdir())
    assert store.disk == disk


@pytest.mark.parametrize("name", ["../../../evil.txt", "tokenizer/../../evil.txt", "/evil.txt"])
def test_a_manifests_names_stay_in_its_directory(
    name: str, store: DirectoryStore, tmp_path: Path
) -> None:
    """A datastore that others write to may hold any manifest."""
    if name == "/evil.txt":
        name = str(tmp_path / "evil.txt")
    reference = store.put(directory(tmp_path), "a/b")
    place = stored(store, "a/b")
    outside = Path(os.path.normpath(place / name))
    outside.parent.mkdir(parents=True, exist_ok=True)
    outside.write_text("weights")
    before = set(tmp_path.rglob("*"))
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"]["model.safetensors"]
    (place / "manifest.json").write_text(json.dumps(manifest))
    for ask in (
        lambda: store.get("a/b", reference["digest"]),
        lambda: store.adopt("a/b", "c/d"),
        lambda: store.manifest("a/b"),
    ):
        with pytest.raises(DataError, match="outside of its directory"):
            ask()
    assert not set(tmp_path.rglob("evil*")) - before


def test_a_workspace_is_empty_and_kept_where_it_is(store: DirectoryStore) -> None:
    first = store.workspace("run/stage/attempt_0")
    (first / "half").write_text("of a killed attempt")
    again = store.workspace("run/stage/attempt_0")
    assert list(again.iterdir()) == []
    (again / "whole").write_text("x")
    store.put(again, "run/stage/attempt_0")
    assert (store.get("run/stage/attempt_0") / "whole").read_text() == "x"


def checkpoints(store: DirectoryStore, *roots: str, **options: Any) -> MetaflowCheckpoints:
    return MetaflowCheckpoints(store, roots=roots, **options)


def text_of(found: tuple[int, Path] | None) -> tuple[int, str]:
    assert found is not None
    return found[0], (found[1] / "model.safetensors").read_text()


def test_the_newest_checkpoint_of_the_fingerprint_is_found(
    store: DirectoryStore, tmp_path: Path
) -> None:
    kept = checkpoints(store, "run1/ppo")
    assert kept.newest("f") is None
    for step in (2, 10, 9):
        kept.save(directory(tmp_path, f"step {step}"), step=step, fingerprint="f")
    kept.save(directory(tmp_path, "other"), step=50, fingerprint="g")
    assert text_of(kept.newest("f")) == (10, "step 10")


def test_a_resumed_run_finds_its_origins_checkpoints_and_prefers_its_own(
    store: DirectoryStore, tmp_path: Path
) -> None:
    checkpoints(store, "run1/ppo").save(directory(tmp_path, "old"), step=8, fingerprint="f")
    resumed = checkpoints(store, "run2/ppo", "run1/ppo")
    assert text_of(resumed.newest("f")) == (8, "old")
    resumed.save(directory(tmp_path, "new"), step=9, fingerprint="f")
    assert text_of(resumed.newest("f")) == (9, "new")
    assert checkpoints(store, "run3/ppo").newest("f") is None


def test_what_goes_on_from_other_works_checkpoint_is_mixed_and_so_is_all_that_follows(
    store: DirectoryStore, tmp_path: Path
) -> None:
    first = checkpoints(store, "run1/ppo", work="old")
    first.save(directory(tmp_path, "of old code"), step=2, fingerprint="f")
    assert not first.is_mixed
    second = checkpoints(store, "run2/ppo", "run1/ppo", work="new")
    assert not second.is_mixed
    assert text_of(second.newest("f")) == (2, "of old code")
    assert second.is_mixed
    second.save(directory(tmp_path, "of both"), step=4, fingerprint="f")
    third = checkpoints(store, "run3/ppo", "run2/ppo", "run1/ppo", work="new")
    assert text_of(third.newest("f")) == (4, "of both")
    assert third.is_mixed
    unchanged = checkpoints(store, "run4/ppo", "run1/ppo", work="old")
    assert text_of(unchanged.newest("f")) == (2, "of old code")
    assert not unchanged.is_mixed


def test_a_new_run_takes_checkpoints_of_its_own_work_alone(
    store: DirectoryStore, tmp_path: Path
) -> None:
    begun = ["run1/ppo", "run2/ppo"]
    checkpoints(store, "run0/ppo", work="old").save(directory(tmp_path), step=1, fingerprint="f")
    mixed = checkpoints(store, "run1/ppo", "run0/ppo", work="new")
    assert mixed.newest("f") is not None
    mixed.save(directory(tmp_path, "mixed"), step=9, fingerprint="f")
    assert checkpoints(store, "run3/ppo", others=begun, work="new").newest("f") is None
    checkpoints(store, "run2/ppo", work="new").save(
        directory(tmp_path, "whole"), step=3, fingerprint="f"
    )
    new = checkpoints(store, "run3/ppo", others=begun, work="new")
    assert text_of(new.newest("f")) == (3, "whole")
    assert not new.is_mixed


def test_a_checkpoint_that_names_no_work_is_of_unknown_work(
    store: DirectoryStore, tmp_path: Path
) -> None:
    store.put(directory(tmp_path), "run1/ppo/f/step_00000003", step=3, fingerprint="f")
    assert checkpoints(store, "run2/ppo", others=["run1/ppo"], work="new").newest("f") is None
    resumed = checkpoints(store, "run2/ppo", "run1/ppo", work="new")
    assert text_of(resumed.newest("f")) == (3, "weights")
    assert resumed.is_mixed


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    store: DirectoryStore, tmp_path: Path
) -> None:
    kept = checkpoints(store, "run1/ppo")
    for step in (1, 2):
        kept.save(directory(tmp_path, f"step {step}"), step=step, fingerprint="f")
    damaged = stored(store, "run1/ppo/f/step_00000002/model.safetensors")
    damaged.write_text("cut")
    assert text_of(kept.newest("f")) == (1, "step 1")
    stored(store, "run1/ppo/f/step_00000001/manifest.json").unlink()
    with pytest.raises(CheckpointError, match="all 2 checkpoints"):
        kept.newest("f")


def test_the_highest_step_counts_whoever_kept_it_and_whenever(
    store: DirectoryStore, tmp_path: Path
) -> None:
    """The roots are in the order of the clock, and a clock may be set back."""
    checkpoints(store, "run1/ppo").save(directory(tmp_path, "far"), step=30, fingerprint="f")
    checkpoints(store, "run2/ppo").save(directory(tmp_path, "near"), step=9, fingerprint="f")
    for roots in (("run3/ppo", "run2/ppo", "run1/ppo"), ("run3/ppo", "run1/ppo", "run2/ppo")):
        assert text_of(checkpoints(store, *roots).newest("f")) == (30, "far")
    damaged = stored(store, "run1/ppo/f/step_00000030/model.safetensors")
    damaged.unlink()  # in place it would change the linked copy, too
    damaged.write_text("cut")
    shutil.rmtree(stored(store, "run3"), ignore_errors=True)
    shutil.rmtree(store.scratch, ignore_errors=True)
    assert text_of(checkpoints(store, "run3/ppo", "run1/ppo", "run2/ppo").newest("f")) == (
        9, "near",
    )  # fmt: skip


def test_a_checkpoint_of_another_run_is_made_ones_own(tmp_path: Path) -> None:
    """Else the other run, which may be at work, prunes it while this one reads it."""
    store = DirectoryStore(LocalStorage(str(tmp_path / "root")), tmp_path / "scratch")
    checkpoints(store, "run1/ppo").save(directory(tmp_path, "theirs"), step=4, fingerprint="f")
    found = checkpoints(store, "run2/ppo", "run1/ppo").newest("f")
    assert found is not None
    store.discard("run1/ppo/f/step_00000004")
    assert text_of(found) == (4, "theirs")
    assert text_of(checkpoints(store, "run2/ppo").newest("f")) == (4, "theirs")


def test_all_damaged_says_what_to_remove(tmp_path: Path) -> None:
    store = DirectoryStore(LocalStorage(str(tmp_path / "root")), tmp_path / "scratch")
    checkpoints(store, "run1/ppo").save(directory(tmp_path, "theirs"), step=4, fingerprint="f")
    stored(store, "run1/ppo/f/step_00000004/model.safetensors").write_text("cut")
    home = stored(store, "run1/ppo/f")
    with pytest.raises(CheckpointError, match=f"{home}/step_00000004/model.safetensors is not"):
        checkpoints(store, "run2/ppo", "run1/ppo").newest("f")
    with pytest.raises(CheckpointError, match=f"Remove {home} to train from the start"):
        checkpoints(store, "run2/ppo", "run1/ppo").newest("f")


def test_a_full_disk_leaves_the_last_checkpoint_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(LocalStorage(str(tmp_path / "root")), tmp_path / "scratch")
    kept = checkpoints(store, "run1/ppo")
    kept.save(directory(tmp_path, "one"), step=1, fingerprint="f")
    copy = shutil.copyfile

    def full(source: str, target: str, **options: Any) -> str:
        if os.path.basename(source) == "vocab.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        return str(copy(source, target, **options))

    with monkeypatch.context() as patch, pytest.raises(OSError) as caught:
        patch.setattr("shutil.copyfile", full)
        kept.save(directory(tmp_path, "two"), step=2, fingerprint="f")
    said = str(refused(caught.value, tmp_path))
    assert "vocab.json can't be written: No space left on device" in said
    assert os.listdir(stored(store, "run1/ppo/f")) == ["step_00000001"]
    assert text_of(kept.newest("f")) == (1, "one")


def test_only_the_last_checkpoints_stay_on_a_local_disk(tmp_path: Path) -> None:
    store = DirectoryStore(LocalStorage(str(tmp_path / "root")), tmp_path / "scratch")
    kept = checkpoints(store, "run1/ppo", keep_last=2)
    for step in (1, 2, 3):
        kept.save(directory(tmp_path, f"step {step}"), step=step, fingerprint="f")
    assert store.names("run1/ppo/f") == ["step_00000002", "step_00000003"]


def test_lineage_leads_back_over_several_resumes(store: DirectoryStore) -> None:
    root = "spa.store/SPAFlow/"
    assert lineage(store, "SPAFlow", "1", None) == [root + "1"]
    assert lineage(store, "SPAFlow", "2", "1") == [root + "2", root + "1"]
    assert lineage(store, "SPAFlow", "3", "2") == [root + "3", root + "2", root + "1"]


def test_the_best_checkpoint_stays_and_is_found_by_its_step(
    store: DirectoryStore, tmp_path: Path
) -> None:
    kept = checkpoints(store, "run1/ppo", keep_last=1)
    for step in (1, 2, 3, 4):
        kept.save(
            directory(tmp_path, f"step {step}"), step=step, fingerprint="f", best=min(step, 2)
        )
    if store.is_local:
        assert store.names("run1/ppo/f") == ["step_00000002", "step_00000004"]
    resumed = checkpoints(store, "run2/ppo", "run1/ppo")
    for each in (kept, resumed):
        found = each.at(2, "f")
        assert found is not None and (found / "model.safetensors").read_text() == "step 2"
    assert kept.at(9, "f") is None
    (stored(store, "run1/ppo/f/step_00000002") / "model.safetensors").write_text("cut")
    assert kept.at(2, "f") is None


class Written:
    """The metrics of an attempt."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.restored: list[str] = []
        path.write_text(text)

    def restore(self, earlier: Path) -> None:
        self.restored.append(earlier.read_text())


def test_metrics_travel_with_a_checkpoint(store: DirectoryStore, tmp_path: Path) -> None:
    first = Written(tmp_path / "first", "steps 1 to 3")
    checkpoints(store, "run1/ppo", journal=first).save(
        directory(tmp_path, "w"), step=3, fingerprint="f"
    )
    first.path.write_text("steps 1 to 4, and then a kill")
    second = Written(tmp_path / "second", "")
    resumed = checkpoints(store, "run2/ppo", "run1/ppo", journal=second)
    assert text_of(resumed.newest("f")) == (3, "w")
    assert second.restored == ["steps 1 to 3"]
    assert resumed.newest("other") is None
    assert len(second.restored) == 1
