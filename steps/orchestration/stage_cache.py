"""Results of stages, found again by any later run with the same fingerprint.

    python -m steps.orchestration.stage_cache list
    python -m steps.orchestration.stage_cache explain RUN_ID
    python -m steps.orchestration.stage_cache prune [--days 30] [--dry-run]

The index is a JSON object for each result, in the datastore's root beside the directories that it
refers to, so that it works wherever Metaflow's artifacts do. It is written after the stage has
succeeded, whole or not at all; where several runs computed one fingerprint the last one's entry
stands. Each run therefore keeps its own entries among its directories, too, where its resumes find
what it did itself. A result is given out only if its files are there and are those that were kept;
a failure is never kept.

Beside the finished ones stand notes of runs that have begun a stage, so that a new run of the same
fingerprint goes on from their last checkpoint. A run with `--cache off` has only the index of its
own.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metaflow.exception import MetaflowException
from metaflow.metaflow_config import DEFAULT_DATASTORE

from steps.errors import ConfigError, DataError
from steps.orchestration.directory_store import DirectoryStore, Transport, open_transport
from steps.orchestration.export import run_of
from steps.orchestration.fingerprints import SETTINGS, Parts, differences, fingerprint

ROOT = "spa.cache"
"""Folder in the datastore's root."""
RESULTS, BEGUN = "results", "begun"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One stage's result."""

    stage: str
    env: str
    fingerprint: str
    task: str
    """Pathspec of the Metaflow task that computed it."""
    created: float
    """Seconds since 1970."""
    seconds: float
    """What it took."""
    parts: Parts
    result: dict[str, Any]

    @property
    def run(self) -> str:
        """Pathspec of the run that computed it."""
        return "/".join(self.task.split("/")[:2])


class StageCache:
    """The index of one datastore, and those of a run and its origins, whose folders `own` names.

    Written to are the datastore's, unless the run keeps to itself (`is_shared` is False), and the
    run's, the first of `own`.
    """

    def __init__(
        self, store: DirectoryStore, own: Sequence[str] = (), *, is_shared: bool = True
    ) -> None:
        self.store = store
        self.transport: Transport = store.transport
        shared = [ROOT] if is_shared else []
        self.roots = [*shared, *own]
        self.written = [*shared, *own[:1]]

    def find(self, stage: str, key: str, runs: Collection[str] | None = None) -> Entry | None:
        """The result of a fingerprint, its files checked; None where there is none to rely on.

        `runs` are pathspecs of those that may have computed it; None: any.
        """
        found = self._read([f"{root}/{RESULTS}/{stage}/{key}.json" for root in self.roots])
        known = (entry for entry in found if runs is None or entry.run in runs)
        return next((entry for entry in known if self.is_whole(entry)), None)

    def keep(
        self, parts: Parts, *, env: str, task: str, seconds: float, result: Mapping[str, Any]
    ) -> None:
        """Add a result to the index. A datastore that can't be written never fails the stage."""
        stage, key = str(parts["stage"]), fingerprint(parts)
        value = {
            "stage": stage,
            "env": env,
            "fingerprint": key,
            "task": task,
            "created": time.time(),
            "seconds": seconds,
            "parts": parts,
            "result": dict(result),
        }
        for root in self.written:
            self._write(f"{root}/{RESULTS}/{stage}/{key}.json", value)

    def note_begun(self, stage: str, key: str, *, run_id: str, root: str) -> None:
        """Note where a run keeps the checkpoints of a stage that it begins."""
        self._write(f"{self.written[0]}/{BEGUN}/{stage}/{key}/{run_id}.json", {"root": root})

    def begun(self, stage: str, key: str) -> list[str]:
        """Where runs that began this very work keep its checkpoints, the newest run first."""
        folder = f"{ROOT}/{BEGUN}/{stage}/{key}"
        found = self.transport.list_content([folder])
        paths = sorted((each.path for each in found if each.is_file), reverse=True)
        return [str(note["root"]) for note in self._load(paths)]

    def entries(self, stages: Sequence[str] = tuple(SETTINGS)) -> list[Entry]:
        """Every result, stage by stage, the newest first."""
        found = []
        for stage in stages:
            content = self.transport.list_content([f"{ROOT}/{RESULTS}/{stage}"])
            paths = [each.path for each in content if each.path.endswith(".json")]
            found += sorted(self._read(paths), key=lambda entry: -entry.created)
        return found

    def nearest(self, entry: Entry) -> Entry | None:
        """Of the other results of its stage the one that differs in the fewest parts."""
        others = [
            other
            for other in self.entries([entry.stage])
            if other.fingerprint != entry.fingerprint and other.env == entry.env
        ]
        return min(
            others, key=lambda other: len(differences(entry.parts, other.parts)), default=None
        )

    def is_whole(self, entry: Entry) -> bool:
        """Whether the files of a result are there and unchanged; says in the log what isn't."""
        try:
            reference = entry.result["directory"]
            self.store.get(reference["key"], reference["digest"])
        except (DataError, KeyError, TypeError) as error:
            _log.warning("the kept result of %s can't be used: %s", entry.stage, error)
            return False
        return True

    def forget(self, entry: Entry) -> None:
        """Take a result out of a local index; its files stay."""
        path = Path(self.transport.full_uri(f"{ROOT}/{RESULTS}/{entry.stage}"))
        for name in (f"{entry.fingerprint}.json", f"{entry.fingerprint}.json_meta"):
            (path / name).unlink(missing_ok=True)

    def _read(self, paths: list[str]) -> Iterator[Entry]:
        for value in self._load(paths):
            try:
                yield Entry(**value)
            except TypeError:
                _log.warning("an entry of the stage cache is of another version; it is ignored")

    def _load(self, paths: list[str]) -> Iterator[dict[str, Any]]:
        if not paths:
            return
        with self.transport.load_bytes(paths) as found:
            for path, local, _ in found:
                if local is None:
                    continue
                try:
                    value = json.loads(Path(local).read_text("utf-8"))
                except (OSError, ValueError) as error:
                    _log.warning("%s in the stage cache can't be read: %s", path, error)
                    continue
                if isinstance(value, dict):
                    yield value

    def _write(self, path: str, value: Mapping[str, Any]) -> None:
        data = io.BytesIO(json.dumps(value, sort_keys=True).encode())
        try:
            self.transport.save_bytes(iter([(path, data)]), overwrite=True)
        except Exception as error:  # whatever a storage raises
            _log.warning("the stage cache can't be written (%s); later runs compute anew", error)


