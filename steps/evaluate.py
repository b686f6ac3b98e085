"""The honest measures of a model: Pass@1 and Pass@k with intervals, between floor and ceiling.

Every model of a run plays the same held-out puzzles with the same sampling seeds, so that two of
them are compared puzzle by puzzle. The puzzles depend on `evaluation.base_seed` alone and are the
same for every run; `config.seed` varies only how answers are drawn.

Floor (uniformly random play) and ceiling (optimal play) are of the same puzzles under the same
action budget, turns and actions a turn. The ceiling is exact or absent; so is the floor unless
`floor_exact` is False: then it was played, and lies in [`floor_low`, `floor_high`]. A sample can
land a little above the ceiling or below the floor by luck, within its interval.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import conf
from conf.schema import Config
from envs import solvers, splits
from envs.errors import EnvironmentConfigError
from steps import settings as from_config
from steps import storage
from steps.agent import success, worldmodel
from steps.agent.records import StopReason, Trajectory, Turn
from steps.agent.rollout import EpisodeSpec
from steps.agent.seeds import Stream, mix_seed
from steps.agent.success import Bootstrap
from steps.errors import ConfigError, StageError
from steps.report import tables, transcripts
from steps.tracking import Tracker

FINAL = "final"
"""Name of the model whose scores stand at the top of the summary."""

_log = logging.getLogger(__name__)


def evaluate(
    config: Config, *, model_dirs: Mapping[str, str], out_dir: Path, tracker: Tracker
) -> dict[str, Any]:
    """Plays held-out puzzles with each model and returns the report, plain values only.

    `model_dirs` maps names to Hugging Face directories, or to "random" or "oracle"; it holds
    "final". The report's `summary` has the scores of "final" and, nested under their names, those
    of the others. Writes `report.json` and `trajectories_<name>.parquet` to `out_dir`.
    """
    from steps.policies.parallel import kept_engine  # brings processes and, in them, torch

    assert FINAL in model_dirs, f"no {FINAL!r} among the models {sorted(model_dirs)}"
    started = time.monotonic()
    specs = episode_specs(config)
    seeds = [spec.env_seed for spec in specs if spec.member == 0]
    bounds = dict(zip(seeds, from_config.bounds_of_puzzles(config, seeds), strict=True))
    models: dict[str, dict[str, Any]] = {}
    tries: dict[str, dict[str, success.Tries]] = {}
    with kept_engine():
        for name, model_dir in model_dirs.items():
            trajectories = play(config, specs, model_dir, temperature=config.evaluation.temperature)
            file = out_dir / f"trajectories_{name}.parquet"
            storage.write_trajectories(file, trajectories, config_digest=conf.digest(config))
            models[name] = _describe(config, trajectories, bounds) | {
                "model": model_dir,
                "file": file.name,
            }
            models[name]["scores"] |= greedy_scores(config, specs, model_dir)
            tries[name] = success.tries_by_puzzle(trajectories)
    for name, model_dir in model_dirs.items():  # the engine's memory is free now
        models[name]["scores"] |= teacher_forced_scores(config, specs, model_dir)
        _track(tracker, name, models[name]["scores"])
    report = {
        "env_id": config.env.id,
        "summary": _summary(models),
        "models": models,
        "gains": _gains(config, tries),
        "settings": _settings(config),
        "seconds": time.monotonic() - started,
    }
    storage.atomic_write_json(out_dir / "report.json", report)
    return report


def episode_specs(config: Config) -> list[EpisodeSpec]:
    """The episodes to play, the same for every model: distinct puzzles x samples.

    Raises `ConfigError` where the world hasn't so many puzzles.
    """
    chosen = config.evaluation
    make_env = from_config.env_factory(config)
    try:
        seeds = splits.draw_seeds(
            make_env, chosen.split, chosen.puzzles, chosen.base_seed, distinct=True
        )
    except EnvironmentConfigError as error:
        raise ConfigError(f"evaluation.puzzles={chosen.puzzles}: {error}") from error
    return [
        EpisodeSpec(
            env_seed=seed,
            group=group,
            member=member,
            sampling_seed=mix_seed(config.seed, Stream.EVALUATION, group, member),
        )
        for group, seed in enumerate(seeds)
        for member in range(chosen.samples)
    ]


def aggregate(trajectories: Sequence[Trajectory], config: Config) -> dict[str, float | None]:
    """All scores of one model's episodes as flat numbers: success, play, world model."""
    rates = success.success_scores(
        trajectories, pass_k={1, *config.evaluation.pass_k}, bootstrap=_bootstrap(config)
    )
    played = play_scores(trajectories, config.env.max_actions_per_turn)
    return rates | played | worldmodel.scores(trajectories)


