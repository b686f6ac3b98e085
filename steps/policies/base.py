"""Who may answer: the protocol, and how a policy is made from plain values.

A backend is one file in this package; its file is imported only when it is asked for, so that
playing at random needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from steps.agent.drivers import Policy
from steps.errors import ConfigError, unknown_name

__all__ = ["POLICY_KINDS", "Policy", "PolicySpec", "check_library", "make_policy"]

POLICY_KINDS = ("hf", "oracle", "random", "vllm")


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySpec:
    """A policy in plain values: it can be pickled, and each worker process makes its own."""

    kind: str
    """One of `POLICY_KINDS`."""
    model_dir: str = ""
    """Hugging Face directory (hf, vllm)."""
    adapter_dir: str = ""
    """PEFT directory of a LoRA adapter that is played on top of the model (vllm)."""
    device: str = "cpu"
    dtype: str = "float32"
    max_model_len: int = 0
    """Prompt and answer together, in tokens; 0 takes the model's own limit."""
    revision: str = ""
    """Of a hub name: branch, tag or commit; a directory has none."""
    trust_remote_code: bool = False
    max_batch: int = 1024
    """Most requests that are answered at once."""
    separator: str = "||"
    """What stands between the actions of an answer; for policies that write answers themselves."""
    actions_per_turn: int = 0
    """Actions in each answer, 0 as many as it may hold (random)."""
    thought: str = ""
    """Of each answer (random)."""
    constrained: bool = False
    """Force well-formed answers (hf, vllm)."""
    max_span_chars: int = 0
    """Most characters of each free span of a constrained answer; 0 is no limit but the tokens'."""
    logprobs: bool = False
    """Tell the log-probabilities of sampled tokens (vllm; hf always does)."""
    gpu_memory_utilization: float = 0.9
    """Share of each GPU's memory for weights and KV cache (vllm)."""
    tensor_parallel_size: int = 1
    """GPUs that share one copy of the model (vllm)."""
    enforce_eager: bool = False
    """Leave out compilation and CUDA graphs (vllm)."""


def make_policy(spec: PolicySpec) -> Policy:
    """The policy; raises `ConfigError` for an unknown kind, and what its backend raises."""
    if spec.kind == "random":
        from steps.policies.random_policy import RandomPolicy

        return RandomPolicy(
            actions_per_turn=spec.actions_per_turn,
            thought=spec.thought,
            separator=spec.separator,
        )
    if spec.kind == "oracle":
        from steps.policies.oracle import OraclePolicy

        return OraclePolicy(separator=spec.separator)
    if spec.kind == "hf":
        from steps.policies.hf import HFPolicy

        return HFPolicy.from_spec(spec)
    if spec.kind == "vllm":
        from steps.policies.vllm_engine import VLLMPolicy

        return VLLMPolicy.from_spec(spec)
    raise ConfigError(unknown_name("policy", spec.kind, POLICY_KINDS))


def check_library() -> None:
    """Raise `ConfigError` where what constrained answers need isn't installed; loads nothing."""
    if find_spec("xgrammar") is None:
        raise ConfigError(
            "generation.constrained=true needs xgrammar, which is not installed: "
            "pip install 'spa-agents[constrained]'."
        )
