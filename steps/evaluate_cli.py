"""`python -m steps.evaluate`: measures that stand apart from a run.

    python -m steps.evaluate passk --env frozenlake --model DIR --like tiny --samples 1024
    python -m steps.evaluate perplexity --env frozenlake --model DIR --like tiny

`--model` is a Hugging Face directory or hub name (for `passk` also `random` or `oracle`). What it
is shown and how it plays is composed as in a run; `--like` names the file of `conf/model` that it
was trained with, which a directory can't tell: a model made by `--model tiny` wants `--like tiny`.
Prints a table, and writes it with all else as JSON (and a picture) where `--out` says.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import conf
from conf.schema import Config
from envs import splits
from envs.base import STATE_FORMATS
from envs.errors import EnvironmentConfigError
from steps import settings as from_config
from steps import storage
from steps.agent import success
from steps.errors import ConfigError, SPAError
from steps.evaluate import episode_specs, play
from steps.policies.model_directory import base_of_adapter, check_model
from steps.report import tables

CHUNK = 8192
"""Episodes played at once: only their outcomes are kept."""
EVERY_S = 10.0
"""Between two words on how far the episodes are."""
LIKE = "name with --like the file of conf/model that it was trained with, and its overrides."


class Measured(NamedTuple):
    """What a command found."""

    table: str
    write: Callable[[Path], Iterator[Path]]
    """Writes all of it to a directory, file by file."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a user's mistake is one line and exit status 2."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        storage.check_out(options.out)
        measured: Measured = options.command(options)
        sys.stdout.write(f"{measured.table}\n")
        sys.stdout.flush()
        storage.write_out(options.out, measured.write)
    except (SPAError, conf.ConfigError) as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None


class Told:
    """Says on stderr how many episodes are played, about every `EVERY_S` seconds."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._next = time.monotonic() + EVERY_S

    def add(self, number: int) -> None:
        """So many more have ended."""
        self._done += number
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_S
            done = min(self._done, self._total)  # processes' shares may differ by one
            sys.stderr.write(f"{done:,} of {self._total:,} episodes played\n")


def passk(config: Config, model: str) -> dict[str, Any]:
    """Pass@k of one model for every k of `evaluation.pass_k`, between floor and ceiling.

    Floor and ceiling are of a single try.
    """
    specs = episode_specs(config)
    samples = config.evaluation.samples
    size = samples * max(1, CHUNK // samples)
    tries: dict[str, success.Tries] = {}
    told = Told(len(specs))
    for start in range(0, len(specs), size):
        played = play(
            config,
            specs[start : start + size],
            model,
            temperature=config.evaluation.temperature,
            on_done=told.add,
        )
        tries |= success.tries_by_puzzle(played)
    evaluation = config.evaluation
    bootstrap = success.Bootstrap(resamples=evaluation.bootstrap, confidence=evaluation.confidence)
    seeds = [spec.env_seed for spec in specs if spec.member == 0]
    scores = success.pass_scores(tries, pass_k=evaluation.pass_k, bootstrap=bootstrap)
    scores |= from_config.floor_and_ceiling(config, seeds)
    return {
        "env_id": config.env.id,
        "model": model,
        "scores": scores,
        "n": sum(each.num for each in tries.values()),
        "puzzles": {puzzle: [each.successes, each.num] for puzzle, each in tries.items()},
        "settings": conf.shown(conf.to_plain(config)),
    }


def write_passk(result: dict[str, Any], out_dir: Path) -> Iterator[Path]:
    """`passk.json` and `passk.png` of what `passk` found."""
    from steps.report import figures  # brings matplotlib

    file, picture = out_dir / "passk.json", out_dir / "passk.png"
    storage.atomic_write_json(file, result)
    yield file
    puzzles, samples = len(result["puzzles"]), result["settings"]["evaluation"]["samples"]
    title = f"{result['env_id']}: {Path(result['model']).name}, {puzzles} puzzles x {samples}"
    picture.write_bytes(figures.pass_curve({"": result["scores"]}, title=title))
    yield picture


def perplexity(
    config: Config, model: str, *, state_formats: Sequence[str], puzzles: int
) -> dict[str, Any]:
    """State perplexity of one model in each format, as `steps.training.perplexity` defines it."""
    for state_format in state_formats:
        from_config.one_of("--states", state_format, STATE_FORMATS)
    check_model(model)
    try:
        seeds = splits.draw_seeds(
            from_config.env_factory(config),
            config.evaluation.split,
            puzzles,
            config.evaluation.base_seed,
            distinct=True,
        )
    except EnvironmentConfigError as error:
        raise ConfigError(f"--puzzles {puzzles}: {error}") from error
    from steps.training.perplexity import measure  # brings torch

    cores = from_config.cores(config)
    found = measure(config, model, state_formats=state_formats, seeds=seeds, cores=cores)
    return {
        "env_id": config.env.id,
        "model": model,
        "puzzles": puzzles,
        "states": found,
        "settings": conf.shown(conf.to_plain(config)),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m steps.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="passk | perplexity")
    sweep = commands.add_parser("passk", help="Pass@k for many k")
    _common(sweep, _passk_command)
    sweep.add_argument("--samples", type=int, default=1024, help="episodes of each puzzle")
    sweep.add_argument("--puzzles", type=int, default=32)
    sweep.add_argument(
        "--k", type=_numbers, default=(), help="1,4,16,...; all powers of two by default"
    )
    words = commands.add_parser("perplexity", help="how surprising the words of a state are")
    _common(words, _perplexity_command)
    words.add_argument("--states", default=",".join(STATE_FORMATS), help="state formats")
    words.add_argument("--puzzles", type=int, default=64)
    return parser


def _common(parser: argparse.ArgumentParser, command: Any) -> None:
    parser.set_defaults(command=command)
    parser.add_argument("--env", default="frozenlake")
    parser.add_argument("--model", required=True, help="directory, hub name, random or oracle")
    parser.add_argument("--like", default="", help="file of conf/model that the model is like")
    parser.add_argument("--profile", default="")
    parser.add_argument("--experiment", default="spa")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--override", default="", help='as for a run: "evaluation.temperature=0.7 ..."'
    )
    parser.add_argument("--out", type=Path, help="directory for results")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        message = f"{text!r} isn't whole numbers separated by commas, such as 1,4,16"
        raise argparse.ArgumentTypeError(message) from error


def _powers(samples: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `samples`."""
    return tuple(1 << power for power in range(max(samples, 1).bit_length()))


