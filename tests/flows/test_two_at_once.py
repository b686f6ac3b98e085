"""Two processes in one directory at the same time: neither loses, doubles or disturbs anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from steps.orchestration.stages import branch_name
from tests.flows.fake_runs import ROOT, STAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TILES = "examples.sliding_tiles:SlidingTiles"
GAMES = (("frozenlake", TILES), ("frozenlake",))
"""Of either run. The example comes as a user brings a game: `module:Class`, from another folder."""
SMALL = (
    "device=cpu selfplay.env_groups=20 selfplay.batches=1 sft.max_steps=20 ppo.total_steps=2 "
    "sampling.max_new_tokens=32 evaluation.puzzles=4"
)
SAVES = """
import sys, time
from pathlib import Path
from metaflow.plugins.datastores.local_storage import LocalStorage
from steps.orchestration.checkpoint_store import MetaflowCheckpoints
from steps.orchestration.directory_store import DirectoryStore

root, made, seen = map(Path, sys.argv[1:])
kept = MetaflowCheckpoints(DirectoryStore(LocalStorage(str(root)), root / "scratch"), roots=["a"])
for step in range(1, 301):
    for name in ("model", "state"):
        (made / name).write_text(f"{name} of {step}")
    kept.save(made, step=step, fingerprint="f")
    while step % 50 == 1 and not any(int(file.name) >= step for file in seen.iterdir()):
        time.sleep(0.002)  # so that the other does read meanwhile
"""
READS = """
import sys, time
from pathlib import Path
from metaflow.plugins.datastores.local_storage import LocalStorage
from steps.orchestration.checkpoint_store import MetaflowCheckpoints
from steps.orchestration.directory_store import DirectoryStore
from steps.errors import CheckpointError

root, seen = map(Path, sys.argv[1:])
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
    (seen / str(step)).touch()
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
    root, made, seen = (str(tmp_path / name) for name in ("root", "made", "seen"))
    os.mkdir(made)
    os.mkdir(seen)
    reader = start(READS, root, seen)
    writer = start(SAVES, root, made, seen)
    ended(writer)
    assert int(ended(reader)) >= 7  # 1, 51, ..., 251 and 300 at least


def results(work: Path, run_id: str) -> dict[str, Any]:
    line = [sys.executable, "-m", "steps.orchestration.export", run_id]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=work, env=environment, check=True, capture_output=True)
    exported: dict[str, Any] = json.loads(done.stdout)
    return exported


class Finished(NamedTuple):
    """A run that has ended."""

    out: str
    exported: dict[str, Any]

    def scores(self, game: str) -> dict[str, Any]:
        summary: dict[str, Any] = self.exported["environments"][game]["evaluate"]["summary"]
        return summary


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def two_runs(work: Path) -> list[Finished]:
    """A run of a lake and of an example game, and one of the same lake; started together."""
    flow = str(ROOT / "flows" / "spa_flow.py")
    how: Any = {"cwd": work, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [
        subprocess.Popen(
            [sys.executable, flow, "run", "--env", ",".join(games), "--profile", "smoke",
             "--override", SMALL],
            **how,
        )
        for games in GAMES
    ]  # fmt: skip
    outs = [ended_flow(each) for each in running]
    ids = [out.split("run-id ")[1].split(")")[0] for out in outs]
    assert ids[0] != ids[1]
    return [Finished(out, results(work, each)) for out, each in zip(outs, ids, strict=True)]


def ended_flow(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, out[-5000:]
    return out


def test_both_runs_finish_with_the_same_scores(two_runs: list[Finished]) -> None:
    first, second = (run.scores("frozenlake") for run in two_runs)
    assert first == second
    assert first["n"] == 32  # 4 puzzles x 8 episodes
    assert 0.0 < first["floor"] < first["ceiling"] < 1.0


def test_the_flow_trains_on_the_example_game(two_runs: list[Finished]) -> None:
    scores = two_runs[0].scores(TILES)
    assert scores["n"] == 32
    assert 0.0 < scores["floor"] < scores["ceiling"] <= 1.0
    rows = re.findall(r"(random|optimal) play +│ +[\d.]+ ", two_runs[0].out)
    assert rows == ["random", "optimal"] * len(GAMES[0])


def test_the_index_holds_each_stage_of_each_game_once_and_whole(
    work: Path, two_runs: list[Finished]
) -> None:
    entries = [
        json.loads(path.read_text())
        for path in (work / ".metaflow" / "spa.cache" / "results").rglob("*.json")
    ]
    found = Counter((entry["stage"], entry["env"]) for entry in entries)
    assert found == {(stage, game): 1 for stage in STAGES for game in GAMES[0]}
    for entry in entries:
        home = work / ".metaflow" / entry["result"]["directory"]["key"]
        manifest = json.loads((home / "manifest.json").read_text())
        assert manifest["digest"] == entry["result"]["directory"]["digest"]
        assert all((home / name).is_file() for name in manifest["files"])


def test_mlflow_has_every_metric_of_both_runs_once(work: Path, two_runs: list[Finished]) -> None:
    from mlflow import MlflowClient

    wait_for_the_feeder(work / ".spa" / "mlflow" / "spool")
    client = MlflowClient(tracking_uri=f"sqlite:///{work}/.spa/mlflow/mlflow.db")
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 2
    for (_, run), games in zip(two_runs, GAMES, strict=True):
        (parent,) = [each for each in parents if each.data.tags["metaflow.run"] == run["run"]]
        parent_id = parent.info.run_id
        children = [each for each in runs if each.data.tags.get("mlflow.parentRunId") == parent_id]
        own = Counter((each.data.tags["spa.stage"], each.data.tags["spa.env"]) for each in children)
        assert own == {(stage, game): 1 for stage in STAGES for game in games}
        for child in children:
            check_points(client, work, run, child)


def check_points(client: Any, work: Path, run: dict[str, Any], child: Any) -> None:
    """Each number of `metrics.jsonl` is there once, and nothing else is."""
    stage, branch = child.data.tags["spa.stage"], branch_name(child.data.tags["spa.env"])
    task = Path(work / ".metaflow" / "spa.store" / run["run"] / branch / stage / "attempt_0")
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
