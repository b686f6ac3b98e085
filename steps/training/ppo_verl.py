"""PPO by verl: what the local backend does for one GPU, on any number of them.

verl runs as a program of its own (`verl_driver`), since it changes the process that imports it and
leaves others behind. This module writes down what it is to do, watches it, hands its metrics to the
tracker and its checkpoints to the store, and takes the last actor, or the best, for the model.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from conf import to_plain
from conf.schema import Config
from steps import storage
from steps.errors import CheckpointError, ConfigError, StageError
from steps.policies.context import within_context
from steps.policies.model_directory import check_model_directory
from steps.tracking import Tracker
from steps.training import verl_metrics, verl_ppo_limits
from steps.training.best import ppo_best
from steps.training.checkpoints import CheckpointStore
from steps.training.lora import merge_adapters
from steps.training.machine import Machine, installed, read_machine
from steps.training.model_size import size_of
from steps.training.schedules import lr_scale
from steps.training.verl_checkpoints import NOTE, Note, remove_before, restore, step_directory
from steps.training.verl_common import environment, kernels, sharding
from steps.training.verl_driver import PHASES
from steps.training.verl_launch import check_exit, follow_jsonl, launch
from steps.training.verl_model import mend_config
from steps.training.verl_ppo_overrides import PPOPlan, to_verl_overrides
from steps.training.verl_preflight import check_architecture, check_ppo, check_world
from steps.training.verl_rows import AGENT, probe_rows, training_rows, write_rows

DRIVER = "steps.training.verl_driver"
RUN_FILE, LOG_FILE = "run.json", "verl_ppo.log"
MODEL = Path("actor") / "huggingface"
"""In a checkpoint: the actor as a Hugging Face directory."""
AGENT_LOOP = "steps.training.verl_agent_loop.SPAAgentLoop"
BROKEN = "Invocation of collective_rpc method failed"
"""vLLM's word for weights that it couldn't take; verl waits for it without end."""


@dataclass(kw_only=True)
class VerlRun:
    """A training while it runs."""

    config: Config
    directory: Path
    """Where verl writes its checkpoints."""
    tracker: Tracker | None = None
    checkpoints: CheckpointStore | None = None
    fingerprint: str = ""
    steps: int = 0
    seconds: float = 0.0
    """Of training: without probes, checkpoints, start-up and what a kill took back."""
    curve: list[dict[str, float]] = field(default_factory=list)

    @property
    def num_gpus(self) -> int:
        """Of all hosts."""
        return self.config.verl.n_gpus_per_node * self.config.verl.nnodes

    @property
    def best(self) -> int | None:
        """Step of the best probe so far, where the settings want it."""
        return ppo_best(self.config.ppo.keep).step(self.curve)

    def on_row(self, step: int, data: dict[str, Any]) -> None:
        """Take in verl's metrics of a step, which come after its checkpoint.

        Step 0 is a probe of the model as it came, and has neither training nor checkpoint.
        """
        metrics = verl_metrics.ours(data)
        self.steps = step
        self.seconds += verl_metrics.training_seconds(metrics)
        metrics["ppo/seconds"] = self.seconds
        if "actor/loss" in metrics:
            metrics["actor/lr"] = self._actor_lr(step)
        self.curve.append({"step": step, **metrics})
        if self.tracker is not None:
            self.tracker.log(metrics, step)
        every = self.config.ppo.save_every
        if every and step > 0 and step % every == 0:
            self._keep(step)

    def _actor_lr(self, step: int) -> float:
        """Of a step's updates; what verl tells is the next step's."""
        ppo = self.config.ppo
        return ppo.lr * lr_scale(
            step - 1 - ppo.critic_warmup,
            total_steps=ppo.total_steps,
            warmup_steps=ppo.warmup_steps,
            schedule=ppo.lr_schedule,
            min_ratio=ppo.min_lr_ratio,
        )

    def _keep(self, step: int) -> None:
        """Hand verl's checkpoint to the store, with the model's weights where they may count.

        Those before it are removed here; this one stays until the next.
        """
        found = step_directory(self.directory, step)
        if self.checkpoints is None or not found.is_dir():
            return
        is_model = step in (self.best, self.config.ppo.total_steps)
        for weights in () if is_model else (found / MODEL).glob("*.safetensors"):
            weights.unlink()
        note = Note(
            num_gpus=self.num_gpus,
            sharding=sharding(self.config),
            sequence_parallel=self.config.verl.sequence_parallel_size,
            seconds=self.seconds,
            curve=self.curve,
        )
        storage.atomic_write_json(found / NOTE, asdict(note))
        self.checkpoints.save(found, step=step, fingerprint=self.fingerprint, best=self.best)
        remove_before(self.directory, step)


def train_ppo_verl(
    config: Config,
    *,
    model_dir: str,
    fingerprint: str,
    out_dir: Path,
    tracker: Tracker | None,
    checkpoints: CheckpointStore,
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Train and leave the model in `out_dir/model`; returns what the local backend returns.

    Raises a `SPAError` before anything starts where this machine can't train it, and `StageError`
    or `TrainerError` (`verl_launch`) where the training ended early.
    """
    _check(config, Path(model_dir), machine or read_machine())
    work = out_dir / "work"
    run = VerlRun(
        config=config,
        directory=work / "checkpoints",
        tracker=tracker,
        checkpoints=checkpoints,
        fingerprint=fingerprint,
    )
    run.steps, resume_from, note = restore(
        checkpoints,
        fingerprint,
        work,
        num_gpus=run.num_gpus,
        sharding=sharding(config),
        sequence_parallel=config.verl.sequence_parallel_size,
    )
    run.seconds, run.curve = note.seconds, list(note.curve)
    if run.steps < config.ppo.total_steps:
        shutil.rmtree(run.directory, ignore_errors=True)
        run_file = prepare(config, model_dir=model_dir, work=work, resume_from=resume_from)
        execute(run, run_file, log=out_dir / LOG_FILE)
    kept_step = run.best or run.steps
    _take_model(config, _directory_of(run, kept_step) / MODEL, out_dir / "model")
    return {
        "model": str(out_dir / "model"),
        "steps": run.steps,
        "kept_step": kept_step,
        "seconds": run.seconds,
        "curve": run.curve,
        "processes": run.num_gpus,
    }


