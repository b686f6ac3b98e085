"""Whether a path holds a model, judged by its files alone: before work starts, without torch."""

from __future__ import annotations

import json
from pathlib import Path

from steps.errors import ModelError

_NEEDED = ("config.json", "tokenizer_config.json")
_LENGTH_KEYS = ("n_positions", "max_position_embeddings")


def check_model(source: str) -> None:
    """Raise `ModelError` where `source` is a path without a usable model; hub names pass."""
    if Path(source).exists() or source.startswith(("/", ".", "~")):
        check_model_directory(source)


def check_model_directory(directory: str) -> None:
    """Raise `ModelError` for a local path that is no Hugging Face directory with safetensors."""
    path = Path(directory)
    if not path.exists():
        raise ModelError(
            f"no model at {directory!r}: give a Hugging Face directory, or the name of a file in "
            "conf/model."
        )
    missing = [name for name in _NEEDED if not (path / name).is_file()]
    if not any(path.glob("*.safetensors")):
        missing.append("*.safetensors (other weight formats are not loaded)")
    if missing:
        raise ModelError(
            f"{directory!r} is not a Hugging Face model directory: missing {', '.join(missing)}."
        )
    for name in _NEEDED:
        _check_json(path / name)


def base_of_adapter(directory: str) -> str:
    """The model that a PEFT directory's LoRA adapter belongs to; empty for any other directory."""
    path = Path(directory) / "adapter_config.json"
    if not path.is_file() or (Path(directory) / "config.json").is_file():
        return ""
    _check_json(path)
    base = json.loads(path.read_text("utf-8")).get("base_model_name_or_path")
    if not base:
        raise ModelError(
            f"{str(path)!r} names no base_model_name_or_path: say there which model it adapts."
        )
    return str(base)


def context_limit(directory: str) -> int | None:
    """Most tokens that the model of a local directory reads; None where its files don't say."""
    path = Path(directory) / "config.json"
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return next((int(found[key]) for key in _LENGTH_KEYS if found.get(key)), None)


def _check_json(path: Path) -> None:
    try:
        json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{str(path)!r} can't be read ({error}); save the model again with `save_pretrained`."
        ) from error
