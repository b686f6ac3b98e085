"""The settings of PPO in verl's words: pure, and compared with files of its own in tests.

What differs from the local backend, and can't be said in verl's words:
1. Weights are kept in float32 and used in `verl.dtype`, and the ratio's denominator is computed by
   the trainer rather than taken from sampling: vLLM rounds differently, in bfloat16 by 0.006 a
   token.
2. A minibatch that isn't full is filled up with rows that teach nothing, and is a step of its own.
3. Answers are drawn from the engine's own stream, not from one a request: two runs of one seed see
   the same puzzles, luck and order, and sample different answers.
4. Where an episode is several sequences, a minibatch is of sequences, as in the local backend.
5. In a long conversation a prompt goes on from the sampled ids even where their text would be
   tokenised otherwise; the local backend encodes it afresh and learns such an episode by turns.
6. While the critic warms up (`ppo.critic_warmup`) the actor's learning rate stands still; in the
   local backend its warm-up and decay go on.
`verl_ppo_limits` says what can't be done at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from conf.schema import Config
from steps.policies.graph_sizes import graph_mode, graph_sizes, step_tokens
from steps.training.verl_advantages import estimator_name
from steps.training.verl_common import (
    NO_CLIP,
    Kernels,
    Value,
    max_answering,
    micro_batch,
    model_overrides,
    override,
    precision,
    schedule,
    sharding,
)
from steps.training.verl_rows import AGENT

ACTOR, CRITIC = "actor_rollout_ref.actor", "critic"
REFERENCE, ROLLOUT = "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
ENGINE = f"{ROLLOUT}.engine_kwargs.vllm"


@dataclass(frozen=True, kw_only=True)
class PPOPlan:
    """What a PPO run by verl works on, decided inside the step."""

    model_dir: str
    train_rows: Path
    probe_rows: Path
    agents_file: Path
    directory: Path
    """Where verl writes `global_step_<n>`."""
    resume_from: Path | None
    """A directory `global_step_<n>`, or None to begin."""
    kernels: Kernels
    head_size: int
    """Of the model's attention."""


def to_verl_overrides(config: Config, plan: PPOPlan) -> list[str]:
    """Hydra overrides of `verl.trainer.main_ppo`; `verl.overrides` come last and win."""
    pairs = (
        _algorithm(config)
        | _data(config, plan)
        | _actor(config)
        | _critic(config)
        | _rollout(config, plan)
        | _trainer(config, plan)
    )
    whole = replace(config, model=replace(config.model, lora_rank=0))  # no adapters for the critic
    return [
        *model_overrides(config, "actor_rollout_ref.model", plan.model_dir, plan.kernels),
        *model_overrides(whole, "critic.model", plan.model_dir, plan.kernels),
        *(override(key, value) for key, value in pairs.items()),
        *config.verl.overrides,
    ]


def _algorithm(config: Config) -> dict[str, Value]:
    ppo = config.ppo
    return {
        "algorithm.adv_estimator": estimator_name(ppo.advantage),
        "algorithm.gamma": ppo.gamma,
        "algorithm.lam": ppo.lam,
        "+algorithm.gamma_turn": ppo.gamma_turn,
        "+algorithm.lam_turn": ppo.lam_turn,
        "+algorithm.normalize_advantages": ppo.normalize_advantages,
        "algorithm.use_kl_in_reward": False,
    }


def _data(config: Config, plan: PPOPlan) -> dict[str, Value]:
    sampling = config.sampling
    return {
        "data.train_files": str(plan.train_rows),
        "data.val_files": str(plan.probe_rows),
        "data.custom_cls.path": "pkg://steps.training.verl_rows",
        "data.custom_cls.name": "RowDataset",
        "data.train_batch_size": config.ppo.env_groups,
        "data.max_prompt_length": max(1, sampling.max_model_len - sampling.max_new_tokens),
        "data.max_response_length": sampling.max_new_tokens,
        "data.shuffle": False,
        "data.validation_shuffle": False,
        "data.dataloader_num_workers": 0,
        "data.seed": config.seed,
    }


