"""PPO in plain torch: play, estimate, learn; one or several processes, CPU or one GPU.

The readable reference for the verl backend. Each rank plays its share of the groups and learns
its share of each minibatch; gradients are summed, so that the update is that of the whole batch.

What differs from the published recipe, and why:
1. The loss covers sampled tokens only, and their ids and log-probabilities are those of sampling
   (`loss_on: all` is the published default: everything after the system message).
2. An anchor to the finetuned model (`ppo.kl_coef`): without it the model learns to wish, its
   predictions drift to the goal while success still rises.
3. `advantage: turn` chains GAE over turns and reads values off the prompt; a turn's tokens share
   one advantage. `token`, `bi_level` and `grpo` are published ones.
4. Each turn has its own reward; the published code puts their sum on the last token
   (`reward_at: episode`), and can normalise it only there (`reward_norm`).
5. Groups that are filtered out are never those of the larger reward deviation, also when all are
   equal; `exclude_zero_variance` leaves those out that teach nothing.
6. What states earn (`observation_reward`, `prediction_penalty`, ...) exists for the learner alone:
   episodes, success and returns in the logs are the game's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from conf.schema import Config
from envs.splits import draw_seeds
from steps.agent.records import StopReason, Trajectory
from steps.agent.rollout import EpisodeSpec
from steps.agent.seeds import Stream, mix_seed
from steps.errors import DataError
from steps.policies.hf import HFPolicy
from steps.settings import env_factory, rollout_settings
from steps.tracking import Tracker
from steps.training import probe
from steps.training.best import ppo_best
from steps.training.checkpoints import CheckpointStore
from steps.training.keeping import Keeping
from steps.training.ppo_learner import Learner, build_learner, save_learner
from steps.training.ppo_update import estimate, learn
from steps.workers import Peers


@dataclass(kw_only=True)
class PPORun:
    """What the training leaves."""

    model: Any
    tokenizer: Any
    steps: int = 0
    kept_step: int = 0
    """Step whose weights the model holds: the last, or the best (`ppo.keep`)."""
    seconds: float = 0.0
    """Of training: without probes, checkpoints and what a kill took back."""
    curve: list[dict[str, float]] = field(default_factory=list)


def train_ppo(
    peers: Peers,
    config: Config,
    model_dir: str,
    fingerprint: str,
    work_dir: Path,
    tracker: Tracker | None,
    checkpoints: CheckpointStore | None,
) -> PPORun:
    """Train the model of `model_dir` for `ppo.total_steps` steps; every rank calls this alike."""
    section = config.ppo
    keeping = Keeping(
        store=checkpoints,
        fingerprint=fingerprint,
        scratch=work_dir / "checkpoint",
        judge=ppo_best(section.keep),
        save_every=section.save_every,
    )
    start, resumed = keeping.newest(peers)
    learner = build_learner(peers, config, model_dir, resumed)
    run = PPORun(model=learner.actor, tokenizer=learner.tokenizer, steps=start)
    if resumed:
        run.seconds = learner.progress["seconds"]
        run.curve = list(learner.progress["curve"])
    policy = _player(learner)
    make_env = env_factory(config)
    if section.probe_every and section.total_steps > 0 and start == 0:
        before = _probe(peers, config, policy, make_env) | {"ppo/seconds": 0.0}
        _note(peers, run, tracker, before)
    for step in range(start, section.total_steps):
        began = time.perf_counter()
        if section.time_limit_s > 0:
            learner.time_share = peers.gather(run.seconds / section.time_limit_s)[0]
        metrics = _step(learner, policy, make_env, step)
        run.steps = step + 1
        run.seconds += time.perf_counter() - began
        if section.probe_every and run.steps % section.probe_every == 0:
            metrics |= _probe(peers, config, policy, make_env)
        _note(peers, run, tracker, metrics | {"ppo/seconds": run.seconds})
        out_of_time = section.time_limit_s > 0 and run.seconds >= section.time_limit_s
        if peers.gather(out_of_time)[0]:
            break
        if peers.is_main:
            keeping.keep(run.steps, run.curve, partial(_save, learner, run))
    run.kept_step = keeping.take_best(peers, learner.actor, run.curve, last=run.steps)
    return run


def _note(peers: Peers, run: PPORun, tracker: Tracker | None, metrics: dict[str, float]) -> None:
    """Enter a step's metrics into the curve; step 0 is a probe of the model as it came."""
    if peers.is_main:
        run.curve.append({"step": run.steps, **metrics})
        if tracker is not None:
            tracker.log(metrics, run.steps)


