"""MLflow's runs and the flow's tasks lead to each other, also where PPO was killed and retried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.flows.fake_runs import STAGES, Runs, planted, run_id_of
from tests.metrics import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def noted(runs: Runs, run_id: str) -> dict[str, str]:
    """Pathspec of each stage's task -> the id of its MLflow run; and that of the flow's."""
    wanted = {"start": ["tracking_run"], **{step: ["mlflow_run"] for step in STAGES}}
    found = runs.artifacts(run_id, wanted)
    tasks = {found[step]["task"]: found[step]["mlflow_run"] for step in STAGES}
    return {"tracking_run": found["start"]["tracking_run"], **tasks}


def synced(runs: Runs) -> None:
    """Wait for the process that feeds MLflow."""
    line = [sys.executable, "-m", "steps.tracking", "sync"]
    environment = {**os.environ, "PYTHONPATH": str(runs.flow.parents[1])}
    done = subprocess.run(
        line, cwd=runs.work, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def steps_of(client: Any, run_id: str) -> list[int]:
    return [point.step for point in client.get_metric_history(run_id, "rollout/success")]


def test_tasks_and_mlflow_runs_name_each_other_and_lineage_prints_both(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    runs = planted(tmp_path)
    (runs.work / "kill_once").touch()
    run_id = run_id_of(runs(override="log_level=info"))
    synced(runs)
    client = MlflowClient(tracking_uri=f"sqlite:///{runs.work}/.spa/mlflow/mlflow.db")
    (experiment,) = [each for each in client.search_experiments() if each.name == "spa"]
    found = client.search_runs([experiment.experiment_id])

    ids = {f"key:{run.data.tags['spa.key']}": run.info.run_id for run in found}
    own = noted(runs, run_id)
    known = {path: ids.get(noted_id, noted_id) for path, noted_id in own.items()}
    parent = client.get_run(known.pop("tracking_run"))
    assert parent.data.tags["metaflow.run"] == f"SPAFlow/{run_id}"
    children = [run for run in found if "mlflow.parentRunId" in run.data.tags]
    assert len(children) == len(STAGES) == len(known)
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert {run.data.tags["metaflow.task"]: run.info.run_id for run in children} == known
    assert [re.fullmatch(rf"SPAFlow/{run_id}/\w+/\d+", path) is None for path in known] == [
        False
    ] * 5

    told = runs.command(run_id, module="lineage")
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.count("MLflow run ") == 1 + len(STAGES)
    for path, mlflow_run in known.items():
        task, _, rest = told.stdout.partition(f"task {path}\n")[2].partition("\n")
        assert task.strip().startswith("MLflow run "), rest
        assert mlflow_run in task or own[path].removeprefix("key:") in task
    assert f"MLflow run {parent.info.run_id}" in told.stdout

    store = runs.work / ".metaflow" / "spa.store" / "SPAFlow" / run_id / "frozenlake" / "ppo_train"
    kept = read_metrics(store / "attempt_1" / "metrics.jsonl")
    assert [line["step"] for line in kept if "rollout/success" in line["metrics"]] == [
        1,
        2,
        3,
        4,
        5,
    ]
    (ppo,) = [each for path, each in known.items() if "/ppo_train/" in path]
    assert steps_of(client, ppo) == [1, 2, 3, 4, 5]

    # A new run reuses all of it and has MLflow runs of its own.
    again = run_id_of(runs(override="log_level=info"))
    synced(runs)
    other = noted(runs, again)
    assert not set(other.values()) & {*known.values(), parent.info.run_id}
    assert "" not in other.values()
