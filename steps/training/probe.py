"""A short play on held-out puzzles, by the model in training and by all ranks together.

A probe also reads the likelihoods of true answers to random play (`teacher_forced`), which unlike
everything played don't depend on where the model goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import gymnasium

from conf.schema import Config
from envs.splits import draw_seeds
from steps.agent import success, worldmodel
from steps.agent.records import StopReason, Trajectory
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.agent.seeds import Stream, mix_seed
from steps.policies.base import Policy
from steps.policies.context import within_context
from steps.policies.hf import HFPolicy
from steps.settings import rollout_settings
from steps.training import teacher_forced
from steps.training.tokenization import SFTRow
from steps.workers import Peers

SPLIT = "validation"
BY_CLASS = ("observation_exact", "prediction_exact", "prediction_possible")
"""Scores of a probe that are told apart by class of turn."""


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

    `context_full` is the share of episodes that ended because a prompt left no room for an answer.
    """
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    own = (
        len(trajectories),
        len(turns),
        sum(len(turn.completion.token_ids) for turn in turns),
        sum(trajectory.success for trajectory in trajectories),
        sum(trajectory.reward for trajectory in trajectories),
        sum(trajectory.stop_reason is StopReason.CONTEXT_FULL for trajectory in trajectories),
    )
    total = peers.sum([*own, *worldmodel.tally(trajectories).sums])
    episodes, num_turns, tokens, won, reward, full = total[: len(own)]
    return {
        "success": won / max(episodes, 1.0),
        "return": reward / max(episodes, 1.0),
        "num_turns": num_turns / max(episodes, 1.0),
        "response_length": tokens / max(num_turns, 1.0),
        "context_full": full / max(episodes, 1.0),
        **worldmodel.Tally(total[len(own) :]).scores(),
    }


def run_probe(
    peers: Peers,
    config: Config,
    policy: HFPolicy,
    make_env: Callable[[], gymnasium.Env[str, str]],
    *,
    puzzles: int | None = None,
) -> dict[str, float]:
    """Play validation puzzles, the same at every probe, and score them.

    `probe/success`, `probe/pass@k` with their intervals, and so on; `probe/by_action/Up/...` and
    the like by class of turn; `probe/teacher_forced_...`.
    """
    section = config.ppo
    count = section.probe_puzzles if puzzles is None else puzzles
    seeds = draw_seeds(make_env, SPLIT, count, section.base_seed, distinct=True)
    specs = [
        EpisodeSpec(
            env_seed=seed,
            group=group,
            member=member,
            sampling_seed=mix_seed(config.seed, Stream.PROBE, group, member),
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
    found = summarize(peers, trajectories)
    found |= pass_scores(peers, config, trajectories)
    found |= class_scores(peers, trajectories)
    forced = forced_scores(peers, config, policy, make_env)
    found |= {f"teacher_forced_{name}": value for name, value in forced.items()}
    return {f"probe/{name}": value for name, value in found.items() if value is not None}


def pass_scores(
    peers: Peers, config: Config, trajectories: Sequence[Trajectory]
) -> dict[str, float | None]:
    """`pass@k` of `ppo.probe_pass_k` with intervals over all ranks' puzzles."""
    evaluation = config.evaluation
    # In order of groups: what a bootstrap draws would depend on how they are spread over the ranks.
    shares = peers.gather(tries_by_group(trajectories))
    items = sorted((item for share in shares for item in share), key=itemgetter(0))
    tries = {puzzle: each for _, puzzle, each in items}
    bootstrap = success.Bootstrap(resamples=evaluation.bootstrap, confidence=evaluation.confidence)
    return success.pass_scores(tries, pass_k=config.ppo.probe_pass_k, bootstrap=bootstrap)


def tries_by_group(trajectories: Sequence[Trajectory]) -> list[tuple[int, str, success.Tries]]:
    """Group, puzzle hash and tries of each puzzle."""
    group_of = {trajectory.puzzle_hash: trajectory.group for trajectory in trajectories}
    tries = success.tries_by_puzzle(trajectories)
    return [(group_of[puzzle], puzzle, each) for puzzle, each in tries.items()]


def class_scores(peers: Peers, trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    """`by_effect/effective/prediction_exact` and the like over all ranks' turns."""
    own = {
        name: {each: sums.sums for each, sums in worldmodel.tallies_by(trajectories, key).items()}
        for name, key in worldmodel.BREAKDOWNS.items()
    }
    shares = peers.gather(own)
    found: dict[str, float | None] = {}
    for name in own:
        merged: dict[str, worldmodel.Tally] = {}
        for each, sums in (pair for share in shares for pair in share[name].items()):
            merged[each] = merged.get(each, worldmodel.Tally()).merge(worldmodel.Tally(sums))
        for each, values in worldmodel.class_scores(merged).items():
            found |= {f"{name}/{each}/{key}": values[key] for key in BY_CLASS}
    return found


def forced_scores(
    peers: Peers,
    config: Config,
    policy: HFPolicy,
    make_env: Callable[[], gymnasium.Env[str, str]],
) -> dict[str, float]:
    """Likelihoods of true answers on validation puzzles, the same at every probe."""
    longest = within_context(policy.model.config)
    rows = forced_rows(config, make_env, policy.tokenizer, longest=longest)
    found: dict[str, float] = teacher_forced.scores(peers, policy.model, rows)
    return found


def forced_rows(
    config: Config, make_env: Callable[[], gymnasium.Env[str, str]], tokenizer: Any, *, longest: int
) -> list[SFTRow]:
    """The true answers of a probe; those of more than `longest` tokens are left out."""
    count = config.evaluation.teacher_forced_puzzles
    seeds = draw_seeds(make_env, SPLIT, count, config.ppo.base_seed)
    examples = teacher_forced.true_answers(config, make_env, seeds)
    return teacher_forced.tokenized(examples, tokenizer, longest=longest)
