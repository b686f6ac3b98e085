"""The code that an environment or a stage is made of: its modules' files, and digests of them.

Kept results (`envs.bounds_cache`, the fingerprints of stages) count by it. A module of this project
brings along what it imports or names in a text, directly or not, but for what only shows or keeps
(`SILENT`); a stranger's what lies beside it in its package, and what these import of its folder.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium

import envs

SILENT = (
    *("steps.report", "steps.tracking", "steps.orchestration"),
    *("envs.tiles", "envs.testing", "envs.sources"),
)
"""Packages and modules whose code changes no result. What `envs` itself registers is in arguments
of the environment."""
BY_MODULE = {"envs.math_answers": ("math-verify", "sympy"), "envs.webshop.search": ("bm25s",)}
"""Module -> libraries that decide what its game takes for right, or shows."""
_ROOT = Path(__file__).resolve().parents[1]
_OURS = ("envs", "steps")
_FOREIGN = {*sys.stdlib_module_names, "gymnasium", "numpy"}
"""First names of modules that say nothing about a game; versions count for them."""
_SPELT = re.compile(r"\b(?:envs|steps)(?:\.\w+)+")
"""A module of ours in a text."""
_INSTALLED = ("site-packages", "dist-packages")
"""Folders in which everybody's packages lie."""


def names_of(env_id: str, env: gymnasium.Env[Any, Any]) -> frozenset[str]:
    """Modules of what `envs.make(env_id)` runs: class or factory, wrappers, the game, their bases.

    An id may lead to a factory, which chooses arguments and wrappers that the game doesn't tell.
    """
    found, layer = envs.makers_of(env_id), env
    while True:
        found.update(cls.__module__ for cls in type(layer).__mro__)
        if not isinstance(layer, gymnasium.Wrapper):
            break
        layer = layer.env
    return frozenset(name for name in found if name.partition(".")[0] not in _FOREIGN)


def files_of(names: Iterable[str]) -> dict[str, Path]:
    """Module -> file of all that these modules are made of; `OSError` where one has no file."""
    found: dict[str, Path] = {}
    for name in sorted(names):
        if name.partition(".")[0] in _OURS:
            found |= closure(name)
            continue
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None:
            raise FileNotFoundError(f"module {name} has no file, so that its code can't be read.")
        found |= _strangers(name, Path(file))
    return found


def libraries_of(files: Iterable[str]) -> tuple[str, ...]:
    """Libraries besides those of every game that these modules' results depend on."""
    return tuple(each for name in sorted(files) for each in BY_MODULE.get(name, ()))


def version_of(library: str) -> str:
    """Without its build tag: a CPU build computes what a CUDA build does. `missing` for none."""
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:
        return "missing"


@cache
def _strangers(module: str, file: Path) -> dict[str, Path]:
    """A stranger's module, those beside it in its package, and what these import of its folder.

    The folder is that in which Python finds the module by its first name. Where other packages are
    installed, too, only its own counts. What is imported of ours counts as in our own code.
    """
    is_package = file.name == "__init__.py"
    folder = file.parents[module.count(".") + is_package]
    waiting = list(file.parent.glob("*.py")) if is_package or "." in module else []
    waiting += [file] if file not in waiting else []
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
                found |= closure(name)
            elif folder.name not in _INSTALLED or head == module.partition(".")[0]:
                imported = _file_of(name, folder)
                waiting += [imported] if imported else []
    return found


@cache
def closure(module: str) -> dict[str, Path]:
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
    if path.suffix != ".py":
        return
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
def code_digest(path: Path) -> str:
    """Of a module's syntax tree without docstrings; of the bytes of one that is compiled."""
    if path.suffix != ".py":
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def _is_text(node: ast.stmt) -> bool:
    """Docstrings, and the texts under fields."""
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)  # type: ignore[attr-defined]
