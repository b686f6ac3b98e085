"""Stands in for `verl.trainer.sft_trainer`: reads its overrides, trains nothing, writes what verl
writes, and dies where FAKE_VERL tells it to.

FAKE_VERL is JSON: `exit_after` {step: code} ends the process after that step, negative by a signal;
`steps` ends early but well; `best` is the step of the lowest validation loss.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

from steps.training.verl_sft_data import TokenRowsDataset


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    told = json.loads(os.environ.get("FAKE_VERL", "{}"))
    directory = Path(given["trainer.default_local_dir"])
    rows = TokenRowsDataset(given["data.train_files"], config={"max_length": 1000})
    steps = int(given["trainer.total_training_steps"])
    assert len(rows) == steps * int(given["data.train_batch_size"])
    begun_at = 0
    if given["trainer.resume_mode"] == "resume_path":
        found = Path(given["trainer.resume_from_path"])
        begun_at = int(found.name.removeprefix("global_step_"))
        assert (found / "optim_world_size_1_rank_0.pt").read_text() == str(begun_at)
    print("LlamaForCausalLM contains 0.03M parameters", flush=True)
    with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("w") as metrics:
        for step in range(begun_at + 1, min(steps, told.get("steps", steps)) + 1):
            row = {"train/loss": 1 / step, "train/lr": 9.0, "train/grad_norm": 1.0}
            metrics.write(json.dumps({"step": step, "data": row}) + "\n")
            metrics.flush()
            print(f"step:{step} - train/loss:{1 / step}", flush=True)
            if is_due(step, given["trainer.test_freq"]) or step == steps:
                loss = 1 + abs(step - told.get("best", steps))
                row = {"val/loss": loss, "val/loss_answer": 2 * loss}
                metrics.write(json.dumps({"step": step, "data": row}) + "\n")
                metrics.flush()
            if is_due(step, given["trainer.save_freq"]) or step == steps:
                save(directory, step, Path(given["model.path"]))
                if step < steps:
                    await_keeper(directory / f"global_step_{step}")
            code = told.get("exit_after", {}).get(str(step))
            if code is not None:
                if code < 0:
                    os.kill(os.getpid(), -code)
                raise SystemExit(f"ValueError: broken after {step}" if code == 1 else code)


def is_due(step: int, every: str) -> bool:
    return int(every) > 0 and step % int(every) == 0


def save(directory: Path, step: int, model: Path) -> None:
    target = directory / f"global_step_{step}"
    shutil.copytree(model, target / "huggingface")
    (target / "optim_world_size_1_rank_0.pt").write_text(str(step))
    (directory / "latest_checkpointed_iteration.txt").write_text(str(step))


def await_keeper(target: Path) -> None:
    """The real one takes minutes to its next checkpoint; this one would be past it."""
    deadline = time.monotonic() + 60
    while target.exists():
        assert time.monotonic() < deadline, f"nobody took {target}"
        time.sleep(0.01)


if __name__ == "__main__":
    main()
