"""Bad days of a real MLflow server: killed, slow, answers lost, refused. Nothing is lost.

Whether training is delayed is asserted by structure: the process that logs never opens a
connection; another one, which it doesn't wait for, does.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conf.schema import Config
from steps import tracking
from steps.tracking import spool as spooling
from steps.tracking import trackers
from steps.tracking.spool import read_state, target_of
from tests.metrics import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 240.0
STEPS = 40


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`mlflow server` over a SQLite file, which a restart finds again."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = f"--backend-store-uri sqlite:///{self.home}/mlflow.db --host 127.0.0.1 --workers 1"
        line = [sys.executable, "-m", "mlflow", "server", "--port", str(self.port), *words.split()]
        line += ["--artifacts-destination", str(self.home / "artifacts")]
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        with (self.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                line,
                cwd=self.home,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self.answers, f"{self.home}/server.log")

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.home / "server.log").read_text()[-2000:]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"))
    found.start()
    yield found
    found.kill()


class Proxy:
    """Before the server: passes on, delays, loses answers, or refuses, as `mode` says."""

    def __init__(self, port: int) -> None:
        self.mode = "pass"
        self.passed = self.lost = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                outer.answer(self, port)

            do_GET = do_POST = handle_any  # noqa: N815 - the names that http.server looks for

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.uri = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler, port: int) -> None:
        data = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        if self.mode in ("401", "404"):
            handler.send_error(int(self.mode))
            return
        if self.mode == "slow":
            time.sleep(0.5)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Content-Type": handler.headers.get("Content-Type") or "application/json"}
        connection.request(handler.command, handler.path, data, headers)
        reply = connection.getresponse()
        body = reply.read()
        connection.close()
        self.passed += 1
        if self.mode == "lossy" and self.passed % 4 == 0:
            self.lost += 1
            handler.close_connection = True  # what was asked for is done, and nobody hears of it
            return
        handler.send_response(reply.status)
        handler.send_header("Content-Type", reply.getheader("Content-Type") or "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    found = Proxy(server.port)
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a spool of its own; its feeding processes end with the test."""
    monkeypatch.chdir(tmp_path)
    before = list(spooling._started)
    yield tmp_path
    for process in spooling._started:
        if process not in before:
            process.kill()
            process.wait()


@contextlib.contextmanager
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process under test, but for the proxy's threads, opens no connection."""
    connect = socket.socket.connect
    training = threading.current_thread()

    def guarded(self: socket.socket, address: Any) -> None:
        assert threading.current_thread() is not training, f"training talks to {address}"
        connect(self, address)

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


def configured(uri: str, experiment: str) -> Config:
    config = Config()
    config.tracking.uri, config.tracking.experiment = uri, experiment
    return config


def stage(config: Config, work: Path, parent: str | None = None) -> tracking.FileTracker:
    return tracking.open_tracker(
        config,
        directory=work / "out",
        run_name="frozenlake ppo_train",
        stage="ppo_train",
        parent_run_id=parent or "c" * 32,
    )


def log(tracker: tracking.FileTracker, steps: range) -> None:
    for step in steps:
        tracker.log({"loss": 1.0 / step, "rollout/success": step / 100}, step)


def is_empty(config: Config) -> bool:
    return not list(target_of(config.tracking).spool.glob("*.jsonl"))


