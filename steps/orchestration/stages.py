"""The surroundings of one stage in one task: where it writes, what it reads, how it fails."""

from __future__ import annotations

import logging
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from metaflow import current
from metaflow.exception import METAFLOW_EXIT_DISALLOW_RETRY

from conf.errors import ConfigError as ConfError
from conf.schema import Config
from steps import storage
from steps.errors import ConfigError, DataError, ModelError, SPAError, StorageError
from steps.orchestration import fingerprints, stage_cache
from steps.orchestration.batch_store import MetaflowBatches
from steps.orchestration.checkpoint_store import MetaflowCheckpoints, lineage, run_root
from steps.orchestration.directory_store import DirectoryStore
from steps.orchestration.runs import RETRIES, config_of, set_logging
from steps.orchestration.stage_cache import StageCache

OF_SETTINGS = (ConfigError, ConfError, ModelError)
"""What the same settings meet again: `resume` keeps them."""

_log = logging.getLogger(__name__)


class Settled(NamedTuple):
    """How a stage came by its result."""

    result: dict[str, Any]
    fingerprint: str
    """What the next stage counts as its input."""
    cache_hit: str | None
    """Pathspec of the task whose result was reused."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of one environment, in this attempt of this task."""

    config: Config
    name: str
    out_dir: Path
    """Empty at first; what is in it when `keep` is called is kept."""
    key: str
    store: DirectoryStore
    checkpoints: MetaflowCheckpoints
    batches: MetaflowBatches
    """Of episodes that this stage plays to learn from."""
    tracker: Any
    """A `steps.tracking.Tracker`, which `keep` closes."""
    parts: fingerprints.Parts
    """What the result depends on."""
    cache: StageCache
    """The index, and those of this run and its origins; with `--cache off` these alone."""
    runs: frozenset[str] | None
    """Whose results will do: this run's and its origins'; None: any run's (`--cache auto`)."""

    @property
    def outputs(self) -> dict[str, Any]:
        """What every stage function takes to write with."""
        return {"out_dir": self.out_dir, "tracker": self.tracker}

    @property
    def fingerprint(self) -> str:
        """Of this stage's result."""
        return fingerprints.fingerprint(self.parts)

    def settle(self, compute: Callable[[], Mapping[str, Any]]) -> Settled:
        """The stage's result: an earlier run's where one has this fingerprint, else computed.

        One that went on from a checkpoint of other code isn't what the fingerprint says: it is
        kept for this run alone, and its fingerprint is that of its files.
        """
        key = self.fingerprint
        known = self.cache.find(self.name, key, self.runs)
        if known is not None:
            _log.info(
                "%s of %s is reused from %s, where it took %.0f s",
                *(self.name, self.config.env.id, known.task, known.seconds),
            )
            self.tracker.log({"cache/hit": 1.0, "cache/saved_seconds": known.seconds}, 0)
            self.tracker.close()
            self.batches.discard()  # of a run that was killed when its result was just kept
            return Settled(known.result, key, known.task)
        began = time.monotonic()
        root = self.checkpoints.roots[0]
        self.cache.note_begun(self.name, key, run_id=current.run_id, root=root)
        result = self.keep(compute())
        seconds = time.monotonic() - began
        if self.checkpoints.is_mixed:
            key = storage.json_digest([self.name, result["directory"]["digest"]])[:32]
        else:
            self.cache.keep(
                self.parts,
                env=self.config.env.id,
                task=current.pathspec,
                seconds=seconds,
                result=result,
            )
        self.batches.discard()
        return Settled(result, key, None)

    def keep(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Store `out_dir`; the result as an artifact: plain, relative paths, and `directory`."""
        self.tracker.close()  # its file lies in `out_dir`, and a kept file must not grow
        plain = relative(result, self.out_dir)
        assert isinstance(plain, dict)
        return {**plain, "directory": self.store.put(self.out_dir, self.key, stage=self.name)}

    def fetch(self, result: Mapping[str, Any]) -> Path:
        """The directory that an earlier stage kept, checked.

        Raises `DataError` where it isn't what was kept, with the words that make it anew.
        """
        reference = result["directory"]
        try:
            return self.store.get(reference["key"], reference["digest"])
        except DataError as error:
            step = reference["key"].split("/")[-2]
            raise DataError(
                f"{error} `resume {step} --origin-run-id {current.run_id}` computes it anew."
            ) from error


@contextmanager
def open_stage(
    flow: Any, config: Config, name: str, *, open_tracker: Callable[..., Any]
) -> Iterator[Stage]:
    """What a stage's body works with. Stands inside of `accounted_for`: this may fail, too."""
    set_logging(config.log_level)
    branch, key = branch_name(config.env.id), _key(config, name)
    mode = flow.settings["request"]["cache"]
    with tempfile.TemporaryDirectory(prefix="spa-", ignore_cleanup_errors=True) as scratch:
        store = DirectoryStore(_transport(flow), Path(scratch))
        roots = lineage(store, current.flow_name, current.run_id, current.origin_run_id)
        own = [f"{root}/{stage_cache.ROOT}" for root in roots]
        cache = StageCache(store, own, is_shared=mode != "off")
        out_dir = store.workspace(key)
        parts = fingerprints.parts_of(name, config, before=getattr(flow, "fingerprint", ""))
        work = fingerprints.fingerprint(parts)
        places = [f"{root}/{branch}/{name}/checkpoints" for root in roots]
        others: list[str] = []
        if mode == "auto":
            others = [root for root in cache.begun(name, work) if root not in places]
        with open_tracker(directory=out_dir) as tracker:
            yield Stage(
                config=config,
                name=name,
                out_dir=out_dir,
                key=key,
                store=store,
                checkpoints=MetaflowCheckpoints(
                    store,
                    roots=places,
                    others=others,
                    work=work,
                    keep_last=config.checkpoints.keep_last,
                    journal=tracker,
                ),
                batches=MetaflowBatches(store, roots=[*places, *others], work=work),
                tracker=tracker,
                parts=parts,
                cache=cache,
                runs=None if mode == "auto" else frozenset(map(_pathspec, roots)),
            )


@contextmanager
def accounted_for(flow: Any, name: str) -> Iterator[None]:
    """Around a stage: the user's mistakes end the task with one message and no retry.

    A failure that no retry follows is noted in `flow.failure`. Where other environments run beside
    this one the task goes on then: Metaflow would end the others with it.
    """
    try:
        yield
    except Exception as error:
        config, transport = config_of(flow.settings, flow.env_id), _transport(flow)
        known = error if isinstance(error, SPAError | ConfError) else None
        if known is None:
            known = storage.refused(error, DirectoryStore(transport, Path()).disk)
        if isinstance(known, StorageError):  # what is half written takes the room Metaflow needs
            DirectoryStore(transport, Path()).discard(_key(config, name))
        if known is None and (not _has_company(flow) or current.retry_count < RETRIES):
            raise
        if known is None or config.log_level == "debug":
            traceback.print_exc()
        said = f"{type(known or error).__name__}: {known or error}"
        if known is not None:
            sys.stderr.write(f"{config.env.id}, {name}: {said}\n")
        is_of_settings = isinstance(known, OF_SETTINGS)
        flow.failure = {"step": name, "error": said, "is_of_settings": is_of_settings}
        if not _has_company(flow):
            sys.exit(METAFLOW_EXIT_DISALLOW_RETRY)


def _transport(flow: Any) -> Any:
    """Metaflow offers a task no public way to its storage."""
    return flow._datastore._storage_impl


def _key(config: Config, name: str) -> str:
    """Where this attempt keeps its result."""
    root = run_root(current.flow_name, current.run_id)
    return f"{root}/{branch_name(config.env.id)}/{name}/attempt_{current.retry_count}"


def _pathspec(root: str) -> str:
    """Of the run that keeps its directories under `root`."""
    return root.partition("/")[2]


def _has_company(flow: Any) -> bool:
    return len(flow.settings["envs"]) > 1


def relative(value: Any, directory: Path) -> Any:
    """`value` with each path inside `directory` made relative to it, and paths as strings."""
    if isinstance(value, Mapping):
        return {str(key): relative(each, directory) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [relative(each, directory) for each in value]
    if isinstance(value, Path) or (isinstance(value, str) and value.startswith(f"{directory}/")):
        path = Path(value)
        return str(path.relative_to(directory) if path.is_relative_to(directory) else path)
    return value


def branch_name(env_id: str) -> str:
    """An environment id as a folder name."""
    name = re.sub(r"[^\w.-]", "_", env_id)
    return name if name == env_id else f"{name}-{sha256(env_id.encode()).hexdigest()[:8]}"
