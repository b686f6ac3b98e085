"""The flow with its datastore on S3: moto's server in this process, and everything else as it is.

The first chain is of real stages at their smallest, killed in PPO; the second of stand-ins.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steps.errors import ConfigError
from steps.orchestration.origin import check_origin
from tests.flows.fake_runs import CARDS, PATIENCE_S, QUIET, ROOT, STAGES, planted, run_id_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PLACE = "s3://spa/metaflow"
SMALLEST = (
    "selfplay.env_groups=10 sft.max_steps=10 sft.save_every=10 sft.probe_puzzles=1 "
    "ppo.total_steps=6 ppo.env_groups=2 evaluation.puzzles=2 evaluation.samples=2 "
    f"evaluation.pass_k=[1,2] sampling.max_new_tokens=8 {QUIET}"
)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """An empty bucket, in which all that is run here keeps its artifacts; boto3's client of it."""
    import boto3
    from moto.server import ThreadedMotoServer  # a second, that other tests needn't wait for

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "tester",
        "AWS_DEFAULT_REGION": "us-east-1",
        "METAFLOW_DEFAULT_DATASTORE": "s3",
        "METAFLOW_DATASTORE_SYSROOT_S3": PLACE,
        "METAFLOW_S3_WORKER_COUNT": "2",  # else 64 processes for eleven files
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="spa")
        yield client
    server.stop()


def call(work: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, *words]
    done = subprocess.run(line, cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def keys(bucket: Any) -> list[str]:
    pages = bucket.get_paginator("list_objects_v2").paginate(Bucket="spa")
    return [each["Key"] for page in pages for each in page.get("Contents", [])]


def killed_in_ppo(bucket: Any, work: Path, *words: str) -> str:
    """Start a run, kill it once its second PPO checkpoint is in the bucket; the run's id."""
    before = set(keys(bucket))
    with (work / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=work, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + PATIENCE_S
    wanted = re.compile(r"/ppo_train/checkpoints/.*/step_00000002/manifest\.json$")
    while not any(map(wanted.search, set(keys(bucket)) - before)):
        assert process.poll() is None and time.monotonic() < deadline, (work / "log").read_text()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    found = re.search(r"run-id (\d+)", (work / "log").read_text())
    assert found
    return found[1]


def test_a_real_run_is_killed_resumed_and_looked_at(bucket: Any, tmp_path: Path) -> None:
    flow = str(ROOT / "flows" / "spa_flow.py")
    options = ("--profile", "smoke", "--override", SMALLEST)
    killed = killed_in_ppo(bucket, tmp_path, flow, "run", *options)
    resumed = call(tmp_path, flow, "resume", "--origin-run-id", killed)
    assert re.search(r"going on from the checkpoint of step [2-6]", resumed)
    run_id = re.findall(r"run-id (\d+)", resumed)[-1]
    call(tmp_path, "-c", CARDS, run_id, *STAGES, "join")
    told = call(tmp_path, "-m", "steps.orchestration.lineage", run_id)
    assert "everything is there and unchanged" in told
    assert told.count(f"files {PLACE}/spa.store/SPAFlow/") == told.count("computed with ") == 5
    assert "frozenlake" in call(tmp_path, "-m", "steps.report.paper_table", run_id)
    (home,) = (each for each in (tmp_path / ".metaflow").iterdir() if each.is_dir())
    assert home.name == "SPAFlow" and not list(home.rglob("data")), "nothing but metadata is here"


@pytest.mark.usefixtures("bucket")
def test_a_later_run_finds_what_there_is_and_starts_from_it(tmp_path: Path) -> None:
    runs = planted(tmp_path)
    killed = runs.killed()
    runs.computed()
    later = run_id_of(runs())
    assert [each["start"] for each in runs.trace("ppo_train")] == [2]
    assert runs.computed() == ["ppo_train", "evaluate"]
    start = ("--start-from", f"SPAFlow/{later}@frozenlake", "--start-at", "evaluate")
    run_id_of(runs("--env", "frozenlake_upstream", *start))
    assert runs.computed() == ["evaluate"]
    listed = runs.command("list")
    assert f"SPAFlow/{killed}/sft_train/" in listed.stdout, listed.stderr
    assert "ppo_train of frozenlake (" in runs.command("explain", later).stdout
    line = ["flow", "--datastore", "s3", "--datastore-root", PLACE, "resume"]
    with pytest.raises(ConfigError, match=rf"in {PLACE}/ \(the newest there: .*{later}, {killed}"):
        check_origin([*line, "--origin-run-id", "7"], "SPAFlow")


@pytest.mark.usefixtures("bucket")
def test_a_place_that_is_not_there_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [sys.executable, "-m", "steps.orchestration.stage_cache", "list"]
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("METAFLOW_DATASTORE_SYSROOT_S3", "s3://no-such-bucket/metaflow")
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "s3://no-such-bucket/" in done.stderr
    assert "Traceback" not in done.stderr
    monkeypatch.delenv("METAFLOW_DATASTORE_SYSROOT_S3")
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == "no place of --datastore s3 is known: set METAFLOW_DATASTORE_SYSROOT_S3.\n"
    )
