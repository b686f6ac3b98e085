"""A disk that refuses to be written is told from a defect, by each library that writes."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from steps.errors import SPAError, StorageError
from steps.storage import refused

WRITERS = """
import resource, sys
from pathlib import Path
import numpy, pyarrow, pyarrow.parquet, torch
from safetensors.torch import save_file
from steps.storage import refused
from steps.training.checkpoints import save_trainer_state

place = Path(sys.argv[1])
values = torch.randn(100_000)
writers = {
    "python": lambda: (place / "a").write_bytes(bytes(400_000)),
    "torch": lambda: save_trainer_state(place, {"optimizer": values}),
    "safetensors": lambda: save_file({"w": values}, place / "model.safetensors"),
    "arrow": lambda: pyarrow.parquet.write_table(
        pyarrow.table({"x": values.numpy()}), place / "rows.parquet"),
}
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for name, write in writers.items():
    try:
        write()
    except Exception as error:
        print(name, refused(error, place))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limit on files here")
def test_a_limit_on_files_is_recognised_whoever_writes(tmp_path: Path, root: Path) -> None:
    line = [sys.executable, "-c", WRITERS, str(tmp_path)]
    done = subprocess.run(line, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = dict(text.split(" ", 1) for text in done.stdout.splitlines())
    assert list(said) == ["python", "torch", "safetensors", "arrow"]
    for text in said.values():
        assert "can't be written: File too large. Make room" in text


def test_the_error_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "model"))
    found = refused(full, tmp_path)
    assert isinstance(found, StorageError) and isinstance(found, SPAError | OSError)
    assert str(found) == (
        f"{tmp_path}/model can't be written: No space left on device. Make room (`df` shows the "
        "disk, `ulimit -f` a limit on files), then go on."
    )


def test_a_cause_counts_and_so_does_what_was_met_on_the_way(tmp_path: Path) -> None:
    for link in ("__cause__", "__context__"):
        outer = RuntimeError("unexpected pos 704 vs 598")
        setattr(outer, link, OSError(errno.EDQUOT, "Disk quota exceeded"))
        assert f"a file below {tmp_path} can't be written: Disk quota" in str(
            refused(outer, tmp_path)
        )


def test_permission_counts_only_where_the_stage_writes(tmp_path: Path) -> None:
    below = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "a" / "model"))
    assert "Make it writable" in str(refused(below, tmp_path))
    assert refused(PermissionError(errno.EACCES, "Permission denied", "/data"), tmp_path) is None
    assert refused(PermissionError(errno.EACCES, "Permission denied"), tmp_path) is None


def test_a_defect_is_none_of_these(tmp_path: Path) -> None:
    for error in (ZeroDivisionError("a defect"), FileNotFoundError(2, "No such file", "x"), None):
        assert refused(error, tmp_path) is None
