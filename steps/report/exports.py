"""Exported runs as data: read from files, directories or the datastore, one record an environment.

A file is what `steps.orchestration.export` or `benchmarks.side_by_side` wrote. Settings that an
older export doesn't hold take today's neutral defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import conf
from steps.errors import DataError

SCHEMA = 1
STAGES = ("selfplay_generate", "filter_format", "sft_train", "ppo_train", "evaluate")


@dataclass(frozen=True, kw_only=True)
class Played:
    """One environment of one run that was evaluated."""

    name: str
    """Of the file, or the run's pathspec."""
    run: str
    env_id: str
    settings: Mapping[str, Any]
    """Dotted key -> value, `start.*` included where the run started from an earlier one."""
    stages: Mapping[str, Mapping[str, Any]]
    seconds: float | None
    """Of the whole run, all its environments together."""
    origin: str = ""
    """Run, environment, stage and digest of the model it started from; a directory's digest."""
    began: float = 0.0
    """Seconds since 1970, or a number that grows from run to run."""
    commit: str = ""
    """Of the code; empty where the run doesn't say."""

    @property
    def experiment(self) -> str:
        """The arm."""
        return str(self.settings["experiment"])

    @property
    def model(self) -> str:
        """Our name of the model."""
        return str(self.settings["model.name"])

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.settings["seed"])

    @property
    def summary(self) -> Mapping[str, Any]:
        """Scores of the final model, those of the others nested."""
        summary: Mapping[str, Any] = self.stages["evaluate"]["summary"]
        return summary

    @property
    def ppo(self) -> Mapping[str, Any]:
        """Result of PPO, or nothing."""
        return self.computed("ppo_train")

    def computed(self, stage: str) -> Mapping[str, Any]:
        """A stage's result; nothing where it was taken from elsewhere and isn't this run's."""
        result = self.stages.get(stage, {})
        return {} if "taken_from" in result else result

    @property
    def episodes_a_step(self) -> int:
        """Episodes that one PPO step plays."""
        return int(self.settings["ppo.env_groups"]) * int(self.settings["ppo.group_size"])


@dataclass
class Collection:
    """What a list of runs holds."""

    played: list[Played] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A line for everything that isn't in the table."""


def read(runs: Iterable[str]) -> Collection:
    """Every environment of every run; raises `DataError` for a name that leads nowhere."""
    found = Collection()
    for run in runs:
        path = Path(run)
        if path.is_dir():
            _read_directory(path, found)
        elif path.suffix == ".json" or path.is_file():
            _add(_load(path), path.stem, found)
        elif run.count("/") > 1 or run.startswith((".", "/", "~")):
            raise DataError(f"{run} is no file or directory, and no run's pathspec (FLOW/ID).")
        else:
            from steps.orchestration.export import export_run  # brings metaflow

            _add(export_run(run), run, found)
    return found


def _read_directory(directory: Path, found: Collection) -> None:
    files = sorted(directory.glob("*.json"))
    if not files:
        raise DataError(f"no exported run (*.json) in {directory}; give another directory.")
    for file in files:
        try:
            _add(_load(file), file.stem, found)
        except DataError as error:
            found.left_out.append(str(error))


def _load(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read as an exported run ({error}).") from error
    if not isinstance(value, dict) or not {"settings", "environments"} <= value.keys():
        raise DataError(f"{path} is no exported run; make one by steps.orchestration.export.")
    if value.get("schema") != SCHEMA:
        raise DataError(
            f"{path} is an export of schema {value.get('schema')}, not {SCHEMA}; export it again."
        )
    return value


def _add(exported: Mapping[str, Any], name: str, found: Collection) -> None:
    for env_id, plain in exported["settings"]["envs"].items():
        stages = exported["environments"].get(env_id, {})
        start = exported["settings"].get("start", {}).get(env_id, {})
        one = Played(
            name=name,
            run=exported["run"],
            env_id=env_id,
            settings={**conf.flat(conf.Config()), **flat(plain), **_start(start)},
            stages=stages,
            seconds=exported.get("seconds"),
            origin=_origin(start),
            began=_began(exported),
            commit=str(exported["settings"].get("commit", "")),
        )
        if stages.get("evaluate", {}).get("summary"):
            found.played.append(one)
            continue
        done = ", ".join(stage for stage in STAGES if stage in stages) or "nothing"
        found.left_out.append(
            f"{name}: {one.experiment} on {env_id}, seed {one.seed}, wasn't evaluated "
            f"(finished: {done})."
        )


def flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key; `env.kwargs` stays one value."""
    pairs: dict[str, Any] = {}
    for key, value in plain.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name != "env.kwargs":
            pairs |= flat(value, f"{name}.")
        else:
            pairs[name] = value
    return pairs


def _began(exported: Mapping[str, Any]) -> float:
    """When a run began; where an export doesn't say, by its id: the clock's microseconds."""
    number = str(exported["run"]).rpartition("/")[2]
    return float(exported.get("began") or (int(number) / 1e6 if number.isdecimal() else 0))


def _origin(start: Mapping[str, Any]) -> str:
    origin = start.get("origin", {})
    return " ".join(str(value) for key, value in origin.items() if key != "directory")


def _start(start: Mapping[str, Any]) -> dict[str, Any]:
    """What kind of model a run started from: not which run's of several, but which directory's."""
    if not start:
        return {}
    origin = start["origin"]
    is_directory = "directory" in origin
    return {
        "start.at": start["at"],
        "start.stage": origin.get("stage", "directory"),
        "start.env": origin.get("env", ""),
        "start.experiment": start.get("experiment", ""),
        "start.directory": origin["digest"][:12] if is_directory else "",
    }
