"""How vLLM's offline engine is started for a policy: plain values, without vllm itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.errors import ModelError
from steps.policies.graph_sizes import graph_sizes, step_tokens

if TYPE_CHECKING:
    from steps.policies.base import PolicySpec

CPU_BATCH_TOKENS = 4096
"""Tokens of a step of the CPU build; more only make a step longer."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""For which vLLM has kernels."""


def engine_arguments(spec: PolicySpec, max_model_len: int) -> dict[str, Any]:
    """The arguments of `vllm.LLM`; weights are read from safetensors only."""
    found: dict[str, Any] = {
        "model": spec.model_dir,
        "revision": spec.revision or None,
        "trust_remote_code": spec.trust_remote_code,
        "load_format": "safetensors",
        "generation_config": "vllm",
        "dtype": spec.dtype,
        "max_model_len": max_model_len,
        "max_num_seqs": spec.max_batch,
        "gpu_memory_utilization": spec.gpu_memory_utilization,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "enforce_eager": spec.enforce_eager,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "structured_outputs_config": {"backend": "xgrammar"},
        "seed": 0,
    }
    if spec.device == "cpu":
        # A prompt in pieces makes the CPU build turn its generator back, which it can't.
        whole = max(max_model_len, CPU_BATCH_TOKENS)
        found |= {"enable_chunked_prefill": False, "max_num_batched_tokens": whole}
    else:
        # Plans a step beside the one before: half as fast again, for ten seconds of imports.
        found["distributed_executor_backend"] = "mp"
        if not spec.enforce_eager:
            found |= {
                "max_num_batched_tokens": step_tokens(spec.max_batch),
                "compilation_config": {"cudagraph_capture_sizes": graph_sizes()},
            }
    if spec.adapter_dir:
        found |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _rank(spec.adapter_dir)}
    return found


def _rank(adapter_dir: str) -> int:
    """The adapter's rank, rounded up to one of `LORA_RANKS`."""
    try:
        config = json.loads((Path(adapter_dir) / "adapter_config.json").read_text("utf-8"))
        rank = max([int(config["r"]), *map(int, config.get("rank_pattern", {}).values())])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{adapter_dir!r} holds no LoRA adapter ({error!r} in adapter_config.json): give a "
            "directory that PEFT's save_pretrained wrote."
        ) from error
    return next((each for each in LORA_RANKS if each >= rank), rank)