def _passk_command(options: argparse.Namespace) -> Measured:
    ks = options.k or _powers(options.samples)
    config = _config(
        options,
        f"evaluation.samples={options.samples}",
        f"evaluation.puzzles={options.puzzles}",
        f"evaluation.pass_k=[{','.join(map(str, ks))}]",
    )
    result = passk(config, options.model)
    scores = result["scores"]
    rows = [
        (key.split("@")[1], tables.number(scores[key]) + tables.interval_text(scores, key))
        for key in tables.pass_keys(scores)
    ]
    words = f"{result['n']:,} episodes of {len(result['puzzles'])} puzzles of {config.env.id}"
    bounds = ", ".join(
        f"{name} {tables.score_text(scores, key)}"
        for key, name in (("floor", "random play"), ("ceiling", "optimal play"))
    )
    table = f"{words}; a single try of {bounds}\n{tables.plain_table(('k', 'Pass@k'), rows)}"
    return Measured(table, partial(write_passk, result))


def _perplexity_command(options: argparse.Namespace) -> Measured:
    if options.model in from_config.BASELINES:
        raise ConfigError(f"--model {options.model} reads no text; name a model directory.")
    config = _config(options)
    result = perplexity(
        config,
        options.model,
        state_formats=[part.strip() for part in options.states.split(",")],
        puzzles=options.puzzles,
    )
    columns = ("perplexity", "perplexity_mean", "character_perplexity", "states", "tokens")
    rows = [
        (name, *(tables.number(each[column]) for column in columns))
        for name, each in result["states"].items()
    ]
    table = tables.plain_table(("states", *map(tables.words, columns)), rows)
    return Measured(table, partial(_write_perplexity, result))


def _write_perplexity(result: dict[str, Any], out_dir: Path) -> Iterator[Path]:
    file = out_dir / "perplexity.json"
    storage.atomic_write_json(file, result)
    yield file


def _config(options: argparse.Namespace, *more: str) -> Config:
    """The settings of a run with this model, whose word becomes a directory or hub name."""
    is_baseline = options.model in from_config.BASELINES
    config = conf.compose(
        profile=options.profile or None,
        env=options.env,
        model=options.like or (None if is_baseline else options.model),
        experiment=options.experiment,
        seed=options.seed,
        overrides=[*more, *conf.split_overrides(options.override)],
    )
    if not is_baseline:
        options.model = from_config.model_source(options.model)
        model = base_of_adapter(options.model) or options.model
        check_model(model)
        from_config.check_shape(config, model, option="--like", advice=LIKE)
        from_config.check_context(config, model)
    return config
