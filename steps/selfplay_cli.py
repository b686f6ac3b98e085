"""`python -m steps.selfplay_generate`: what a model would write in self-play.

    python -m steps.selfplay_generate format-rate --env frozenlake --model DIR --episodes 64

Plays each episode twice, once as the model answers by itself and once with well-formed answers
forced (`generation.constrained`), and prints the share of well-formed answers side by side.
`--model` is a Hugging Face directory or hub name. What it is shown and how it plays is composed as
in a run; `--like` names the file of `conf/model` that it was trained with, which a directory can't
tell: a model made by `--model tiny` wants `--like tiny`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import conf
from conf.schema import Config
from steps.agent.records import ParseStatus
from steps.errors import ConfigError, SPAError
from steps.policies.model_directory import check_model
from steps.report import tables
from steps.selfplay_generate import episode_specs
from steps.settings import (
    BASELINES,
    check_context,
    check_settings,
    check_shape,
    cores,
    model_source,
    policy_spec,
    rollout_settings,
)

MAX_FAULTS = 3
"""So many kinds of faults are named."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a user's mistake is one line and exit status 2."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        config = _config(options)
        rates = format_rates(config, options.model)
    except (SPAError, conf.ConfigError) as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    sys.stdout.write(f"{_table(rates)}\n")


def format_rates(config: Config, model: str) -> dict[str, dict[str, Any]]:
    """`unconstrained` and `constrained` -> format rate, turns, and how many answers of each status.

    The episodes are those of the configuration's self-play, and the same for both.
    """
    from steps.policies.parallel import collect  # brings torch

    check_settings(config, "selfplay")
    forced = replace(config, generation=replace(config.generation, constrained=True))
    spec = policy_spec(forced, model, selfplay=True)
    rates = {}
    for name, constrained in (("unconstrained", False), ("constrained", True)):
        played = collect(
            episode_specs(config),
            config=config,
            policy_spec=replace(spec, constrained=constrained),
            settings=rollout_settings(
                config, splice=config.selfplay.states == "truth", selfplay=True
            ),
            workers=cores(config),
        )
        statuses = Counter(turn.parsed.status for each in played for turn in each.turns)
        rates[name] = {
            "format_rate": statuses[ParseStatus.OK] / max(1, statuses.total()),
            "turns": statuses.total(),
            "statuses": {str(status): count for status, count in statuses.most_common()},
        }
    return rates


def _table(rates: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, each in rates.items():
        faults = [f"{status} {n:,}" for status, n in each["statuses"].items() if status != "ok"]
        words = ", ".join(faults[:MAX_FAULTS]) or "none"
        rows.append((name, tables.number(each["format_rate"]), f"{each['turns']:,}", words))
    return tables.plain_table(("answers", "well-formed", "turns", "faults"), rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m steps.selfplay_generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="format-rate")
    rate = commands.add_parser("format-rate", help="share of well-formed answers, free and forced")
    rate.add_argument("--env", default="frozenlake")
    rate.add_argument("--model", required=True, help="directory or hub name")
    rate.add_argument("--like", default="", help="file of conf/model that the model is like")
    rate.add_argument("--episodes", type=int, default=64)
    rate.add_argument("--profile", default="")
    rate.add_argument("--experiment", default="spa")
    rate.add_argument("--seed", type=int, default=0)
    rate.add_argument("--override", default="", help='as for a run: "sampling.temperature=0.7 ..."')
    return parser


def _config(options: argparse.Namespace) -> Config:
    """The settings of a run with this model, with one episode of each puzzle."""
    if options.model in BASELINES:
        raise ConfigError(
            f"--model {options.model} always writes well-formed answers; name a model."
        )
    config = conf.compose(
        profile=options.profile or None,
        env=options.env,
        model=options.like or options.model,
        experiment=options.experiment,
        seed=options.seed,
        overrides=[
            *(f"selfplay.{name}=1" for name in ("batches", "group_size")),
            f"selfplay.env_groups={options.episodes}",
            *conf.split_overrides(options.override),
        ],
    )
    options.model = model_source(options.model)
    check_model(options.model)
    advice = "name with --like the file of conf/model that it was trained with, and its overrides."
    check_shape(config, options.model, option="--like", advice=advice)
    check_context(config, options.model)
    return config