def play_scores(trajectories: Sequence[Trajectory], actions_a_turn: int) -> dict[str, float | None]:
    """How the episodes were played: return, lengths and the share of useful actions.

    `valid_actions` is the share of actions that the game knows, of those that were executed or
    couldn't be; actions beyond a limit or the end of the game are neither. Episodes that broke are
    in no mean over episodes, as they are in no rate of success; their turns count as turns.
    """
    whole = [each for each in trajectories if each.stop_reason is not StopReason.POLICY_ERROR]
    num_turns = [len(each.turns) for each in whole]
    num_actions = [len(turn.transitions) for each in whole for turn in each.turns]
    turns = [turn for each in trajectories for turn in each.turns]
    actions = [step for turn in turns for step in turn.transitions]
    tokens = [len(turn.completion.token_ids) for turn in turns if turn.completion.token_ids]
    valid = sum(step.valid for step in actions)
    return {
        "return": _mean(sum(each.reward for each in whole), len(whole)),
        "turns_per_episode": _mean(sum(num_turns), len(whole)),
        "actions_per_episode": _mean(sum(num_actions), len(whole)),
        "effective_actions": _mean(sum(step.effective for step in actions), len(actions)),
        "valid_actions": _mean(
            valid, len(actions) + sum(_num_unknown(turn, actions_a_turn) for turn in turns)
        ),
        "response_chars": _mean(sum(len(turn.completion.text) for turn in turns), len(turns)),
        "response_tokens": _mean(sum(tokens), len(tokens)),
    }


def greedy_scores(
    config: Config, specs: Sequence[EpisodeSpec], model_dir: str
) -> dict[str, float | None]:
    """`greedy_success` and its interval: one more episode of each puzzle, at temperature 0."""
    if not config.evaluation.greedy:
        return {}
    played = play(config, [spec for spec in specs if spec.member == 0], model_dir, temperature=0.0)
    rates = success.success_scores(played, bootstrap=_bootstrap(config))
    return {f"greedy_success{end}": rates[f"pass@1{end}"] for end in ("", "_low", "_high")}


def teacher_forced_scores(
    config: Config, specs: Sequence[EpisodeSpec], model_dir: str
) -> dict[str, float | None]:
    """`teacher_forced_observation_exact` and the like, of models that have likelihoods."""
    seeds = [spec.env_seed for spec in specs if spec.member == 0]
    seeds = seeds[: config.evaluation.teacher_forced_puzzles]
    if not seeds or model_dir in from_config.BASELINES:
        return {}
    from steps.training import teacher_forced  # brings torch

    cores = from_config.cores(config)
    found = teacher_forced.measure(config, model_dir, seeds, cores=cores)
    return {f"teacher_forced_{name}": value for name, value in found.items()}


def play(
    config: Config,
    specs: Sequence[EpisodeSpec],
    model_dir: str,
    *,
    temperature: float,
    on_done: Callable[[int], None] | None = None,
) -> list[Trajectory]:
    """The episodes; raises `StageError` where the policy failed in every one.

    `on_done` is told of as many as have ended, as `collect` does.
    """
    from steps.policies.parallel import collect  # brings processes and, in them, torch

    trajectories = collect(
        specs,
        config=config,
        policy_spec=from_config.policy_spec(config, model_dir),
        settings=from_config.rollout_settings(config, temperature=temperature),
        workers=from_config.cores(config),
        on_done=on_done,
    )
    broken = [each for each in trajectories if each.error]
    if trajectories and len(broken) == len(trajectories):
        raise StageError(
            f"all {len(broken)} episodes of {model_dir!r} on {config.env.id} broke, the "
            f"first with: {broken[0].error}. Nothing can be measured; mend the policy and resume."
        )
    return trajectories


