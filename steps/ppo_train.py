"""Stage `ppo_train`: reinforcement learning from the finetuned model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from conf.schema import Config
from envs import splits
from envs.errors import EnvironmentConfigError
from steps import storage
from steps.errors import StageError
from steps.policies.model_directory import check_model
from steps.settings import check_settings, cores, env_factory, floor_and_ceiling, has_few_puzzles
from steps.tracking import Tracker
from steps.training.backends import choose_backend, num_ranks, signature
from steps.training.checkpoints import CheckpointStore, fingerprint_of, save_model
from steps.training.ppo_local import train_ppo
from steps.workers import Peers, limit_threads, run_ranks


def ppo_train(
    config: Config,
    *,
    model_dir: str,
    out_dir: Path,
    checkpoints: CheckpointStore,
    tracker: Tracker,
) -> dict[str, Any]:
    """Train and return plain facts: `model` (directory), `curve`, `steps`, `seconds`, `backend`,
    and `floor` and `ceiling`: random and optimal play on the validation puzzles.

    Raises `StageError` where fewer steps were done than planned without a time limit.
    """
    check_settings(config, "ppo")
    backend = choose_backend(config, "ppo")
    check_model(model_dir)
    fingerprint = fingerprint_of(
        stage="ppo_train",
        config=config,
        sections=("seed", "env", "model", "prompt", "sampling", "ppo"),
        inputs={
            "model": storage.directory_digest(Path(model_dir)),
            "backend": signature(config, "ppo", backend),
        },
    )
    train_by = _by_verl if backend == "verl" else _by_ranks
    result = train_by(
        config,
        model_dir=model_dir,
        fingerprint=fingerprint,
        out_dir=out_dir,
        tracker=tracker,
        checkpoints=checkpoints,
    )
    shutil.rmtree(out_dir / "work", ignore_errors=True)
    planned = config.ppo.total_steps
    if result["steps"] != planned and config.ppo.time_limit_s <= 0:
        raise StageError(
            f"PPO on {config.env.id} did {result['steps']} steps of {planned}: its checkpoint "
            "can't be of this run; start again with --cache refresh."
        )
    facts = {
        "backend": backend,
        "fingerprint": fingerprint,
        "budget_factor": config.ppo.budget_factor,
        "few_puzzles": has_few_puzzles(config),
    }
    return {**facts, **probe_bounds(config), **result}


def probe_bounds(config: Config) -> dict[str, float | None]:
    """Exact success of random and of optimal play on the probe's puzzles; None without a solver."""
    count = max(config.ppo.probe_puzzles, 1)
    make_env, base = env_factory(config), config.ppo.base_seed
    try:
        seeds = splits.draw_seeds(make_env, "validation", count, base, distinct=True)
    except EnvironmentConfigError:  # a world of fewer puzzles: nothing to fail for without a probe
        return {"floor": None, "ceiling": None}
    return floor_and_ceiling(config, seeds)


def _by_verl(config: Config, **arguments: Any) -> dict[str, Any]:
    from steps.training.ppo_verl import train_ppo_verl

    return train_ppo_verl(config, **arguments)


def _by_ranks(
    config: Config,
    *,
    model_dir: str,
    fingerprint: str,
    out_dir: Path,
    tracker: Tracker,
    checkpoints: CheckpointStore,
) -> dict[str, Any]:
    result: dict[str, Any] = run_ranks(
        _train,
        config,
        model_dir,
        fingerprint,
        out_dir,
        size=num_ranks(config),
        main_only=(tracker, checkpoints),
    )
    return result


def _train(
    peers: Peers,
    config: Config,
    model_dir: str,
    fingerprint: str,
    out_dir: Path,
    tracker: Tracker | None,
    checkpoints: CheckpointStore | None,
) -> dict[str, Any]:
    limit_threads(peers.size, cores(config))
    run = train_ppo(peers, config, model_dir, fingerprint, out_dir / "work", tracker, checkpoints)
    if peers.is_main:
        save_model(out_dir / "model", run.model, run.tokenizer)
    return {
        "model": str(out_dir / "model"),
        "steps": run.steps,
        "kept_step": run.kept_step,
        "seconds": run.seconds,
        "curve": run.curve,
        "processes": peers.size,
    }
