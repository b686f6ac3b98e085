"""Models of the Hugging Face hub as directories: trainers in other processes are given files."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub

from steps.errors import ModelError
from steps.policies.model_directory import why_not_loaded

_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""Configuration, weights and tokenizer; no other format of weights, and no code."""


def local_directory(source: str, *, revision: str = "") -> Path:
    """`source` where it is a directory, else the hub's snapshot of that name, fetched if need be.

    Raises `ModelError` where the hub can't be reached or doesn't have it.
    """
    if Path(source).is_dir():
        return Path(source)
    try:
        found = huggingface_hub.snapshot_download(
            source, revision=revision or None, allow_patterns=_FILES
        )
    except (OSError, ValueError) as error:  # hub errors are OSErrors, bad names ValueErrors
        reason = why_not_loaded(source, error)
        raise ModelError(f"the model {source!r} can't be fetched: {reason}") from error
    return Path(found)
