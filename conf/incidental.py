"""Settings that change where and how fast a run computes, or the order of sums, and nothing else.

No fingerprint counts them, and two runs of one row of the paper's table may differ in them.
"""

from __future__ import annotations

WITHOUT_EFFECT = (
    *("log_level", "workers", "branches", "device"),
    *("tracking.", "resources.", "checkpoints.", "sft.save_every", "ppo.save_every"),
    *("generation.max_batch", "generation.gpu_memory_utilization", "generation.enforce_eager"),
    "generation.tensor_parallel_size",
    *("verl.n_gpus_per_node", "verl.nnodes", "verl.ray_address", "verl.strategy"),
    *("verl.sequence_parallel_size", "verl.tensor_parallel_size", "verl.gpu_memory_utilization"),
    *("verl.enforce_eager", "verl.dynamic_batches", "verl.max_tokens_per_gpu"),
    *("verl.micro_batch_size_per_gpu", "verl.attention", "verl.remove_padding"),
    *("verl.gradient_checkpointing", "verl.offload", "verl.agent_workers"),
    *("verl.logprobs_every", "verl.startup_timeout_s"),
)
"""Keys; with a dot at the end whole sections."""
OF_TRAINING = ("model.lora_rank", "model.lora_alpha")
"""Of `model`, and yet without effect on what plays before any training."""


def has_effect(key: str) -> bool:
    """Whether results depend on a setting."""
    return key not in WITHOUT_EFFECT and f"{key.split('.')[0]}." not in WITHOUT_EFFECT
