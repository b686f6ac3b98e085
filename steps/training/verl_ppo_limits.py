"""What PPO by verl can't do, told from the settings alone. Imports nothing large."""

from __future__ import annotations

from conf.schema import Config
from steps.training.verl_ours import contradicted


def lacks(config: Config) -> str:
    """The first thing that the settings ask for in vain, as a sentence; empty for none."""
    return _unknown(config) or _uneven(config) or contradicted(config, "ppo")


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
    if not verl.dynamic_batches and episodes % num_gpus:  # of GPUs, whatever they share
        return (
            f"without verl.dynamic_batches the {episodes} episodes of a step must be a multiple of "
            f"its {num_gpus} GPUs; change ppo.env_groups, or set verl.dynamic_batches=true."
        )
    room = verl.max_tokens_per_gpu * verl.sequence_parallel_size
    if verl.dynamic_batches and room < config.sampling.max_model_len:
        return (
            f"a micro-batch of {room} tokens (verl.max_tokens_per_gpu) can't hold a sequence of "
            f"sampling.max_model_len={config.sampling.max_model_len}; raise it."
        )
    return ""
