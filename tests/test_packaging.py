"""What is shipped: the wheel, and the code package that Metaflow sends to another machine.

The wheel is built from a copy, so that no build folder appears in the checkout, and is used from
a place where only the wheel can answer an import.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("conf", "envs", "steps")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Run as `python -c`, with the installed wheel's place as argument.
USE = """
import sys
from pathlib import Path
site = Path(sys.argv[1])
sys.path.insert(0, str(site))
import conf, envs, steps.errors, steps.agent.records
for module in (conf, envs, steps.errors, steps.agent.records):
    assert Path(module.__file__).is_relative_to(site), module.__file__
from conf.compose import compose
config = compose(profile="smoke", env="frozenlake")
env = envs.make("frozenlake")
env.reset(seed=0)
print(config.profile, config.env.id, len(env.unwrapped.describe("grid").splitlines()))
"""


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("wheel")
    source = work / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in TOPS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", str(work / "out"), str(source), cwd=work)
    (built,) = (work / "out").glob("*.whl")
    return built


SHIPPED = (".py", ".yaml", ".jsonl")


def files_of_packages() -> set[str]:
    found = (path for top in TOPS for path in (ROOT / top).rglob("*"))
    return {str(path.relative_to(ROOT)) for path in found if path.suffix in SHIPPED}


def test_pyproject_names_every_package() -> None:
    in_tree = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in TOPS
        for path in (ROOT / top).rglob("__init__.py")
    }
    listed = PYPROJECT["tool"]["setuptools"]["packages"]
    assert sorted(in_tree) == listed


def pinned(file: str) -> dict[str, str]:
    """Name -> version of a file of constraints, which must be exact, sorted and without tags."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    versions = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert list(versions) == sorted(versions)
    assert not any("+" in version for version in versions.values())
    return versions


def test_the_gpu_extra_and_what_all_need_are_resolved_together() -> None:
    versions = pinned("constraints-gpu.txt")  # `make gpucheck` asks the index
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["gpu"]]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)]), text
    for extra in ("constrained", "math", "webshop", "dev"):  # which go beside it
        for wanted in map(Requirement, extras[extra]):
            version = versions.get(canonicalize_name(wanted.name))
            assert version is None or wanted.specifier.contains(version), wanted
    assert "flash-attn" not in versions


def test_constraints_are_exact_and_within_the_ranges() -> None:
    versions = pinned("constraints.txt")
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    tested = [*project["dependencies"], *extras["dev"]]
    (own,) = (Requirement(text) for text in tested if text.startswith(project["name"]))
    for text in [*tested, *(text for extra in own.extras for text in extras[extra])]:
        wanted = Requirement(text)
        if wanted.name == project["name"]:
            continue
        assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)]), text


@pytest.mark.slow
def test_wheel_holds_all_packages_and_their_yaml_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == files_of_packages()


@pytest.mark.slow
def test_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--target", str(site), str(wheel), cwd=tmp_path)
    printed = run(sys.executable, "-c", USE, str(site), cwd=tmp_path)
    assert printed.split() == ["smoke", "frozenlake", "4"]


@pytest.mark.slow
def test_code_package_holds_what_a_remote_task_imports(tmp_path: Path) -> None:
    flow, saved = str(ROOT / "flows" / "spa_flow.py"), tmp_path / "code.tgz"
    run(sys.executable, flow, "--no-pylint", "package", "save", str(saved), cwd=tmp_path)
    with tarfile.open(saved) as archive:
        names = set(archive.getnames())
    missing = sorted({"spa_flow.py", *files_of_packages()} - names)
    assert not missing, f"not in the code package: {', '.join(missing)}"
