"""The index of stages' results, without a flow."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaflow.plugins.datastores.local_storage import LocalStorage

from steps.orchestration import stage_cache
from steps.orchestration.directory_store import DirectoryStore
from steps.orchestration.lineage import Lineage
from steps.orchestration.stage_cache import ROOT, StageCache

PARTS = {"stage": "sft_train", "versions": {"torch": "2.9.0"}}
KEY = stage_cache.fingerprint(PARTS)


def own(*runs: str) -> list[str]:
    return [f"spa.store/SPAFlow/{run}/{ROOT}" for run in runs]


def computed_by(run: str, store: DirectoryStore, tmp_path: Path, *, is_shared: bool = True) -> None:
    made = tmp_path / f"made_{run}"
    made.mkdir()
    (made / "weights").write_text(run)
    reference = store.put(made, f"spa.store/SPAFlow/{run}/sft_train")
    StageCache(store, own(run), is_shared=is_shared).keep(
        PARTS,
        env="frozenlake",
        task=f"SPAFlow/{run}/sft_train/1",
        seconds=1.0,
        result={"directory": reference},
    )


def found_by(store: DirectoryStore, *runs: str, is_shared: bool = True) -> str | None:
    """The run whose result a run, and those it was resumed from, reuses of its own."""
    index = StageCache(store, own(*runs), is_shared=is_shared)
    entry = index.find("sft_train", KEY, [f"SPAFlow/{run}" for run in runs])
    return None if entry is None else entry.run


def test_what_a_run_computed_is_found_though_another_computed_it_after(tmp_path: Path) -> None:
    store = DirectoryStore(LocalStorage(str(tmp_path / "root")), tmp_path)
    for run in ("1", "2"):
        computed_by(run, store, tmp_path)
    assert found_by(store, "3", "1") == "SPAFlow/1"
    assert found_by(store, "3", "2") == "SPAFlow/2"
    assert found_by(store, "3") is None
    everybodys = StageCache(store).find("sft_train", KEY)
    assert everybodys is not None and everybodys.run == "SPAFlow/2"
    assert [entry.run for entry in StageCache(store).entries()] == ["SPAFlow/2"]


def test_a_run_that_keeps_to_itself_is_in_no_other_index(tmp_path: Path) -> None:
    store = DirectoryStore(LocalStorage(str(tmp_path / "root")), tmp_path)
    computed_by("1", store, tmp_path, is_shared=False)
    assert StageCache(store).entries() == []
    assert found_by(store, "2", "1", is_shared=False) == "SPAFlow/1"


def test_without_a_datastore_lineage_says_so_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # without .metaflow
    reference = {"url": str(tmp_path / "spa.store/a"), "key": "spa.store/a", "digest": "d" * 64}
    asked = Lineage.__new__(Lineage)
    asked.scratch, asked.faults = tmp_path / "scratch", []
    assert list(asked._origin("sft_train", KEY, reference)) == []
    told = asked._checked("sft_train", reference)
    assert "there is no .metaflow folder in" in told and len(asked.faults) == 1


def test_a_run_that_isnt_there_has_no_other_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".metaflow").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        stage_cache.main(["explain", "123"])
    assert error.value.code == 2
    assert "no run SPAFlow/123 in this datastore" in capsys.readouterr().err
