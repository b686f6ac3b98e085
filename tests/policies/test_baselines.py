"""Floor and ceiling are what the policies random and oracle reach, however long answers may be."""

from __future__ import annotations

import pytest

import conf
from envs import splits
from steps.agent.rollout import EpisodeSpec, run_episodes
from steps.agent.seeds import mix_seed
from steps.agent.success import success_scores
from steps.policies.base import make_policy
from steps.settings import env_factory, floor_and_ceiling, policy_spec, rollout_settings

PUZZLES, EPISODES = 32, 8
TURNS = {
    "several actions an answer": {"profile": "paper"},
    "one action an answer": {"model": "tiny"},
}


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize(
    "env_id", ["frozenlake", "frozenlake_upstream", "frozenlake_deterministic", "sokoban", "sudoku"]
)
def test_the_oracle_reaches_the_ceiling_and_random_play_the_floor(env_id: str, turns: str) -> None:
    config = conf.compose(env=env_id, **TURNS[turns])
    make_env = env_factory(config)
    seeds = splits.draw_seeds(make_env, "test", PUZZLES, 123, distinct=True)
    bounds = floor_and_ceiling(config, seeds)
    rates = {}
    for policy in ("oracle", "random"):
        specs = [
            EpisodeSpec(
                env_seed=seed, group=group, member=member, sampling_seed=mix_seed(group, member)
            )
            for group, seed in enumerate(seeds)
            for member in range(EPISODES)
        ]
        episodes = run_episodes(
            specs,
            env_id=env_id,
            make_env=make_env,
            policy=make_policy(policy_spec(config, policy)),
            settings=rollout_settings(config),
        )
        rates[policy] = success_scores(episodes)
    ceiling, floor = bounds["ceiling"], bounds["floor"]
    assert ceiling is not None
    assert floor is not None
    if env_id in ("frozenlake", "frozenlake_upstream"):
        low, high = rates["oracle"]["pass@1_low"], rates["oracle"]["pass@1_high"]
        assert low <= ceiling <= high, rates["oracle"]
    else:
        assert rates["oracle"]["pass@1"] == ceiling
    low, high = rates["random"]["pass@1_low"], rates["random"]["pass@1_high"]
    assert low <= floor <= high, rates["random"]
