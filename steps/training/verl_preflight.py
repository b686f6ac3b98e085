"""Whether a training by verl can start here: judged before it does, from plain facts.

Ray waits in silence for a GPU or a core that doesn't exist, and a model that doesn't fit fails
after minutes of loading. Everything but `check_world` is pure over a `Machine`; each function
raises `ConfigError` for the first thing that is wrong.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conf.schema import Config
from steps.errors import ConfigError, EnvironmentIdError
from steps.training.machine import Machine
from steps.training.model_size import ModelSize
from steps.training.verl_common import max_answering

GIB = 1 << 30
NEEDED = {
    "verl": "0.9.1",
    "ray": "2.60.0",
    "torch": "2.11.0",
    "transformers": "5.9.0",
    "vllm": "0.24.0",
}
"""The set that was run together; `gpu` of pyproject.toml holds the same."""
FOR_SFT = ("verl", "ray", "torch", "transformers")
BUNDLE_CPUS = 3
"""Cores that verl's placement group asks for with each GPU (`max_colocate_count`)."""
DRIVER_CPUS = 1
SHARED_MEMORY_PPO = 2 * GIB
"""Ray's object store and NCCL; ours. Containers start with 64 MB."""
SHARED_MEMORY_NCCL = GIB // 4
"""NCCL between GPUs of one host; ours."""
CONTEXT_BYTES = 3 * GIB // 2
"""CUDA context, NCCL buffers and what the allocator can't use; ours."""
SOFTMAX_BYTES = 6
"""Of a logit beside itself and its gradient: log-softmax in float32 (4), a temporary (2)."""
LAYER_BYTES = 34
"""Activations of one layer a token and hidden unit in half precision (Korthikanti et al. 2022,
without attention)."""
WORLD_TIMEOUT_S = 120.0
CLUSTER_TIMEOUT_S = 10.0
_log = logging.getLogger(__name__)
_MAKE_WORLD = (
    "import json, sys, envs; envs.make(sys.argv[1], **json.loads(sys.argv[2])).unwrapped.close()"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Memory of one GPU while it trains, in bytes."""

    states: int
    """Weights and Adam's moments in float32, between updates too: this GPU's share."""
    gradients: int
    """In float32, which verl frees after an update."""
    working: int
    """Weights in `verl.dtype`, gathered while a layer is used."""
    activations: int
    logits: int

    @property
    def total(self) -> int:
        parts = self.states, self.gradients, self.working, self.activations, self.logits
        return sum(parts) + CONTEXT_BYTES

    def __str__(self) -> str:
        parts = {
            "weights and optimizer": self.states,
            "gradients": self.gradients,
            "weights in use": self.working,
            "activations": self.activations,
            "logits": self.logits,
            "CUDA": CONTEXT_BYTES,
        }
        said = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items())
        return f"{self.total / GIB:.1f} GiB ({said})"


def itemsize(config: Config) -> int:
    """Bytes of a number that verl and vLLM compute with."""
    return 4 if config.verl.dtype == "float32" else 2


def estimate(config: Config, size: ModelSize, *, num_gpus: int, tokens: int) -> Estimate:
    """Memory of training `size` with micro-batches of `tokens` tokens on each of `num_gpus`."""
    trained = size.parameters
    if config.model.lora_rank > 0:
        # A pair of matrices beside each of a block's seven linear maps.
        per_layer = 11 * size.hidden + 3 * size.ffn
        trained = config.model.lora_rank * per_layer * size.layers
    per_unit = size.parameters // max(1, size.layers) + 2 * size.vocab * size.hidden
    width = itemsize(config)
    layers_kept = 1 if config.verl.gradient_checkpointing else size.layers
    per_token = LAYER_BYTES * layers_kept + 2 * size.layers
    return Estimate(
        states=(4 * size.parameters + 8 * trained) // num_gpus,
        gradients=4 * trained // num_gpus,
        working=width * min(size.parameters, 2 * per_unit),
        activations=tokens * size.hidden * per_token * width // 2,
        logits=tokens * size.vocab * (2 * width + SOFTMAX_BYTES),
    )


def check_sft(config: Config, machine: Machine, size: ModelSize, *, tokens: int) -> None:
    """Raise where a finetuning can't start; `tokens` of the largest micro-batch."""
    num_gpus = config.verl.n_gpus_per_node
    check_gpus(machine, num_gpus, config)
    check_versions(machine, FOR_SFT)
    if num_gpus > 1:
        check_shared_memory(machine, SHARED_MEMORY_NCCL)
    need = estimate(config, size, num_gpus=num_gpus, tokens=tokens)
    check_memory(machine, num_gpus, need)
    if config.verl.offload:
        check_host_memory(machine, need.states * num_gpus)


def check_ppo(config: Config, machine: Machine, size: ModelSize, *, tokens: int) -> None:
    """Raise where PPO can't start: trainer, critic and vLLM share the GPUs of this host.

    Of a cluster that exists already (`verl.ray_address`) only versions are checked, and that it
    answers; the rest is Ray's to judge.
    """
    check_versions(machine, tuple(NEEDED))
    if config.verl.ray_address:
        check_cluster(config.verl.ray_address)
        return
    num_gpus = config.verl.n_gpus_per_node
    check_gpus(machine, num_gpus, config)
    check_cpus(machine, num_gpus)
    check_shared_memory(machine, SHARED_MEMORY_PPO)
    needs = {"actor": estimate(config, size, num_gpus=num_gpus, tokens=tokens)}
    if config.ppo.use_critic and config.ppo.advantage != "grpo":
        whole = replace(config, model=replace(config.model, lora_rank=0))  # it has no adapters
        needs["critic"] = replace(  # and tells one number a token
            estimate(whole, size, num_gpus=num_gpus, tokens=tokens), logits=0
        )
    kept = sum(need.states for need in needs.values())
    at_rest = 0 if config.verl.offload else kept
    for name, need in needs.items():
        also = max(0, at_rest - need.states)
        check_memory(machine, num_gpus, need, name=name, also=also)
    _check_vllm(machine, config, size, at_rest)
    # The reference of the KL term stays in host memory; an actor with adapters is its own.
    has_reference = config.ppo.kl_coef > 0 and config.model.lora_rank == 0
    in_host = 4 * size.parameters if has_reference else 0
    check_host_memory(machine, in_host + (kept * num_gpus if config.verl.offload else 0))


def check_cluster(address: str) -> None:
    """Raise where nobody listens at a Ray cluster's `host:port`; Ray asks for two minutes.

    Other forms of an address (`auto`) are Ray's to find.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CLUSTER_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} (verl.ray_address): {error}. Start one with "
            f"`ray start --head --port={port}` on its first host, or mend the address."
        ) from error


def check_architecture(model_config: Any, *, sharing: int = 1) -> None:
    """Raise for a transformers configuration that verl's FSDP engine can't train, or not with
    `sharing` GPUs a sequence (Ulysses), of which each has whole heads.
    """
    if not hasattr(model_config, "num_key_value_heads"):
        raise ConfigError(
            f"verl can't train a {getattr(model_config, 'model_type', 'model')}, whose "
            "configuration has no num_key_value_heads: take a model such as Qwen2 or Llama, or set "
            "sft.backend=local ppo.backend=local."
        )
    if sharing == 1:
        return
    heads, kv_heads = model_config.num_attention_heads, model_config.num_key_value_heads
    fit = [
        size
        for size in range(1, heads + 1)
        # Heads of keys and values are given out, or each to several GPUs.
        if heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
    ]
    if sharing not in fit:
        raise ConfigError(
            f"verl.sequence_parallel_size={sharing} can't share out the model's {heads} attention "
            f"heads, {kv_heads} of keys and values: set it to one of {fit}."
        )


def check_versions(machine: Machine, names: Sequence[str]) -> None:
    """Raise for the libraries that are missing or of another version than was tested."""
    wrong = [
        f"{name} {machine.versions.get(name, 'is missing')} (needed: {NEEDED[name]})"
        for name in names
        if machine.versions.get(name) != NEEDED[name]
    ]
    if wrong:
        raise ConfigError(
            f"the verl backend can't run with {', '.join(wrong)}: pip install 'spa-agents[gpu]' "
            "into an environment of its own, or set sft.backend=local ppo.backend=local."
        )


def check_gpus(machine: Machine, wanted: int, config: Config) -> None:
    """Raise where there are fewer than `wanted`."""
    if machine.gpu_error:
        raise ConfigError(
            f"torch can't use CUDA here: {machine.gpu_error}. See whether nvidia-smi works in this "
            "environment, or set sft.backend=local ppo.backend=local."
        )
    if not machine.gpus:
        raise ConfigError(
            f"the verl backend needs a CUDA GPU, and none is seen here (profile {config.profile}): "
            "run on a machine with one, or set sft.backend=local ppo.backend=local."
        )
    if len(machine.gpus) < wanted:
        raise ConfigError(
            f"verl.n_gpus_per_node is {wanted}, and {len(machine.gpus)} are seen here "
            f"({machine.gpus[0].name}): set verl.n_gpus_per_node={len(machine.gpus)}, or make more "
            "visible (CUDA_VISIBLE_DEVICES, resources.*.gpu)."
        )


def check_cpus(machine: Machine, num_gpus: int) -> None:
    """Raise where Ray would wait for cores for ever."""
    wanted = BUNDLE_CPUS * num_gpus + DRIVER_CPUS
    if machine.cpus < wanted:
        raise ConfigError(
            f"PPO by verl on {num_gpus} GPUs reserves {wanted} CPU cores ({BUNDLE_CPUS} a GPU and "
            f"{DRIVER_CPUS}), and this process has {machine.cpus}: raise resources.ppo_train.cpu, "
            "or train on fewer GPUs (verl.n_gpus_per_node)."
        )


def check_shared_memory(machine: Machine, wanted: int) -> None:
    """Raise where /dev/shm is as small as a container has it."""
    if machine.shared_memory < wanted:
        raise ConfigError(
            f"/dev/shm has {machine.shared_memory / GIB:.2f} GiB free, and {wanted / GIB:.2f} are "
            "needed by Ray and NCCL: give the container more (docker run --shm-size=8g; "
            "@kubernetes(shared_memory=8192))."
        )


def check_memory(
    machine: Machine, num_gpus: int, need: Estimate, *, name: str = "model", also: int = 0
) -> None:
    """Raise where one of the GPUs to be used has less than `need` and `also` bytes free.

    `also` are the states of the model that isn't trained meanwhile.
    """
    for index, gpu in enumerate(machine.gpus[:num_gpus]):
        if need.total + also > gpu.free:
            other = "actor" if name == "critic" else "critic"
            beside = f" and {also / GIB:.1f} GiB of the {other}'s states" if also else ""
            raise ConfigError(
                f"training the {name} needs about {need}{beside} on each of {num_gpus} GPUs, and "
                f"GPU {index} ({gpu.name}) has {gpu.free / GIB:.1f} GiB free of "
                f"{gpu.total / GIB:.1f}: lower verl.max_tokens_per_gpu, take more GPUs "
                "(verl.n_gpus_per_node), train an adapter (model.lora_rank=64; a critic is trained "
                "whole), set verl.offload=true, or end what else runs there."
            )


def check_host_memory(machine: Machine, needed: int) -> None:
    """Raise where the host can't hold what is kept there."""
    if needed > machine.memory:
        raise ConfigError(
            f"verl would keep {needed / GIB:.1f} GiB in host memory (weights and optimizers with "
            "verl.offload, the reference model with ppo.kl_coef), and "
            f"{machine.memory / GIB:.1f} GiB are available: raise resources.*.memory, or keep "
            "less there."
        )


def _check_vllm(machine: Machine, config: Config, size: ModelSize, at_rest: int) -> None:
    """vLLM takes its share while the trainer's weights and optimizer stay where they are.

    Its weights must fit in, and a KV cache for one conversation at full length; vLLM refuses less.
    For how many it has room is said: others would wait. Its activations, which are small, aren't
    counted.
    """
    share, width = config.verl.gpu_memory_utilization, itemsize(config)
    weights = width * size.parameters // config.verl.tensor_parallel_size
    length, wanted = config.sampling.max_model_len, max_answering(config)
    conversation = length * width * cached_share(size, config.verl.tensor_parallel_size)
    for index, gpu in enumerate(machine.gpus[: config.verl.n_gpus_per_node]):
        if share * gpu.total < weights:
            raise ConfigError(
                f"vLLM's weights are {weights / GIB:.1f} GiB a GPU, and its share of GPU {index} "
                f"(verl.gpu_memory_utilization={share:g}) is {share * gpu.total / GIB:.1f} GiB: "
                "raise it, or have more GPUs share a copy (verl.tensor_parallel_size)."
            )
        room = share * gpu.total - weights
        if room < conversation:
            raise ConfigError(
                f"vLLM keeps {conversation / GIB:.2f} GiB of one conversation at full length "
                f"(sampling.max_model_len={length}), and beside weights of {weights / GIB:.1f} GiB "
                f"its share of GPU {index} (verl.gpu_memory_utilization={share:g}) has "
                f"{room / GIB:.2f} GiB left: raise it, lower sampling.max_model_len, or have more "
                "GPUs share a copy (verl.tensor_parallel_size)."
            )
        if room < wanted * conversation:
            _log.warning(
                "vLLM's KV cache on GPU %d holds %d of the %d conversations that are answered at "
                "once at full length (%d tokens); others wait, or are read again. "
                "verl.gpu_memory_utilization gives it more.",
                *(index, room // conversation, wanted, length),
            )
        if share * gpu.total + at_rest + CONTEXT_BYTES > gpu.free:
            raise ConfigError(
                f"vLLM takes {share:.0%} of GPU {index} (verl.gpu_memory_utilization), "
                f"{share * gpu.total / GIB:.1f} GiB, beside {at_rest / GIB:.1f} GiB of trained "
                f"models, and {gpu.free / GIB:.1f} GiB are free: lower it, or set "
                "verl.offload=true."
            )


def cached_share(size: ModelSize, tensor_parallel: int) -> int:
    """Numbers of vLLM's KV cache for one token, on each of the GPUs that share a copy.

    A GPU has whole heads, at least one.
    """
    return size.cached * -(-size.kv_heads // tensor_parallel) // size.kv_heads


def check_world(env_id: str, kwargs: Mapping[str, object], environ: Mapping[str, str]) -> None:
    """Make the world in a fresh interpreter, as Ray's workers will.

    Raises `EnvironmentIdError` where it can't be made, and `ConfigError` where that takes longer
    than `WORLD_TIMEOUT_S`.
    """
    with tempfile.TemporaryDirectory() as elsewhere:
        try:
            made = subprocess.run(
                [sys.executable, "-c", _MAKE_WORLD, env_id, json.dumps(dict(kwargs))],
                env=dict(environ),
                cwd=elsewhere,
                capture_output=True,
                text=True,
                timeout=WORLD_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"the world {env_id!r} wasn't made in another process within {WORLD_TIMEOUT_S:g} s,"
                " and the trainer's workers make it for each episode: see what its import or "
                "env.kwargs load, or set ppo.backend=local."
            ) from error
    if made.returncode != 0:
        lines = made.stderr.strip().splitlines() or [f"exit code {made.returncode}"]
        raise EnvironmentIdError(
            f"the world {env_id!r} can't be made in another process, as the trainer's workers "
            f"must: {lines[-1]}. Install its package, or put its folder on PYTHONPATH."
        )
