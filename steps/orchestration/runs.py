"""From the command line to the settings of a run, and the lines a run prints about itself.

Metaflow resolves decorators (and so `@resources`) before it knows any parameter, and `resume` takes
none: therefore the parser of the flow's `Config` reads the command line itself, once, in the
process that starts the run. Tasks and resumed runs get what was stored then.

Nothing here imports Metaflow: the flow file calls `name_user` before Metaflow reads the name.
"""

from __future__ import annotations

import argparse
import difflib
import getpass
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

import conf
from steps.errors import ConfigError, unknown_name
from steps.orchestration.command_line import FLAGS, command_index, module_line, near

CACHE_MODES = ("auto", "off", "refresh")
RETRIES = 1
"""How often a stage is tried again after a crash."""
METAFLOWS_WORKERS = 16
"""Its own `--max-workers`."""
OF_RUN = (
    "--tag",
    "--max-workers",
    "--max-num-splits",
    "--max-log-size",
    "--with",
    "--run-id-file",
    "--runner-attribute-file",
    "--namespace",
)
"""Metaflow's options behind `run`."""
STARTS_AT = ("ppo_train", "evaluate")
"""Stages that can start from an earlier run's model."""
FROM_EARLIER = ("easy_to_hard", "cross_complexity", "cross_game")
"""Experiments that are what they are by the earlier run they start from."""
STEPS = (
    "start",
    "selfplay_generate",
    "filter_format",
    "sft_train",
    "ppo_train",
    "evaluate",
)
"""Steps whose resources are settings."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for; field names are option names."""

    env: str = "frozenlake"
    model: str = ""
    profile: str = ""
    experiment: str = "spa"
    cluster: str = "local"
    override: str = ""
    seed: int = 0
    cache: str = "auto"
    start_from: str = ""
    start_at: str = "ppo_train"


def read_request(argv: Sequence[str]) -> Request:
    """The options among `argv` that are ours; Metaflow's own are left to Metaflow.

    Overrides of several `--override` count together. Raises `ConfigError` where another option is
    given twice, or without a usable value.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for field in fields(Request):
        parser.add_argument(f"--{field.name.replace('_', '-')}", action="append")
    try:
        found, others = parser.parse_known_args([*argv])
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error}; see `run --help`.") from error
    _check_options(argv, others)
    given = {name: values for name, values in vars(found).items() if values is not None}
    for name, values in given.items():
        if len(values) > 1 and name != "override":
            option = f"--{name.replace('_', '-')}"
            seen = ", ".join(map(repr, values))
            raise ConfigError(f"{option} is given {len(values)} times ({seen}); give it once.")
    texts = {name: " ".join(values) for name, values in given.items()}
    seed = texts.pop("seed", str(Request.seed))
    try:
        return Request(**texts, seed=int(seed))
    except ValueError as error:
        raise ConfigError(f"--seed takes a whole number, not {seed!r}.") from error


def _check_options(argv: Sequence[str], others: Sequence[str]) -> None:
    """Refuse a misspelt option of ours before Metaflow does, which is after our settings' lines.

    What is like none of ours is left to Metaflow.
    """
    ours = [f"--{field.name.replace('_', '-')}" for field in fields(Request)]
    behind = argv[command_index(["", *argv]) :]
    for word in others:
        name = word.partition("=")[0]
        if not name.startswith("--") or word not in behind or name in (*OF_RUN, *FLAGS):
            continue
        begun = [option for option in ours if option.startswith(name)]
        close = difflib.get_close_matches(name, ours, n=1, cutoff=0.7)
        if begun or close:
            meant = " or ".join(begun or close)
            raise ConfigError(f"`run` has no option {name}; did you mean {meant}?")


def elsewhere(argv: Sequence[str], cluster: str) -> str:
    """What to know of a run with `--cluster` whose tasks nothing sends there; empty else."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--with", action="append", default=[], dest="decorators")
    given = [*parser.parse_known_args([*argv])[0].decorators]
    given += os.environ.get("METAFLOW_DEFAULT_DECOSPECS", "").split()
    wanted = {"aws_batch": "batch"}.get(cluster, cluster)
    if cluster == "local" or any(each.partition(":")[0] == wanted for each in given):
        return ""
    return (
        f"  --cluster {cluster} only sizes the tasks, and these run on this machine; add "
        f"`--with {wanted}` to have them run there."
    )


