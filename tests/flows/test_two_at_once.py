"""Two processes in one directory at the same time: neither loses, doubles or disturbs anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.flows.fake_runs import ROOT, STAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LAKES = ("frozenlake", "frozenlake_deterministic")
SMALL = (
    "device=cpu selfplay.env_groups=20 selfplay.batches=1 sft.max_steps=20 ppo.total_steps=2 "
    "sampling.max_new_tokens=32 evaluation.puzzles=4"
)
SAVES = """
import sys
from pathlib import Path
from metaflow.plugins.datastores.local_storage import LocalStorage
from steps.orchestration.checkpoint_store import MetaflowCheckpoints
from steps.orchestration.directory_store import DirectoryStore

root, made = Path(sys.argv[1]), Path(sys.argv[2])
kept = MetaflowCheckpoints(DirectoryStore(LocalStorage(str(root)), root / "scratch"), roots=["a"])
for step in range(1, 301):
    for name in ("model", "state"):
        (made / name).write_text(f"{name} of {step}")
    kept.save(made, step=step, fingerprint="f")
"""
READS = """
import sys, time
from pathlib import Path
from metaflow.plugins.datastores.local_storage import LocalStorage
from steps.orchestration.checkpoint_store import MetaflowCheckpoints
from steps.orchestration.directory_store import DirectoryStore
from steps.errors import CheckpointError

root = Path(sys.argv[1])
store, last, times = DirectoryStore(LocalStorage(str(root)), root / "scratch"), 0, 0
while last < 300:
    kept = MetaflowCheckpoints(store, roots=[f"b{times}", "a"])
    times += 1
    try:
        found = kept.newest("f")
    except CheckpointError:
        continue  # all that were listed have been pruned since
    if found is None:
        continue
    step, directory = found
    time.sleep(0.002)  # meanwhile the other prunes
    for name in ("model", "state"):
        assert (directory / name).read_text() == f"{name} of {step}"
    assert step >= last
    last = step
print(times)
"""


def start(code: str, *words: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", code, *words]
    return subprocess.Popen(
        line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, out[-3000:] + err[-3000:]
    return out


def test_a_checkpoint_that_was_found_stays_while_its_own_run_prunes(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    reader = start(READS, str(tmp_path / "root"))
    writer = start(SAVES, str(tmp_path / "root"), str(made))
    ended(writer)
    assert int(ended(reader)) > 3


def results(work: Path, run_id: str) -> dict[str, Any]:
    line = [sys.executable, "-m", "steps.orchestration.export", run_id]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=work, env=environment, check=True, capture_output=True)
    exported: dict[str, Any] = json.loads(done.stdout)
    return exported


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Two runs of the same two lakes, started together in one directory."""
    work = tmp_path_factory.mktemp("work")
    flow = str(ROOT / "flows" / "spa_flow.py")
    words = [flow, "run", "--env", ",".join(LAKES), "--profile", "smoke", "--override", SMALL]
    how: Any = {"cwd": work, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [subprocess.Popen([sys.executable, *words], **how) for _ in range(2)]
    outs = [ended_flow(each) for each in running]
    ids = [out.split("run-id ")[1].split(")")[0] for out in outs]
    assert ids[0] != ids[1]
    return work, [results(work, each) for each in ids]


def ended_flow(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, out[-5000:]
    return out


def test_both_runs_finish_with_the_same_scores(
    two_runs: tuple[Path, list[dict[str, Any]]],
) -> None:
    _, (first, second) = two_runs
    for lake in LAKES:
        one, other = (run["environments"][lake]["evaluate"]["summary"] for run in (first, second))
        assert one == other
        assert one["n"] == 32  # 4 puzzles x 8 episodes
    assert first["environments"][LAKES[0]]["evaluate"]["summary"]["ceiling"] < 1.0
    assert first["environments"][LAKES[1]]["evaluate"]["summary"]["ceiling"] == 1.0


def test_the_index_holds_each_stage_of_each_lake_once_and_whole(
    two_runs: tuple[Path, list[dict[str, Any]]],
) -> None:
    work, _ = two_runs
    entries = [
        json.loads(path.read_text())
        for path in (work / ".metaflow" / "spa.cache" / "results").rglob("*.json")
    ]
    found = Counter((entry["stage"], entry["env"]) for entry in entries)
    assert found == {(stage, lake): 1 for stage in STAGES for lake in LAKES}
    for entry in entries:
        home = work / ".metaflow" / entry["result"]["directory"]["key"]
        manifest = json.loads((home / "manifest.json").read_text())
        assert manifest["digest"] == entry["result"]["directory"]["digest"]
        assert all((home / name).is_file() for name in manifest["files"])


def test_mlflow_has_every_metric_of_both_runs_once(
    two_runs: tuple[Path, list[dict[str, Any]]],
) -> None:
    from mlflow import MlflowClient

    work, exported = two_runs
    wait_for_the_feeder(work / ".spa" / "mlflow" / "spool")
    client = MlflowClient(tracking_uri=f"sqlite:///{work}/.spa/mlflow/mlflow.db")
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 2
    for run in exported:
        (parent,) = [each for each in parents if each.data.tags["metaflow.run"] == run["run"]]
        parent_id = parent.info.run_id
        children = [each for each in runs if each.data.tags.get("mlflow.parentRunId") == parent_id]
        own = Counter((each.data.tags["spa.stage"], each.data.tags["spa.env"]) for each in children)
        assert own == {(stage, lake): 1 for stage in STAGES for lake in LAKES}
        for child in children:
            check_points(client, work, run, child)


def check_points(client: Any, work: Path, run: dict[str, Any], child: Any) -> None:
    """Each number of `metrics.jsonl` is there once, and nothing else is."""
    stage, lake = child.data.tags["spa.stage"], child.data.tags["spa.env"]
    task = Path(work / ".metaflow" / "spa.store" / run["run"] / lake / stage / "attempt_0")
    lines = [json.loads(line) for line in (task / "metrics.jsonl").read_text().splitlines()]
    kept = Counter(
        (key.replace("@", "_at_"), line["step"])
        for line in lines
        for key in line.get("metrics", {})
    )
    sent = Counter(
        (key, point.step)
        for key in child.data.metrics
        for point in client.get_metric_history(child.info.run_id, key)
    )
    assert sent == kept and set(kept.values()) <= {1}


def wait_for_the_feeder(spool: Path) -> None:
    """It outlives the runs by some seconds."""
    deadline = time.monotonic() + 120
    while list(spool.glob("*.jsonl")):
        assert time.monotonic() < deadline, list(spool.iterdir())
        time.sleep(0.2)
