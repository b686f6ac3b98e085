"""Stands in for `steps.training.verl_driver`: the files that verl leaves, without any training.

Each step's checkpoint holds its number as the model's weights. `SPA_FAKE_FAIL_AT` ends the program
at the start of that step, with the code `SPA_FAKE_FAIL_WITH`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def main(run_file: Path) -> None:
    run = json.loads(run_file.read_text())
    settings = dict(text.split("=", 1) for text in run["overrides"])
    directory = Path(settings["trainer.default_local_dir"])
    last, every = int(settings["trainer.total_training_steps"]), int(settings["trainer.save_freq"])
    first = 1
    if settings["trainer.resume_mode"] == "resume_path":
        resumed = Path(settings["trainer.resume_from_path"])
        assert (resumed / "actor" / "state.txt").read_text() == resumed.name.split("_")[-1]
        first = int(resumed.name.split("_")[-1]) + 1
    source = Path(settings["actor_rollout_ref.model.path"])
    with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("w") as metrics:
        if settings["trainer.val_before_train"] == "True":
            assert first == 1
            data = {"timing_s/testing": 3.0, "probe/success": 2.0}  # the best of all
            metrics.write(json.dumps({"step": 0, "data": data}) + "\n")
            metrics.flush()
        for step in range(first, last + 1):
            if str(step) == os.environ.get("SPA_FAKE_FAIL_AT"):
                print("Error: out of luck")
                sys.exit(int(os.environ.get("SPA_FAKE_FAIL_WITH", "3")))
            if step % every == 0 or step == last:
                save(directory / f"global_step_{step}", source, step)
            data = {"timing_s/step": 2.0, "timing_s/save_checkpoint": 0.5, "actor/pg_loss": 0.1}
            data["probe/success"] = 1.0 if step == 2 else 0.5
            metrics.write(json.dumps({"step": step, "data": data}) + "\n")
            metrics.flush()


def save(directory: Path, source: Path, step: int) -> None:
    model = directory / "actor" / "huggingface"
    model.mkdir(parents=True)
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(source / name, model / name)
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"dtype": "bfloat16"}))
    save_file({"step": np.array([step], dtype=np.float32)}, model / "model.safetensors")
    (directory / "actor" / "state.txt").write_text(str(step))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