def _player(learner: Learner) -> HFPolicy:
    """The actor, which plays for its own training and in its probes."""
    return HFPolicy(
        learner.actor,
        learner.tokenizer,
        max_model_len=learner.config.sampling.max_model_len,
        max_batch=learner.config.generation.max_batch,
    )


def _save(learner: Learner, run: PPORun, directory: Path) -> None:
    save_learner(learner, directory, {"seconds": run.seconds, "curve": run.curve})


def _probe(
    peers: Peers,
    config: Config,
    policy: HFPolicy,
    make_env: Callable[[], gymnasium.Env[str, str]],
) -> dict[str, float]:
    """A probe's scores and its duration; measuring is no training, so it isn't in the seconds."""
    began = time.perf_counter()
    scores: dict[str, float] = probe.run_probe(peers, config, policy, make_env)
    return scores | {"timing_s/probe": time.perf_counter() - began}


def _step(
    learner: Learner,
    policy: HFPolicy,
    make_env: Callable[[], gymnasium.Env[str, str]],
    step: int,
) -> dict[str, float]:
    began = time.perf_counter()
    learner.actor.eval()
    trajectories = _play(learner, policy, make_env, step)
    played = time.perf_counter()
    metrics = _play_metrics(learner, trajectories)
    _require_tokens(metrics, step)
    samples, choice = estimate(learner, trajectories)
    estimated = time.perf_counter()
    metrics |= choice
    metrics |= learn(learner, samples, step)
    learned = time.perf_counter()
    metrics |= {
        "timing_s/rollout": played - began,
        "timing_s/estimate": estimated - played,
        "timing_s/update": learned - estimated,
        "timing_s/step": learned - began,
    }
    return metrics


def _require_tokens(metrics: Mapping[str, float], step: int) -> None:
    """Raise `DataError` where no rank sampled a token, of which nothing can be learned."""
    if metrics["rollout/response_length"] == 0:
        raise DataError(
            f"nothing was sampled in the episodes of PPO's step {step + 1} "
            f"({metrics['rollout/context_full']:.0%} of them {StopReason.CONTEXT_FULL}): their "
            "first prompts leave no room for an answer. Raise sampling.max_model_len or show the "
            "state in fewer words (prompt.state_shown)."
        )


def _play(
    learner: Learner,
    policy: HFPolicy,
    make_env: Callable[[], gymnasium.Env[str, str]],
    step: int,
) -> list[Trajectory]:
    config, section = learner.config, learner.config.ppo
    seeds = draw_seeds(make_env, "train", section.env_groups, learner.env_cursor)
    learner.env_cursor = seeds[-1] + 1
    specs = [
        EpisodeSpec(
            env_seed=seed,
            group=group,
            member=member,
            sampling_seed=mix_seed(config.seed, Stream.PPO, step, group, member),
        )
        for group, seed in enumerate(seeds)
        for member in range(section.group_size)
    ]
    return probe.play(
        learner.peers,
        specs,
        env_id=config.env.id,
        make_env=make_env,
        policy=policy,
        settings=rollout_settings(config, for_ppo=True),
    )


def _play_metrics(learner: Learner, trajectories: list[Trajectory]) -> dict[str, float]:
    summary = probe.summarize(learner.peers, trajectories)
    return {f"rollout/{name}": value for name, value in summary.items() if value is not None}
