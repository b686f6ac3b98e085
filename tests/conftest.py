"""What every test runs under: one thread, no network, and no settings of the person's own.

Thread limits and variables are set on import, before any test module can import numpy or torch.
Subprocesses inherit the variables; only this process is kept from opening connections.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]

FIXED = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MPLBACKEND": "Agg",
}
FOREIGN = ("METAFLOW_", "MLFLOW_", "HYDRA_", "FORCE_COLOR")

for name in [name for name in os.environ if name.startswith(FOREIGN)]:
    del os.environ[name]
os.environ.update(FIXED)
os.environ.setdefault("USER", "tester")  # Metaflow asks for one; a bare container has none

hypothesis.settings.register_profile("house", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("house")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Floors and ceilings are cached under the test run's own directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


def _is_here(host: str) -> bool:
    """Whether an address is this machine's own: no other can be bound."""
    with socket.socket() as bound:
        try:
            bound.bind((host, 0))
        except OSError:
            return False
    return True


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse connections that leave this machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if host not in ("", "127.0.0.1", "::1", "localhost") and not _is_here(host):
            raise AssertionError(f"a test tried to connect to {address!r}: tests use no network")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    yield
