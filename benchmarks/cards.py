"""Graphics cards as benchmarks see them: their speed by data sheet, and their memory in use."""

from __future__ import annotations

import re
import subprocess
import threading

PEAK_FLOPS = (
    (r"NVIDIA H100 \d+GB HBM3", 989e12),
    (r"NVIDIA H200", 989e12),
    (r"NVIDIA A100(-SXM4-\d+GB|-PCIE-\d+GB| \d+GB PCIe)", 312e12),
)
"""Name by the driver, and products in bfloat16 a second, dense, from NVIDIA's data sheets. The H100
is the SXM one: PCIe, NVL and slices of a card (MIG) are slower, and have names of their own."""


def peak_flops(name: str) -> float | None:
    """Floating point operations a second in bfloat16; None where the card isn't known."""
    return next((peak for known, peak in PEAK_FLOPS if re.fullmatch(known, name)), None)


class CardMemory:
    """The most memory that any card has had in use, in GiB, looked at each second."""

    def __init__(self) -> None:
        self.peak = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> CardMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self._end.wait(1.0):
            try:
                found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            except (OSError, subprocess.CalledProcessError):
                return
            self.peak = max(self.peak, *(float(line) / 1024 for line in found.split()))
