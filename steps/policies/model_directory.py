"""Whether a path holds a model, judged by its files alone: before work starts, without torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from steps.errors import ModelError

_NEEDED = ("config.json", "tokenizer_config.json")
_LENGTH_KEYS = ("n_positions", "max_position_embeddings")
_ASIDE = {
    *("_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"),
    "attn_implementation",
    # The ends of a turn, and what fills rows up, are the tokenizer's.
    *("bos_token_id", "eos_token_id", "pad_token_id"),
}
"""What a config.json says of who wrote it, and how: nothing that an engine asks."""
_HEADER_BYTES = 8
_MAX_HEADER = 100_000_000
"""That of safetensors, the format's own limit."""
_TEXTS = {".jinja", ".json", ".model", ".py", ".txt"}


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
    for file in sorted(path.glob("*.safetensors")):
        _check_weights(file)


def why_not_loaded(source: str, error: Exception) -> str:
    """The first line of what a library said, and what to do where the hub was out of reach."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if Path(source).is_dir():
        return reason
    return (
        f"{reason} Check the network and the name; without a network give a local directory, or "
        "set HF_HOME to a cache that holds the model, and HF_HUB_OFFLINE=1."
    )


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


def tensor_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of each tensor in a directory's safetensors files, by their headers alone.

    Raises `ValueError` for a header that can't be one.
    """
    return {
        name: tuple(tensor["shape"])
        for file in sorted(directory.glob("*.safetensors"))
        for name, tensor in _header(file)[0].items()
        if name != "__metadata__"
    }


def form(directory: str) -> dict[str, object]:
    """All of a local model but the numbers in its weights; empty for what is no local directory.

    Two models with the same form differ by training alone, so that one can be loaded where the
    other was. Keys: `config`, `tensors` (each name and shape), and each other file of text, the
    tokenizer's among them, with a digest.
    """
    path = Path(directory)
    if not directory or not path.is_dir():
        return {}
    config = json.loads((path / "config.json").read_text("utf-8"))
    aside = {"config.json", "generation_config.json", "model.safetensors.index.json"}
    return {
        "config": {
            key: value
            for key, value in config.items()
            if key not in _ASIDE and value is not None  # trainers differ in what they leave out
        },
        "tensors": tensor_shapes(path),
    } | {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.iterdir())
        if file.suffix in _TEXTS and file.name not in aside
    }


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """What a safetensors file says of its tensors, and where their numbers begin."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_HEADER_BYTES), "little")
        if length > _MAX_HEADER:
            raise ValueError(f"{file.name} has a header of {length} bytes")
        header = json.loads(stream.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"{file.name} has a header that is no mapping")
    return header, _HEADER_BYTES + length


def _check_json(path: Path) -> None:
    try:
        json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _check_weights(file: Path) -> None:
    """The header must be one, and the file as long as it says: a copy that broke off is shorter."""
    try:
        header, start = _header(file)
        ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
        wanted, found = start + max(ends, default=0), file.stat().st_size
        if found != wanted:
            raise ValueError(f"it has {found:,} bytes, and by its header {wanted:,}")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(file, error) from error


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(
        f"{str(path)!r} can't be read ({error}); save the model again with `save_pretrained`."
    )