def _age(entry: Entry) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.created))


def _list(index: StageCache) -> Iterator[str]:
    for entry in index.entries():
        size = entry.result.get("directory", {}).get("bytes", 0) / 1e6
        yield (
            f"{entry.stage:<18} {entry.env:<24} {entry.fingerprint[:12]}  {_age(entry)}  "
            f"{entry.seconds:7.0f} s  {size:8.1f} MB  {entry.task}"
        )


def _explain(index: StageCache, run: str) -> Iterator[str]:
    """For each stage of a run: what it was computed from, and what differs from the nearest one."""
    run_id = run.rpartition("/")[2]
    entries = [entry for entry in index.entries() if entry.task.split("/")[1] == run_id]
    if not entries:
        run_of(run)
        raise ConfigError(
            f"run {run_id} has computed nothing that is in the index: all of it came from other "
            "runs or was computed by one after it, or it failed, or ran with --cache off. `list` "
            "shows what there is."
        )
    for entry in entries:
        yield f"{entry.stage} of {entry.env} ({entry.fingerprint[:12]}) was computed"
        other = index.nearest(entry)
        if other is None:
            yield "  no other result of this stage and environment is known"
            continue
        yield f"  nearest: {other.fingerprint[:12]} of {other.run}, {_age(other)}; what differs:"
        for line in differences(entry.parts, other.parts):
            hint = "  (the stage before differs)" if line.startswith("input") else ""
            yield f"    {line}{hint}"


def _prune(index: StageCache, days: float, *, is_dry: bool) -> Iterator[str]:
    """Forget what is old or damaged."""
    if not index.store.is_local:
        raise ConfigError("prune works on a local datastore; a remote one has rules of its own.")
    limit = time.time() - days * 86_400
    for entry in index.entries():
        reason = "old" if entry.created < limit else ""
        reason = reason or ("" if index.is_whole(entry) else "its files are gone or changed")
        if reason:
            yield f"{entry.stage} {entry.env} {entry.fingerprint[:12]}: {reason}"
            if not is_dry:
                index.forget(entry)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--datastore", default=DEFAULT_DATASTORE)
    parser.add_argument("--datastore-root")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every kept result")
    explain = commands.add_parser("explain", help="why a run's stages were computed")
    explain.add_argument("run")
    prune = commands.add_parser("prune", help="forget results that are old or damaged")
    prune.add_argument("--days", type=float, default=30.0, help="older than this (default 30)")
    prune.add_argument("--dry-run", action="store_true", help="only say which")
    options = parser.parse_args(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="spa-"))
    try:
        transport = open_transport(options.datastore, options.datastore_root)
        index = StageCache(DirectoryStore(transport, scratch))
        if options.command == "list":
            lines = _list(index)
        elif options.command == "explain":
            lines = _explain(index, options.run)
        else:
            lines = _prune(index, options.days, is_dry=options.dry_run)
        for line in lines:
            print(line)  # noqa: T201
    except (ConfigError, DataError, MetaflowException) as error:
        parser.exit(2, f"{error}\n")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
