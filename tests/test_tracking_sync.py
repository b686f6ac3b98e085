"""MLflow catches up: each parameter and each step once, whatever was sent before and by whom."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conf.credentials import without_credentials
from conf.schema import Config
from steps import tracking
from steps.tracking.feed import OPEN, feed
from steps.tracking.jsonl import raw_lines
from steps.tracking.spool import feeder_lock, target_of
from steps.tracking.store import Store, first_line
from steps.tracking.sync import BUSY, NO_RUN, sync
from tests.metrics import read_metrics


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes a second to make its tables: once for all tests."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def config(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A store with nothing in it, and nobody who feeds it."""
    monkeypatch.setattr("steps.tracking.spool.start_feeder", lambda spool: None)
    monkeypatch.setattr("steps.tracking.spool._started", [])  # nor does one of another test
    found = Config()
    found.tracking.uri = f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}"
    (tmp_path / "mlflow").mkdir()
    shutil.copy(empty_database, tmp_path / "mlflow" / "mlflow.db")
    return found


def client(config: Config) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=config.tracking.uri)


def runs(config: Config) -> list[Any]:
    found = client(config)
    experiments = [each.experiment_id for each in found.search_experiments()]
    return list(found.search_runs(experiments))


def history(config: Config, run: Any, key: str) -> list[tuple[int, float]]:
    points = client(config).get_metric_history(run.info.run_id, key)
    return [(point.step, point.value) for point in points]


def attempt(config: Config, directory: Path, **changes: Any) -> tracking.FileTracker:
    arguments = {
        "run_name": "frozenlake sft_train",
        "stage": "sft_train",
        "parent_run_id": "a" * 32,
        **changes,
    }
    return tracking.open_tracker(config, directory=directory, **arguments)


def spool_of(config: Config) -> Path:
    return target_of(config.tracking).spool


def caught_up(config: Config, place: Path | None = None, uri: str = "") -> list[str]:
    return [problem for _, problem in sync(place or spool_of(config), uri=uri, patience_s=0.0)]


# Once


def test_a_step_that_is_logged_again_on_retry_is_there_once(config: Config, tmp_path: Path) -> None:
    first = attempt(config, tmp_path / "one", tags={"metaflow.task": "SPAFlow/1/sft_train/2"})
    for step in (1, 2, 3):
        first.log({"sft/loss": 4.0 - step}, step)
    first.close(status="FAILED")
    assert caught_up(config) == [""]
    again = {"metaflow.task": "SPAFlow/2/sft_train/2"}
    with attempt(config, tmp_path / "two", tags=again) as second:
        for step in (2, 3, 4):
            second.log({"sft/loss": 4.0 - step, "sft/seconds": 1.0}, step)
    assert caught_up(config) == [""]
    (run,) = runs(config)
    assert history(config, run, "sft/loss") == [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.0)]
    assert [step for step, _ in history(config, run, "sft/seconds")] == [2, 3, 4]
    assert run.info.status == "FINISHED"
    assert run.data.tags["metaflow.task"] == "SPAFlow/2/sft_train/2"


