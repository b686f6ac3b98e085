"""Supervised finetuning by verl: FSDP in bfloat16, on one or several GPUs of this machine, or LoRA.

The same data, order, loss and schedule as `sft_local`, which stays the readable reference: the loss
is the sum over weighted tokens divided by the weights of the whole batch (verl counts them over all
GPUs), and batch s holds the same rows. verl runs as a subprocess (`verl_launch`), is handed token
ids (`verl_sft_data`) and reports by files, validation losses by kind of span among them
(`verl_sft_validation`). The probe is taken here, from the finished model.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from conf.schema import Config
from steps.agent.records import SFTExample
from steps.errors import CheckpointError, ConfigError, StageError
from steps.policies.context import context_length
from steps.policies.hf import HFPolicy
from steps.policies.loading import load_model, load_tokenizer
from steps.settings import env_factory
from steps.storage.token_rows import TokenRows, write_token_rows
from steps.tracking import Tracker
from steps.training.batch_order import batch_rows, epoch_steps, num_steps
from steps.training.checkpoints import CheckpointStore, save_model
from steps.training.hub import local_directory
from steps.training.lora import merge_adapters
from steps.training.machine import Machine, installed, read_machine
from steps.training.model_size import size_of
from steps.training.probe import run_probe
from steps.training.tokenization import SFTRow, tokenize_sets
from steps.training.verl_checkpoints import Keeper, Note, newest_step, restore, step_directory
from steps.training.verl_common import environment, kernels, sharding
from steps.training.verl_launch import Phase, check_exit, follow_jsonl, launch
from steps.training.verl_model import mend_config
from steps.training.verl_preflight import check_architecture, check_sft
from steps.training.verl_sft_overrides import SFTPlan, to_verl_overrides
from steps.training.verl_sft_progress import Progress
from steps.workers import Peers

LOG_FILE = "verl_sft.log"
PHASES = (
    Phase(name="sharding the model", mark=r"contains [\d.]+[KMB] parameters"),
    Phase(name="preparing the first step", mark=r"Total steps: \d+, num_warmup_steps"),
    Phase(name="training", mark=r"step:\d+ - "),
)


def train_sft_verl(
    config: Config,
    train: Sequence[SFTExample],
    validation: Sequence[SFTExample],
    *,
    source: str,
    fingerprint: str,
    out_dir: Path,
    tracker: Tracker,
    checkpoints: CheckpointStore,
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Finetune `source` into `out_dir/model`; returns what the local backend returns.

    The model is written in float32, as it is trained. Raises a `SPAError` before anything starts
    where this machine can't train it, and `StageError` or `TrainerError` (`verl_launch`) where the
    training ended early.
    """
    directory = local_directory(source, revision=config.model.revision)
    tokenizer = load_tokenizer(str(directory))
    limit = context_length(str(directory), config.sft.max_length)
    rows, held_out, too_long = tokenize_sets(train, validation, tokenizer, config.sft, limit=limit)
    plan = _plan(config, rows, held_out, directory, out_dir / "work")
    check_architecture(
        AutoConfig.from_pretrained(directory), sharing=config.verl.sequence_parallel_size
    )
    check_sft(
        config,
        machine or read_machine(),
        size_of(directory),
        tokens=largest_micro_batch(config, plan),
    )
    _write_rows(config, plan, rows, held_out, pad=tokenizer.pad_token_id)
    progress = _train(config, plan, fingerprint, out_dir, tracker, checkpoints)
    kept_step = progress.best or plan.steps
    trained = _finished(config, plan, kept_step, checkpoints.at(kept_step, fingerprint))
    model = load_model(str(trained), device=config.device)
    return {
        "model": str(out_dir / "model"),
        "steps": plan.steps,
        "kept_step": kept_step,
        "seconds": progress.seconds,
        "curve": progress.curve,
        "too_long": too_long,
        "probe": _probe(config, model, tokenizer, plan.steps, tracker),
        "parameters": _save(out_dir / "model", model, tokenizer),
        "processes": plan.num_gpus,
    }


