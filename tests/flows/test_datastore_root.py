"""A datastore that takes nothing is refused before a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from steps.errors import StorageError
from steps.orchestration.datastore_root import ready_root

RUN = ["spa_flow.py", "run"]


def test_a_first_run_finds_its_datastore_made_also_beside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metaflow looks for it, then makes it: of two runs at once the second one failed."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        ready_root(RUN, "SPAFlow")
        assert list(tmp_path.rglob("*")) == [tmp_path / ".metaflow"]


def test_a_usable_place_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metaflow" / "spa.store").mkdir(parents=True)
    ready_root(RUN, "SPAFlow")
    assert list((tmp_path / ".metaflow").rglob("*")) == [tmp_path / ".metaflow" / "spa.store"]


def test_a_place_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    """Under /proc nothing can be made, not even by root."""
    line = [*RUN, "--datastore-root", "/proc/self/fd/nowhere"]
    with pytest.raises(StorageError, match=r"datastore can't be written: /proc/.*Make it writable"):
        ready_root(line, "SPAFlow")


def test_a_remote_datastore_answers_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = [*RUN, "--datastore", "s3", "--datastore-root", "/proc/self/fd/nowhere"]
    ready_root(line, "SPAFlow")
    assert list(tmp_path.iterdir()) == []
