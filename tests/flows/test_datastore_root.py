"""A datastore that takes nothing is refused before a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from steps.errors import StorageError
from steps.orchestration.datastore_root import check_writable

RUN = ["spa_flow.py", "run"]


def test_a_usable_place_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_writable(RUN, "SPAFlow")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".metaflow" / "spa.store").mkdir(parents=True)
    check_writable(RUN, "SPAFlow")
    assert list((tmp_path / ".metaflow").rglob("*")) == [tmp_path / ".metaflow" / "spa.store"]


def test_a_place_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    """Under /proc nothing can be made, not even by root."""
    line = [*RUN, "--datastore-root", "/proc/self/fd/nowhere"]
    with pytest.raises(StorageError, match=r"datastore can't be written: /proc/.*Make it writable"):
        check_writable(line, "SPAFlow")


def test_a_remote_datastore_answers_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = [*RUN, "--datastore", "s3", "--datastore-root", "/proc/self/fd/nowhere"]
    check_writable(line, "SPAFlow")
    assert list(tmp_path.iterdir()) == []
