"""Keys of verl that a user's overrides can't set: what they say is done, or counted on, by us.

Whether verl knows a key is for verl to say (`verl_told`). Imports nothing large.
"""

from __future__ import annotations

from collections.abc import Mapping

from conf.schema import Config

NO = (None, "", "false", "null", "none")
IGNORED = {
    "algorithm.use_kl_in_reward": "set ppo.kl_coef, which weighs the divergence in the loss",
    "algorithm.filter_groups": "set ppo.filter_ratio, by which groups are chosen",
    "trainer.v1.sampler": "a step's episodes are awaited and counted by verl.max_failed_share",
}
"""Keys of verl whose work is done by our own code, and what to set in their place."""
_PATHS = "a stage's files and checkpoints lie where it looks for them"
_PROBES = "set ppo.probe_every, ppo.probe_puzzles and ppo.probe_samples"
_REWARDS = "rewards are the world's; set the rewards and penalties of ppo"
_SCHEDULE = "set ppo.lr, ppo.lr_schedule, ppo.warmup_steps and ppo.min_lr_ratio"
_SCHEDULE_KEYS = (
    *("lr", "lr_scheduler_type", "lr_warmup_steps", "lr_warmup_steps_ratio"),
    *("min_lr_ratio", "num_cycles", "total_training_steps", "zero_indexed_step"),
)
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
PPO = {
    "algorithm.adv_estimator": "set ppo.advantage",
    "algorithm.norm_adv_by_std_in_grpo": "set ppo.reward_norm (mean, mean_std), which any "
    "ppo.advantage but grpo takes",
    "algorithm.kl_ctrl": "set ppo.kl_coef",
    "algorithm.kl_penalty": "set ppo.kl_coef",
    "algorithm.pf_ppo": "set ppo.filter_ratio",
    "algorithm.use_pf_ppo": "set ppo.filter_ratio",
    "data": "rows are puzzles in the order of steps; set ppo.env_groups, sampling or env",
    "reward": _REWARDS,
    "reward_model": _REWARDS,
    "reward_manager": _REWARDS,
    "custom_reward_function": _REWARDS,
    "distillation": "no teacher is started",
    "critic.enable": "set ppo.use_critic",
    "critic.strategy": "set verl.strategy",
    "critic.fsdp.strategy": "set verl.strategy",
    f"{_ACTOR}.strategy": "set verl.strategy",
    f"{_ACTOR}.fsdp_config.strategy": "set verl.strategy",
    f"{_ACTOR}.checkpoint": "the model is taken from its checkpoint; leave it whole",
    **{f"{_ACTOR}.optim.{key}": _SCHEDULE for key in _SCHEDULE_KEYS},
    "actor_rollout_ref.model.path": "give --model",
    "actor_rollout_ref.model.lora_rank": "set model.lora_rank",
    "actor_rollout_ref.model.lora_alpha": "set model.lora_alpha",
    "actor_rollout_ref.model.lora.rank": "set model.lora_rank",
    "actor_rollout_ref.model.lora.alpha": "set model.lora_alpha",
    f"{_ROLLOUT}.n": "set ppo.group_size",
    f"{_ROLLOUT}.agent": "set verl.agent_workers; the loop is ours",
    f"{_ROLLOUT}.multi_turn": "set env and prompt",
    f"{_ROLLOUT}.val_kwargs": _PROBES,
    f"{_ROLLOUT}.temperature": "set sampling.temperature",
    f"{_ROLLOUT}.top_p": "set sampling.top_p",
    f"{_ROLLOUT}.do_sample": "set sampling.temperature",
    f"{_ROLLOUT}.max_model_len": "set sampling.max_model_len",
    f"{_ROLLOUT}.prompt_length": "set sampling.max_model_len",
    f"{_ROLLOUT}.response_length": "set sampling.max_new_tokens",
    "trainer.balance_batch": "verl balances every batch",
    "trainer.critic_warmup": "set ppo.critic_warmup",
    "trainer.default_local_dir": _PATHS,
    "trainer.del_local_ckpt_after_load": _PATHS,
    "trainer.log_val_generations": _PROBES,
    "trainer.max_actor_ckpt_to_keep": "set checkpoints.keep_last",
    "trainer.max_critic_ckpt_to_keep": "set checkpoints.keep_last",
    "trainer.n_gpus_per_node": "set verl.n_gpus_per_node",
    "trainer.nnodes": "set verl.nnodes",
    "trainer.remove_previous_ckpt_in_save": "set checkpoints.keep_last",
    "trainer.resume_from_path": _PATHS,
    "trainer.resume_mode": _PATHS,
    "trainer.rollout_data_dir": "sequences come without the columns that it writes",
    "trainer.save_freq": "set ppo.save_every",
    "trainer.test_freq": _PROBES,
    "trainer.total_epochs": "set ppo.total_steps",
    "trainer.total_training_steps": "set ppo.total_steps",
    "trainer.use_v1": "the trainer is derived from verl's synchronous one",
    "trainer.v1": "the trainer is derived from verl's synchronous one",
    "trainer.val_before_train": _PROBES,
    "trainer.val_only": _PROBES,
    "trainer.validation_data_dir": _PROBES,
    "ray_kwargs": "Ray is started by the driver; set verl.ray_address for another",
}
"""PPO's keys that nothing reads here, or that ours must be equal to, and what to set instead."""
_RATES = "set sft.lr, sft.schedule, sft.warmup_steps and sft.min_lr_ratio"
SFT = {
    "data": "rows come as they are learned, batch for batch; set sft or verl",
    "checkpoint": "the model is taken from its checkpoint; leave it whole",
    "engine.strategy": "set verl.strategy",
    "model.path": "give --model",
    "model.lora_rank": "set model.lora_rank",
    "model.lora_alpha": "set model.lora_alpha",
    **{f"optim.{key}": _RATES for key in _SCHEDULE_KEYS},
    "trainer.default_local_dir": _PATHS,
    "trainer.max_ckpt_to_keep": "set checkpoints.keep_last",
    "trainer.n_gpus_per_node": "set verl.n_gpus_per_node",
    "trainer.nnodes": "finetuning takes one host",
    "trainer.resume_from_path": _PATHS,
    "trainer.resume_mode": _PATHS,
    "trainer.save_freq": "set sft.save_every",
    "trainer.test_freq": "set sft.eval_every",
    "trainer.total_epochs": "set sft.max_steps or sft.epochs",
    "trainer.total_training_steps": "set sft.max_steps or sft.epochs",
}
"""The same of finetuning."""
HARMLESS = ("data.dataloader_num_workers", "data.num_workers", "reward.num_workers")
"""Below these, and as verl has them."""
CORRECTION = "algorithm.rollout_correction"


