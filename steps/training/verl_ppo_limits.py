"""What PPO by verl can't do, told from the settings alone. Imports nothing large."""

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
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
OURS = {
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
    **{
        f"{_ACTOR}.optim.{key}": _SCHEDULE
        for key in (
            *("lr", "lr_scheduler_type", "lr_warmup_steps", "lr_warmup_steps_ratio"),
            *("min_lr_ratio", "num_cycles", "total_training_steps", "zero_indexed_step"),
        )
    },
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
"""Keys that nothing reads here, or whose number ours must be equal to, and what to set instead."""
HARMLESS = ("data.dataloader_num_workers", "reward.num_workers")
"""Below `OURS`, and as verl has them."""
CORRECTION = "algorithm.rollout_correction"


def lacks(config: Config) -> str:
    """The first thing that the settings ask for in vain, as a sentence; empty for none."""
    return _unknown(config) or _uneven(config) or _ignored(config)


def _unknown(config: Config) -> str:
    ppo = config.ppo
    if ppo.lr_schedule == "linear":
        return "ppo.lr_schedule=linear isn't among its schedules; set constant or cosine."
    if ppo.time_limit_s > 0:
        return f"it can't stop by the clock (ppo.time_limit_s={ppo.time_limit_s:g}); set 0."
    if ppo.loss_on != "sampled":
        return f"it learns sampled tokens alone (ppo.loss_on={ppo.loss_on}); set sampled."
    if ppo.target_kl > 0:
        return f"it can't end an update early (ppo.target_kl={ppo.target_kl:g}); set 0."
    if ppo.exclude_zero_variance:
        return (
            "a step can't be left out where no group is fit to train on; set "
            "ppo.exclude_zero_variance=false."
        )
    if config.model.lora_rank > 0 and config.verl.strategy == "fsdp":
        return "adapters are merged for vLLM with FSDP 2 alone; set verl.strategy=fsdp2, or auto."
    saved_at_probes = ppo.save_every and ppo.probe_every and not ppo.probe_every % ppo.save_every
    if ppo.keep == "best" and not saved_at_probes:
        return (
            f"ppo.keep=best needs a checkpoint at each probe; set ppo.save_every to a divisor of "
            f"ppo.probe_every ({ppo.probe_every})."
        )
    return ""


def _ignored(config: Config) -> str:
    """Among `verl.overrides`: what verl would do where our groups and advantages stand."""
    told = dict(_pair(text) for text in config.verl.overrides)
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
    return _contradicted(told)


def _contradicted(told: Mapping[str, str | None]) -> str:
    """What verl would do otherwise than all that is around it, or not at all."""
    for name in told:
        parents = [key for key in OURS if f"{name}.".startswith(f"{key}.")]
        if parents and name not in HARMLESS:
            return (
                f"{name} among verl.overrides has no effect here, or breaks what counts on it; "
                f"{OURS[parents[0]]}."
            )
    if "file" not in (told.get("trainer.logger") or "file"):
        return "trainer.logger among verl.overrides leaves out file, which metrics are read from."
    return ""


def _pair(text: str) -> tuple[str, str | None]:
    """Key and value of one of Hydra's overrides, as far as words go."""
    key, _, value = text.partition("=")
    return key.lstrip("+~"), value.strip().strip("'\"").lower()


def _uneven(config: Config) -> str:
    ppo, verl = config.ppo, config.verl
    if verl.nnodes > 1 and not verl.ray_address:
        return (
            f"verl.nnodes={verl.nnodes} needs a Ray cluster of that many hosts; start one and set "
            "verl.ray_address, or set verl.nnodes=1."
        )
    num_gpus, episodes = verl.n_gpus_per_node * verl.nnodes, ppo.env_groups * ppo.group_size
    for name in ("tensor_parallel_size", "sequence_parallel_size"):
        if num_gpus % getattr(verl, name):
            return f"verl.{name}={getattr(verl, name)} doesn't divide its {num_gpus} GPUs."
    ranks = num_gpus // verl.sequence_parallel_size
    for name, count in (("ppo.group_size", ppo.group_size), ("its number of ranks", ranks)):
        if ppo.minibatch_size % count:
            return f"ppo.minibatch_size={ppo.minibatch_size} isn't a multiple of {name} ({count})."
    if ppo.minibatch_size > episodes:
        return (
            f"ppo.minibatch_size={ppo.minibatch_size} is more than the {episodes} episodes of a "
            "step; lower it."
        )
    room = verl.max_tokens_per_gpu * verl.sequence_parallel_size
    if verl.dynamic_batches and room < config.sampling.max_model_len:
        return (
            f"a micro-batch of {room} tokens (verl.max_tokens_per_gpu) can't hold a sequence of "
            f"sampling.max_model_len={config.sampling.max_model_len}; raise it."
        )
    return ""