def synced(*words: str, cwd: Path) -> str:
    line = [sys.executable, "-m", "steps.tracking", "sync", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        line, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def the_run(server: Server, experiment: str, steps: int = STEPS) -> Any:
    """The only stage of an experiment: finished, each step there once."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=server.uri)
    found = client.get_experiment_by_name(experiment)
    (run,) = [
        run
        for run in client.search_runs([found.experiment_id])
        if run.data.tags.get("spa.stage") == "ppo_train"
    ]
    values = {
        "loss": [1.0 / step for step in range(1, steps + 1)],
        "rollout/success": [step / 100 for step in range(1, steps + 1)],
    }
    for key, expected in values.items():
        points = sorted(client.get_metric_history(run.info.run_id, key), key=lambda p: p.step)
        assert [point.step for point in points] == list(range(1, steps + 1))
        assert [point.value for point in points] == pytest.approx(expected)
    assert run.info.status == "FINISHED"
    return run


def test_a_server_killed_and_started_again_in_mid_run(
    server: Server, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(server.uri, "killed")
    tracker = stage(config, work)
    with no_network(monkeypatch):
        log(tracker, range(1, 11))
    (waiting,) = target_of(config.tracking).spool.glob("*.jsonl")
    wait_until(lambda: read_state(waiting).get("offset", 0) > 500, "the first lines are sent")
    server.kill()
    with no_network(monkeypatch):
        log(tracker, range(11, 31))
    wait_until(lambda: read_state(waiting).get("error"), "a failed attempt")
    server.start()
    with no_network(monkeypatch):
        log(tracker, range(31, STEPS + 1))
        tracker.close(wait_s=0.0)
    wait_until(lambda: is_empty(config), "the feeding process catches up by itself")
    the_run(server, "killed")
    assert len(read_metrics(work / "out" / "metrics.jsonl")) == STEPS


def test_a_server_that_is_down_from_start_to_end_is_caught_up_with_by_the_command(
    server: Server, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(server.uri, "down")
    server.kill()
    with no_network(monkeypatch):
        parent = tracking.start_parent_run(config, "spa frozenlake", {"metaflow.run": "SPAFlow/1"})
        assert parent.startswith("key:")
        with stage(config, work, parent) as tracker:
            log(tracker, range(1, STEPS + 1))
        tracking.finish_parent_run(config, parent, metrics={"lake/pass@1": 0.5})
    for process in spooling._started:  # the machine was switched off
        process.kill()
        process.wait()
    server.start()
    assert synced(cwd=work).count(": sent") == 3
    child = the_run(server, "down")
    from mlflow import MlflowClient

    flow = MlflowClient(tracking_uri=server.uri).get_run(child.data.tags["mlflow.parentRunId"])
    assert flow.data.tags["metaflow.run"] == "SPAFlow/1"
    assert (flow.info.run_name, flow.info.status) == ("spa frozenlake", "FINISHED")
    assert flow.data.metrics == {"lake/pass_at_1": 0.5}
    assert flow.data.params["ppo.group_size"] == "8"
    assert "nothing waits" in synced(cwd=work)
    assert ": sent" in synced(str(work / "out" / "metrics.jsonl"), cwd=work)
    the_run(server, "down")


@pytest.mark.parametrize("mode", ["slow", "lossy"])
def test_a_server_that_answers_late_or_whose_answers_are_lost(
    server: Server, proxy: Proxy, work: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.mode = mode
    config = configured(proxy.uri, mode)
    with no_network(monkeypatch):
        tracker = stage(config, work)
        log(tracker, range(1, 21))
        before = proxy.passed
        log(tracker, range(21, STEPS + 1))
        tracker.close(wait_s=0.0)
    lines = read_metrics(work / "out" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    wait_until(lambda: is_empty(config), "the feeding process gets through")
    assert proxy.passed > before
    assert bool(proxy.lost) == (mode == "lossy")
    the_run(server, mode)


@pytest.mark.parametrize("mode", ["401", "404"])
def test_what_a_server_refuses_waits_until_it_doesnt(
    server: Server, proxy: Proxy, work: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.mode = mode
    config = configured(proxy.uri, f"refused {mode}")
    monkeypatch.setattr(trackers, "CLOSE_WAIT_S", PATIENCE_S)
    with no_network(monkeypatch), stage(config, work) as tracker:
        log(tracker, range(1, STEPS + 1))
    (waiting,) = target_of(config.tracking).spool.glob("*.jsonl")
    assert mode in read_state(waiting)["error"]
    for process in spooling._started:
        process.kill()
        process.wait()
    proxy.mode = "pass"
    assert f"{waiting}: sent" in synced(cwd=work)
    the_run(server, f"refused {mode}")
