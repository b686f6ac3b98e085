"""What `resume` is told before Metaflow looks for the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from steps.errors import ConfigError
from steps.orchestration.origin import check_origin


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A local datastore in which runs 9 and 10 have begun, and 11 has not."""
    for run in ("9", "10"):
        (tmp_path / "SPAFlow" / run / "_parameters" / "0").mkdir(parents=True)
    (tmp_path / "SPAFlow" / "11").mkdir()
    return tmp_path


def resume(root: Path, *words: str) -> None:
    check_origin(["flow", "--datastore-root", str(root), "resume", *words], "SPAFlow")


def test_a_run_that_has_begun_may_be_resumed(root: Path) -> None:
    resume(root, "--origin-run-id", "9")
    resume(root, "sft_train", "--origin-run-id", "10", "--max-workers", "1")
    resume(root)  # the latest: Metaflow looks for it


@pytest.mark.parametrize("run_id", ["12", "11", "", "SPAFlow/9"])
def test_another_is_refused_with_those_that_there_are(root: Path, run_id: str) -> None:
    with pytest.raises(ConfigError, match=f"no run '{run_id}' of SPAFlow.*newest there: 11, 10, 9"):
        resume(root, "--origin-run-id", run_id)


def test_a_missing_id_and_the_spelling_that_metaflow_misreads_are_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="give the id"):
        resume(root, "--origin-run-id")
    with pytest.raises(ConfigError, match="without '='"):
        resume(root, "--origin-run-id=9")


def test_without_a_datastore_it_says_where_it_looked_and_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no \.metaflow folder in"):
        check_origin(["flow", "resume", "--origin-run-id", "9"], "SPAFlow")
    assert not list(tmp_path.iterdir())
