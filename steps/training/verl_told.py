"""`verl.overrides` and `verl.sft_overrides`, judged by verl itself before anything else starts.

Where verl is installed, that is; elsewhere the words alone are read (`conf.checks`). Imports
nothing large: `verl_judge`, a process of its own, does.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from conf import to_plain
from conf.schema import Config
from steps.errors import ConfigError
from steps.training.machine import installed
from steps.training.verl_common import environment
from steps.training.verl_preflight import NEEDED

JUDGE = "steps.training.verl_judge"
KEYS = {"sft": "verl.sft_overrides", "ppo": "verl.overrides"}
TIMEOUT_S = 180.0
_log = logging.getLogger(__name__)


def check_told(config: Config, stages: Sequence[str]) -> None:
    """Raise `ConfigError` for an override that verl refuses in one of `stages` (`sft`, `ppo`).

    Takes seconds where there are any, in which another process imports verl, and none where there
    are not. Without the verl that is known here nothing is said.
    """
    lists = {"sft": config.verl.sft_overrides, "ppo": config.verl.overrides}
    stages = [stage for stage in stages if lists[stage]]
    if not stages or installed().get("verl") != NEEDED["verl"]:
        return
    asked = {"config": to_plain(config) | {"tracking": {}}, "stages": stages}
    try:
        judged = subprocess.run(
            [sys.executable, "-m", JUDGE],
            input=json.dumps(asked),
            env=environment(Path(os.devnull)) | {"CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        _log.warning("verl's overrides couldn't be checked within %g s", TIMEOUT_S)
        return
    if judged.returncode != 0:
        last = (judged.stderr.strip().splitlines() or [""])[-1]
        _log.warning("verl's overrides couldn't be checked: %s", last)
        return
    found = json.loads(judged.stdout.splitlines()[-1])
    if found:
        raise ConfigError(
            f"{found['override']!r} among {KEYS[found['stage']]} is refused by verl: "
            f"{found['why'].rstrip('.')}. Mend it or leave it out."
        )
