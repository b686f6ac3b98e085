"""Tells a disk that refuses to be written from a defect, whichever library met it.

Python and Arrow raise `OSError` with a number; safetensors puts the number into its text. torch
says nothing of use where it opens a file itself, and lets Python say it where it gets an open one.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from steps.errors import StorageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space, no quota, a limit on the size of files."""
_PROBE = b"\0" * 4096
"""One block: on a full disk an empty file can still be made."""
FORBIDDEN = (errno.EACCES, errno.EPERM)
"""What reading may meet as well: they count only below the place that is written."""


def refused(error: BaseException | None, place: Path) -> StorageError | None:
    """The error to show where `error`, or one that it came from, says that a disk refused a write.

    `place` is the directory below which everything is written.
    """
    while error is not None:
        number, file = _number(error), _file(error)
        if number in (*FULL, errno.EROFS) or (number in FORBIDDEN and _is_below(file, place)):
            assert number is not None
            where = file or f"a file below {place}"
            return StorageError(f"{where} can't be written: {os.strerror(number)}. {_cure(number)}")
        error = error.__cause__ or error.__context__
    return None


def check_out(out: Path | None, *, is_file: bool = False) -> None:
    """Raise `StorageError` where nothing could be written to `--out`: said before the work.

    Makes nothing: the nearest directory that there is answers. `is_file`: `out` is a file's name.
    """
    if out is None:
        return
    wanted = (out.parent if is_file else out).absolute()
    place = next(each for each in (wanted, *wanted.parents) if each.exists())
    try:
        if is_file and out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(_PROBE)
    except OSError as error:
        raise _out_refused(out, error) from error


def write_out(out: Path | None, write: Callable[[Path], Iterable[Path]]) -> None:
    """Have `write` write its files to `out` and name them on stderr, after the table on stdout."""
    if out is None:
        return
    try:
        written = [*write(out)]
    except OSError as error:
        raise _out_refused(out, error) from error
    sys.stderr.write(f"written: {', '.join(map(str, written))}\n")


def _out_refused(out: Path, error: OSError) -> StorageError:
    return StorageError(
        f"--out {out} can't be written: {error.strerror or error}. Name another place."
    )


def _number(error: BaseException) -> int | None:
    """What the system said, as its number; a copied directory's errors are in one text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    for number in (*FULL, errno.EROFS, *FORBIDDEN):
        if f"(os error {number})" in str(error) or f"[Errno {number}]" in str(error):
            return number
    return None


def _file(error: BaseException) -> object:
    """What couldn't be written, where the error says so."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return error.args[0][0][1]
    return getattr(error, "filename", None)


def _is_below(file: object, place: Path) -> bool:
    return isinstance(file, str | os.PathLike) and Path(file).is_relative_to(place)


def _cure(number: int) -> str:
    if number in FULL:
        return "Make room (`df` shows the disk, `ulimit -f` a limit on files), then go on."
    return "Make it writable, then go on."
