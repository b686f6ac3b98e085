"""Models of earlier runs: found before a run starts, taken over in the steps that it leaves out.

`--start-from` names a run (id or pathspec), its stage and its environment, or a model directory:

    1795839932192759    SPAFlow/1795839932192759:sft_train@frozenlake    models/mine

The stages before `--start-at` are then not computed. What stands in their place in the new run is
the earlier run's own result, without its curves and transcripts, with `taken_from`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metaflow.exception import MetaflowException

from conf import to_plain
from conf.schema import Config
from steps import storage
from steps.errors import ConfigError, DataError, unknown_name
from steps.orchestration import datastore_root
from steps.orchestration.export import ARTIFACTS, export_run
from steps.orchestration.runs import Request
from steps.orchestration.stages import Stage

MODEL_STAGES = ("sft_train", "ppo_train")
"""Stages that leave a model."""
BEFORE = {"ppo_train": "sft_train", "evaluate": "ppo_train"}
"""Where a run may start -> the stage whose model it takes where none is named."""
_LONG = ("curve", "sample", "examples")
"""Parts of a result that are looked at in the run that made it."""
_MANIFEST_DEPTH = 3
"""A stage's directory holds its model at most so deep."""

_log = logging.getLogger(__name__)


class Source(NamedTuple):
    """What `--start-from` names: a directory, or a run's stage."""

    directory: Path | None = None
    run: str = ""
    stage: str = ""
    env: str = ""
    """Empty: the environment that the new run plays, or the only one."""


def read_source(text: str, start_at: str) -> Source:
    """Take `--start-from` apart; raises `ConfigError` for a stage that leaves no model."""
    if text.startswith((".", "/", "~")) or Path(text).is_dir():
        return Source(directory=Path(text).expanduser().resolve())
    head, _, env = text.partition("@")
    run, _, stage = head.partition(":")
    stage = stage or BEFORE[start_at]
    if stage not in MODEL_STAGES:
        raise ConfigError(f"--start-from {text}: {unknown_name('stage', stage, MODEL_STAGES)}")
    return Source(run=run, stage=stage, env=env)


def find(request: Request, config: Config) -> dict[str, Any]:
    """Where one environment of a new run starts, as plain settings.

    `at`, `origin` (whose model it is), `experiment` (of that run), `model_dir` (empty where the
    datastore is remote), and `taken`: stage -> the result that stands in its place. Raises
    `SPAError` where there is no such model, or a damaged one.
    """
    source = read_source(request.start_from, request.start_at)
    if source.directory is not None:
        return _from_directory(source.directory, request.start_at)
    try:
        exported = export_run(source.run)
    except (MetaflowException, DataError, KeyError, AttributeError) as error:
        why = error if isinstance(error, DataError) else f"no run {source.run!r} that has begun."
        raise ConfigError(f"--start-from {request.start_from}: {why}") from error
    start = _from_run(exported, source, request.start_at, config.env.id)
    theirs = exported["settings"]["envs"][start["origin"]["env"]]
    _check_speech(theirs, config, request.start_from)
    return start | {"experiment": theirs.get("experiment", "")}


def check_place(start: Mapping[str, Any], argv: Sequence[str]) -> None:
    """Raise `ConfigError` where what is taken isn't in the datastore that `argv` names."""
    for taken in start["taken"].values():
        kept = taken.get("directory")
        if kept and not datastore_root.holds(argv, kept["key"]):
            raise ConfigError(
                f"--start-from {start['origin']['run']}: its model is in {kept['url']}, which this "
                "run's datastore doesn't hold; start where that run was started, or copy the model "
                "here and give --start-from DIRECTORY."
            )


def adopted(start: Mapping[str, Any], stage: Stage) -> dict[str, Any] | None:
    """The result that stands in a stage's place, its files checked; None where it is computed."""
    taken = start.get("taken", {}).get(stage.name)
    if taken is None:
        return None
    _log.info("%s is skipped: taken from %s", stage.name, origin_text(taken["taken_from"]))
    if "copy" not in taken:
        if "directory" in taken:
            stage.fetch(taken)
        return dict(taken)
    given = Path(taken["copy"])
    if storage.directory_digest(given) != taken["taken_from"]["digest"]:
        raise DataError(f"{given} has changed since the run started; start it again.")
    shutil.copytree(given, stage.out_dir / "model")
    return stage.keep({"model": stage.out_dir / "model", "taken_from": taken["taken_from"]})


def origin_text(taken_from: Mapping[str, str]) -> str:
    """Where a result came from, in words."""
    if "directory" in taken_from:
        return f"directory {taken_from['directory']}"
    return f"{taken_from['run']}, {taken_from['stage']} of {taken_from['env']}"


