"""Metrics of a stage: a JSONL file is the truth, MLflow is fed from a copy of it.

A `Tracker` appends one line for each `log` to `metrics.jsonl` and to a spool file; a separate
process (`steps.tracking.feed`), one for each spool folder, sends the spool to MLflow in batches.
So the training process never imports MLflow (2.5 s of CPU), never waits for a server, and one
process alone writes the SQLite store. What a server that is away hasn't taken stays in the spool,
and the next run, or `python -m steps.tracking sync`, sends it. Nothing here stops a stage: a
failure is one warning. The exception is `check_tracking`, which is called before work starts.

Each MLflow run has a *key*, a tag by which later attempts find it again: a stage's attempts on
retry and `resume` go on in one run, and no parameter and no step is logged twice. A key also stands
for a run that no server has made yet.
"""

from __future__ import annotations

import logging
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.credentials import shown, without_credentials
from conf.plain import to_plain
from conf.schema import Config
from steps.errors import ConfigError
from steps.tracking.jsonl import METRICS_FILE, flatten, metrics_line
from steps.tracking.progress import progress_of
from steps.tracking.spool import (
    KEY_PREFIX,
    Spool,
    Target,
    stage_key,
    target_of,
)
from steps.tracking.trackers import FileTracker, NullTracker, RoundTracker, Tracker, finish

__all__ = [
    "METRICS_FILE",
    "FileTracker",
    "NullTracker",
    "RoundTracker",
    "Tracker",
    "check_tracking",
    "finish_parent_run",
    "flatten",
    "open_tracker",
    "start_parent_run",
]

START_WAIT_S = 30.0
"""Longest that a run waits for the id of its MLflow run (2 to 4 s on an idle machine)."""
NOTE_TAG = "mlflow.note.content"
"""Where MLflow keeps a run's description."""
RUN_NOTE = (
    "A run of the whole flow; its stages are the child runs. `<environment>/pass_at_1` is the "
    "share of episodes solved in the end, `after_sft` the same before PPO, `floor` random play and "
    "`ceiling` optimal play. Parameters are the settings."
)
NOTES = {
    "selfplay_generate": "Self-play: episodes that finetuning imitates.",
    "filter_format": "Filter: turns that are kept for finetuning, by count.",
    "sft_train": "Supervised finetuning. `sft/` losses in nats a token; `probe/` shares on "
    "validation puzzles.",
    "ppo_train": "Reinforcement learning. `rollout/` the training episodes of each step, "
    "`rollout/success` first of all; `actor/` and `critic/` the update; `probe/` validation "
    "puzzles; `timing_s/` seconds.",
    "evaluate": "Evaluation on test puzzles: `after_sft/` and `final/` the two "
    "models, each with `floor` (random play) and `ceiling` (optimal play).",
}
"""What a stage's numbers are, for a reader of MLflow."""

_log = logging.getLogger(__name__)


def open_tracker(
    config: Config,
    *,
    directory: Path,
    run_name: str,
    stage: str,
    parent_run_id: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> FileTracker:
    """A tracker of one stage; under a parent, a second attempt continues the first one's run."""
    progress = progress_of(config, stage)
    if not config.tracking.enabled:
        return FileTracker(directory, progress=progress)
    parent = parent_run_id or ""
    run = {
        "key": stage_key(parent, stage, run_name) if parent else uuid.uuid4().hex,
        "name": run_name,
        "stage": stage,
        "parent": parent,
        "tags": {
            "spa.stage": stage,
            "spa.env": config.env.id,
            **({NOTE_TAG: NOTES[stage]} if stage in NOTES else {}),
            **(tags or {}),
        },
        "wants_reply": True,
    }
    target = target_of(config.tracking)
    where = {"uri": without_credentials(target.uri), "experiment": target.experiment}
    return FileTracker(directory, _open_spool(target, run), progress, run=run | where)


def start_parent_run(config: Config, name: str, tags: Mapping[str, str] | None = None) -> str:
    """Id of a new MLflow run that the stages' runs hang under, with the settings as parameters.

    Where MLflow is out of reach it is a key instead, by which stages and settings come together
    once it is back; empty where not even the spool can be written, or tracking is off.
    """
    if not config.tracking.enabled:
        return ""
    known = {
        NOTE_TAG: RUN_NOTE,
        "spa.experiment": config.experiment,
        "spa.profile": config.profile,
        "spa.model": config.model.name,
        "spa.seed": str(config.seed),
    }
    key = uuid.uuid4().hex
    run = {"key": key, "name": name, "parent": "", "tags": {**known, **(tags or {})}}
    spool = _open_spool(target_of(config.tracking), run | {"wants_reply": True})
    if spool is None:
        return ""
    settings = flatten(shown(to_plain(config)))
    try:
        spool.append({"params": settings})
        spool.end("")
        reply = spool.wait_for_reply(START_WAIT_S)
        spool.settle()
    except OSError as error:
        reply = {"error": str(error)}
    if reply.get("run_id"):
        return str(reply["run_id"])
    _log.warning(
        "no MLflow run at %s yet: %s; the run goes on, its metrics are kept in %s files and wait "
        "in %s for the server, or for `python -m steps.tracking sync`.",
        without_credentials(spool.target.uri),
        reply.get("error") or f"no answer within {START_WAIT_S:.0f} s",
        METRICS_FILE,
        spool.path.parent,
    )
    return f"{KEY_PREFIX}{key}"


def finish_parent_run(
    config: Config,
    run_id: str,
    *,
    status: str = "FINISHED",
    metrics: Mapping[str, float] | None = None,
    tags: Mapping[str, str] | None = None,
    wait_s: float | None = None,
) -> None:
    """Log a run's final numbers and end it; nothing happens without a run id or key."""
    if not run_id or not config.tracking.enabled:
        return
    key = run_id.removeprefix(KEY_PREFIX)
    named = {"run_id": run_id} if key == run_id else {"key": key, "name": "", "parent": ""}
    spool = _open_spool(target_of(config.tracking), {**named, "tags": dict(tags or {})})
    if spool is None:
        return
    if metrics:
        try:
            spool.append(metrics_line(metrics, 0, time.time()))
        except OSError as error:
            _log.warning("MLflow gets no final numbers of this run: %s.", error)
    finish(spool, status, wait_s)


def check_tracking(config: Config) -> None:
    """Raise a ConfigError where metrics of this configuration have no place to go."""
    if not config.tracking.enabled:
        return
    uri = config.tracking.uri
    if uri and ("://" not in uri or uri.startswith("file:")):
        named = without_credentials(f"://{uri}").removeprefix("://")  # user:password@host, too
        raise ConfigError(
            f"tracking.uri={named!r} names plain files, in which MLflow no longer keeps runs; give "
            "sqlite:///path/mlflow.db or the address of a server, http://host:port."
        )
    target = target_of(config.tracking)
    for place in target.directories:
        _check_writable(place)
    if target.database is not None and target.database.exists():
        try:
            target.database.open("ab").close()
        except OSError as error:
            raise _not_writable(target.database, error) from error


def _open_spool(target: Target, run: dict[str, Any]) -> Spool | None:
    try:
        return Spool(target, run)
    except OSError as error:
        _log.warning("MLflow gets no metrics of this stage: %s; the stage goes on.", error)
        return None


def _check_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise _not_writable(directory, error) from error


def _not_writable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"MLflow's place {path} can't be written ({error.strerror or error}); give another with "
        "tracking.uri=sqlite:///path/mlflow.db, or turn tracking off with tracking.enabled=false."
    )
