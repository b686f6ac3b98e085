"""Probes: Pass@k and classes of turns over several ranks, and what a probe is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import conf
from steps.agent import worldmodel
from steps.agent.records import StopReason, Trajectory
from steps.agent.rollout import EpisodeSpec, run_episodes
from steps.policies.hf import HFPolicy
from steps.policies.loading import load_model, load_tokenizer
from steps.policies.random_policy import RandomPolicy
from steps.settings import env_factory, rollout_settings
from steps.training import probe
from steps.workers import Peers
from tests.training.fakes import Ranks
from tests.training.toys import finetuned, toy_config


def random_play(num: int = 12) -> list[Trajectory]:
    config = conf.compose()
    return run_episodes(
        [
            EpisodeSpec(env_seed=seed, group=seed, member=member, sampling_seed=2 * seed + member)
            for seed in range(num)
            for member in (0, 1)
        ],
        env_id="frozenlake",
        make_env=env_factory(config),
        policy=RandomPolicy(),
        settings=rollout_settings(config),
    )


def test_pass_at_k_is_over_the_puzzles_of_all_ranks() -> None:
    config = conf.compose(overrides=["ppo.probe_samples=2", "ppo.probe_pass_k=[1,2]"])
    played = random_play()
    halves = [played[:12], played[12:]]
    ranks = Ranks(1, [probe.tries_by_group(half) for half in halves])
    found = probe.pass_scores(ranks, config, halves[1])  # type: ignore[arg-type]
    won = [(a.success + b.success) for a, b in zip(played[::2], played[1::2], strict=True)]
    assert found["pass@1"] == pytest.approx(sum(won) / 24)
    assert found["pass@2"] == pytest.approx(sum(count > 0 for count in won) / 12)
    assert found["pass@1_low"] <= found["pass@1"] <= found["pass@1_high"]  # type: ignore[operator]


def test_each_puzzle_is_played_by_one_rank_and_all_of_them_find_its_pass_rates() -> None:
    config = conf.compose(overrides=["ppo.probe_samples=2", "ppo.probe_pass_k=[1,2]"])
    played = [share_of(Peers(rank, 2)) for rank in (0, 1)]
    assert [sorted({each.env_seed for each in share}) for share in played] == [
        [0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]
    ]  # fmt: skip
    assert [len(share) for share in played] == [16, 16]
    won: dict[int, list[bool]] = {}
    for each in share_of(Peers()):
        won.setdefault(each.env_seed, []).append(each.success)
    ranks = Ranks(0, [probe.tries_by_group(share) for share in played])
    found = probe.pass_scores(ranks, config, played[0])  # type: ignore[arg-type]
    assert 0 < found["pass@1"] == pytest.approx(sum(map(sum, won.values())) / 32)  # type: ignore[operator]
    assert found["pass@2"] == pytest.approx(sum(map(any, won.values())) / 16)
    assert found == probe.pass_scores(Peers(), config, share_of(Peers()))  # intervals, too


def share_of(peers: Peers) -> list[Trajectory]:
    """Random play of this rank's share of sixteen puzzles, each twice."""
    config = conf.compose()
    return probe.play(
        peers,
        [
            EpisodeSpec(env_seed=seed, group=seed, member=member, sampling_seed=2 * seed + member)
            for seed in range(16)
            for member in (0, 1)
        ],
        env_id="frozenlake",
        make_env=env_factory(config),
        policy=RandomPolicy(),
        settings=rollout_settings(config),
    )


def test_episodes_whose_context_was_full_are_counted() -> None:
    played = random_play(2)
    cut = replace(played[0], stop_reason=StopReason.CONTEXT_FULL)
    assert probe.summarize(Peers(), played)["context_full"] == 0
    assert probe.summarize(Peers(), [cut, *played[1:]])["context_full"] == 0.25


def test_classes_of_turns_are_those_of_all_ranks() -> None:
    played = random_play()
    halves = [played[:12], played[12:]]
    shares = [
        {
            name: {each: sums.sums for each, sums in worldmodel.tallies_by(half, key).items()}
            for name, key in worldmodel.BREAKDOWNS.items()
        }
        for half in halves
    ]
    found = probe.class_scores(Ranks(0, shares), halves[0])  # type: ignore[arg-type]
    whole = worldmodel.scores_by(played, worldmodel.only_action)
    assert set(whole) == {"Up", "Down", "Left", "Right"}
    for action, scores in whole.items():
        assert found[f"by_action/{action}/prediction_exact"] == pytest.approx(
            scores["prediction_exact"]
        )
    assert {key.split("/")[1] for key in found if key.startswith("by_effect")} == {
        "effective", "ineffective"
    }  # fmt: skip


def test_a_probe_has_success_pass_at_k_and_likelihoods(tmp_path: Path) -> None:
    config = toy_config()
    config = replace(config, ppo=replace(config.ppo, probe_samples=2, probe_pass_k=[1, 2]))
    directory = finetuned(tmp_path, config)
    policy = HFPolicy(load_model(directory), load_tokenizer(directory))
    make_env = env_factory(config)
    found = probe.run_probe(Peers(), config, policy, make_env)
    assert found["probe/pass@1"] == found["probe/success"] == found["probe/return"]
    assert found["probe/pass@2"] >= found["probe/pass@1"]
    assert 0.4 < found["probe/teacher_forced_answer_nll"] < 1.0
    assert found == probe.run_probe(Peers(), config, policy, make_env)
    config.evaluation.teacher_forced_puzzles = 0
    found = probe.run_probe(Peers(), config, policy, make_env)
    assert not [key for key in found if "teacher_forced" in key]
