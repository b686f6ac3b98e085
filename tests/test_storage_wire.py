"""Trajectories as bytes."""

from __future__ import annotations

from conf import compose
from steps.agent.rollout import EpisodeSpec, run_episodes
from steps.policies.random_policy import RandomPolicy
from steps.settings import env_factory, rollout_settings
from steps.storage.wire import from_bytes, to_bytes


def test_what_arrives_is_what_was_sent() -> None:
    config = compose(env="frozenlake", profile="smoke")
    played = run_episodes(
        [EpisodeSpec(env_seed=seed, group=seed, sampling_seed=seed) for seed in (3, 4)],
        env_id=config.env.id,
        make_env=env_factory(config),
        policy=RandomPolicy(separator="||"),
        settings=rollout_settings(config, for_ppo=True),
    )
    assert any(turn.possible_next for turn in played[0].turns)
    assert from_bytes(to_bytes(played)) == played
