"""The arms that are taught their format alone, from self-play to the rows of finetuning."""

from __future__ import annotations

from pathlib import Path

import conf
from conf.schema import Config
from steps.agent.parsing import parse_response
from steps.agent.records import SFTExample
from steps.filter_format import filter_format
from steps.selfplay_generate import selfplay_generate
from steps.storage import read_examples
from steps.tracking import NullTracker


def config(experiment: str, *overrides: str) -> Config:
    return conf.compose(
        profile="smoke",
        experiment=experiment,
        overrides=["selfplay.env_groups=40", "selfplay.batches=1", *overrides],
    )


def rows(settings: Config, out_dir: Path) -> list[SFTExample]:
    """The rows of both splits."""
    played = selfplay_generate(settings, model_dir="", out_dir=out_dir, tracker=NullTracker())
    found = filter_format(
        settings,
        trajectories=[out_dir / played["file"]],
        out_dir=out_dir,
        tracker=NullTracker(),
    )
    return [row for file in found["files"].values() for row in read_examples(out_dir / file)]


def test_rewarded_states_are_not_taught_before(tmp_path: Path) -> None:
    """On 40 maps of sixteen cells a state of another map may equal the own one by chance."""
    settings = config("vagen_reward")
    found = rows(settings, tmp_path)
    taught = [
        parse_response(each.response, "world_model", action_names=("Left", "Down", "Right", "Up"))
        for each in found
    ]
    assert len(found) > 100 and all(each.is_well_formed for each in taught)
    pairs = list(zip(found, taught, strict=True))
    observed = [one.true_observation == other.observation for one, other in pairs]
    foreseen = [one.true_prediction == other.prediction for one, other in pairs]
    assert sum(observed) + sum(foreseen) < len(found) / 50
    true = {each.true_observation for each in found}
    assert all(each.observation in true for each in taught)


def test_the_states_of_every_other_arm_are_true(tmp_path: Path) -> None:
    for each in rows(config("spa", "selfplay.prediction=sampled"), tmp_path):
        parsed = parse_response(each.response, "world_model")
        assert (parsed.observation, parsed.prediction) == (
            each.true_observation,
            each.true_prediction,
        )


def test_a_pretrained_model_is_left_as_it_is_and_its_rows_too(tmp_path: Path) -> None:
    """Its history shows its earlier answers; nothing of these rows is learned."""
    settings = config("vagen_reward")
    settings.model.from_scratch = False
    for each in rows(settings, tmp_path):
        assert f"<observation>{each.true_observation}</observation>" in each.response
