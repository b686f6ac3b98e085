"""The settings of a finetuning in verl's words: pure, and compared with files of its own in tests.

Learning rates are those of `steps.training.schedules`, step for step; one thing differs from the
local backend: weights are kept in float32 and used in `verl.dtype`, gradients summed in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conf.schema import Config
from steps.training.schedules import sft_warmup
from steps.training.verl_common import (
    NO_CLIP,
    Kernels,
    Value,
    micro_batch,
    model_overrides,
    override,
    precision,
    schedule,
    sharding,
)


@dataclass(frozen=True, kw_only=True)
class SFTPlan:
    """What a finetuning by verl works on, decided inside the step."""

    model_dir: str
    train_file: Path
    validation_file: Path | None
    directory: Path
    """Where verl writes `global_step_<n>`."""
    steps: int
    batch_size: int
    max_length: int
    """Tokens of the longest row that may come."""
    eval_every: int
    """Steps between verl's validation losses; 0 is never."""
    save_every: int
    """Steps between checkpoints, besides the last; 0 is never."""
    num_gpus: int
    kernels: Kernels


def to_verl_overrides(
    config: Config, plan: SFTPlan, *, resume_from: Path | None = None
) -> list[str]:
    """Hydra overrides of `verl.trainer.sft_trainer`; `verl.sft_overrides` come last and win.

    `resume_from` is a directory `global_step_<n>`; None begins, whatever lies in `plan.directory`.
    """
    pairs = _data(config, plan) | _engine(config) | _optimizer(config, plan)
    pairs |= _trainer(config, plan)
    pairs["trainer.resume_mode"] = "resume_path" if resume_from else "disable"
    pairs["trainer.resume_from_path"] = str(resume_from) if resume_from else None
    return [
        *model_overrides(config, "model", plan.model_dir, plan.kernels),
        *(override(key, value) for key, value in pairs.items()),
        *config.verl.sft_overrides,
    ]


def _data(config: Config, plan: SFTPlan) -> dict[str, Value]:
    ranks = plan.num_gpus // config.verl.sequence_parallel_size
    return {
        "data.train_files": str(plan.train_file),
        "data.val_files": str(plan.validation_file) if plan.validation_file else None,
        "data.custom_cls.path": "pkg://steps.training.verl_sft_data",
        "data.custom_cls.name": "TokenRowsDataset",
        "data.train_batch_size": plan.batch_size,
        "data.max_length": plan.max_length,
        "data.truncation": "error",
        "data.pad_mode": "no_padding",
        "data.num_workers": 0,
        "data.use_dynamic_bsz": config.verl.dynamic_batches,
        "data.max_token_len_per_gpu": config.verl.max_tokens_per_gpu,
        "data.micro_batch_size_per_gpu": micro_batch(config, plan.batch_size // ranks),
    }


def _engine(config: Config) -> dict[str, Value]:
    return {
        "engine.strategy": sharding(config),
        **precision("engine", config.verl.dtype),
        "engine.ulysses_sequence_parallel_size": config.verl.sequence_parallel_size,
        "engine.param_offload": config.verl.offload,
        "engine.optimizer_offload": config.verl.offload,
        "engine.use_torch_compile": False,
        "engine.seed": config.seed,
    }


def _optimizer(config: Config, plan: SFTPlan) -> dict[str, Value]:
    section = config.sft
    return {
        "optim.lr": section.lr,
        "optim.weight_decay": section.weight_decay,
        "optim.betas": [section.beta1, section.beta2],
        "optim.clip_grad": section.max_grad_norm or NO_CLIP,
        **schedule(
            "optim",
            section.schedule,
            total_steps=plan.steps,
            warmup_steps=sft_warmup(section, plan.steps),
            min_lr_ratio=section.min_lr_ratio,
        ),
    }


def _trainer(config: Config, plan: SFTPlan) -> dict[str, Value]:
    return {
        "checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        "checkpoint.load_contents": ["model", "optimizer", "extra"],
        "trainer.default_local_dir": str(plan.directory),
        "trainer.project_name": "spa",
        "trainer.experiment_name": "sft",
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": plan.steps,
        "trainer.save_freq": plan.save_every or -1,
        "trainer.test_freq": plan.eval_every or -1,
        "trainer.max_ckpt_to_keep": None,
        "trainer.logger": ["console", "file"],
        "trainer.seed": config.seed,
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": plan.num_gpus,
        "trainer.device": "cuda",
    }
