"""Stage `sft_train`: teach the model its world, from the filtered self-play data.

The public function chooses the backend, finetunes, lets the result play held-out puzzles (the
gate: format and world-model accuracy, never success, which finetuning alone may lower) and leaves
a Hugging Face directory.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from conf.schema import Config
from steps import storage
from steps.agent.records import SFTExample
from steps.errors import ConfigError, DataError, StageError
from steps.policies.model_directory import check_model
from steps.settings import check_settings, cores, env_factory, has_few_puzzles
from steps.storage import TRAIN_FILE, VALIDATION_FILE
from steps.tracking import Tracker
from steps.training.backends import choose_backend, num_ranks, signature
from steps.training.checkpoints import CheckpointStore, fingerprint_of, save_model
from steps.training.probe import run_probe
from steps.training.sft_local import SFTRun, train_sft
from steps.training.tiny_model import build_tiny
from steps.workers import Peers, limit_threads, run_ranks


def sft_train(
    config: Config,
    *,
    data_dir: Path,
    model_dir: str,
    out_dir: Path,
    checkpoints: CheckpointStore,
    tracker: Tracker,
) -> dict[str, Any]:
    """Finetune and return plain facts: `model` (directory), `curve`, `probe`, `steps`, `backend`.

    `model_dir` "" builds the configured model from scratch. Raises `StageError` where the gate
    finds fewer well-formed answers than `sft.min_format_rate`.
    """
    check_settings(config, "sft")
    is_left_out = config.sft.target == "format" and not config.model.from_scratch
    if is_left_out:
        # A pretrained model can speak: such arms train it by reinforcement alone.
        config = replace(config, sft=replace(config.sft, max_steps=0, epochs=0))
    backend = "local" if is_left_out else choose_backend(config, "sft")
    train = storage.read_examples(data_dir / TRAIN_FILE)
    validation = storage.read_examples(data_dir / VALIDATION_FILE)
    if not train:
        raise DataError(
            f"{TRAIN_FILE} in {data_dir} holds no rows: play more, or lower the filter."
        )
    if is_left_out:  # rows longer than its context are no reason to stop
        train, validation = [], []
    source = resolve_model(config, model_dir, out_dir / "initial")
    check_model(source)
    fingerprint = fingerprint_of(
        stage="sft_train",
        config=config,
        sections=("seed", "env", "model", "prompt", "sampling", "sft"),
        inputs={
            "data": _rows_digest(train, validation),
            "model": storage.model_digest(Path(source)) if Path(source).is_dir() else source,
            "backend": signature(config, "sft", backend),
        },
    )
    outputs: dict[str, Any] = {
        "out_dir": out_dir,
        "tracker": tracker,
        "checkpoints": checkpoints,
    }
    train_by = _by_verl if backend == "verl" else _by_ranks
    result = train_by(config, train, validation, source, fingerprint, **outputs)
    shutil.rmtree(out_dir / "work", ignore_errors=True)
    _gate(config, result["probe"])
    facts = {
        "backend": backend,
        "fingerprint": fingerprint,
        "rows": len(train),
        "few_puzzles": has_few_puzzles(config),
    }
    return {**facts, **result}


def _rows_digest(*sets: list[SFTExample]) -> str:
    """Of what the rows say: their files also name a commit and the whole configuration."""
    return storage.json_digest([[asdict(row) for row in rows] for rows in sets])


def _by_verl(
    config: Config,
    train: list[SFTExample],
    validation: list[SFTExample],
    source: str,
    fingerprint: str,
    **outputs: Any,
) -> dict[str, Any]:
    from steps.training.sft_verl import train_sft_verl

    return train_sft_verl(
        config, train, validation, source=source, fingerprint=fingerprint, **outputs
    )


def _by_ranks(
    config: Config,
    train: list[SFTExample],
    validation: list[SFTExample],
    source: str,
    fingerprint: str,
    *,
    out_dir: Path,
    tracker: Tracker,
    checkpoints: CheckpointStore,
) -> dict[str, Any]:
    result: dict[str, Any] = run_ranks(
        _train,
        config,
        train,
        validation,
        source,
        fingerprint,
        out_dir,
        size=num_ranks(config),
        main_only=(tracker, checkpoints),
    )
    return result


def resolve_model(config: Config, model_dir: str, scratch: Path) -> str:
    """The model to start from: a directory or hub name, or one built from scratch."""
    source = model_dir or config.model.path
    if source:
        return source
    if not config.model.from_scratch:
        raise ConfigError(
            f"model {config.model.name!r} has no path and isn't built from scratch: set model.path."
        )
    model = replace(config.model, init_seed=config.model.init_seed + config.seed)
    return str(build_tiny(model, scratch))


def _train(
    peers: Peers,
    config: Config,
    train: list[SFTExample],
    validation: list[SFTExample],
    source: str,
    fingerprint: str,
    out_dir: Path,
    tracker: Tracker | None,
    checkpoints: CheckpointStore | None,
) -> dict[str, Any]:
    limit_threads(peers.size, cores(config))
    run: SFTRun = train_sft(
        peers,
        config,
        train,
        validation,
        source,
        fingerprint,
        out_dir / "work",
        tracker,
        checkpoints,
    )
    probe: dict[str, float] = {}
    if config.sft.probe_puzzles > 0:
        policy = run.policy(config)
        probe = run_probe(
            peers, config, policy, env_factory(config), puzzles=config.sft.probe_puzzles
        )
    if peers.is_main:
        save_model(out_dir / "model", run.model, run.tokenizer)
        if tracker is not None and probe:
            tracker.log(probe, run.steps)
    return {
        "model": str(out_dir / "model"),
        "steps": run.steps,
        "kept_step": run.kept_step,
        "seconds": run.seconds,
        "curve": run.curve,
        "too_long": run.too_long,
        "probe": probe,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "processes": peers.size,
    }


def _gate(config: Config, probe: dict[str, float]) -> None:
    rate = probe.get("probe/format_rate")
    if rate is not None and rate < config.sft.min_format_rate:
        raise StageError(
            f"after finetuning {rate:.1%} of the answers on {config.env.id} are well-formed, fewer "
            f"than sft.min_format_rate={config.sft.min_format_rate:.1%}: train longer "
            "(sft.max_steps or sft.epochs), or lower the gate."
        )
