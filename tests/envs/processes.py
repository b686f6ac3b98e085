"""What code prints must not depend on the process: Python salts its string hashes in each."""

from __future__ import annotations

import os
import subprocess
import sys


def said_in_every_process(code: str) -> str:
    """What `code` prints in fresh interpreters with different hash salts; it must be the same."""
    outputs = set()
    for hash_seed in ("0", "1", "31337"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        result = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            check=True,
            text=True,
        )
        outputs.add(result.stdout)
    (output,) = outputs
    return output
