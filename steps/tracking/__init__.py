"""Metrics of a stage: a JSONL file is the truth, MLflow is fed from a copy of it.

A `Tracker` appends one line for each `log` to `metrics.jsonl` and to a spool file; a separate
process (`steps.tracking.feed`), one for each spool folder, sends the spool to MLflow in batches.
So the training process never imports MLflow (2.5 s of CPU), never waits for a server, and one
process alone writes the SQLite store. What a server that is away hasn't taken stays in the spool,
and the next run, or `python -m steps.tracking`, sends it. Nothing here stops a stage: a failure
is one warning. The exception is `check_tracking`, which is called before work starts.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO

from conf.plain import to_plain
from conf.schema import Config
from steps.errors import ConfigError
from steps.tracking.progress import Progress, progress_of
from steps.tracking.spool import Spool, Target, target_of

__all__ = [
    "METRICS_FILE",
    "FileTracker",
    "NullTracker",
    "Tracker",
    "check_tracking",
    "finish_parent_run",
    "open_tracker",
    "read_metrics",
    "start_parent_run",
]

METRICS_FILE = "metrics.jsonl"
CLOSE_WAIT_S = 10.0
"""Longest that the end of a stage waits for a remote server; a failed attempt ends it at once."""
START_WAIT_S = 30.0
"""Longest that a run waits for the id of its MLflow run (2 to 4 s on an idle machine)."""
LOCAL_WAIT_S = 0.0
"""The process that feeds a store on this machine outlives the stage: nobody waits for it."""

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
    "sft_train": "Supervised finetuning. `sft/` losses in nats a token; `probe/` shares on puzzles "
    "that the model hasn't seen.",
    "ppo_train": "Reinforcement learning. `rollout/` the training episodes of each step, "
    "`rollout/success` first of all; `actor/` and `critic/` the update; `probe/` validation "
    "puzzles; `timing_s/` seconds.",
    "evaluate": "Evaluation on puzzles that no stage has seen: `after_sft/` and `final/` the two "
    "models, each with `floor` (random play) and `ceiling` (optimal play).",
}
"""What a stage's numbers are, for a reader of MLflow."""

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Where a stage's numbers go."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record numbers of one step."""
        ...

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record settings; nested sections become dotted keys."""
        ...

    def close(self) -> None:
        """Finish; further calls do nothing."""
        ...

    def __enter__(self) -> Tracker: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class NullTracker:
    """Keeps what is logged in memory, for tests and for calls without a run."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.params: dict[str, Any] = {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep the numbers."""
        self.logged.append((step, dict(metrics)))

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Keep the settings."""
        self.params.update(flatten(params))

    def close(self) -> None:
        """Nothing to finish."""

    def __enter__(self) -> NullTracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class FileTracker:
    """Appends to `metrics.jsonl` in `directory`, and to the spool where there is one."""

    def __init__(
        self, directory: Path, spool: Spool | None = None, progress: Progress | None = None
    ) -> None:
        self.path = directory / METRICS_FILE
        self._spool = spool
        self._progress = progress
        self._file: TextIO | None = None
        self._has_warned = False
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _end_torn_line(self.path)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            self._warn(f"metrics can't be kept in {self.path}: {error}")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One line, flushed."""
        if self._progress is not None:
            self._progress.tell(metrics, step)
        line = {
            "step": int(step),
            "time": time.time(),
            "metrics": {key: _jsonable(float(value)) for key, value in metrics.items()},
        }
        try:
            if self._file is not None:
                self._file.write(json.dumps(line) + "\n")
                self._file.flush()
            if self._spool is not None:
                self._spool.append(line)
        except OSError as error:
            self._warn(f"metrics of step {step} could not be written: {error}")

    def log_params(self, params: Mapping[str, Any]) -> None:
        """To MLflow alone; a run's settings are stored with the run."""
        if self._spool is None:
            return
        try:
            self._spool.append({"params": flatten(params)})
        except OSError as error:
            self._warn(f"settings could not be written: {error}")

    def close(self, *, status: str = "FINISHED", wait_s: float | None = None) -> None:
        """End the run in MLflow; waits for a remote server at most `CLOSE_WAIT_S`."""
        if self._progress is not None:
            self._progress.finish()
            self._progress = None
        if self._file is not None:
            self._file.close()
            self._file = None
        spool, self._spool = self._spool, None
        if spool is not None:
            _finish(spool, status, wait_s)

    def __enter__(self) -> FileTracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(status="FINISHED" if kind is None else "FAILED")

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            _log.warning("%s; the stage goes on.", text)
        self._has_warned = True


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
    run = {
        "name": run_name,
        "stage": stage,
        "parent": parent_run_id or "",
        "tags": {
            "spa.stage": stage,
            "spa.env": config.env.id,
            **({NOTE_TAG: NOTES[stage]} if stage in NOTES else {}),
            **(tags or {}),
        },
    }
    spool = _open_spool(target_of(config.tracking), run)
    return FileTracker(directory, spool, progress)