def test_a_batch_whose_answer_was_lost_is_not_logged_twice(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, end = Store._log, Store.end
    lost: list[str] = []

    def losing(self: Store, run_id: str, kind: str, items: list[Any]) -> str:
        said = log(self, run_id, kind, items)
        if len(lost) < 2:
            lost.append(kind)
            raise ConnectionError("the answer was lost")
        return said

    def losing_end(self: Store, run_id: str, status: str) -> None:
        if len(lost) < 3:
            lost.append("end")
            raise ConnectionError("nobody heard")
        end(self, run_id, status)

    monkeypatch.setattr(Store, "_log", losing)
    monkeypatch.setattr(Store, "end", losing_end)
    with attempt(config, tmp_path / "one") as tracker:
        tracker.log({"loss": 2.0}, 1)
        tracker._append({"params": {"lr": 1}})
        tracker.log({"loss": 1.0}, 2)
    assert caught_up(config) == ["ConnectionError: the answer was lost"]
    assert caught_up(config) == ["ConnectionError: the answer was lost"]
    assert caught_up(config) == ["ConnectionError: nobody heard"]
    assert caught_up(config) == [""]
    assert lost == ["metrics", "params", "end"]
    (run,) = runs(config)
    assert history(config, run, "loss") == [(1, 2.0), (2, 1.0)]
    assert (run.data.params, run.info.status) == ({"lr": "1"}, "FINISHED")


def test_a_run_that_was_made_while_the_answer_was_lost_is_not_made_again(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Store._create
    calls = []

    def losing(self: Store, experiment: str, header: Any) -> str:
        run_id = create(self, experiment, header)
        calls.append(run_id)
        if len(calls) == 1:
            raise TimeoutError("read timed out")
        return run_id

    monkeypatch.setattr(Store, "_create", losing)
    attempt(config, tmp_path / "one").close()
    assert caught_up(config) == ["TimeoutError: read timed out"]
    assert caught_up(config) == [""]
    assert len(runs(config)) == len(calls) == 1


def test_a_run_that_the_store_has_lost_is_made_again_with_all_its_lines(
    config: Config, tmp_path: Path, empty_database: Path
) -> None:
    tracker = attempt(config, tmp_path / "one")
    tracker.log({"loss": 2.0}, 1)
    assert caught_up(config) == ["a process still writes to it"]
    (before,) = runs(config)
    shutil.copy(empty_database, tmp_path / "mlflow" / "mlflow.db")
    tracker.log({"loss": 1.0}, 2)
    tracker.close()
    problems = caught_up(config)
    while problems != [""]:
        assert "has no run" in problems[0] or "No such" in problems[0], problems
        problems = caught_up(config)
    (run,) = runs(config)
    assert run.info.run_id != before.info.run_id
    assert history(config, run, "loss") == [(1, 2.0), (2, 1.0)]


# A run that no server has made yet


def test_stages_and_settings_meet_whichever_comes_first(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "START_WAIT_S", 0.0)
    parent = tracking.start_parent_run(config, "spa frozenlake", {"metaflow.run": "SPAFlow/1"})
    assert parent.startswith("key:")
    with attempt(config, tmp_path / "one", parent_run_id=parent) as tracker:
        tracker.log({"loss": 1.0}, 1)
    tracking.finish_parent_run(
        config, parent, metrics={"lake/pass@1": 0.5}, tags={"metaflow.run": "SPAFlow/2"}
    )
    settings, stage, end = sorted(spool_of(config).glob("*.jsonl"))
    aside = settings.rename(tmp_path / "aside")
    (spool_of(config) / "lock").touch()
    assert caught_up(config) == ["", ""]
    aside.rename(settings)
    assert caught_up(config) == [""]
    by_name = {run.info.run_name: run for run in runs(config)}
    assert sorted(by_name) == ["frozenlake sft_train", "spa frozenlake"]
    flow, child = by_name["spa frozenlake"], by_name["frozenlake sft_train"]
    assert child.data.tags["mlflow.parentRunId"] == flow.info.run_id
    assert flow.data.params["ppo.group_size"] == "8"
    assert flow.data.metrics == {"lake/pass_at_1": 0.5}
    assert flow.info.status == "FINISHED"
    assert stage != end


# From kept metrics


def kept_attempt(config: Config, directory: Path, **changes: Any) -> Path:
    with attempt(config, directory, **changes) as tracker:
        for step in range(1, 6):
            tracker.log({"sft/loss": 1.0 / step, "odd": float("nan")}, step)
    return directory / tracking.METRICS_FILE


def test_where_the_spool_is_gone_a_kept_file_brings_all_of_it(
    config: Config, tmp_path: Path
) -> None:
    path = kept_attempt(config, tmp_path / "kept")
    before = path.read_bytes()
    shutil.rmtree(spool_of(config))
    for _ in range(2):
        assert caught_up(config, path) == [""]
    (run,) = runs(config)
    assert history(config, run, "sft/loss") == [
        (1, 1.0), (2, 1 / 2), (3, 1 / 3), (4, 1 / 4), (5, 1 / 5),
    ]  # fmt: skip
    assert [step for step, _ in history(config, run, "odd")] == [1, 2, 3, 4, 5]
    assert (run.info.status, run.info.run_name) == ("FINISHED", "frozenlake sft_train")
    assert path.read_bytes() == before


def test_a_kept_file_and_the_spool_bring_the_same_run(config: Config, tmp_path: Path) -> None:
    path = kept_attempt(config, tmp_path / "kept")
    assert caught_up(config) == [""]
    assert caught_up(config, path) == [""]
    (run,) = runs(config)
    assert len(history(config, run, "sft/loss")) == 5


def test_of_a_folder_of_attempts_the_one_that_ended_well_counts(
    config: Config, tmp_path: Path
) -> None:
    killed = attempt(config, tmp_path / "run" / "sft_train" / "attempt_0")
    killed.log({"sft/loss": 9.0}, 1)
    killed.log({"sft/loss": 9.0}, 2)
    whole = kept_attempt(config, tmp_path / "run" / "sft_train" / "attempt_1")
    (whole.parent / "manifest.json").write_text("{}")
    shutil.rmtree(spool_of(config))
    assert caught_up(config, tmp_path / "run") == [""]
    (run,) = runs(config)
    assert history(config, run, "sft/loss")[:2] == [(1, 1.0), (2, 0.5)]
    assert run.info.status == "FINISHED"
    killed.close()


def test_a_file_of_a_run_without_tracking_names_no_mlflow_run(
    config: Config, tmp_path: Path
) -> None:
    config.tracking.enabled = False
    path = kept_attempt(config, tmp_path / "kept")
    assert caught_up(config, path) == [NO_RUN]
    assert [sorted(line) for line in raw_lines(path)] == [["metrics", "step", "time"]] * 5


def test_a_password_is_in_the_heads_of_spool_files_alone_and_these_are_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("steps.tracking.spool.start_feeder", lambda spool: None)
    monkeypatch.setattr("steps.tracking.spool._started", [])
    monkeypatch.setattr("steps.tracking.START_WAIT_S", 0.0)
    monkeypatch.setattr("steps.tracking.trackers.CLOSE_WAIT_S", 0.01)
    config = Config()
    config.tracking.uri = "https://user:secret@mlflow.example:5000/path"
    parent = tracking.start_parent_run(config, "SPAFlow/1")
    with attempt(config, tmp_path / "kept", parent_run_id=parent) as tracker:
        tracker.log({"loss": 1.0}, 1)
    assert "secret" not in (tmp_path / "kept" / tracking.METRICS_FILE).read_text()
    flow, stage = sorted(spool_of(config).glob("*.jsonl"))
    assert [oct(path.stat().st_mode & 0o777) for path in (flow, stage)] == ["0o600"] * 2
    lines = [line for path in (flow, stage) for line in raw_lines(path)]
    assert "secret" not in str([line for line in lines if "run" not in line])
    params = next(line["params"] for line in lines if "params" in line)
    assert params["tracking.uri"] == "https://mlflow.example:5000/path"
    assert caplog.text.count("https://mlflow.example:5000/path") == 2  # who is away, twice
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:se@cret@host:5000/path", "https://host:5000/path"),
        ("sqlite:////a/b@c.db", "sqlite:////a/b@c.db"),
        ("http://host/a?mail=me@b.c", "http://host/a?mail=me@b.c"),
        ("GET http://u:secret@host/api failed (a@b)", "GET http://host/api failed (a@b)"),
    ],
)
def test_addresses_are_shown_without_credentials(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
    assert first_line(ValueError(text)) == f"ValueError: {shown}"


def status(config: Config, name: str) -> str:
    (found,) = [run.info.status for run in runs(config) if run.info.run_name == name]
    return str(found)


def test_the_flows_run_is_running_again_while_a_stage_of_its_resume_is(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "START_WAIT_S", 0.0)
    parent = tracking.start_parent_run(config, "SPAFlow/1")
    tracking.finish_parent_run(config, parent, status="FAILED")
    assert caught_up(config) == ["", ""]
    assert status(config, "SPAFlow/1") == "FAILED"
    stage = attempt(config, tmp_path / "two", parent_run_id=parent)
    stage.log({"loss": 1.0}, 1)
    assert caught_up(config) == [OPEN]
    assert status(config, "SPAFlow/1") == "RUNNING"
    stage.close()
    tracking.finish_parent_run(config, parent)
    assert caught_up(config) == ["", ""]
    attempt(config, tmp_path / "late", parent_run_id=parent)
    assert caught_up(config) == [OPEN]
    assert status(config, "SPAFlow/1") == "FINISHED"


def test_what_is_caught_up_with_later_leaves_the_flows_run_as_it_ended(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "START_WAIT_S", 0.0)
    parent = tracking.start_parent_run(config, "SPAFlow/1")
    kept = kept_attempt(config, tmp_path / "kept", parent_run_id=parent)
    shutil.copy(kept, tmp_path / "copy.jsonl")
    tracking.finish_parent_run(config, parent, status="FAILED")
    assert caught_up(config) == ["", "", ""]
    assert caught_up(config, tmp_path / "copy.jsonl") == [""]
    assert status(config, "SPAFlow/1") == "FAILED"


# The earlier part of a stage that was taken up


def test_the_file_of_a_resumed_stage_begins_with_its_first_step(
    config: Config, tmp_path: Path
) -> None:
    first = attempt(config, tmp_path / "one")
    for step in (1, 2):
        first.log({"loss": float(step)}, step)
    shutil.copy(first.path, tmp_path / "with_checkpoint")
    first.log({"loss": 33.0}, 3)
    first.close(status="FAILED")
    parent = "b" * 32  # a new run, with an MLflow run of its own
    with attempt(config, tmp_path / "two", parent_run_id=parent) as second:
        second.log({"selfplay/turns": 7.0}, 1)
        second.restore(tmp_path / "with_checkpoint")
        second.restore(tmp_path / "with_checkpoint")
        for step in (3, 4):
            second.log({"loss": float(step)}, step)
    lines = read_metrics(second.path)
    assert [(line["step"], line["metrics"]) for line in lines] == [
        (1, {"loss": 1.0}),
        (2, {"loss": 2.0}),
        (1, {"selfplay/turns": 7.0}),
        (3, {"loss": 3.0}),
        (4, {"loss": 4.0}),
    ]
    heads = [line["run"]["parent"] for line in raw_lines(second.path) if "run" in line]
    assert heads == [parent]
    assert caught_up(config) == ["", ""]
    found = {run.data.tags["mlflow.parentRunId"]: run for run in runs(config)}
    assert [step for step, _ in history(config, found["a" * 32], "loss")] == [1, 2, 3]
    assert [step for step, _ in history(config, found[parent], "loss")] == [1, 2, 3, 4]


def test_a_stage_knows_its_mlflow_run_when_it_ends(config: Config, tmp_path: Path) -> None:
    tracker = attempt(config, tmp_path / "one")
    assert caught_up(config) == ["a process still writes to it"]
    tracker.close()
    (run,) = runs(config)
    assert tracker.run_id == run.info.run_id
    unknown = attempt(config, tmp_path / "two", stage="ppo_train")
    unknown.close()
    (head,) = [line["run"] for line in raw_lines(unknown.path) if "run" in line]
    assert unknown.run_id == f"key:{head['key']}"
    assert caught_up(config) == ["", ""]
    keys = {run.data.tags["spa.stage"]: run.data.tags["spa.key"] for run in runs(config)}
    assert keys["ppo_train"] == head["key"]


# The command


def command(*words: str, cwd: Path, root: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "steps.tracking", *words]
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        line, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_command_tells_of_each_file(config: Config, tmp_path: Path, root: Path) -> None:
    path = kept_attempt(config, tmp_path / "kept")
    done = command("sync", str(spool_of(config)), cwd=tmp_path, root=root)
    assert (done.returncode, done.stdout.count(": sent")) == (0, 1), done.stderr
    done = command("sync", str(spool_of(config)), str(path), cwd=tmp_path, root=root)
    assert (done.returncode, done.stdout) == (
        0,
        f"{spool_of(config)}: nothing waits\n{path}: sent\n",
    )
    nowhere = f"http://127.0.0.1:{9}"
    done = command("sync", str(path), "--uri", nowhere, cwd=tmp_path, root=root)
    assert done.returncode == 1
    assert "Connection refused" in done.stdout or "Max retries" in done.stdout
    done = command("sync", str(path), str(path), "--uri", nowhere, cwd=tmp_path, root=root)
    assert (done.returncode, done.stdout.splitlines()[1]) == (1, f"{path}: waits, as above")
    done = command("sync", cwd=tmp_path, root=root)
    assert done.returncode == 2
    assert "name a spool" in done.stderr


def test_a_spool_that_is_being_fed_is_left_to_its_feeder(config: Config, tmp_path: Path) -> None:
    kept_attempt(config, tmp_path / "kept")
    with feeder_lock(spool_of(config)) as is_ours:
        assert is_ours
        assert caught_up(config) == [BUSY]
    assert caught_up(config) == [""]


def test_a_file_that_comes_while_the_feeder_leaves_is_sent(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer sees the lock held and starts no other."""
    from steps.tracking import feed as feeding

    once: list[Path] = []
    work = feeding._feed

    def late(spool: Path, linger_s: float, niceness: int) -> set[Path]:
        seen = work(spool, linger_s, niceness)
        if not once:
            once.append(kept_attempt(config, tmp_path / "late"))
        return seen

    kept_attempt(config, tmp_path / "early")
    monkeypatch.setattr("steps.tracking.trackers.ID_WAIT_S", 0.1)
    monkeypatch.setattr(feeding, "_feed", late)
    feed(spool_of(config), linger_s=0.0)
    assert list(spool_of(config).glob("*.jsonl")) == []
    (run,) = runs(config)
    assert len(history(config, run, "sft/loss")) == 5
    json.dumps(run.data.params)


def test_the_address_of_the_runs_is_told_of_a_store_that_is_there(
    config: Config, tmp_path: Path
) -> None:
    number = client(config).create_experiment("spa")
    line = [sys.executable, "-m", "steps.tracking", "pages"]
    for database, told in (
        (
            tmp_path / "mlflow" / "mlflow.db",
            f"  runs of spa: http://h:1/#/experiments/{number}?workflowType=machine_learning\n",
        ),
        (tmp_path / "none.db", ""),
    ):
        done = subprocess.run(
            [*line, str(database), "http://h:1"], capture_output=True, text=True, check=True
        )
        assert done.stdout == told
    assert not (tmp_path / "none.db").exists()
