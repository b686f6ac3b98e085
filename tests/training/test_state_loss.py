"""`sft.state_loss` from self-play to the model that comes of it: train, mask and strip."""

from __future__ import annotations

from pathlib import Path

import pytest

import conf
from conf.schema import Config
from steps.agent.records import ResponseFormat, SFTExample, Trajectory
from steps.agent.rollout import EpisodeSpec, run_episodes
from steps.filter_format import to_row
from steps.policies.random_policy import RandomPolicy
from steps.settings import env_factory, prompt_settings, rollout_settings
from steps.training.probe import run_probe
from steps.training.sft_local import train_sft
from steps.training.tiny_model import build_tiny, build_tokenizer
from steps.training.tokenization import span_weights, tokenize_examples
from steps.workers import Peers


def config(state_loss: str) -> Config:
    return conf.compose(
        profile="smoke",
        overrides=[
            f"sft.state_loss={state_loss}",
            "env.kwargs.size=3",
            "selfplay.prediction=sampled",
            "device=cpu",
            "sft.max_steps=120",
            "sft.lr=1e-2",
        ],
    )


def played(settings: Config, count: int) -> list[Trajectory]:
    """Random self-play with true states."""
    return run_episodes(
        [EpisodeSpec(env_seed=seed, group=seed, sampling_seed=seed) for seed in range(count)],
        env_id=settings.env.id,
        make_env=env_factory(settings),
        policy=RandomPolicy(separator=settings.env.action_separator),
        settings=rollout_settings(settings, splice=True, selfplay=True),
    )


def rows(settings: Config, count: int = 2) -> list[SFTExample]:
    strip = settings.sft.state_loss == "strip"
    return [
        to_row(trajectory, turn, strip=strip)
        for trajectory in played(settings, count)
        for turn in trajectory.turns
    ]


def learned_text(settings: Config, example: SFTExample) -> str:
    tokenizer = build_tokenizer()
    (row,) = tokenize_examples([example], tokenizer, weights=span_weights(settings.sft))
    return str(tokenizer.decode([t for t, w in zip(row.token_ids, row.weights, strict=True) if w]))


def test_trained_states_are_learned_masked_ones_are_read_and_stripped_ones_are_gone() -> None:
    train, mask, strip = (config(name) for name in ("train", "mask", "strip"))
    turn = played(train, 1)[0].turns[0]
    action = turn.transitions[0].action
    end = f"</think><answer>{action}</answer><|end|>"
    states = (
        f"<observation>{turn.observation_truth}</observation>"
        f"<prediction>{turn.prediction_truth}</prediction>"
    )
    masked = "<observation></observation><prediction></prediction>"
    texts = [learned_text(settings, rows(settings)[0]) for settings in (train, mask, strip)]
    assert len(turn.transitions) == 1
    assert texts == [f"<think>{states}{end}", f"<think>{masked}{end}", f"<think>{end}"]
    assert rows(mask)[0] == rows(train)[0]
    assert rows(strip)[0].prompt == rows(train)[0].prompt


@pytest.mark.parametrize(
    ("state_loss", "later"),
    [
        ("train", ResponseFormat.WORLD_MODEL),
        ("mask", ResponseFormat.WORLD_MODEL),
        ("strip", ResponseFormat.PLAIN),
    ],
)
def test_only_after_stripping_do_later_stages_play_in_another_format(
    state_loss: str, later: ResponseFormat
) -> None:
    settings = config(state_loss)
    selfplay = prompt_settings(settings, selfplay=True)
    assert selfplay.response_format is ResponseFormat.WORLD_MODEL
    assert prompt_settings(settings).response_format is later
    assert rollout_settings(settings).prompt.response_format is later


def test_a_model_taught_without_states_speaks_as_the_stages_after_it_ask(tmp_path: Path) -> None:
    settings = config("strip")
    model_dir = str(build_tiny(settings.model, tmp_path / "initial"))
    run = train_sft(Peers(), settings, rows(settings, 60), [], model_dir, "f", tmp_path, None, None)
    policy = run.policy(settings)
    scores = run_probe(Peers(), settings, policy, env_factory(settings), puzzles=8)
    assert scores["probe/format_rate"] > 0.9
    assert "probe/observation_exact" not in scores