def contradicted(config: Config, stage: str) -> str:
    """The first override of `sft` or `ppo` that would be in vain or do harm, as a sentence; empty
    for none.
    """
    if stage == "sft":
        told = dict(_pair(text) for text in config.verl.sft_overrides)
        return _contradicted(told, SFT, "verl.sft_overrides")
    told = dict(_pair(text) for text in config.verl.overrides)
    return _ignored(told) or _contradicted(told, PPO, "verl.overrides")


def _ignored(told: Mapping[str, str | None]) -> str:
    """What verl would do where our groups and advantages stand."""
    for key, instead in IGNORED.items():
        found = [name for name in told if f"{name}.".startswith(f"{key}.") and told[name] not in NO]
        if found:
            return f"{found[0]} among verl.overrides has no effect here; {instead}."
    if told.get(f"{CORRECTION}.bypass_mode") in NO:
        for name in ("rollout_is", "rollout_rs"):
            if told.get(f"{CORRECTION}.{name}") not in NO:
                return (
                    f"{CORRECTION}.{name} among verl.overrides has no effect here without "
                    f"{CORRECTION}.bypass_mode=True; leave it out, or add that."
                )
    return ""


def _contradicted(told: Mapping[str, str | None], ours: Mapping[str, str], where: str) -> str:
    """What verl would do otherwise than all that is around it, or not at all."""
    for name in told:
        parents = [key for key in ours if f"{name}.".startswith(f"{key}.")]
        if parents and name not in HARMLESS:
            return (
                f"{name} among {where} has no effect here, or breaks what counts on it; "
                f"{ours[parents[0]]}."
            )
    if "file" not in (told.get("trainer.logger") or "file"):
        return f"trainer.logger among {where} leaves out file, which metrics are read from."
    return ""


def _pair(text: str) -> tuple[str, str | None]:
    """Key and value of one of Hydra's overrides, as far as words go."""
    key, _, value = text.partition("=")
    return key.lstrip("+~"), value.strip().strip("'\"").lower()
