"""Metrics: JSONL in any case, MLflow where it can be reached, and never a reason to stop."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conf.schema import Config
from steps import tracking
from steps.errors import ConfigError
from steps.tracking import trackers
from steps.tracking.feed import Job, feed
from steps.tracking.progress import Progress
from steps.tracking.spool import read_state, state_path, target_of
from tests.metrics import read_metrics

LONG_S = 120.0
"""A loaded machine needs seconds to import MLflow and to make its store."""


@pytest.fixture
def store(tmp_path: Path) -> Config:
    """A SQLite store that doesn't exist yet."""
    config = Config()
    config.tracking.uri = f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}"
    return config


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes a second to make its tables: once for all tests."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Nobody feeds the spool; the list says who was to be fed."""
    started: list[Path] = []
    monkeypatch.setattr("steps.tracking.spool.start_feeder", started.append)
    monkeypatch.setattr("steps.tracking.spool._started", [])  # nor does one of another test
    return started


def client(config: Config) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=config.tracking.uri)


def runs(config: Config) -> dict[str, Any]:
    """Runs of the store by name."""
    found = client(config)
    (experiment,) = [e for e in found.search_experiments() if e.name == "spa"]
    return {run.info.run_name: run for run in found.search_runs([experiment.experiment_id])}


def open_tracker(config: Config, directory: Path, **changes: Any) -> tracking.FileTracker:
    arguments = {"run_name": "frozenlake/ppo_train", "stage": "ppo_train", **changes}
    return tracking.open_tracker(config, directory=directory, **arguments)


# JSONL


def test_each_log_is_one_line_that_can_be_read_at_once(tmp_path: Path) -> None:
    config = Config()
    config.tracking.enabled = False
    tracker = open_tracker(config, tmp_path)
    before = time.time()
    tracker.log({"loss": 0.5, "steps": 3}, step=1)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found["step"] == 1
    assert found["metrics"] == {"loss": 0.5, "steps": 3.0}
    assert before <= found["time"] <= time.time()
    tracker.close()
    tracker.log({"loss": 9.0}, step=2)
    assert [each["step"] for each in read_metrics(tmp_path / "metrics.jsonl")] == [1]


def test_what_is_not_finite_stays_json_and_comes_back(tmp_path: Path) -> None:
    with tracking.FileTracker(tmp_path) as tracker:
        tracker.log({"a": float("nan"), "b": float("-inf")}, step=0)
    text = (tmp_path / "metrics.jsonl").read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    (found,) = read_metrics(tmp_path / "metrics.jsonl")
    assert found["metrics"]["a"] != found["metrics"]["a"]
    assert found["metrics"]["b"] == float("-inf")


def test_a_step_has_a_line_for_each_call(tmp_path: Path) -> None:
    with tracking.FileTracker(tmp_path) as tracker:
        tracker.log({"sft/loss": 1.0}, step=6)
        tracker.log({"probe/format_rate": 0.5}, step=6)
    found = [(each["step"], each["metrics"]) for each in read_metrics(tracker.path)]
    assert found == [(6, {"sft/loss": 1.0}), (6, {"probe/format_rate": 0.5})]