def largest_micro_batch(config: Config, plan: SFTPlan) -> int:
    """Tokens that one GPU may hold at once."""
    section, sharing = config.verl, config.verl.sequence_parallel_size
    rows = plan.batch_size // (plan.num_gpus // sharing)
    if not section.dynamic_batches:
        rows = min(section.micro_batch_size_per_gpu, rows)
    tokens = -(-rows * plan.max_length // sharing)
    return min(section.max_tokens_per_gpu, tokens) if section.dynamic_batches else tokens


def _plan(
    config: Config,
    rows: Sequence[SFTRow],
    held_out: Sequence[SFTRow],
    directory: Path,
    work_dir: Path,
) -> SFTPlan:
    section, verl = config.sft, config.verl
    ranks = verl.n_gpus_per_node // verl.sequence_parallel_size
    batch_size = min(section.batch_size, len(rows)) // ranks * ranks
    if batch_size == 0:
        raise ConfigError(
            f"{len(rows)} finetuning rows can't be shared by {ranks} GPUs: play more, or train on "
            "fewer (verl.n_gpus_per_node)."
        )
    longest = max(len(row.token_ids) for row in (*rows, *held_out))
    room = verl.max_tokens_per_gpu * verl.sequence_parallel_size
    if verl.dynamic_batches and longest > room:
        raise ConfigError(
            f"the longest finetuning row has {longest} tokens, and a micro-batch holds {room}: "
            f"set verl.max_tokens_per_gpu={-(-longest // verl.sequence_parallel_size)} or more, or "
            "lower sft.max_length."
        )
    each_epoch = epoch_steps(section, len(rows)) if section.max_steps == 0 else 0
    eval_every = (section.eval_every or each_epoch) if held_out else 0
    # verl has one rhythm of saving: the best step is one that was validated.
    wants_best = section.keep == "best" and eval_every > 0
    return SFTPlan(
        model_dir=str(directory),
        train_file=work_dir / "train.parquet",
        validation_file=work_dir / "validation.parquet" if held_out else None,
        directory=work_dir / "verl",
        steps=num_steps(section, len(rows)),
        batch_size=batch_size,
        max_length=longest,
        eval_every=eval_every,
        save_every=eval_every if wants_best else section.save_every,
        num_gpus=verl.n_gpus_per_node,
        kernels=kernels(verl, has_flash_attn="flash-attn" in installed()),
    )


def _write_rows(
    config: Config,
    plan: SFTPlan,
    rows: Sequence[SFTRow],
    held_out: Sequence[SFTRow],
    *,
    pad: int,
) -> None:
    """Files for verl; held-out rows are filled up to whole batches, which it would leave out."""
    order = [
        row
        for step in range(plan.steps)
        for row in batch_rows(config.seed, step, plan.batch_size, len(rows))
    ]
    write_token_rows(
        plan.train_file,
        TokenRows(
            token_ids=[row.token_ids for row in rows],
            weights=[row.weights for row in rows],
            order=order,
        ),
    )
    if plan.validation_file is not None:
        missing = -len(held_out) % plan.batch_size
        write_token_rows(
            plan.validation_file,
            TokenRows(
                token_ids=[*(row.token_ids for row in held_out), *[(pad, pad)] * missing],
                weights=[*(row.weights for row in held_out), *[(0.0, 0.0)] * missing],
                kinds=[*(row.kinds for row in held_out), *[(-1, -1)] * missing],
            ),
        )


def _train(
    config: Config,
    plan: SFTPlan,
    fingerprint: str,
    out_dir: Path,
    tracker: Tracker,
    checkpoints: CheckpointStore,
) -> Progress:
    """Run verl to its last step, its checkpoints carried to the store."""
    work_dir, log = plan.directory.parent, out_dir / LOG_FILE
    begun_at, resume_from, note = restore(
        checkpoints,
        fingerprint,
        work_dir,
        num_gpus=plan.num_gpus,
        sharding=sharding(config),
        sequence_parallel=config.verl.sequence_parallel_size,
    )
    progress = Progress(
        curve=list(note.curve),
        step=begun_at,
        seconds_before=note.seconds,
        section=config.sft,
        total=plan.steps,
        tracker=tracker,
    )
    keeper = _keeper(config, plan, progress, checkpoints, fingerprint)
    metrics = work_dir / "metrics.jsonl"
    follow = follow_jsonl(metrics, progress.see)

    def tick() -> None:
        step = newest_step(plan.directory)
        follow()
        keeper(step)

    metrics.unlink(missing_ok=True)  # of an attempt before this one
    shutil.rmtree(plan.directory, ignore_errors=True)
    code = launch(
        command(to_verl_overrides(config, plan, resume_from=resume_from), plan.num_gpus),
        env=environment(metrics),
        log=log,
        phases=PHASES,
        startup_timeout_s=config.verl.startup_timeout_s,
        on_tick=tick,
        cwd=work_dir,
    )
    check_exit(
        f"finetuning by verl, after step {progress.step}",
        code,
        log,
        has_trained=progress.step > begun_at,
    )
    _check_end(plan, progress, log)
    return progress


def _keeper(
    config: Config,
    plan: SFTPlan,
    progress: Progress,
    checkpoints: CheckpointStore,
    fingerprint: str,
) -> Keeper:
    """What carries checkpoints to the store; each tells of the training up to its step."""
    return Keeper(
        plan.directory,
        lambda directory, step: checkpoints.save(
            directory, step=step, fingerprint=fingerprint, best=progress.best
        ),
        note=lambda step: Note(
            num_gpus=plan.num_gpus,
            sharding=sharding(config),
            sequence_parallel=config.verl.sequence_parallel_size,
            seconds=progress.seconds,
            curve=[row for row in progress.curve if row["step"] <= step],
        ),
        begun_at=progress.step,
        last=plan.steps,
        best=lambda: progress.best,
    )


def _check_end(plan: SFTPlan, progress: Progress, log: Path) -> None:
    """Raise `StageError` where verl left before its last step was kept and told."""
    if newest_step(plan.directory) != plan.steps or progress.step != plan.steps:
        raise StageError(
            f"finetuning by verl ended at step {progress.step} of {plan.steps}, its last "
            f"checkpoint is of step {newest_step(plan.directory)}; see {log}."
        )


def command(overrides: Sequence[str], num_gpus: int) -> list[str]:
    """The command line: torchrun on this host, a process for each GPU."""
    return [
        sys.executable,
        *("-m", "torch.distributed.run", "--standalone", "--nnodes=1"),
        f"--nproc_per_node={num_gpus}",
        *("-m", "steps.training.verl_sft_driver"),
        *overrides,
    ]


def _finished(config: Config, plan: SFTPlan, step: int, stored: Path | None) -> Path:
    """The directory of the model of a step in Hugging Face format, adapters folded in.

    The last step's lies where verl wrote it, an earlier one in the store.
    """
    trained = step_directory(plan.directory, step) / "huggingface"
    if step != plan.steps:
        if stored is None:
            raise CheckpointError(
                f"the checkpoint of the best step, {step}, is missing or damaged: set "
                "sft.keep=last, or start over with --cache refresh."
            )
        shutil.copytree(stored / "huggingface", trained, dirs_exist_ok=True)
    if config.model.lora_rank > 0:
        merge_adapters(trained, rank=config.model.lora_rank, alpha=config.model.lora_alpha)
    mend_config(trained)
    return trained


def _probe(
    config: Config, model: Any, tokenizer: Any, step: int, tracker: Tracker
) -> dict[str, float]:
    if config.sft.probe_puzzles == 0:
        return {}
    policy = HFPolicy(
        model.eval(),
        tokenizer,
        max_model_len=config.sampling.max_model_len,
        max_batch=config.generation.max_batch,
    )
    probe = run_probe(
        Peers(), config, policy, env_factory(config), puzzles=config.sft.probe_puzzles
    )
    tracker.log(probe, step)
    return probe


def _save(directory: Path, model: Any, tokenizer: Any) -> int:
    """Write the model; returns its number of parameters."""
    save_model(directory, model, tokenizer)
    return sum(parameter.numel() for parameter in model.parameters())
