"""Finished checkpoints of verl are carried to the store, and come back under a name it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steps.errors import CheckpointError
from steps.training.checkpoints import DirectoryCheckpoints
from steps.training.verl_checkpoints import Keeper, Note, newest_step, restore


def finish(directory: Path, step: int, *, named: bool = True) -> None:
    """What verl leaves of a step; it names the step when the rest is written."""
    weights = directory / f"global_step_{step}" / "huggingface" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_text("large")
    (weights.parent / "config.json").write_text("{}")
    (weights.parents[1] / "optim_world_size_2_rank_0.pt").write_text(str(step))
    if named:
        (directory / "latest_checkpointed_iteration.txt").write_text(str(step))


def keeper(directory: Path, store: DirectoryCheckpoints, *, begun_at: int = 0) -> Keeper:
    return Keeper(
        directory,
        lambda found, step: store.save(found, step=step, fingerprint="f"),
        note=lambda step: Note(num_gpus=2, sharding="fsdp", seconds=3.5, curve=[{"step": step}]),
        begun_at=begun_at,
        last=30,
    )


def test_a_finished_checkpoint_is_kept_once_without_its_weights(tmp_path: Path) -> None:
    directory, store = tmp_path / "verl", DirectoryCheckpoints(tmp_path / "store")
    keep = keeper(directory, store)
    keep(newest_step(directory))  # nothing yet
    finish(directory, 10, named=False)
    keep(newest_step(directory))  # not finished
    assert store.newest("f") is None
    (directory / "latest_checkpointed_iteration.txt").write_text("10")
    keep(newest_step(directory))
    keep(newest_step(directory))
    found = store.newest("f")
    assert found is not None and found[0] == 10
    names = {path.name for path in found[1].rglob("*") if path.is_file()}
    wanted = {"optim_world_size_2_rank_0.pt", "config.json", "spa.json", "complete.json"}
    assert names == wanted
    assert list(directory.glob("global_step_*")) == []


def test_the_last_step_is_left_for_the_result_and_old_ones_are_not_kept_again(
    tmp_path: Path,
) -> None:
    directory, store = tmp_path / "verl", DirectoryCheckpoints(tmp_path / "store")
    keep = keeper(directory, store, begun_at=20)
    finish(directory, 20)
    keep(20)
    finish(directory, 30)
    keep(30)
    assert store.newest("f") is None
    assert (directory / "global_step_30" / "huggingface" / "model.safetensors").exists()


def test_a_training_goes_on_from_the_newest(tmp_path: Path) -> None:
    directory, store = tmp_path / "verl", DirectoryCheckpoints(tmp_path / "store")
    ours = {"num_gpus": 2, "sharding": "fsdp"}
    assert restore(store, "f", tmp_path, **ours) == (0, None, Note(**ours))
    keep = keeper(directory, store)
    for step in (10, 20):
        finish(directory, step)
        keep(step)
    for _ in range(2):  # a second try finds the first one's link
        step, named, note = restore(store, "f", tmp_path / "work", num_gpus=2, sharding="fsdp")
        assert named is not None
        assert (step, named.name) == (20, "global_step_20")
        assert (named / "optim_world_size_2_rank_0.pt").read_text() == "20"
        assert note == Note(num_gpus=2, sharding="fsdp", seconds=3.5, curve=[{"step": 20}])


def test_a_checkpoint_that_is_cut_otherwise_is_refused(tmp_path: Path) -> None:
    directory, store = tmp_path / "verl", DirectoryCheckpoints(tmp_path / "store")
    finish(directory, 10)
    keeper(directory, store)(10)
    with pytest.raises(CheckpointError, match="step 10 was written by 2 GPUs, and 4 train now"):
        restore(store, "f", tmp_path / "work", num_gpus=4, sharding="fsdp")
    with pytest.raises(CheckpointError, match="written by fsdp, and fsdp2 trains now: go on with"):
        restore(store, "f", tmp_path / "work", num_gpus=2, sharding="fsdp2")
    shared = {"num_gpus": 2, "sharding": "fsdp", "sequence_parallel": 2}
    with pytest.raises(CheckpointError, match="GPUs of which 1 shared a sequence, and 2 do"):
        restore(store, "f", tmp_path / "work", **shared)


def test_a_checkpoint_that_names_no_sharding_is_taken_up(tmp_path: Path) -> None:
    directory, store = tmp_path / "verl", DirectoryCheckpoints(tmp_path / "store")
    finish(directory, 10)
    (directory / "global_step_10" / "spa.json").write_text('{"num_gpus": 2}')
    store.save(directory / "global_step_10", step=10, fingerprint="f")
    assert restore(store, "f", tmp_path / "work", num_gpus=2, sharding="fsdp2")[0] == 10


@pytest.mark.parametrize("note", [None, "{torn", json.dumps({"other": 1})])
def test_a_checkpoint_of_something_else_is_refused(note: str | None, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    if note is not None:
        (tmp_path / "other" / "spa.json").write_text(note)
    store = DirectoryCheckpoints(tmp_path / "store")
    store.save(tmp_path / "other", step=1, fingerprint="f")
    with pytest.raises(CheckpointError, match="isn't one of the verl backend"):
        restore(store, "f", tmp_path / "work", num_gpus=2, sharding="fsdp")


def test_the_best_steps_weights_stay(tmp_path: Path) -> None:
    directory, store = tmp_path / "verl", DirectoryCheckpoints(tmp_path / "store")
    keep = Keeper(
        directory,
        lambda found, step: store.save(found, step=step, fingerprint="f"),
        note=lambda step: Note(num_gpus=2),
        begun_at=0,
        last=30,
        best=lambda: 10,
    )
    for step in (10, 20):
        finish(directory, step)
        keep(step)
    has_weights = [
        (store.root / "f" / f"step_{step:08d}" / "huggingface" / "model.safetensors").exists()
        for step in (10, 20)
    ]
    assert has_weights == [True, False]


@pytest.mark.parametrize("newest", [20, 30])
def test_the_best_is_kept_though_later_ones_were_finished_meanwhile(
    newest: int, tmp_path: Path
) -> None:
    """A slow store: three checkpoints are there when it is asked for the first time."""
    directory, store = tmp_path / "verl", DirectoryCheckpoints(tmp_path / "store", keep_last=1)
    keep = Keeper(
        directory,
        lambda found, step: store.save(found, step=step, fingerprint="f", best=10),
        note=lambda step: Note(num_gpus=2),
        begun_at=0,
        last=30,
        best=lambda: 10,
    )
    for step in range(5, newest + 1, 5):
        finish(directory, step)
    for _ in range(2):
        keep(newest)
    best = store.at(10, "f")
    assert best is not None and (best / "huggingface" / "model.safetensors").exists()
    kept = {int(path.name.removeprefix("step_")) for path in (store.root / "f").glob("step_*")}
    left = {int(path.name.removeprefix("global_step_")) for path in directory.glob("global_*")}
    assert (kept, left) == (({10, 20}, set()) if newest == 20 else ({10}, {15, 20, 25, 30}))