def test_a_second_attempt_appends_behind_a_line_cut_by_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "time": 0, "metrics": {"loss": 2}}\n{"step": 2, "ti')
    assert [each["step"] for each in read_metrics(path)] == [1]
    with tracking.FileTracker(tmp_path) as tracker:
        tracker.log({"loss": 1.0}, step=2)
    assert [each["step"] for each in read_metrics(path)] == [1, 2]
    assert read_metrics(tmp_path / "none.jsonl") == []


def test_a_folder_that_cannot_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with tracking.FileTracker(tmp_path / "file") as tracker:
        for step in range(3):
            tracker.log({"loss": 1.0}, step)
    assert len(caplog.records) == 1
    assert "the stage goes on" in caplog.text


def test_the_null_tracker_keeps_what_it_is_given() -> None:
    with tracking.NullTracker() as tracker:
        tracker.log({"loss": 1.0}, step=4)
    assert tracker.logged == [(4, {"loss": 1.0})]


def test_sections_become_dotted_keys() -> None:
    nested = {"seed": 1, "ppo": {"lr": 0.1, "deep": {"er": None}}, "env": {"kwargs": {}}}
    assert tracking.flatten(nested) == {
        "seed": 1,
        "ppo.lr": 0.1,
        "ppo.deep.er": None,
        "env.kwargs": {},
    }


# Checks before work starts


def test_a_store_that_cannot_be_written_is_refused_before_work_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = Config()
    config.tracking.uri = f"sqlite:///{tmp_path / 'file' / 'mlflow.db'}"
    with pytest.raises(ConfigError, match=r"can't be written .*tracking\.enabled=false"):
        tracking.check_tracking(config)
    config.tracking.enabled = False
    tracking.check_tracking(config)


def test_a_store_in_plain_files_is_refused(tmp_path: Path) -> None:
    config = Config()
    for uri in ("mlruns", f"file://{tmp_path}"):
        config.tracking.uri = uri
        with pytest.raises(ConfigError, match="plain files"):
            tracking.check_tracking(config)


def test_a_good_place_passes_and_stays_clean(store: Config, tmp_path: Path) -> None:
    tracking.check_tracking(store)
    assert list((tmp_path / "mlflow").rglob("*")) == [tmp_path / "mlflow" / "spool"]


def test_two_checks_of_one_place_at_once_are_not_in_each_others_way(store: Config) -> None:
    with ThreadPoolExecutor(8) as pool:
        for checked in [pool.submit(tracking.check_tracking, store) for _ in range(400)]:
            checked.result()


def test_the_default_store_is_under_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = target_of(Config().tracking)
    assert target.uri == f"sqlite:///{tmp_path}/.spa/mlflow/mlflow.db"
    assert target.spool == tmp_path / ".spa" / "mlflow" / "spool"


# The spool


def test_the_training_process_imports_no_mlflow(store: Config, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom conf.schema import Config\n"
        "from steps import tracking\nfrom steps.tracking import spool\n"
        "spool.start_feeder = lambda place: None\n"
        f"config = Config()\nconfig.tracking.uri = {store.tracking.uri!r}\n"
        f"with tracking.open_tracker(config, directory=Path({str(tmp_path)!r}), run_name='r',"
        " stage='s') as tracker:\n    tracker.log({'a': 1.0}, 0)\n"
        "assert 'mlflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_logging_is_quick(store: Config, tmp_path: Path, no_process: list[Path]) -> None:
    metrics = {f"metric{i}": float(i) for i in range(30)}
    with open_tracker(store, tmp_path / "out") as tracker:
        started = time.process_time()
        for step in range(1000):
            tracker.log(metrics, step)
        assert time.process_time() - started < 2.0
    assert len(no_process) >= 1


def test_no_second_process_is_started_while_one_feeds(
    store: Config, tmp_path: Path, no_process: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from steps.tracking.spool import feeder_lock

    monkeypatch.setattr(trackers, "ID_WAIT_S", 0.1)  # nobody brings it
    spool = target_of(store.tracking).spool
    spool.mkdir(parents=True)
    with feeder_lock(spool) as is_ours:
        assert is_ours
        open_tracker(store, tmp_path / "out").close()
        assert no_process == []
    open_tracker(store, tmp_path / "out").close()
    assert no_process[0] == spool


# MLflow itself


def test_a_run_with_parent_and_stages_lands_in_the_sqlite_store(
    store: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    monkeypatch.setattr(tracking, "START_WAIT_S", LONG_S)
    parent = tracking.start_parent_run(store, "SPAFlow/7", {"metaflow.run": "SPAFlow/7"})
    assert len(parent) == 32
    with open_tracker(store, tmp_path / "out", parent_run_id=parent, tags={"env": "lake"}) as one:
        for step in range(1, 6):
            one.log({"success": step / 10, "pass@1": 0.5, "loss": float("nan")}, step)
    tracking.finish_parent_run(store, parent, metrics={"lake/pass@1": 0.75}, wait_s=LONG_S)

    found = runs(store)
    assert sorted(found) == ["SPAFlow/7", "frozenlake/ppo_train"]
    flow, stage = found["SPAFlow/7"], found["frozenlake/ppo_train"]
    assert flow.info.status == stage.info.status == "FINISHED"
    assert flow.data.tags["metaflow.run"] == "SPAFlow/7"
    assert (flow.data.tags["spa.seed"], stage.data.tags["spa.stage"]) == ("0", "ppo_train")
    assert "`ceiling` optimal play" in flow.data.tags["mlflow.note.content"]
    assert "rollout/success" in stage.data.tags["mlflow.note.content"]
    assert flow.data.params["ppo.group_size"] == "8"
    assert flow.data.metrics == {"lake/pass_at_1": 0.75}
    assert stage.data.tags["mlflow.parentRunId"] == parent
    assert (stage.data.tags["spa.stage"], stage.data.tags["env"]) == ("ppo_train", "lake")
    history = client(store).get_metric_history(stage.info.run_id, "success")
    assert [(each.step, each.value) for each in history] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
        (4, 0.4),
        (5, 0.5),
    ]
    assert stage.data.metrics["pass_at_1"] == 0.5
    assert list(target_of(store.tracking).spool.glob("*.jsonl")) == []
    assert not (tmp_path / "mlruns").exists()


@pytest.fixture
def fed(store: Config, no_process: list[Path], empty_database: Path) -> Callable[[], None]:
    """Feeds the spool of the store in this process, until it is empty."""
    database = target_of(store.tracking).database
    assert database is not None
    database.parent.mkdir()
    shutil.copy(empty_database, database)
    return lambda: feed(target_of(store.tracking).spool, linger_s=0.0)


def test_a_second_attempt_goes_on_in_the_run_of_the_first(
    store: Config, tmp_path: Path, fed: Callable[[], None]
) -> None:
    parent = "a" * 32
    first = open_tracker(store, tmp_path / "one", parent_run_id=parent)
    first.log({"loss": 3.0}, 1)
    first.close(status="FAILED")
    fed()
    assert runs(store)["frozenlake/ppo_train"].info.status == "FAILED"
    with open_tracker(store, tmp_path / "two", parent_run_id=parent) as second:
        second.log({"loss": 2.0}, 2)
    with open_tracker(store, tmp_path / "other", parent_run_id=parent, stage="evaluate") as other:
        other.log({"loss": 9.0}, 1)
    fed()
    (experiment,) = [e for e in client(store).search_experiments() if e.name == "spa"]
    found = client(store).search_runs([experiment.experiment_id])
    assert len(found) == 2
    (again,) = [run for run in found if run.data.tags["spa.stage"] == "ppo_train"]
    assert again.info.status == "FINISHED"
    history = client(store).get_metric_history(again.info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == [(1, 3.0), (2, 2.0)]


def test_a_failing_stage_is_marked_as_failed(
    store: Config, tmp_path: Path, fed: Callable[[], None]
) -> None:
    with pytest.raises(ValueError, match="boom"), open_tracker(store, tmp_path / "out") as tracker:
        tracker.log({"loss": 1.0}, 0)
        raise ValueError("boom")
    fed()
    assert runs(store)["frozenlake/ppo_train"].info.status == "FAILED"


KILLED = """
import sys, time
from pathlib import Path
from conf.schema import Config
from steps import tracking
from steps.tracking import spool
spool.start_feeder = lambda place: None
config = Config()
config.tracking.uri = {uri!r}
tracker = tracking.open_tracker(config, directory=Path({out!r}), run_name="killed", stage="s")
tracker.log({{"loss": 1.5}}, 3)
print("logged", flush=True)
time.sleep(60)
"""


def environment() -> dict[str, str]:
    root = Path(__file__).resolve().parents[1]
    return {**os.environ, "PYTHONPATH": str(root)}


def test_the_metrics_of_a_killed_stage_land_and_its_run_is_killed(
    store: Config, tmp_path: Path, fed: Callable[[], None]
) -> None:
    code = KILLED.format(uri=store.tracking.uri, out=str(tmp_path / "out"))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment()
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "logged\n"
        child.send_signal(signal.SIGKILL)
    fed()
    found = runs(store)["killed"]
    assert found.info.status == "KILLED"
    assert found.data.metrics == {"loss": 1.5}


def test_what_mlflow_refuses_for_good_does_not_hold_up_the_rest(
    store: Config, tmp_path: Path, fed: Callable[[], None]
) -> None:
    with open_tracker(store, tmp_path / "out") as tracker:
        tracker._append({"params": {"lr": 0.1}})
        tracker.log({"before": 1.0}, 0)
        tracker._append({"params": {"lr": 0.2}})
        tracker.log({"after√": 2.0}, 1)
    fed()
    found = runs(store)["frozenlake/ppo_train"]
    assert found.info.status == "FINISHED"
    assert found.data.params == {"lr": "0.1"}
    assert found.data.metrics == {"before": 1.0, "after_": 2.0}


def test_many_metrics_go_in_several_batches(
    store: Config, tmp_path: Path, fed: Callable[[], None]
) -> None:
    with open_tracker(store, tmp_path / "out") as tracker:
        for step in range(130):
            tracker.log({f"m{i}": float(step) for i in range(20)}, step)
    fed()
    found = runs(store)["frozenlake/ppo_train"]
    assert len(found.data.metrics) == 20
    history = client(store).get_metric_history(found.info.run_id, "m19")
    assert [each.value for each in history] == [float(step) for step in range(130)]


# A server that is away


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A server address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.chdir(tmp_path)
    config = Config()
    config.tracking.uri = f"http://127.0.0.1:{port}"
    return config


def test_an_unreachable_server_neither_stops_nor_slows_training(
    away: Config,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process alone asks for it, and its first failed attempt ends all waiting."""

    def refuse(connection: socket.socket, address: object) -> None:
        raise AssertionError(f"training talks to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(trackers, "CLOSE_WAIT_S", LONG_S)
    tracking.check_tracking(away)
    with open_tracker(away, tmp_path / "out") as tracker:
        for step in range(200):
            tracker.log({"loss": 1.0 / (step + 1)}, step)
    assert "not done within" not in caplog.text
    assert len(read_metrics(tmp_path / "out" / "metrics.jsonl")) == 200
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "python -m steps.tracking" in warnings[0].getMessage()
    assert len(list((tmp_path / ".spa" / "mlflow" / "spool").glob("*.jsonl"))) == 1


def test_a_flow_goes_on_without_a_parent_run(
    away: Config, caplog: pytest.LogCaptureFixture
) -> None:
    assert re.fullmatch("key:[0-9a-f]{32}", tracking.start_parent_run(away, "SPAFlow/1"))
    assert "the run goes on" in caplog.text
    tracking.finish_parent_run(away, "")


def test_what_waited_for_a_server_lands_later(
    away: Config, store: Config, fed: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tmp_path = Path.cwd()
    with open_tracker(away, tmp_path / "out") as tracker:
        tracker.log({"loss": 0.5}, 7)
        tracker.close(wait_s=0.0)
    spool = target_of(away.tracking).spool
    (path,) = spool.glob("*.jsonl")
    job = Job(path, {})
    assert job.advance() is True
    assert "Max retries exceeded" in read_state(path)["error"]
    # The server comes back: here, the same lines with the address of a store that answers.
    path.write_text(path.read_text().replace(away.tracking.uri, store.tracking.uri))
    state_path(path).unlink()
    feed(spool, linger_s=0.0)
    assert runs(store)["frozenlake/ppo_train"].data.metrics == {"loss": 0.5}
    assert list(spool.glob("*.jsonl")) == []


def test_a_server_that_never_answers_is_waited_for_a_bounded_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_process: list[Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trackers, "CLOSE_WAIT_S", 1.0)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        config = Config()
        config.tracking.uri = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with open_tracker(config, tmp_path / "out") as tracker:
            tracker.log({"loss": 1.0}, 0)
    assert "not done within 1 s" in caplog.text


def test_progress_shows_the_first_and_the_last_step_and_leaves_out_what_comes_too_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="steps")
    told = Progress("ppo_train", total=3)
    for step, success in ((1, 0.0), (2, 0.25), (3, 0.5)):
        told.tell({"rollout/success": success, "actor/lr": 1e-3}, step)
    told.tell({"timing_s/step": 1.0}, 3)
    told.finish()
    assert caplog.messages == ["PPO step 1/3: success 0.000", "PPO step 3/3: success 0.500"]


def test_progress_of_unknown_length_ends_with_its_latest_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="steps")
    told = Progress("sft_train")
    for step in (1, 2, 3):
        told.tell({"sft/loss": 1 / step}, step)
    told.finish()
    Progress("evaluate").tell({"sft/loss": 1.0}, 1)
    assert caplog.messages == ["SFT step 1: loss 1.000", "SFT step 3: loss 0.333"]