def _head_size(settings: Any) -> int:
    """Of a Hugging Face config's attention."""
    given = getattr(settings, "head_dim", None)
    return int(given or settings.hidden_size // settings.num_attention_heads)


def prepare(
    config: Config,
    *,
    model_dir: str,
    work: Path,
    resume_from: Path | None = None,
    answer_lengths: Sequence[tuple[int, int]] = (),
    trainer: str = "",
) -> Path:
    """Write what the driver and the agent loops read into `work`; returns the driver's file.

    For benchmarks and tests: `answer_lengths` draws the length of every answer of step `n` between
    two numbers, those of its `n`-th pair or the last one; `trainer` is `module:Class`, in place of
    `verl_trainer.SPATrainer`.
    """
    work = work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    settings = AutoConfig.from_pretrained(model_dir)
    config = _fitted(config, settings)
    run_file = work / RUN_FILE
    plan = PPOPlan(
        model_dir=str(Path(model_dir).resolve()),
        train_rows=work / "train.jsonl",
        probe_rows=work / "probe.jsonl",
        agents_file=work / "agents.yaml",
        directory=work / "checkpoints",
        resume_from=resume_from.absolute() if resume_from is not None else None,
        kernels=kernels(config.verl, has_flash_attn="flash-attn" in installed()),
        head_size=_head_size(settings),
    )
    write_rows(training_rows(config), plan.train_rows)
    write_rows(probe_rows(config), plan.probe_rows)
    agent = {"name": AGENT, "_target_": AGENT_LOOP, "run_file": str(run_file)}
    plan.agents_file.write_text(json.dumps([agent]), "utf-8")  # JSON is YAML, too
    run = {
        "config": to_plain(config) | {"tracking": {}},  # a password that nobody there needs
        "overrides": to_verl_overrides(config, plan),
        "answer_lengths": [list(pair) for pair in answer_lengths],
        "trainer": trainer,
        "architectures": settings.architectures or [],
        "agent_workers": config.verl.agent_workers,
        "num_gpus": config.verl.n_gpus_per_node,
        "ray_address": config.verl.ray_address,
    }
    run_file.write_text(json.dumps(run, indent=1), "utf-8")
    return run_file


def execute(run: VerlRun, run_file: Path, *, log: Path) -> None:
    """Run the driver to its end; raises `TrainerError` where it fails amid its steps, and
    `StageError` where it comes to none.
    """
    metrics, begun_at = run_file.parent / "metrics.jsonl", run.steps
    metrics.unlink(missing_ok=True)
    code = launch(
        [sys.executable, "-m", DRIVER, str(run_file)],
        env=environment(metrics),
        log=log,
        phases=PHASES,
        startup_timeout_s=run.config.verl.startup_timeout_s,
        broken=BROKEN,
        on_tick=follow_jsonl(metrics, run.on_row),
        cwd=run_file.parent,
    )
    check_exit(
        f"PPO by verl on {run.config.env.id}, after step {run.steps}",
        code,
        log,
        has_trained=run.steps > begun_at,
    )


def _check(config: Config, model_dir: Path, machine: Machine) -> None:
    lacks = verl_ppo_limits.lacks(config)
    if lacks:
        raise ConfigError(f"ppo by verl: {lacks}")
    check_model_directory(str(model_dir))
    settings = AutoConfig.from_pretrained(model_dir)
    verl = config.verl
    check_architecture(settings, sharing=verl.sequence_parallel_size)
    config = _fitted(config, settings)
    tokens = verl.max_tokens_per_gpu
    if not verl.dynamic_batches:
        tokens = verl.micro_batch_size_per_gpu * config.sampling.max_model_len
        tokens = -(-tokens // verl.sequence_parallel_size)
    check_ppo(config, machine, size_of(model_dir), tokens=tokens)
    check_world(config.env.id, config.env.kwargs, environment(Path(os.devnull)))


def _directory_of(run: VerlRun, step: int) -> Path:
    """The checkpoint of a step: verl's own where it lies here, else the store's."""
    here = step_directory(run.directory, step)
    if any((here / MODEL).glob("*.safetensors")):
        return here
    stored = run.checkpoints.at(step, run.fingerprint) if run.checkpoints is not None else None
    if stored is None:
        raise CheckpointError(
            f"verl left no checkpoint of step {step} in {run.directory}: see whether "
            "verl.overrides change trainer.save_freq."
        )
    return stored


def _take_model(config: Config, found: Path, target: Path) -> None:
    if not any(found.glob("*.safetensors")):
        raise StageError(
            f"verl left no model in {found}: see whether verl.overrides change "
            "actor_rollout_ref.actor.checkpoint.save_contents."
        )
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(found, target)
    if config.model.lora_rank > 0:
        merge_adapters(target, rank=config.model.lora_rank, alpha=config.model.lora_alpha)
    mend_config(target)
    check_model_directory(str(target))


def _fitted(config: Config, model: Any) -> Config:
    """With no longer context than the model's configuration has; vLLM refuses more."""
    length = within_context(model, config.sampling.max_model_len)
    return replace(config, sampling=replace(config.sampling, max_model_len=length))
