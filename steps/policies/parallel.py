"""Play many episodes with one policy on several processes; how many doesn't change the result."""

from __future__ import annotations

from collections.abc import Sequence

from conf.schema import Config
from steps.agent.records import Trajectory
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.policies.base import PolicySpec, make_policy
from steps.settings import env_factory
from steps.workers import Peers, limit_threads, run_ranks

MIN_EPISODES = 64
"""Fewer episodes than this are not worth a process, which takes seconds to import torch."""


def collect(
    specs: Sequence[EpisodeSpec],
    *,
    config: Config,
    policy_spec: PolicySpec,
    settings: RolloutSettings,
    workers: int,
) -> list[Trajectory]:
    """The episodes' trajectories in the order of `specs`.

    Only a language model on a CPU is spread over `workers` processes, each with a share of the
    episodes: baselines are too quick to gain, and a GPU serves one process best.
    """
    spread = policy_spec.kind == "hf" and _on_cpu(policy_spec)
    size = min(workers, len(specs) // MIN_EPISODES) if spread else 1
    played: list[Trajectory] = run_ranks(
        _play_share, list(specs), config, policy_spec, settings, workers, size=size
    )
    return played


def _on_cpu(spec: PolicySpec) -> bool:
    from steps.policies.hf import resolve_device  # torch

    return resolve_device(spec.device) == "cpu"


def _play_share(
    peers: Peers,
    specs: list[EpisodeSpec],
    config: Config,
    policy_spec: PolicySpec,
    settings: RolloutSettings,
    cores: int,
) -> list[Trajectory]:
    limit_threads(peers.size, cores)
    played = run_episodes(
        specs[peers.rank :: peers.size],
        env_id=config.env.id,
        make_env=env_factory(config),
        policy=make_policy(policy_spec),
        settings=settings,
    )
    shares = peers.gather(played)
    return [shares[index % peers.size][index // peers.size] for index in range(len(specs))]