def _from_directory(directory: Path, start_at: str) -> dict[str, Any]:
    _check_kept(directory)
    origin = {"directory": str(directory), "digest": storage.directory_digest(directory)}
    taken: dict[str, Any] = {stage: {"taken_from": origin} for stage in _before(start_at)}
    taken[BEFORE[start_at]]["copy"] = str(directory)
    return {"at": start_at, "origin": origin, "model_dir": str(directory), "taken": taken}


def _from_run(
    exported: Mapping[str, Any], source: Source, start_at: str, env_id: str
) -> dict[str, Any]:
    env = _environment(exported, source, env_id)
    results = exported["environments"].get(env, {})
    if source.stage not in results or "directory" not in results[source.stage]:
        done = ", ".join(results) or "nothing"
        raise ConfigError(
            f"{exported['run']} has no model of {source.stage} on {env}: finished there is {done}. "
            "Resume that run, or name another stage."
        )
    origin = {"run": exported["run"], "env": env, "stage": source.stage}
    kept = _slim(results[source.stage], results, origin)
    taken: dict[str, Any] = {stage: {"taken_from": origin} for stage in _before(start_at)}
    if start_at == "evaluate" and source.stage == "ppo_train" and "sft_train" in results:
        earlier = {**origin, "stage": "sft_train"}
        taken["sft_train"] = _slim(results["sft_train"], results, earlier)
    taken[BEFORE[start_at]] = kept
    start = {"at": start_at, "origin": kept["taken_from"], "model_dir": "", "taken": taken}
    place = Path(kept["directory"]["url"])
    if not place.is_absolute():
        return start
    _check_digest(place, kept["directory"]["digest"])
    return start | {"model_dir": str(place / kept["model"])}


def _check_speech(theirs: Mapping[str, Any], config: Config, source: str) -> None:
    """A model from scratch writes as it was taught to; no prompt tells it otherwise."""
    if config.model.path or not config.model.from_scratch or "prompt" not in theirs:
        return
    taught, asked = _speech(theirs), _speech(to_plain(config))
    for key, value in asked.items():
        if taught.get(key, value) != value:
            raise ConfigError(
                f"--start-from {source}: its model was taught prompt.{key}={taught[key]}, and this "
                f"run is of prompt.{key}={value}, which a model from scratch can't be told; choose "
                "--experiment and --override as the earlier run did."
            )


def _speech(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What finetuning shows, and what answers look like after it."""
    prompt = settings["prompt"]
    keys = ["response_format", "state_shown", "random_coords"]
    if prompt["response_format"] == "world_model":
        if settings["sft"]["state_loss"] == "strip":
            prompt = {**prompt, "response_format": "plain"}
        else:
            keys += ["observation", "prediction", "prediction_steps"]
    return {key: prompt[key] for key in keys if key in prompt}  # an older run hasn't every setting


def _environment(exported: Mapping[str, Any], source: Source, env_id: str) -> str:
    """The environment of the earlier run whose model is meant."""
    known = list(exported["settings"]["envs"])
    env = source.env or (env_id if env_id in known else known[0])
    if env not in known or (not source.env and env != env_id and len(known) > 1):
        which = f"not {env!r}" if source.env else "and none of them is played here"
        raise ConfigError(
            f"{exported['run']} is of {', '.join(known)}, {which}; write --start-from "
            f"{source.run}@{known[0]}."
        )
    return env


def _slim(
    result: Mapping[str, Any], results: Mapping[str, Any], origin: Mapping[str, str]
) -> dict[str, Any]:
    """A result as the new run carries it; its model is as large as it was after finetuning."""
    kept = {key: value for key, value in result.items() if key not in _LONG}
    size = results.get("sft_train", {}).get("parameters")
    digest = result["directory"]["digest"]
    return {"parameters": size, **kept, "taken_from": {**origin, "digest": digest}}


def _before(start_at: str) -> list[str]:
    stages = list(ARTIFACTS)
    return stages[: stages.index(start_at)]


def _check_digest(place: Path, digest: str) -> None:
    if storage.check_manifest(place)["digest"] != digest:
        raise DataError(f"{place} holds other files than its run says; run its step again.")


def _check_kept(directory: Path) -> None:
    """Compare a directory that a stage kept with its manifest; others have none."""
    if not directory.is_dir():
        raise ConfigError(f"--start-from {directory}: there is no such directory.")
    for place in (directory, *directory.parents[:_MANIFEST_DEPTH]):
        if (place / storage.MANIFEST).is_file():
            storage.check_manifest(place)
            return
