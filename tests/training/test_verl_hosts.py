# ruff: noqa: E402 (Ray may be missing)
"""A Ray cluster that stands before the training: the driver joins it, or says why it can't.

Needs Ray and verl, no GPU: `make verl`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.verl

from steps.training.verl_common import ROOT
from steps.training.verl_driver import cannot_join
from tests.training.ray_hosts import ray_cluster

JOIN = """
import json, os, sys
from steps.training.verl_driver import start_ray
start_ray(sys.argv[1], 1)
import ray

@ray.remote(num_gpus=1, scheduling_strategy="SPREAD")
class Worker:
    def place(self):
        return {
            "host": ray.get_runtime_context().get_node_id(),
            "cards": os.environ["CUDA_VISIBLE_DEVICES"],
            "queue": os.environ["TRANSFER_QUEUE_ENABLE"],
            "hooks": "steps.training.verl_hooks" in sys.modules,
        }

workers = [Worker.remote() for _ in range(2)]
print(json.dumps(ray.get([worker.place.remote() for worker in workers])))
"""


def join(address: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", JOIN, address]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


def test_the_driver_joins_a_cluster_of_two_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef0123456789abcdef")
    with ray_cluster(2, tmp_path, cpus=2, gpus=1) as address:
        joined = join(address)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        unguarded = join(address)
    assert joined.returncode == 0, joined.stderr
    workers = json.loads(joined.stdout.splitlines()[-1])
    assert len({worker["host"] for worker in workers}) == 2
    assert sorted(worker["cards"] for worker in workers) == ["0", "1"]
    assert all(worker["queue"] == "1" and worker["hooks"] for worker in workers)
    assert f"ConfigError: the Ray cluster at {address} (verl.ray_address) asks for a token" in (
        unguarded.stderr
    )


def test_what_ray_says_of_a_cluster_is_handed_on() -> None:
    assert cannot_join("h:1", "no answer\nTraceback").endswith(
        "the Ray cluster at h:1 (verl.ray_address) can't be joined: no answer"
    )
