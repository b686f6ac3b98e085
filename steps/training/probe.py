"""A short play on held-out puzzles, by the model in training and by all ranks together."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium

from conf.schema import Config
from envs.splits import draw_seeds
from steps.agent import worldmodel
from steps.agent.records import Trajectory
from steps.agent.rollout import EpisodeSpec, RolloutSettings, mix_seed, run_episodes
from steps.policies.base import Policy
from steps.policies.hf import HFPolicy
from steps.settings import rollout_settings
from steps.workers import Peers


def play(
    peers: Peers,
    specs: list[EpisodeSpec],
    *,
    env_id: str,
    make_env: Callable[[], gymnasium.Env[str, str]],
    policy: Policy,
    settings: RolloutSettings,
) -> list[Trajectory]:
    """Play this rank's share of `specs` (by group, so that a group stays together)."""
    mine = [spec for spec in specs if spec.group % peers.size == peers.rank]
    return run_episodes(mine, env_id=env_id, make_env=make_env, policy=policy, settings=settings)


def summarize(peers: Peers, trajectories: list[Trajectory]) -> dict[str, float | None]:
    """Success, return, lengths and world-model scores over the episodes of all ranks.

    Rates over turns are weighted by each rank's turns, rates over episodes by its episodes.
    """
    episodes = {
        "success": float(sum(trajectory.success for trajectory in trajectories)),
        "return": sum(trajectory.reward for trajectory in trajectories),
        "num_turns": float(sum(len(trajectory.turns) for trajectory in trajectories)),
    }
    turns = sum(len(trajectory.turns) for trajectory in trajectories)
    response_tokens = sum(
        len(turn.completion.token_ids) for trajectory in trajectories for turn in trajectory.turns
    )
    scores = worldmodel.scores(trajectories)
    names = [name for name in scores if name != "turns"]
    present = [float(scores[name] is not None) * turns for name in names]
    weighted = [(scores[name] or 0.0) * turns for name in names]
    total = peers.sum(
        [len(trajectories), turns, response_tokens, *episodes.values(), *present, *weighted]
    )
    count, all_turns, all_tokens = total[0], max(total[1], 1.0), total[2]
    summary: dict[str, float | None] = {
        name: value / max(count, 1.0) for name, value in zip(episodes, total[3:], strict=False)
    }
    summary["response_length"] = all_tokens / all_turns
    tail = total[3 + len(episodes) :]
    for index, name in enumerate(names):
        weight = tail[index]
        summary[name] = tail[len(names) + index] / weight if weight > 0 else None
    return summary


def run_probe(
    peers: Peers,
    config: Config,
    policy: HFPolicy,
    make_env: Callable[[], gymnasium.Env[str, str]],
    *,
    puzzles: int | None = None,
) -> dict[str, float]:
    """Play validation puzzles, the same at every probe, and score them."""
    section = config.ppo
    count = section.probe_puzzles if puzzles is None else puzzles
    seeds = draw_seeds(make_env, "validation", count, section.base_seed, distinct=True)
    specs = [
        EpisodeSpec(
            env_seed=seed,
            group=group,
            member=member,
            sampling_seed=mix_seed(config.seed, 7, group, member),
        )
        for group, seed in enumerate(seeds)
        for member in range(section.probe_samples)
    ]
    policy.model.eval()
    trajectories = play(
        peers,
        specs,
        env_id=config.env.id,
        make_env=make_env,
        policy=policy,
        settings=rollout_settings(config),
    )
    summary = summarize(peers, trajectories)
    return {f"probe/{name}": value for name, value in summary.items() if value is not None}