def start_parent_run(config: Config, name: str, tags: Mapping[str, str] | None = None) -> str:
    """Id of a new MLflow run that the stages' runs hang under; empty where MLflow is out of reach.

    The configuration is logged as its parameters.
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
    run = {"name": name, "parent": "", "tags": {**known, **(tags or {})}, "wants_reply": True}
    spool = _open_spool(target_of(config.tracking), run)
    if spool is None:
        return ""
    try:
        spool.append({"params": flatten(to_plain(config))})
        spool.end("")
        reply = spool.wait_for_reply(START_WAIT_S)
    except OSError as error:
        reply = {"error": str(error)}
    if not reply.get("run_id"):
        _log.warning(
            "no MLflow run at %s: %s; the run goes on, its metrics are kept in %s files.",
            spool.target.uri,
            reply.get("error") or f"no answer within {START_WAIT_S:.0f} s",
            METRICS_FILE,
        )
    spool.discard()
    return str(reply.get("run_id", ""))


def finish_parent_run(
    config: Config,
    run_id: str,
    *,
    status: str = "FINISHED",
    metrics: Mapping[str, float] | None = None,
    wait_s: float | None = None,
) -> None:
    """Log a run's final numbers and end it; nothing happens without a run id."""
    if not run_id or not config.tracking.enabled:
        return
    spool = _open_spool(target_of(config.tracking), {"run_id": run_id})
    if spool is None:
        return
    if metrics:
        values = {key: _jsonable(float(value)) for key, value in metrics.items()}
        try:
            spool.append({"step": 0, "time": time.time(), "metrics": values})
        except OSError as error:
            _log.warning("MLflow gets no final numbers of this run: %s.", error)
    _finish(spool, status, wait_s)


def check_tracking(config: Config) -> None:
    """Raise a ConfigError where metrics of this configuration have no place to go."""
    if not config.tracking.enabled:
        return
    uri = config.tracking.uri
    if uri and ("://" not in uri or uri.startswith("file:")):
        raise ConfigError(
            f"tracking.uri={uri!r} names plain files, in which MLflow no longer keeps runs; give "
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


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Lines of a `metrics.jsonl`: `step`, `time`, `metrics`; a last line cut by a kill is left out.

    A stage that went on from a checkpoint may have logged a step twice; the later line counts.
    """
    if not path.exists():
        return []
    return [line for line in _lines(path) if "metrics" in line]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if "metrics" in line:
                line["metrics"] = {key: float(value) for key, value in line["metrics"].items()}
            yield line


def _jsonable(value: float) -> float | str:
    """JSON has no word for what isn't finite; `float` reads these back."""
    return value if math.isfinite(value) else str(value)


def _end_torn_line(path: Path) -> None:
    """Close a line that a kill cut short, so that the next one stands alone."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, 2)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _open_spool(target: Target, run: dict[str, Any]) -> Spool | None:
    try:
        return Spool(target, run)
    except OSError as error:
        _log.warning("MLflow gets no metrics of this stage: %s; the stage goes on.", error)
        return None


def _finish(spool: Spool, status: str, wait_s: float | None) -> None:
    limit = wait_s
    if limit is None:
        limit = LOCAL_WAIT_S if spool.target.is_local else CLOSE_WAIT_S
    try:
        spool.end(status)
        error = spool.wait_until_sent(limit)
    except OSError as problem:
        error = str(problem)
    if error:
        _log.warning(
            "MLflow at %s has not taken all metrics (%s); they wait in %s for the next run, or "
            "for `python -m steps.tracking %s`.",
            spool.target.uri,
            error,
            spool.path,
            spool.path.parent,
        )


def _check_writable(directory: Path) -> None:
    probe = directory / ".writable"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _not_writable(directory, error) from error


def _not_writable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"MLflow's place {path} can't be written ({error.strerror or error}); give another with "
        "tracking.uri=sqlite:///path/mlflow.db, or turn tracking off with tracking.enabled=false."
    )
