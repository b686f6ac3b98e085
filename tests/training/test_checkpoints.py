"""Checkpoints on disk: complete or passed over, found by fingerprint, read without running code."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.schema import Config, PPOSection, SFTSection
from steps.errors import CheckpointError
from steps.training.checkpoints import (
    MARKER,
    STATE_FILE,
    DirectoryCheckpoints,
    fingerprint_of,
    load_trainer_state,
    save_trainer_state,
)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryCheckpoints:
    return DirectoryCheckpoints(tmp_path / "store")


def keep(store: DirectoryCheckpoints, tmp_path: Path, step: int, fingerprint: str = "f") -> None:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    (work / "weights").write_text(f"of step {step}")
    store.save(work, step=step, fingerprint=fingerprint)


def newest(store: DirectoryCheckpoints, fingerprint: str = "f") -> tuple[int, str] | None:
    found = store.newest(fingerprint)
    return found and (found[0], (found[1] / "weights").read_text())


def test_there_is_none_before_the_first_is_saved(store: DirectoryCheckpoints) -> None:
    assert store.newest("f") is None


def test_the_newest_is_that_of_the_largest_step(store: Any, tmp_path: Path) -> None:
    for step in (9, 10, 100):
        keep(store, tmp_path, step)
    assert newest(store) == (100, "of step 100")


def test_another_fingerprints_checkpoint_is_never_found(store: Any, tmp_path: Path) -> None:
    keep(store, tmp_path, 5, "other")
    assert store.newest("f") is None


def test_a_kept_checkpoint_doesnt_change_with_the_work_directory(
    store: Any, tmp_path: Path
) -> None:
    keep(store, tmp_path, 1)
    (tmp_path / "work" / "weights").write_text("spoiled")
    assert newest(store) == (1, "of step 1")


def test_the_last_two_are_kept(store: Any, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        keep(store, tmp_path, step)
    kept = sorted(path.name for path in (store.root / "f").iterdir())
    assert kept == ["step_00000002", "step_00000003"]


def test_saving_a_step_again_replaces_it(store: Any, tmp_path: Path) -> None:
    keep(store, tmp_path, 3)
    (store.root / "f" / "step_00000003" / "weights").write_text("of an earlier attempt")
    keep(store, tmp_path, 3)
    assert newest(store) == (3, "of step 3")


@pytest.mark.parametrize("marker", [None, "", '{"step": '])
def test_a_directory_without_a_whole_marker_is_passed_over(
    marker: str | None, store: Any, tmp_path: Path
) -> None:
    for step in (1, 2):
        keep(store, tmp_path, step)
    path = store.root / "f" / "step_00000002" / MARKER
    path.unlink()
    if marker is not None:
        path.write_text(marker)
    assert newest(store) == (1, "of step 1")


def test_a_copy_that_was_broken_off_is_not_seen_and_the_next_save_clears_it_away(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", _power_cut)
        with pytest.raises(KeyboardInterrupt):
            keep(store, tmp_path, 2)
    assert newest(store) == (1, "of step 1")
    keep(store, tmp_path, 2)
    assert newest(store) == (2, "of step 2")
    assert len(list((store.root / "f").iterdir())) == 2


def _power_cut(self: Path, target: Path) -> None:
    raise KeyboardInterrupt


def test_trainer_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {
        "optimizer": {"parts": [{"state": {0: {"step": torch.tensor(3.0)}}}]},
        "progress": {"seconds": 1.5, "curve": [{"step": 1.0, "loss": 0.1}]},
        "cursor": 12,
    }
    save_trainer_state(tmp_path, state)
    loaded = load_trainer_state(tmp_path)
    assert loaded == state
    assert torch.equal(loaded["optimizer"]["parts"][0]["state"][0]["step"], torch.tensor(3.0))


class _Trap:
    """Unpickled without care, it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self.path,)


def test_a_state_file_that_holds_code_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"optimizer": _Trap(tmp_path / "sprung")}, tmp_path / STATE_FILE)
    with pytest.raises(CheckpointError, match="delete that checkpoint"):
        load_trainer_state(tmp_path)
    (tmp_path / STATE_FILE).write_bytes(pickle.dumps(_Trap(tmp_path / "sprung"), protocol=2))
    with pytest.raises(CheckpointError):
        load_trainer_state(tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_truncated_state_file_is_named_in_the_error(share: float, tmp_path: Path) -> None:
    save_trainer_state(tmp_path, {"weights": torch.zeros(100)})
    whole = (tmp_path / STATE_FILE).read_bytes()
    (tmp_path / STATE_FILE).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError, match=rf"{STATE_FILE} in {tmp_path}"):
        load_trainer_state(tmp_path)


def fingerprint(config: Config, stage: str = "sft_train", model: str = "abc") -> str:
    return fingerprint_of(
        stage=stage, config=config, sections=("seed", "sft"), inputs={"model": model}
    )


def test_a_fingerprint_changes_with_stage_settings_and_inputs_and_nothing_else() -> None:
    config = Config(sft=SFTSection(lr=0.5))
    one = fingerprint(config)
    assert len(one) == 16 and int(one, 16) >= 0
    changed = [
        fingerprint(config, stage="ppo_train"),
        fingerprint(config, model="abd"),
        fingerprint(replace(config, seed=1)),
        fingerprint(replace(config, sft=SFTSection(lr=0.25))),
    ]
    assert len({one, *changed}) == 5
    assert fingerprint(replace(config, ppo=PPOSection(lr=9.0), workers=7)) == one
    assert fingerprint(Config(sft=SFTSection(lr=0.5))) == one
