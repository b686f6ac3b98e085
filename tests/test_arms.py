"""The arms that the documentation's tables were made by: what they ask for can still be had."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

import conf
from benchmarks.side_by_side import read_arms
from steps.training.verl_ppo_limits import lacks

ARMS = Path(__file__).parents[1] / "benchmarks" / "arms"


def parser() -> argparse.ArgumentParser:
    """The options of a run that arms are made of."""
    made = argparse.ArgumentParser()
    for name in ("--env", "--experiment", "--model", "--profile", "--override"):
        made.add_argument(name)
    made.add_argument("--seed", type=int, default=0)
    return made


@pytest.mark.parametrize("file", sorted(ARMS.glob("*.txt")), ids=lambda file: file.stem)
def test_each_arm_composes(file: Path) -> None:
    arms = read_arms(file)
    assert arms
    for arm in arms:
        options = parser().parse_args(arm.options)
        config = conf.compose(
            env=options.env,
            experiment=options.experiment,
            profile=options.profile or "laptop",
            model=options.model,
            seed=options.seed,
            overrides=shlex.split(options.override or ""),
        )
        assert config.ppo.backend != "verl" or lacks(config) == "", arm.name
