"""Supervised finetuning by verl: FSDP in bfloat16, on one or several GPUs of this machine, or LoRA.

The same data, order, loss and schedule as `sft_local`, which stays the readable reference: the loss
is the sum over weighted tokens divided by the weights of the whole batch (verl counts them over all
GPUs), and batch s holds the same rows. verl runs as a subprocess (`verl_launch`), is handed token
ids (`verl_sft_data`) and reports by files. Validation losses by kind of span, and the probe, are
taken by us from the finished model; on the way there is verl's own, a mean over batches of their
means, under another name (`sft/validation_batch_loss`).
"""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from conf.schema import Config, SFTSection
from steps.agent.records import SFTExample
from steps.errors import CheckpointError, DataError, StageError
from steps.policies.hf import HFPolicy, context_length, load_model, load_tokenizer
from steps.settings import env_factory
from steps.storage.token_rows import TokenRows, write_token_rows
from steps.tracking import Tracker
from steps.training.batch_order import batch_rows, epoch_steps, num_steps
from steps.training.best import Best
from steps.training.checkpoints import CheckpointStore, save_model
from steps.training.hub import local_directory
from steps.training.lora import merge_adapters
from steps.training.machine import Machine, read_machine
from steps.training.model_size import size_of
from steps.training.probe import run_probe
from steps.training.schedules import lr_scale
from steps.training.sft_local import evaluate_loss
from steps.training.tokenization import SFTRow, fitting, span_weights, tokenize_examples
from steps.training.verl_checkpoints import Keeper, Note, newest_step, restore, step_directory
from steps.training.verl_common import environment, kernels
from steps.training.verl_launch import Phase, failure, follow_jsonl, launch
from steps.training.verl_preflight import check_architecture, check_sft
from steps.training.verl_sft_overrides import SFTPlan, to_verl_overrides
from steps.workers import Peers

LOG_FILE = "verl_sft.log"
BATCH_LOSS = "sft/validation_batch_loss"
NAMES = {
    "train/loss": "sft/loss",
    "train/grad_norm": "sft/grad_norm",
    "train/mfu": "perf/mfu",
    "train/global_tokens": "perf/tokens",
    "perf/max_memory_allocated_gb": "perf/max_memory_allocated_gb",
    "val/loss": BATCH_LOSS,
}
"""verl's metrics -> ours. Its `train/lr` is left out: it is that of the step to come."""
PHASES = (
    Phase(name="sharding the model", mark=r"contains [\d.]+[KMB] parameters"),
    Phase(name="preparing the first step", mark=r"Total steps: \d+, num_warmup_steps"),
    Phase(name="training", mark=r"step:\d+ - "),
)
LOGGED_EVERY = 20
_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Progress:
    """What has been seen of a running training."""

    curve: list[dict[str, float]] = field(default_factory=list)
    step: int = 0
    seconds_before: float = 0.0
    """Of training, before this process took it up."""
    section: SFTSection
    total: int
    tracker: Tracker
    began: float = field(default_factory=time.perf_counter)
    _row: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of training, with the start of its processes."""
        return self.seconds_before + time.perf_counter() - self.began

    def see(self, step: int, data: dict[str, Any]) -> None:
        """A row of verl's metrics; a validation loss has one of its own, after its step's."""
        found = {name: float(data[key]) for key, name in NAMES.items() if key in data}
        self._row = self._row | found if step == self.step else found
        self.step = step
        is_due = (step - 1) % LOGGED_EVERY == 0 or step == self.total or "val/loss" in data
        if not found or not is_due:
            return
        now = {"sft/lr": self.section.lr * self._lr_scale(step), "sft/seconds": self.seconds}
        row = {"step": step, **self._row, **now}
        if self.curve and self.curve[-1]["step"] == step:
            self.curve[-1] = row
        else:
            self.curve.append(row)
        self.tracker.log({key: value for key, value in row.items() if key != "step"}, step)

    @property
    def best(self) -> int | None:
        """Step of the lowest validation loss so far, where the settings want it (`sft.keep`)."""
        judge = Best(metric=BATCH_LOSS, sign=-1, is_wanted=self.section.keep == "best")
        return judge.step(self.curve)

    def _lr_scale(self, step: int) -> float:
        return lr_scale(
            step - 1,
            total_steps=self.total,
            warmup_steps=self.section.warmup_steps,
            schedule=self.section.schedule,
            min_ratio=self.section.min_lr_ratio,
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
    where this machine can't train it, and `StageError` where the training ended early.
    """
    directory = local_directory(source, revision=config.model.revision)
    tokenizer = load_tokenizer(str(directory))
    limit = context_length(str(directory), config.sft.max_length)
    weights = span_weights(config.sft)
    rows = fitting(tokenize_examples(train, tokenizer, weights=weights), limit)
    held_out = tokenize_examples(validation, tokenizer, weights=weights, max_length=limit)
    work_dir = out_dir / "work"
    plan = _plan(config, rows, held_out, directory, work_dir)
    check_architecture(AutoConfig.from_pretrained(directory))
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
    losses = _losses(model, held_out, tokenizer.pad_token_id)
    if losses:
        tracker.log(losses, kept_step)
        progress.curve = _with_losses(progress.curve, losses, kept_step)
    return {
        "model": str(out_dir / "model"),
        "steps": plan.steps,
        "kept_step": kept_step,
        "seconds": progress.seconds,
        "curve": progress.curve,
        "too_long": len(train) - len(rows) + len(validation) - len(held_out),
        "probe": _probe(config, model, tokenizer, plan.steps, tracker),
        "parameters": _save(out_dir / "model", model, tokenizer),
        "processes": plan.num_gpus,
    }


