"""Loading a Hugging Face model and its tokenizer, and the device that they go to."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from steps.errors import ConfigError, ModelError
from steps.policies.model_directory import why_not_loaded

_TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
"""What transformers calls its alarm of a long text: lengths are judged where texts are used."""


def load_tokenizer(
    directory: str, *, revision: str = "", trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory or hub name; one without a chat template is refused."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            directory, revision=revision or "main", trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:  # its own files are wrong, or its hub is out of reach
        reason = why_not_loaded(directory, error)
        raise ModelError(f"the tokenizer of {directory!r} can't be loaded: {reason}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"the tokenizer of {directory!r} has no chat template: use an instruction-tuned model, "
            "or add a chat_template to its tokenizer_config.json."
        )
    tokenizer.deprecation_warnings[_TOO_LONG] = True  # said already, so it isn't said
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(
    directory: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str = "",
    trust_remote_code: bool = False,
) -> torch.nn.Module:
    """The causal language model of a directory or hub name, from safetensors only.

    On a GPU products of float32 are taken in TF32, several times as fast: it rounds factors to ten
    bits, finer than the bfloat16 in which such models are usually played.
    """
    transformers_logging.disable_progress_bar()
    if resolve_device(device) != "cpu":
        torch.set_float32_matmul_precision("high")
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=getattr(torch, dtype),
        use_safetensors=True,
        revision=revision or "main",
        trust_remote_code=trust_remote_code,
    )
    return model.to(resolve_device(device))


def resolve_device(device: str) -> str:
    """`auto` is the GPU where one is seen, else the CPU."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch sees no GPU: set device=auto or device=cpu.")
    return device