def _engine(config: Config, prefix: str) -> dict[str, Value]:
    return {
        f"{prefix}.strategy": sharding(config),
        **precision(prefix, config.verl.dtype),
        f"{prefix}.ulysses_sequence_parallel_size": config.verl.sequence_parallel_size,
        f"{prefix}.param_offload": config.verl.offload,
        f"{prefix}.optimizer_offload": config.verl.offload,
        f"{prefix}.use_torch_compile": False,
        f"{prefix}.seed": config.seed,
    }


def _micro_rows(config: Config) -> int:
    """Sequences of a micro-batch of any pass: verl fills a step's up to whole minibatches."""
    verl = config.verl
    ranks = verl.n_gpus_per_node * verl.nnodes // verl.sequence_parallel_size
    return micro_batch(config, max(1, config.ppo.minibatch_size // ranks))


def _update(config: Config, prefix: str, *, lr: float) -> dict[str, Value]:
    """What actor and critic have in common."""
    ppo, verl = config.ppo, config.verl
    return {
        f"{prefix}.strategy": sharding(config),
        # verl counts in rows of the data set, each `rollout.n` episodes.
        f"{prefix}.ppo_mini_batch_size": ppo.minibatch_size // ppo.group_size,
        f"{prefix}.ppo_micro_batch_size_per_gpu": _micro_rows(config),
        f"{prefix}.use_dynamic_bsz": verl.dynamic_batches,
        f"{prefix}.ppo_max_token_len_per_gpu": verl.max_tokens_per_gpu,
        f"{prefix}.ulysses_sequence_parallel_size": verl.sequence_parallel_size,
        f"{prefix}.ppo_epochs": ppo.ppo_epochs,
        f"{prefix}.shuffle": True,
        f"{prefix}.data_loader_seed": config.seed,
        f"{prefix}.loss_agg_mode": "token-mean",
        f"{prefix}.grad_clip": ppo.max_grad_norm or NO_CLIP,
        f"{prefix}.optim.lr": lr,
        f"{prefix}.optim.weight_decay": ppo.weight_decay,
        f"{prefix}.optim.betas": [ppo.beta1, ppo.beta2],
        f"{prefix}.optim.clip_grad": ppo.max_grad_norm or NO_CLIP,
        **schedule(
            f"{prefix}.optim",
            ppo.lr_schedule,
            total_steps=ppo.total_steps,
            warmup_steps=ppo.warmup_steps,
            min_lr_ratio=ppo.min_lr_ratio,
        ),
        f"{prefix}.checkpoint.load_contents": ["model", "optimizer", "extra"],
    }


def _actor(config: Config) -> dict[str, Value]:
    ppo = config.ppo
    return {
        **_update(config, ACTOR, lr=ppo.lr),
        **_engine(config, f"{ACTOR}.fsdp_config"),
        f"{ACTOR}.use_torch_compile": False,
        f"{ACTOR}.clip_ratio": ppo.clip_low,
        f"{ACTOR}.clip_ratio_low": ppo.clip_low,
        f"{ACTOR}.clip_ratio_high": ppo.clip_high,
        f"{ACTOR}.clip_ratio_c": ppo.dual_clip or NO_CLIP,
        f"{ACTOR}.entropy_coeff": ppo.entropy_coef,
        f"{ACTOR}.use_kl_loss": ppo.kl_coef > 0,
        f"{ACTOR}.kl_loss_coef": ppo.kl_coef,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        **precision(f"{REFERENCE}.fsdp_config", config.verl.dtype),
        f"{REFERENCE}.fsdp_config.use_torch_compile": False,
        f"{REFERENCE}.fsdp_config.param_offload": config.verl.offload,
        f"{REFERENCE}.log_prob_micro_batch_size_per_gpu": _micro_rows(config),
    }


def _critic(config: Config) -> dict[str, Value]:
    ppo, verl = config.ppo, config.verl
    return {
        "critic.enable": ppo.use_critic,
        **_update(config, CRITIC, lr=ppo.critic_lr),
        **_engine(config, f"{CRITIC}.fsdp"),
        "critic.cliprange_value": ppo.value_clip or NO_CLIP,
        "critic.forward_max_token_len_per_gpu": verl.max_tokens_per_gpu,
        # verl hands the actor's micro-batches on to its engine, the critic's not: its engine would
        # take 32,768 tokens whatever is set.
        "+critic.ppo_infer_max_token_len_per_gpu": verl.max_tokens_per_gpu,
        "+critic.fsdp.use_dynamic_bsz": verl.dynamic_batches,
        "+critic.fsdp.micro_batch_size_per_gpu": _micro_rows(config),
        "+critic.fsdp.infer_micro_batch_size_per_gpu": _micro_rows(config),
        "critic.checkpoint.save_contents": ["model", "optimizer", "extra"],
    }


def _rollout(config: Config, plan: PPOPlan) -> dict[str, Value]:
    ppo, sampling, verl = config.ppo, config.sampling, config.verl
    max_answers = max_answering(config)
    mode = graph_mode(head_size=plan.head_size, max_model_len=sampling.max_model_len)
    return {
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.dtype": verl.dtype,
        f"{ROLLOUT}.n": ppo.group_size,
        f"{ROLLOUT}.temperature": sampling.temperature,
        f"{ROLLOUT}.top_p": sampling.top_p,
        f"{ROLLOUT}.seed": config.seed,
        f"{ROLLOUT}.calculate_log_probs": verl.logprobs_every > 0,
        f"{ROLLOUT}.max_model_len": sampling.max_model_len,
        f"{ROLLOUT}.max_num_seqs": max_answers,
        f"{ROLLOUT}.tensor_model_parallel_size": verl.tensor_parallel_size,
        f"{ROLLOUT}.gpu_memory_utilization": verl.gpu_memory_utilization,
        f"{ROLLOUT}.enforce_eager": verl.enforce_eager,
        **({} if verl.enforce_eager else _graphs(max_answers, mode)),
        f"{ROLLOUT}.load_format": "dummy",
        # vLLM answers with merged weights: it has no kernels for adapters in float32.
        **({"actor_rollout_ref.model.lora.merge": True} if config.model.lora_rank > 0 else {}),
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": _micro_rows(config),
        f"{ROLLOUT}.val_kwargs.n": ppo.probe_samples,
        f"{ROLLOUT}.val_kwargs.do_sample": True,
        f"{ROLLOUT}.val_kwargs.temperature": sampling.temperature,
        f"{ROLLOUT}.val_kwargs.top_p": sampling.top_p,
        f"{ROLLOUT}.agent.num_workers": verl.agent_workers,
        f"{ROLLOUT}.agent.default_agent_loop": AGENT,
        f"{ROLLOUT}.agent.agent_loop_config_path": str(plan.agents_file),
        "reward.num_workers": 1,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }


def _graphs(max_answers: int, mode: str) -> dict[str, Value]:
    return {
        f"{ROLLOUT}.max_num_batched_tokens": step_tokens(max_answers),
        f"{ROLLOUT}.cudagraph_capture_sizes": graph_sizes(),
        f"+{ENGINE}.compilation_config.cudagraph_mode": mode,
    }


def _trainer(config: Config, plan: PPOPlan) -> dict[str, Value]:
    ppo, verl = config.ppo, config.verl
    return {
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": "sync",
        "trainer.project_name": "spa",
        "trainer.experiment_name": "ppo",
        "trainer.logger": ["console", "file"],
        "trainer.n_gpus_per_node": verl.n_gpus_per_node,
        "trainer.nnodes": verl.nnodes,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": ppo.total_steps,
        # The first step is number 1, and the last one is always saved.
        "trainer.critic_warmup": ppo.critic_warmup + 1 if ppo.critic_warmup else 0,
        "trainer.save_freq": ppo.save_every or ppo.total_steps,
        "trainer.test_freq": ppo.probe_every or -1,
        "trainer.val_before_train": ppo.probe_every > 0 and plan.resume_from is None,
        "trainer.max_actor_ckpt_to_keep": None,  # `ppo_verl` removes what the store has
        "trainer.max_critic_ckpt_to_keep": None,
        "trainer.default_local_dir": str(plan.directory),
        "trainer.resume_mode": "resume_path" if plan.resume_from else "disable",
        "trainer.resume_from_path": str(plan.resume_from) if plan.resume_from else None,
    }