def max_workers(argv: Sequence[str]) -> int:
    """How many tasks Metaflow does at once; what isn't a number is left for Metaflow to refuse."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--max-workers", default="")
    found = parser.parse_known_args([*argv])[0].max_workers
    return int(found) if found.isdecimal() else METAFLOWS_WORKERS


def settings_of(
    request: Request,
    check: Callable[[conf.Config], None] = lambda _: None,
    find: Callable[[Request, conf.Config], dict[str, Any]] = lambda *_: {},
) -> dict[str, Any]:
    """Plain settings of a run: `envs` (id -> its whole config), `resources` (by step), `request`
    (without passwords), and `start` (id -> the earlier run's results that it starts from).

    `check` judges each environment's config before any work starts, `find` looks for the earlier
    run's model where the request asks for one.
    """
    _check_start(request)
    if request.cache not in CACHE_MODES:
        raise ConfigError(unknown_name("cache mode", request.cache, CACHE_MODES))
    configs = {env_id: _compose(request, env_id) for env_id in _env_ids(request.env)}
    for config in configs.values():
        if config.cluster == "local":
            config.branches = len(configs)
        check(config)
    found = configs.items() if request.start_from else ()
    first = next(iter(configs.values()))
    return {
        "request": conf.shown(vars(request)),
        "envs": {env_id: conf.to_plain(config) for env_id, config in configs.items()},
        "start": {env_id: find(request, config) for env_id, config in found},
        "resources": {step: _resources(first, step) for step in STEPS},
    }


def config_of(settings: Mapping[str, Any], env_id: str) -> conf.Config:
    """One environment's config, as a run's settings hold it."""
    return conf.from_plain(settings["envs"][env_id])


def describe(settings: Mapping[str, Any]) -> list[str]:
    """The settings in a few lines, for a reader; everything at `log_level=debug`; none of none."""
    if not settings:
        return []
    request = settings["request"]
    configs = {env_id: config_of(settings, env_id) for env_id in settings["envs"]}
    first = next(iter(configs.values()))
    lines = [
        f"SPA: experiment {first.experiment}, profile {first.profile}, model {first.model.name}, "
        f"seed {first.seed}, cluster {first.cluster}"
    ]
    for env_id, config in configs.items():
        start = settings.get("start", {}).get(env_id, {})
        lines += [f"  {env_id} (settings {conf.digest(config)})", *_stages(config, start)]
    if request["override"]:
        lines.append(f"  overrides: {' '.join(conf.split_overrides(request['override']))}")
    if first.log_level == "debug":
        lines += [f"  {env_id}.{key} = {value!r}" for env_id, config in configs.items()
                  for key, value in conf.shown(conf.flat(config)).items()]  # fmt: skip
    return lines


def name_of(settings: Mapping[str, Any], env_ids: Sequence[str], run_id: str) -> str:
    """What a card is of, in a line."""
    config = config_of(settings, env_ids[0])
    parts = (", ".join(env_ids), config.experiment, config.model.name, config.profile)
    return " · ".join([*parts, f"seed {config.seed}", f"run {run_id}"])


def failure_table(failures: Mapping[str, Mapping[str, Any]], *, finished: Sequence[str]) -> str:
    """What became of each environment, a line each."""
    lines = [f"{len(failures)} of {len(failures) + len(finished)} environments failed:"]
    lines += [f"  {env_id:<24} finished" for env_id in finished]
    lines += [
        f"  {env_id:<24} failed in {failure['step']}: {failure['error']}"
        for env_id, failure in failures.items()
    ]
    return "\n".join(lines)


def next_lines(settings: Mapping[str, Any], env_id: str, run_id: str, model: Path) -> list[str]:
    """The commands that look further into a run: its row in the table, and Pass@k of its model."""
    asked, name = settings["request"], config_of(settings, env_id).model.name
    given = {
        "env": env_id,
        "like": name if name in conf.known("model") else "",
        **{key: asked[key] for key in ("profile", "experiment", "override")},
    }
    differs = {key: word for key, word in given.items() if word != vars(Request()).get(key, "")}
    options = [word for key, value in differs.items() for word in (f"--{key}", value)]
    sweep = ("steps.evaluate", "passk", *options, "--model", near(model), "--samples", "64")
    table = ("steps.report.paper_table", run_id)
    return [module_line(*words) for words in (table, sweep)]


def refuse(error: Exception) -> NoReturn:
    """End the process with one line and exit code 2."""
    sys.stderr.write(f"{error}\n")
    raise SystemExit(2)


def name_user() -> None:
    """Give Metaflow a user name where the system has none, or only root, which it refuses."""
    names = ("METAFLOW_USER", "SUDO_USER", "USERNAME", "USER")
    if not any(os.environ.get(name) not in (None, "", "root") for name in names):
        user = getpass.getuser() if hasattr(os, "getuid") and os.getuid() else "spa"
        os.environ["METAFLOW_USER"] = user


def skip_pylint() -> None:
    """Spare each run Metaflow's lint of the flow file, or its words on pylint that isn't there."""
    os.environ.setdefault("METAFLOW_PYLINT", "false")


def set_logging(level: str) -> None:
    """Send the stages' log lines to the task's output; only the flow calls this."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    for name in ("steps", "envs", "conf"):
        logging.getLogger(name).setLevel(level.upper())


def _env_ids(text: str) -> list[str]:
    ids = [part.strip() for part in text.split(",")]
    if not all(ids):
        raise ConfigError(f"--env {text!r} holds an empty name; write them as --env a,b.")
    for env_id in ids:
        if ids.count(env_id) > 1:
            raise ConfigError(f"--env {text!r} names {env_id!r} twice; name each once.")
    return ids


def _compose(request: Request, env_id: str) -> conf.Config:
    try:
        return conf.compose(
            profile=request.profile or None,
            env=env_id,
            model=request.model or None,
            experiment=request.experiment,
            cluster=request.cluster,
            seed=request.seed,
            overrides=conf.split_overrides(request.override),
        )
    except conf.ConfigError as error:
        raise ConfigError(str(error)) from error


def _resources(config: conf.Config, step: str) -> dict[str, Any]:
    """By Metaflow's names; no GPU is None, since a cluster can't schedule a request for zero."""
    section = getattr(config.resources, step)
    return {"cpu": section.cpu, "gpu": section.gpu or None, "memory": section.memory}


def _stages(config: conf.Config, start: Mapping[str, Any]) -> list[str]:
    """A line a stage; for those that aren't computed, one that says where they come from."""
    env, selfplay, sft, ppo, test = (
        config.env, config.selfplay, config.sft, config.ppo, config.evaluation
    )  # fmt: skip
    episodes = selfplay.env_groups * selfplay.group_size * selfplay.batches
    length = f"{sft.max_steps} steps" if sft.max_steps else f"{sft.epochs} epochs"
    lines = {
        "game": f"at most {env.max_turns} turns of {env.max_actions_per_turn} action(s), "
        f"{env.max_actions} actions in all; answers: {config.prompt.response_format}",
        "self-play": f"{selfplay.rounds} round(s) of {episodes} episodes, "
        f"states: {selfplay.states}",
        "SFT": f"{length} of batch {sft.batch_size}, lr {sft.lr:g}, target: {sft.target}",
        "PPO": f"{ppo.total_steps} steps of {ppo.env_groups * ppo.group_size} episodes, "
        f"lr {ppo.lr:g}, KL {ppo.kl_coef:g}"
        + (f", {ppo.budget_factor:g} times the actions" if ppo.budget_factor != 1 else ""),
        "evaluation": f"{test.puzzles} {test.split} puzzles x {test.samples} episodes",
    }
    if start:
        computed = ("game", "PPO", "evaluation")[:: 2 if start["at"] == "evaluate" else 1]
        lines = {name: lines[name] for name in computed}
        lines["starts"] = f"at {start['at']}, from {_origin(start)}"
    return [f"    {name:<12}{text}" for name, text in lines.items()]


def _origin(start: Mapping[str, Any]) -> str:
    """Whose model a run starts from."""
    origin = start["origin"]
    digest = f"(digest {origin['digest'][:12]})"
    if "directory" in origin:
        return f"directory {origin['directory']} {digest}"
    return f"{origin['run']}, {origin['stage']} of {origin['env']} {digest}"


def _check_start(request: Request) -> None:
    if request.start_at not in STARTS_AT:
        raise ConfigError(unknown_name("stage to start at", request.start_at, STARTS_AT))
    if request.start_from:
        return
    if request.start_at != Request.start_at:
        raise ConfigError(
            f"--start-at {request.start_at} needs a model: give --start-from a run or directory."
        )
    if request.experiment in FROM_EARLIER:
        raise ConfigError(
            f"experiment {request.experiment} starts from an earlier run: give --start-from RUN "
            "(docs/experiments.md has examples)."
        )
