"""Stage functions that take no time, for tests of the flow: each writes a file and leaves a trace.

`plant` puts them in the place of the real ones in a copy of the source tree. What they do beyond
that is asked for by files in the working directory: `kill_once` (PPO kills its own process at step
3 of the first attempt), `wait` (PPO stops at step 3 until it is killed) and, in the environment
that the file names, or in all: `kill_always` (PPO kills its own process at step 3, each time; the
last time once another environment's evaluation lingers, if one is to), `starve` (the filter finds
nothing), `crash` (finetuning does), `contradict` (a setting is wrong there), `linger` (the
evaluation waits to be ended).

There are no cards: two more processes a step would take longer than everything else here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

COMMON = """
from __future__ import annotations
import json, os, signal, time
from pathlib import Path
from steps.errors import ModelError, StageError
from steps.storage import directory_digest

CWD = Path.cwd()

def save_model(model, weights):
    # a directory that looks like one of the tiny model
    model.mkdir(parents=True)
    sizes = {"n_positions": 256, "n_embd": 64, "n_layer": 2}
    (model / "config.json").write_text(json.dumps(sizes))
    (model / "tokenizer_config.json").write_text("{}")
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (model / "weights").write_text(weights)

def asked(name, config):
    file = CWD / name
    return file.exists() and file.read_text() in ("", config.env.id)

def await_file(name):
    deadline = time.monotonic() + 240
    while not (CWD / name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.02)

def note(stage, config, **facts):
    with (CWD / "trace.jsonl").open("a") as file:
        file.write(json.dumps({"stage": stage, "env": config.env.id, **facts}) + "\\n")
"""
STAGES = {
    "selfplay_generate": """
def selfplay_generate(config, *, model_dir, out_dir, round_index=1, tracker, batches=None):
    note("selfplay_generate", config, model_dir=model_dir, round=round_index)
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "trajectories.parquet").write_text(f"round {round_index} of {config.seed}")
    return {"file": "trajectories.parquet", "trajectories": 1}
""",
    "filter_format": """
def filter_format(config, *, trajectories, out_dir, tracker):
    text = trajectories[0].read_text()
    note("filter_format", config, read=text)
    if asked("starve", config):
        raise StageError("0 of 9 rows survived the filter (no_answer 9): look at the examples.")
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "rows").write_text(text)
    return {"rows": 1, "kept": 1, "dropped": {}}
""",
    "sft_train": """
def sft_train(config, *, data_dir, model_dir, out_dir, checkpoints, tracker):
    if asked("contradict", config):
        raise ModelError("the weights are cut.")
    if asked("crash", config):
        note("crash", config)
        raise ZeroDivisionError("a defect")
    note("sft_train", config, data=(data_dir / "rows").read_text(), model_dir=bool(model_dir))
    model = out_dir / "model"
    save_model(model, "sft")
    tracker.log({"loss": 1.0}, 0)
    facts = {"curve": [], "steps": 1, "kept_step": 1, "seconds": 0.1, "parameters": 103168}
    return {"model": model, **facts}
""",
    "ppo_train": """
def ppo_train(config, *, model_dir, out_dir, checkpoints, tracker):
    fingerprint = directory_digest(Path(model_dir))
    found = checkpoints.newest(fingerprint)
    start = 0 if found is None else found[0]
    note("ppo_train", config, start=start)
    for step in range(start + 1, 6):
        if step == 3 and (CWD / "kill_once").exists() and start == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 3 and asked("kill_always", config):
            if start and (CWD / "linger").exists():
                await_file("lingering")
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 3 and (CWD / "wait").exists():
            (CWD / "waiting").touch()
            time.sleep(600)
        state = out_dir / "state"
        state.mkdir(exist_ok=True)
        (state / "step").write_text(str(step))
        tracker.log({"rollout/success": step / 10}, step)
        checkpoints.save(state, step=step, fingerprint=fingerprint)
    model = out_dir / "model"
    save_model(model, f"ppo after {step} steps from {start}")
    return {"model": str(model), "curve": [], "steps": step, "start": start}
""",
    "evaluate": """
def evaluate(config, *, model_dirs, out_dir, tracker):
    read = {name: (Path(path) / "weights").read_text() for name, path in model_dirs.items()}
    note("evaluate", config, read=read)
    if asked("linger", config):
        (CWD / "lingering").touch()
        time.sleep(600)
    scores = {"pass@1": 0.5, "pass@1_low": 0.4, "pass@1_high": 0.6, "pass@8": 0.75, "n": 64,
              "puzzles": 8, "floor": 0.2, "ceiling": 0.9, "format_rate": 1.0}
    others = {name: dict(scores) for name in model_dirs if name != "final"}
    return {"summary": {**scores, **others}}
""",
}


WITHOUT_CARDS = {
    "orchestration/cards.py": "def show(*_, **__):\n    pass\n\n\ndef say(_):\n    pass\n",
    "report/blocks.py": "def __getattr__(name):\n    return None\n",
}


def plant(root: Path, target: Path) -> Path:
    """Copy the source tree with fake stages; returns the copy's flow file."""
    for top in ("conf", "envs", "steps", "flows"):
        shutil.copytree(root / top, target / top, ignore=shutil.ignore_patterns("__pycache__"))
    for name, body in STAGES.items():
        (target / "steps" / f"{name}.py").write_text(COMMON + body)
    for name, body in WITHOUT_CARDS.items():
        (target / "steps" / name).write_text(body)
    flow = target / "flows" / "spa_flow.py"
    flow.write_text(flow.read_text().replace('    @card(type="blank")\n', ""))
    return flow
