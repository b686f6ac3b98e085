"""What this machine has: GPUs with their memory, cores, host and shared memory, installed versions.

GPUs are asked for in a process of its own: to ask torch opens a context of half a gigabyte on the
very GPU whose memory is wanted, and it would stay open as long as we do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from steps.settings import available_cores

SHARED_MEMORY = Path("/dev/shm")
LIBRARIES = ("torch", "transformers", "verl", "vllm", "ray", "flash-attn")
TIMEOUT_S = 180.0
_ASK = """
import json, torch
gpus = []
for index in range(torch.cuda.device_count()):
    free, total = torch.cuda.mem_get_info(index)
    gpus.append({"name": torch.cuda.get_device_name(index), "total": total, "free": free})
print(json.dumps(gpus))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU that this process may use; bytes."""

    name: str
    total: int
    free: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What can be counted on; bytes."""

    gpus: tuple[Gpu, ...] = ()
    gpu_error: str = ""
    """Why the GPUs couldn't be asked for."""
    cpus: int = 1
    """Cores of this process, by affinity and quota."""
    shared_memory: int = 0
    """Free in /dev/shm."""
    memory: int = 0
    """Of the host that is available, within the control group's limit."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Installed libraries; one that is missing isn't in it."""


def read_machine() -> Machine:
    """Ask this machine; takes some seconds, in which another process imports torch."""
    gpus, error = _gpus()
    return Machine(
        gpus=gpus,
        gpu_error=error,
        cpus=available_cores(),
        shared_memory=_free(SHARED_MEMORY),
        memory=_memory(),
        versions=installed(),
    )


def installed() -> dict[str, str]:
    """Versions of the libraries that the verl backend is made of, without build tags."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return found


def visible_gpus(dev: Path = Path("/dev"), environ: Mapping[str, str] = os.environ) -> int:
    """GPUs by their device files and CUDA_VISIBLE_DEVICES: a guess that loads no library."""
    present = sum(path.name.removeprefix("nvidia").isdigit() for path in dev.glob("nvidia*"))
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return present
    return min(
        present, sum(bool(word.strip()) and word.strip() != "-1" for word in named.split(","))
    )


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return (), f"torch didn't answer within {TIMEOUT_S:g} s"
    if asked.returncode != 0:
        lines = asked.stderr.strip().splitlines()
        return (), lines[-1] if lines else f"exit code {asked.returncode}"
    return tuple(Gpu(**gpu) for gpu in json.loads(asked.stdout.splitlines()[-1])), ""


def _free(directory: Path) -> int:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return 0


def _memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    available = 0
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except OSError:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return pages
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # no limit, or "max"
        return available
    return min(available, max(0, limit - used))
