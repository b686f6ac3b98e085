"""A Ray cluster of several hosts, all of them this one: `ray start` for each, as users type it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

PORTS_EACH = 300
"""For the processes of one host: two raylets that share a machine must not share ports."""
FIRST_PORT = 21000
START_TIMEOUT_S = 90.0


@contextmanager
def ray_cluster(hosts: int, work: Path, *, cpus: int, gpus: int) -> Iterator[str]:
    """Address of a cluster of `hosts`, each with `cpus` cores and `gpus` cards of its own.

    Host i sees the cards from `i * gpus` on. Logs are in `work`. RAY_AUTH_MODE must say something:
    what it is where nobody says depends on the home directory.
    """
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    address = f"{ray.util.get_node_ip_address()}:{port}"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for host in range(hosts):
            first = FIRST_PORT + host * PORTS_EACH
            head = ["--head", f"--port={port}", "--include-dashboard=false"]
            place = head if host == 0 else [f"--address={address}"]
            words = [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *place),
                *(f"--num-cpus={cpus}", f"--num-gpus={gpus}", "--disable-usage-stats"),
                *(f"--min-worker-port={first}", f"--max-worker-port={first + PORTS_EACH - 1}"),
            ]
            cards = ",".join(str(host * gpus + card) for card in range(gpus))
            with (work / f"host{host}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        words,
                        env=os.environ | {"CUDA_VISIBLE_DEVICES": cards},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
            _wait_for(work / f"host{host}.log", started[-1])
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(timeout=60)


def _wait_for(log: Path, process: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    while "Ray runtime started" not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() - began < START_TIMEOUT_S, log.read_text(errors="replace")
        time.sleep(0.2)
