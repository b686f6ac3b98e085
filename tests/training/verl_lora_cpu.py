"""What verl hands to vLLM where adapters are trained: `python -m ... RUN.json DIRECTORY`.

One CPU process with FSDP2, as in `verl_ppo_cpu`. Writes the weights handed over to
`DIRECTORY/handed`, those of the model before and after to `before` and `after` (safetensors).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.update import engine_of
from steps.training.verl_driver import compose
from tests.training.verl_ppo_cpu import ppo_loss, start

FILLED = 0.05
"""Every number of the second factors, which start at 0."""


def weights(module: Any) -> dict[str, torch.Tensor]:
    whole = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in module.named_parameters()
    }
    return {name: value.detach().clone() for name, value in whole.items()}


def main(run_file: Path, directory: Path) -> None:
    start(directory)
    config = compose(json.loads(run_file.read_text())["overrides"])
    section = config.actor_rollout_ref
    engine = engine_of("language_model", section.actor, section.model, ppo_loss).engine
    with torch.no_grad():
        for name, value in engine.module.named_parameters():
            if "lora_B" in name:
                value.fill_(FILLED)
    before = weights(engine.module)
    handed, adapters = engine.get_per_tensor_param(base_sync_done=True)
    assert adapters is None
    save_file({name: value.contiguous() for name, value in handed}, directory / "handed")
    save_file(before, directory / "before")
    save_file(weights(engine.module), directory / "after")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
