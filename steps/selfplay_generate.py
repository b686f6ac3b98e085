"""Self-play: a policy plays training puzzles, and the true states replace its own in what it said.

The paper's policy is the model before finetuning. Two deviations:

1. A model made from scratch can't speak, so its first round is played at random, in well-formed
   answers with true states. Arms that teach the format alone (`sft.target: format`) have random
   play in every round; where their answers hold states, the filter takes the truth out of them
   again (`steps.agent.lending`).
2. No puzzle of self-play is met again in PPO or in evaluation (`envs.splits`).

Successes and failures are kept alike: what is learned is the world, not a good player.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import conf
from conf.schema import Config
from envs import splits
from envs.errors import EnvironmentConfigError
from steps.agent.records import Trajectory
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.agent.seeds import mix_seed
from steps.errors import ConfigError, StageError
from steps.policies.base import PolicySpec, make_policy
from steps.report import transcripts
from steps.settings import (
    BASELINES,
    check_settings,
    cores,
    env_factory,
    policy_spec,
    rollout_settings,
    training_seed,
)
from steps.storage import TrajectoryWriter, directory_digest, json_digest, model_digest
from steps.storage.batches import Batch, Batches, BatchStore
from steps.tracking import Tracker

FILE = "trajectories.parquet"
SPLIT = "sft"
SECTIONS = ("seed", "env", "model", "prompt", "sampling", "generation", "selfplay")
"""Settings that an episode depends on, besides who plays it."""

_log = logging.getLogger(__name__)


def selfplay_generate(
    config: Config,
    *,
    model_dir: str,
    out_dir: Path,
    round_index: int = 1,
    tracker: Tracker,
    batches: BatchStore | None = None,
) -> dict[str, Any]:
    """Play `env_groups` x `group_size` episodes in each of `batches`, and store them.

    `model_dir` is the model that plays (empty: the configuration's own); the first round of a
    model from scratch needs none. Each batch goes to the store `batches` when it ends, and a call
    that finds some there plays only the others; the file is the same, byte for byte, as if nothing
    had come between. Returns plain values: counts, rates, and three transcripts; `seconds` are
    those of playing, whenever that was. Raises `ConfigError` before anything is played.
    """
    check_settings(config, "selfplay")
    spec = player(config, model_dir, round_index)
    settings = rollout_settings(config, splice=_takes_truth(config, spec), selfplay=True)
    specs = episode_specs(config, round_index)
    kept = Batches(batches, fingerprint_of(config, spec, round_index))
    tally = Tally()
    file = TrajectoryWriter(out_dir / FILE, config_digest=conf.digest(config))
    with _engine(spec), file as writer:
        for index, batch in enumerate(_batches(config, specs)):
            found = kept.find(index, [(each.env_seed, each.group, each.member) for each in batch])
            played = found or _timed_play(config, batch, spec, settings)
            writer.write(played.trajectories)
            if found is None:
                kept.keep(index, played)
            tally.add(played.trajectories, played.seconds)
            metrics = tally.metrics() | {"selfplay/constrained": float(spec.constrained)}
            tracker.log(metrics, step=index + 1)
            how = "" if found is None else " (kept by an earlier attempt)"
            _log.info("self-play batch %d/%d%s: %s", index + 1, config.selfplay.batches, how, tally)
    tally.check(config)
    return {
        **tally.result(),
        "file": FILE,
        "env_kwargs": dict(config.env.kwargs),
        "policy": spec.kind if spec.kind in BASELINES else "model",
        "constrained": spec.constrained,
        "states": "truth" if settings.splice else "self_belief",
        "round": round_index,
        "seeds": [specs[0].env_seed, specs[-1].env_seed],
        "seconds": tally.seconds,
    }


def fingerprint_of(config: Config, spec: PolicySpec, round_index: int) -> str:
    """16 hexadecimal digits that name a round's episodes: settings, and the bytes of the player."""
    settings = {
        key: value
        for key, value in conf.flat(config).items()
        if key.split(".")[0] in SECTIONS and key not in conf.OF_TRAINING and conf.has_effect(key)
    }
    model = spec.model_dir
    facts = {
        "settings": settings,
        "round": round_index,
        "player": spec.kind,
        "model": model_digest(Path(model)) if model and Path(model).is_dir() else model,
    }
    if spec.adapter_dir:
        facts["adapter"] = directory_digest(Path(spec.adapter_dir))
    return json_digest(facts)[:16]


def player(config: Config, model_dir: str = "", round_index: int = 1) -> PolicySpec:
    """Who plays this round; `auto` is the model where it can speak and what it says is taught."""
    chosen = config.selfplay.policy
    if chosen in BASELINES:
        return policy_spec(config, chosen, selfplay=True)
    is_mute = config.model.from_scratch and round_index == 1
    if chosen == "auto" and (is_mute or config.sft.target == "format"):
        return policy_spec(config, "random", selfplay=True)
    directory = model_dir or config.model.path
    if not directory:
        raise ConfigError(
            f"selfplay.policy={chosen} lets the model play round {round_index}, but the model is "
            "made from scratch and has learned nothing; set selfplay.policy=auto, or give a "
            "trained model with model.path."
        )
    return policy_spec(config, directory, selfplay=True)


def episode_specs(config: Config, round_index: int = 1) -> list[EpisodeSpec]:
    """The episodes of one round, batch by batch; each round goes on where the last one ended.

    Which puzzles they are depends on the run's seed.
    """
    section = config.selfplay
    groups = section.env_groups * section.batches
    try:
        seeds = splits.draw_seeds(
            env_factory(config),
            SPLIT,
            groups * round_index,
            training_seed(config, section.base_seed),
        )[-groups:]
    except EnvironmentConfigError as error:
        raise ConfigError(f"self-play on {config.env.id}: {error}") from error
    return [
        EpisodeSpec(
            env_seed=seed,
            group=group,
            member=member,
            sampling_seed=mix_seed(config.seed, round_index, seed, member),
        )
        for group, seed in enumerate(seeds)
        for member in range(section.group_size)
    ]


class Tally:
    """What has been played so far."""

    def __init__(self) -> None:
        self.num_trajectories = 0
        self.num_turns = 0
        self.num_successes = 0
        self.num_well_formed = 0
        self.num_broken = 0
        self.first_error = ""
        self.seconds = 0.0
        self.puzzles: set[str] = set()
        self._readable: list[Trajectory] = []

    def add(self, played: list[Trajectory], seconds: float) -> None:
        """Count a batch that took `seconds` to play."""
        self.seconds += seconds
        for trajectory in played:
            self.num_trajectories += 1
            self.num_turns += len(trajectory.turns)
            self.num_successes += trajectory.success
            self.num_well_formed += sum(turn.parsed.is_well_formed for turn in trajectory.turns)
            self.puzzles.add(trajectory.puzzle_hash)
            if trajectory.error:
                self.num_broken += 1
                self.first_error = self.first_error or trajectory.error
        if not self._readable:
            self._readable = played

    @property
    def success_rate(self) -> float:
        """Share of episodes."""
        return self.num_successes / max(1, self.num_trajectories)

    @property
    def format_rate(self) -> float:
        """Share of turns whose answer is well-formed."""
        return self.num_well_formed / max(1, self.num_turns)

    def metrics(self) -> dict[str, float]:
        """Numbers for the tracker."""
        return {
            "selfplay/trajectories": self.num_trajectories,
            "selfplay/turns": self.num_turns,
            "selfplay/success_rate": self.success_rate,
            "selfplay/format_rate": self.format_rate,
            "selfplay/turns_per_second": self.num_turns / max(self.seconds, 1e-9),
        }

    def check(self, config: Config) -> None:
        """Refuse a round in which the policy failed in every episode."""
        if self.num_broken == self.num_trajectories:
            raise StageError(
                f"all {self.num_broken} episodes of self-play on {config.env.id} broke, the first "
                f"with: {self.first_error}. Mend the policy and resume."
            )

    def result(self) -> dict[str, Any]:
        """Plain values for the flow."""
        return {
            "trajectories": self.num_trajectories,
            "turns": self.num_turns,
            "success_rate": self.success_rate,
            "format_rate": self.format_rate,
            "broken": self.num_broken,
            "puzzles": len(self.puzzles),
            "sample": transcripts.sample(self._readable),
        }

    def __str__(self) -> str:
        return (
            f"{self.num_trajectories} episodes, {self.num_turns} turns, "
            f"success {self.success_rate:.3f}, well-formed {self.format_rate:.3f}"
        )


def _takes_truth(config: Config, spec: PolicySpec) -> bool:
    """Whether true states replace the policy's own; a baseline has no beliefs to learn from."""
    return config.selfplay.states == "truth" or spec.kind in BASELINES


def _batches(config: Config, specs: list[EpisodeSpec]) -> Iterator[list[EpisodeSpec]]:
    size = config.selfplay.env_groups * config.selfplay.group_size
    return (specs[start : start + size] for start in range(0, len(specs), size))


def _engine(spec: PolicySpec) -> AbstractContextManager[None]:
    """A model's engine goes on from batch to batch."""
    if spec.kind in BASELINES:
        return nullcontext()
    from steps.policies.parallel import kept_engine  # brings torch

    return kept_engine()


def _timed_play(
    config: Config, specs: list[EpisodeSpec], spec: PolicySpec, settings: RolloutSettings
) -> Batch:
    began = time.monotonic()
    played = _play(config, specs, spec, settings)
    return Batch(trajectories=played, seconds=time.monotonic() - began)


def _play(
    config: Config, specs: list[EpisodeSpec], spec: PolicySpec, settings: RolloutSettings
) -> list[Trajectory]:
    if spec.kind in BASELINES:
        return run_episodes(
            specs,
            env_id=config.env.id,
            make_env=env_factory(config),
            policy=make_policy(spec),
            settings=settings,
        )
    from steps.policies.parallel import collect  # brings torch

    return collect(specs, config=config, policy_spec=spec, settings=settings, workers=cores(config))


if __name__ == "__main__":
    from steps.selfplay_cli import main

    main()
