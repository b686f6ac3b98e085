"""The import table of docs/architecture.md, and the calls that no module may make.

Files are read as syntax trees: an import counts wherever it stands, at the top, in a function or
under TYPE_CHECKING. A module that isn't in the table, or a library that isn't, fails: add a row.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("conf", "envs", "flows", "steps")

BASICS = ("steps.errors", "conf")
STAGE = (
    *BASICS,
    "envs",
    "steps.agent",
    "steps.policies.base",
    "steps.policies.model_directory",
    "steps.policies.parallel",
    "steps.report",
    "steps.settings",
    "steps.storage",
    "steps.tracking",
    "steps.training",
    "steps.workers",
)
STAGES = (
    "steps.selfplay_generate",
    "steps.filter_format",
    "steps.sft_train",
    "steps.ppo_train",
    "steps.evaluate",
)

# Module or package -> what it may import of ours, besides itself. The longest match counts.
OURS: dict[str, tuple[str, ...]] = {
    "conf": (),
    "envs": (),
    "steps": (),
    "steps.errors": (),
    "steps.agent": ("envs.base", "envs.errors", "steps.errors"),
    "steps.settings": (
        *BASICS,
        "envs",
        "steps.agent",
        "steps.policies.base",
        "steps.policies.engines",
        "steps.policies.model_directory",
    ),
    "steps.storage": (*BASICS, "steps.agent.records"),
    "steps.tracking": (*BASICS, "steps.agent.records"),
    "steps.policies": (*BASICS, "steps.agent"),
    "steps.preflight": (
        *BASICS,
        "envs",
        "steps.agent",
        "steps.policies.engines",
        "steps.policies.model_directory",
        "steps.settings",
        "steps.tracking",
        "steps.training.backends",
        "steps.training.row_lengths",
        "steps.training.verl_told",
    ),
    "steps.policies.parallel": (
        *BASICS,
        "envs",
        "steps.agent",
        "steps.policies.base",
        "steps.policies.loading",
        "steps.settings",
        "steps.workers",
    ),
    "steps.workers": ("steps.errors",),
    "steps.training": (
        *BASICS,
        "envs.splits",
        "steps.agent",
        "steps.policies.base",
        "steps.policies.chat_template",
        "steps.policies.context",
        "steps.policies.graph_sizes",
        "steps.policies.hf",
        "steps.policies.loading",
        "steps.policies.model_directory",
        "steps.policies.parallel",
        "steps.settings",
        "steps.storage",
        "steps.tracking",
        "steps.workers",
    ),
    "steps.report": (
        "envs",
        "steps.agent.records",
        "steps.agent.worldmodel",
        "steps.errors",
        "steps.storage",
    ),
    **{
        f"steps.report.{name}": (
            *(*BASICS, "envs", "steps.orchestration.export", "steps.report", "steps.storage"),
        )
        for name in ("exports", "differences", "paper_rows", "paper_table")
    },
    "steps.orchestration": (*BASICS, "envs", "steps.storage"),
    **dict.fromkeys(STAGES, STAGE),
    "steps.evaluate": (*STAGE, "steps.evaluate_cli"),
    "steps.evaluate_cli": (*STAGE, "steps.evaluate"),
    "steps.selfplay_generate": (*STAGE, "steps.selfplay_cli"),
    "steps.sft_rounds": (
        "conf",
        "steps.filter_format",
        "steps.selfplay_generate",
        "steps.sft_train",
        "steps.tracking",
    ),
    "steps.selfplay_cli": (*STAGE, "steps.selfplay_generate"),
    "flows": (
        *BASICS,
        *STAGES,
        "envs",
        "steps.sft_rounds",
        "steps.orchestration",
        "steps.preflight",
        "steps.report",
        "steps.storage",
        "steps.tracking",
    ),
}

# Library -> the only places that may import it.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "numpy": ("envs", "steps"),
    "gymnasium": (
        "envs",
        "steps.agent",
        "steps.policies.parallel",
        "steps.settings",
        "steps.training",
        *STAGES,
    ),
    "hydra": ("conf.overrides", "steps.training.verl_driver"),
    "omegaconf": (
        "conf.compose",
        "steps.training.verl_judge",
        "steps.training.verl_queue",
        "steps.training.verl_trainer",
    ),
    "metaflow": ("flows", "steps.orchestration"),
    "mlflow": ("steps.tracking",),
    "pyarrow": ("steps.storage", "envs.math_data"),
    "huggingface_hub": ("envs.math_data", "steps.training.hub"),
    "math_verify": ("envs.math_answers",),
    "sympy": ("envs.math_answers",),
    "bm25s": ("envs.webshop.search",),
    "matplotlib": ("steps.report.figures",),
    "rich": ("flows", "steps.orchestration", "steps.report"),
    "torch": (
        "steps.training",
        "steps.policies.constrained",
        "steps.policies.drawing",
        "steps.policies.graph_decode",
        "steps.policies.hf",
        "steps.policies.loading",
        "steps.workers",
    ),
    "transformers": (
        "steps.training",
        "steps.policies.chat_template",
        "steps.policies.context",
        "steps.policies.graph_decode",
        "steps.policies.hf",
        "steps.policies.loading",
    ),
    "tokenizers": ("steps.training",),
    "safetensors": ("steps.training",),
    "vllm": ("steps.policies.vllm_engine", "steps.training.verl_final_only"),
    "ray": (
        "steps.training.verl_driver",
        "steps.training.verl_router",
        "steps.training.verl_watch",
    ),
    "triton": ("steps.training.logits_kernels",),
    "tensordict": (
        "steps.training.verl_groups",
        "steps.training.verl_head",
        "steps.training.verl_trainer",
    ),
    "transfer_queue": (
        "steps.training.verl_groups",
        "steps.training.verl_queue",
        "steps.training.verl_trainer",
    ),
    "verl": (
        "steps.training.verl_agent_loop",
        "steps.training.verl_groups",
        "steps.training.verl_head",
        "steps.training.verl_judge",
        "steps.training.verl_router",
        "steps.training.verl_trainer",
        "steps.training.verl_sft_validation",
        "steps.training.verl_workers",
    ),
    "xgrammar": ("steps.policies.constrained",),
}

HEAVY = ("torch", "transformers", "metaflow", "mlflow", "matplotlib", "pandas", "ray", "vllm")


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))}


def is_within(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def imports_of(source: str, module: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and full name of each import: `from steps import agent` is steps.agent."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, base] if base else package)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in MODULES else base


def fault(module: str, target: str) -> str | None:
    """Why `module` may not import `target`, or None where it may."""
    top = target.split(".")[0]
    if top in sys.stdlib_module_names:
        return None
    if top in TOPS:
        row = max((place for place in OURS if is_within(module, place)), key=len)
        allowed = (row, *OURS[row])
        if any(is_within(target, place) for place in allowed):
            return None
        return f"may not import {target}; {row} may import {', '.join(allowed)}"
    if top not in LIBRARIES:
        return f"imports {top}, which is not in the table of libraries"
    if any(is_within(module, place) for place in LIBRARIES[top]):
        return None
    return f"may not import {top}; only {', '.join(LIBRARIES[top])} may"


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_table(module: str) -> None:
    path = MODULES[module]
    is_package = path.name == "__init__.py"
    found = imports_of(path.read_text(encoding="utf-8"), module, is_package=is_package)
    faults = [
        f"{path.relative_to(ROOT)}:{line} {why}"
        for line, target in found
        if (why := fault(module, target)) is not None
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("module", "source", "is_refused"),
    [
        ("envs.frozenlake", "def f():\n    from steps.errors import SPAError", True),
        ("envs.frozenlake", "from .base import TextEnv", False),
        ("steps.agent.rollout", "import envs.frozenlake", True),
        ("steps.agent.rollout", "from envs.base import TextEnv", False),
        ("steps.agent.rollout", "import torch.nn.functional as F", True),
        ("steps.policies.hf", "import torch", False),
        ("steps.policies.random_policy", "import torch", True),
        ("steps.evaluate", "import metaflow", True),
        ("steps.report.blocks", "from steps.training import tiny_model", True),
        ("steps.report.blocks", "from steps.orchestration.export import export_run", True),
        ("steps.report.exports", "from steps.orchestration.export import export_run", False),
        ("steps.storage", "import requests", True),
        ("conf.compose", "from envs import list_ids", True),
        ("flows.spa_flow", "from steps.training import losses", True),
    ],
)
def test_the_reader_of_imports_refuses_what_it_should(
    module: str, source: str, is_refused: bool
) -> None:
    faults = [fault(module, target) for _, target in imports_of(source, module)]
    assert (faults != [None]) == is_refused


def modules_loaded_by(statement: str, cwd: Path) -> set[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("package", ["envs", "steps.agent", "conf"])
def test_light_packages_load_nothing_heavy(package: str, tmp_path: Path) -> None:
    inside = [name for name in MODULES if is_within(name, package) and "__main__" not in name]
    loaded = modules_loaded_by(f"import {', '.join(inside)}", tmp_path)
    assert set(inside) <= loaded
    assert not loaded.intersection(HEAVY)


def test_the_flow_file_loads_metaflow_and_no_other_large_library(tmp_path: Path) -> None:
    loaded = modules_loaded_by("import flows.spa_flow", tmp_path)
    assert loaded.intersection(HEAVY) == {"metaflow"}


def unsafe_calls(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each call that runs or unpickles what it is given."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        is_unsafe = (
            name in ("eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load")
            or name.split(".")[-1] == "Unpickler"
            or name in ("pickle.load", "pickle.loads", "joblib.load", "marshal.loads")
            or (name == "torch.load" and given.get("weights_only") != "True")
            or (name.endswith(".load") and given.get("allow_pickle") == "True")
            or given.get("shell") == "True"
        )
        if is_unsafe:
            yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("module", MODULES)
def test_nothing_runs_or_unpickles_data(module: str) -> None:
    assert not list(unsafe_calls(MODULES[module].read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("model.eval()", 0),
        ("eval(text)", 1),
        ("torch.load(path)", 1),
        ("torch.load(path, weights_only=False)", 1),
        ("torch.load(path, map_location='cpu', weights_only=True)", 0),
        ("np.load(path, allow_pickle=True)", 1),
        ("subprocess.run(line, shell=True)", 1),
        ("json.load(file)", 0),
    ],
)
def test_the_reader_of_calls_knows_the_unsafe_ones(source: str, count: int) -> None:
    assert len(list(unsafe_calls(source))) == count


def test_every_module_opens_with_what_it_is() -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}
    bare = [name for name, source in sources.items() if not ast.get_docstring(ast.parse(source))]
    assert not bare, f"without a docstring: {', '.join(bare)}"
