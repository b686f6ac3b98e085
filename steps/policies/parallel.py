"""Play many episodes with one policy on several processes; how many doesn't change the result.

A vLLM engine is one policy of one process, which has processes of its own, and takes half a minute
and more to start: `kept_engine` keeps it between calls of `collect`, and from one checkpoint of a
model to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from conf.schema import Config
from steps.agent.records import Trajectory
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.policies.base import Policy, PolicySpec, make_policy
from steps.settings import env_factory
from steps.workers import Peers, limit_threads, run_ranks

MIN_EPISODES = 64
"""Fewer episodes than this are not worth a process, which takes seconds to import torch."""


class Engine:
    """The vLLM policy that is running, if one is."""

    def __init__(self) -> None:
        self._key: object = None
        self._policy: Policy | None = None

    def policy(self, spec: PolicySpec) -> Policy:
        """The policy of `spec`: the running one, with other weights if need be, or a new one."""
        key = (spec, _stamps(spec.model_dir), _stamps(spec.adapter_dir))
        if self._key != key and not self._took_weights(spec):
            self.close()
        if self._policy is None:
            self._policy = make_policy(spec)
        self._key = key
        return self._policy

    def _took_weights(self, spec: PolicySpec) -> bool:
        take_weights = getattr(self._policy, "take_weights", None)
        return take_weights is not None and take_weights(spec)

    def close(self) -> None:
        """End the engine, so that others find its memory free."""
        if self._policy is not None and hasattr(self._policy, "close"):
            self._policy.close()
        self._policy = None


_KEPT: ContextVar[Engine | None] = ContextVar("kept_engine", default=None)


@contextmanager
def kept_engine() -> Iterator[None]:
    """Inside, a vLLM engine goes on from one `collect` to the next with models of one form."""
    with _engine() as engine:
        token = _KEPT.set(engine)
        try:
            yield
        finally:
            _KEPT.reset(token)


@contextmanager
def _engine() -> Iterator[Engine]:
    """The one that is kept, or one for the moment."""
    kept = _KEPT.get()
    engine = kept or Engine()
    try:
        yield engine
    finally:
        if kept is None:
            engine.close()


def collect(
    specs: Sequence[EpisodeSpec],
    *,
    config: Config,
    policy_spec: PolicySpec,
    settings: RolloutSettings,
    workers: int,
    on_done: Callable[[int], None] | None = None,
) -> list[Trajectory]:
    """The episodes' trajectories in the order of `specs`.

    As this process's episodes end `on_done` gets their number, times the processes.

    Only a language model on a CPU is spread over `workers` processes, each with a share of the
    episodes: baselines are too quick to gain, and a GPU serves one process best.
    """
    if policy_spec.kind == "vllm":
        with _engine() as engine:
            return _play(specs, config, engine.policy(policy_spec), settings, on_done)
    spread = policy_spec.kind == "hf" and _on_cpu(policy_spec)
    size = min(workers, len(specs) // MIN_EPISODES) if spread else 1
    played: list[Trajectory] = run_ranks(
        _play_share,
        list(specs),
        config,
        policy_spec,
        settings,
        workers,
        size=size,
        main_only=(on_done,),
    )
    return played


def _on_cpu(spec: PolicySpec) -> bool:
    from steps.policies.loading import resolve_device  # torch

    return resolve_device(spec.device) == "cpu"


def _play_share(
    peers: Peers,
    specs: list[EpisodeSpec],
    config: Config,
    policy_spec: PolicySpec,
    settings: RolloutSettings,
    cores: int,
    on_done: Callable[[int], None] | None,
) -> list[Trajectory]:
    limit_threads(peers.size, cores)
    share = specs[peers.rank :: peers.size]
    tell = (lambda number: on_done(number * peers.size)) if on_done else None
    played = _play(share, config, make_policy(policy_spec), settings, tell)
    shares = peers.gather(played)
    return [shares[index % peers.size][index // peers.size] for index in range(len(specs))]


def _play(
    specs: Sequence[EpisodeSpec],
    config: Config,
    policy: Policy,
    settings: RolloutSettings,
    on_done: Callable[[int], None] | None,
) -> list[Trajectory]:
    return run_episodes(
        specs,
        env_id=config.env.id,
        make_env=env_factory(config),
        policy=policy,
        settings=settings,
        on_done=(lambda *_: on_done(1)) if on_done else None,
    )


def _stamps(directory: str) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of each file: a stage may save another model in the same place."""
    files = sorted(Path(directory).glob("*")) if directory else []
    found = ((path.name, path.stat()) for path in files)
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)
