"""Between verl's checkpoints and our store: kept while it trains, put back for it to go on from.

verl writes `global_step_<n>` and then, last and in one move, the file that names n. A finished one
is copied to the store and removed here, so that at most two lie on the disk; beside its files goes
`spa.json`, which says how many GPUs wrote it, by which sharding (its tensors are cut for that, and
verl would fail on them after minutes) and how many of them shared a sequence (that is whose place
in the data it names), and what the training had done. The weights in Hugging
Face format, which verl writes with each, stay out, but for the best step's: only a stage's model is
read.

verl unpickles its own files. They come from our store, which checks their digests.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from steps import storage
from steps.errors import CheckpointError, DataError
from steps.training.checkpoints import CheckpointStore

NEWEST_FILE = "latest_checkpointed_iteration.txt"
NOTE = "spa.json"


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a checkpoint says of itself."""

    num_gpus: int
    sharding: str = ""
    """fsdp or fsdp2; empty in those of before it was written."""
    sequence_parallel: int = 1
    seconds: float = 0.0
    """Of training, up to here."""
    curve: list[dict[str, float]] = field(default_factory=list)


def newest_step(directory: Path) -> int:
    """Step of the newest finished checkpoint that verl wrote into `directory`; 0 for none."""
    try:
        return int((directory / NEWEST_FILE).read_text())
    except (OSError, ValueError):  # not there yet
        return 0


def step_directory(directory: Path, step: int) -> Path:
    """Where verl keeps the checkpoint of a step."""
    return directory / f"global_step_{step}"


def restore(
    checkpoints: CheckpointStore,
    fingerprint: str,
    work_dir: Path,
    *,
    num_gpus: int,
    sharding: str,
    sequence_parallel: int = 1,
) -> tuple[int, Path | None, Note]:
    """The step to go on from, its directory under a name that verl reads, and its note.

    Step 0 and None where there is no checkpoint. Raises `CheckpointError` where it was written by
    another number of GPUs, or where they share sequences or weights otherwise.
    """
    found = checkpoints.newest(fingerprint)
    if found is None:
        return 0, None, Note(num_gpus=num_gpus, sharding=sharding)
    step, directory = found
    note = _read_note(directory)
    if note.num_gpus != num_gpus:
        raise CheckpointError(
            f"the checkpoint of step {step} was written by {note.num_gpus} GPUs, and "
            f"{num_gpus} train now: go on with verl.n_gpus_per_node={note.num_gpus}, or start over "
            f"with --cache refresh. It lies in {directory}."
        )
    if note.sharding not in ("", sharding):
        raise CheckpointError(
            f"the checkpoint of step {step} was written by {note.sharding}, and {sharding} trains "
            f"now: go on with verl.strategy={note.sharding}, or start over with --cache refresh. "
            f"It lies in {directory}."
        )
    if note.sequence_parallel != sequence_parallel:
        raise CheckpointError(
            f"the checkpoint of step {step} was written by GPUs of which {note.sequence_parallel} "
            f"shared a sequence, and {sequence_parallel} do now: go on with "
            f"verl.sequence_parallel_size={note.sequence_parallel}, or start over with --cache "
            f"refresh. It lies in {directory}."
        )
    named = step_directory(work_dir / "resume", step)
    named.parent.mkdir(parents=True, exist_ok=True)
    named.unlink(missing_ok=True)
    named.symlink_to(directory.resolve(), target_is_directory=True)
    return step, named, note


class Keeper:
    """Carries finished checkpoints of a running training to the store; call it again and again."""

    def __init__(
        self,
        directory: Path,
        save: Callable[[Path, int], None],
        *,
        note: Callable[[int], Note],
        begun_at: int,
        last: int,
        best: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.directory = directory
        self._save = save
        self._note = note
        self._kept = begun_at
        self._last = last
        """The last step's is the result and isn't carried."""
        self._best = best
        """The step whose weights may become the stage's model before the last."""

    def __call__(self, step: int) -> None:
        """Keep the checkpoint of `step`, where it is new, and remove it and those before it here.

        Where the best one was finished while another was carried, it goes first. Metrics of `step`
        must have been seen: `newest_step`, then the metrics, then this.
        """
        best = self._best()
        if (
            best is not None
            and self._kept < best < step
            and step_directory(self.directory, best).is_dir()
        ):
            self._carry(best, is_best=True)
        if self._kept < step < self._last:
            self._carry(step, is_best=best == step)

    def _carry(self, step: int, *, is_best: bool) -> None:
        source = step_directory(self.directory, step)
        for weights in () if is_best else source.rglob("huggingface/*.safetensors"):
            weights.unlink()
        storage.atomic_write_json(source / NOTE, asdict(self._note(step)))
        self._save(source, step)
        self._kept = step
        remove_before(self.directory, step + 1)


def remove_before(directory: Path, step: int) -> None:
    """Remove verl's checkpoints of earlier steps."""
    for old in directory.glob("global_step_*"):
        if int(old.name.rpartition("_")[2]) < step:
            shutil.rmtree(old, ignore_errors=True)


def _read_note(directory: Path) -> Note:
    try:
        found: dict[str, Any] = storage.read_json(directory / NOTE)
        return Note(**found)
    except (DataError, TypeError) as error:
        raise CheckpointError(
            f"the checkpoint in {directory} isn't one of the verl backend ({error}): start over "
            "with --cache refresh."
        ) from error