def largest_micro_batch(config: Config, plan: SFTPlan) -> int:
    """Tokens that one GPU may hold at once."""
    section = config.verl
    share = plan.batch_size // (plan.num_gpus // section.sequence_parallel_size)
    if section.dynamic_batches:
        return min(section.max_tokens_per_gpu, share * plan.max_length)
    per_gpu = min(section.micro_batch_size_per_gpu, share) * plan.max_length
    return per_gpu // section.sequence_parallel_size


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
        raise DataError(
            f"{len(rows)} finetuning rows can't be shared by {ranks} GPUs: play more, or train on "
            "fewer (verl.n_gpus_per_node)."
        )
    longest = max(len(row.token_ids) for row in (*rows, *held_out))
    room = verl.max_tokens_per_gpu * verl.sequence_parallel_size
    if verl.dynamic_batches and longest > room:
        raise DataError(
            f"the longest finetuning row has {longest} tokens, and a micro-batch holds {room}: "
            f"set verl.max_tokens_per_gpu={longest} or more, or lower sft.max_length."
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
        kernels=kernels(verl, has_flash_attn=find_spec("flash_attn") is not None),
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
        checkpoints, fingerprint, work_dir, num_gpus=plan.num_gpus
    )
    progress = Progress(
        curve=list(note.curve),
        step=begun_at,
        seconds_before=note.seconds,
        section=config.sft,
        total=plan.steps,
        tracker=tracker,
    )
    keeper = Keeper(
        plan.directory,
        lambda directory, step: checkpoints.save(
            directory, step=step, fingerprint=fingerprint, best=progress.best
        ),
        note=lambda step: Note(
            num_gpus=plan.num_gpus,
            seconds=progress.seconds,
            curve=[row for row in progress.curve if row["step"] <= step],
        ),
        begun_at=begun_at,
        last=plan.steps,
        best=lambda: progress.best,
    )
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
    if code != 0:
        raise StageError(f"finetuning by verl, after step {progress.step}, {failure(code, log)}")
    if newest_step(plan.directory) != plan.steps or progress.step != plan.steps:
        raise StageError(
            f"finetuning by verl ended at step {progress.step} of {plan.steps}, its last "
            f"checkpoint is of step {newest_step(plan.directory)}; see {log}."
        )
    return progress


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
    return trained


def _losses(model: Any, held_out: Sequence[SFTRow], pad: int) -> dict[str, float]:
    return evaluate_loss(Peers(), model, held_out, pad=pad) if held_out else {}


def _with_losses(
    curve: list[dict[str, float]], losses: dict[str, float], step: int
) -> list[dict[str, float]]:
    if any(row["step"] == step for row in curve):
        return [row | losses if row["step"] == step else row for row in curve]
    return [*curve, {"step": step, **losses}]


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