def _describe(
    config: Config, trajectories: Sequence[Trajectory], bounds: Mapping[int, solvers.PuzzleBounds]
) -> dict[str, Any]:
    """Everything the report says of one model; `bounds` are those of each puzzle's seed."""
    scores = aggregate(trajectories, config) | solvers.summary(list(bounds.values()))
    tries = success.tries_by_puzzle(trajectories)
    of_puzzle = {each.puzzle_hash: bounds[each.env_seed] for each in trajectories}
    stops: dict[str, int] = {}
    for each in trajectories:
        stops[str(each.stop_reason)] = stops.get(str(each.stop_reason), 0) + 1
    scores["few_puzzles"] = from_config.has_few_puzzles(config)
    return {
        "scores": scores | success.attainable(scores),
        "stop_reasons": dict(sorted(stops.items(), key=lambda item: -item[1])),
        "statuses": worldmodel.status_counts(trajectories),
        **{
            name: worldmodel.scores_by(trajectories, key)
            for name, key in worldmodel.BREAKDOWNS.items()
        },
        "by_difficulty": success.scores_by_difficulty(
            tries,
            {puzzle: (each.chance, each.ceiling) for puzzle, each in of_puzzle.items()},
            pass_k={1, *config.evaluation.pass_k},
            bootstrap=_bootstrap(config),
        ),
        "puzzles": {puzzle: [each.successes, each.num] for puzzle, each in tries.items()},
        "sample": transcripts.sample(trajectories),
    }


def _summary(models: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Scores of the final model, those of the others nested under their names."""
    others = {name: dict(each["scores"]) for name, each in models.items() if name != FINAL}
    return {**models[FINAL]["scores"], **others}


def _gains(config: Config, tries: Mapping[str, Mapping[str, success.Tries]]) -> dict[str, Any]:
    """Pass@1 of the final model above each other one, on the same puzzles."""
    return {
        name: success.paired_gain(each, tries[FINAL], _bootstrap(config))
        for name, each in tries.items()
        if name != FINAL
    }


def _settings(config: Config) -> dict[str, Any]:
    """What a score depends on besides the model."""
    env, chosen = config.env, config.evaluation
    shown = asdict(from_config.prompt_settings(config))
    return {
        "env_kwargs": dict(env.kwargs),
        "max_turns": env.max_turns,
        "max_actions": env.max_actions,
        **{name: str(value) if isinstance(value, str) else value for name, value in shown.items()},
        "lenient": config.prompt.lenient,
        "max_new_tokens": config.sampling.max_new_tokens,
        "max_model_len": config.sampling.max_model_len,
        "split": chosen.split,
        "base_seed": chosen.base_seed,
        "samples": chosen.samples,
        "temperature": chosen.temperature,
        "top_p": config.sampling.top_p,
        "confidence": chosen.confidence,
        "seed": config.seed,
    }


def _bootstrap(config: Config) -> Bootstrap:
    return Bootstrap(resamples=config.evaluation.bootstrap, confidence=config.evaluation.confidence)


def _track(tracker: Tracker, name: str, scores: Mapping[str, float | None]) -> None:
    _log.info(
        "evaluation of the model %s: Pass@1 %s over %s episodes; random play %s, optimal play %s",
        tables.model_name(name),
        *(tables.number(scores.get(key)) for key in ("pass@1", "n", "floor")),
        tables.score_text(scores, "ceiling"),
    )
    known = {f"{name}/{key}": float(value) for key, value in scores.items() if value is not None}
    tracker.log(known, step=0)


def _num_unknown(turn: Turn, actions_a_turn: int) -> int:
    """Pieces of an answer that are no action, of as many as the turn could have played."""
    looked_at = min(turn.parsed.num_emitted, actions_a_turn, turn.actions_left)
    return looked_at - len(turn.parsed.actions)


def _mean(total: float, num: int) -> float | None:
    return total / num if num else None


if __name__ == "__main__":
    from steps.evaluate_cli import main

    main()
