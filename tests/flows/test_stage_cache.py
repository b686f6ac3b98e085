"""The stage cache by the flow itself, over stages that take no time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.flows.fake_runs import QUIET, STAGES, Runs, planted, run_id_of

pytestmark = pytest.mark.timeout(900)  # several runs each, which a busy machine makes slow


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return planted(tmp_path)


@pytest.mark.slow
def test_an_unchanged_stage_is_computed_once(runs: Runs) -> None:
    first = run_id_of(runs())
    assert runs.computed() == list(STAGES)
    again = runs()
    second = run_id_of(again)
    assert runs.computed() == []
    assert "ppo_train of frozenlake is reused from SPAFlow/" in again.stdout
    for step in STAGES:
        hit, fingerprint = runs.artifacts(second, step)
        own, same = runs.artifacts(first, step)
        assert own is None and fingerprint == same and re.fullmatch("[0-9a-f]{32}", same)
        assert hit is not None and hit.startswith(f"SPAFlow/{first}/{step}/")
    run_id_of(runs(override=f"{QUIET} ppo.lr=0.5"))
    assert runs.computed() == ["ppo_train", "evaluate"]
    run_id_of(runs("--seed", "1"))
    assert runs.computed() == list(STAGES)


@pytest.mark.slow
def test_code_counts_and_comments_do_not(runs: Runs) -> None:
    run_id_of(runs())
    prompts = runs.flow.parents[1] / "steps" / "agent" / "prompts.py"
    # The fakes import none of the agent loop, as the real stages do: let one of them.
    stage = runs.flow.parents[1] / "steps" / "selfplay_generate.py"
    stage.write_text(stage.read_text() + "\nimport steps.agent.prompts\n")
    runs.computed()
    run_id_of(runs())
    assert runs.computed() == list(STAGES)
    prompts.write_text("# A comment.\n" + prompts.read_text() + "\n\n")
    run_id_of(runs())
    assert runs.computed() == []
    prompts.write_text(prompts.read_text() + '\nANOTHER_TEXT = "Think."\n')
    changed = run_id_of(runs())
    assert runs.computed() == list(STAGES)
    said = runs.command("explain", changed).stdout
    assert "code steps.agent.prompts:" in said and "(the stage before differs)" in said


@pytest.mark.slow
def test_the_modes_and_the_command(runs: Runs) -> None:
    run_id_of(runs("--cache", "off"))
    assert runs.command("list").stdout == ""
    run_id_of(runs())
    runs.computed()
    last = run_id_of(runs("--cache", "refresh"))
    assert runs.computed() == list(STAGES)
    listed = runs.command("list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(STAGES)
    pattern = "spa.store/SPAFlow/*/frozenlake/sft_train/*/*/model/weights"
    (*_, weights) = sorted((runs.work / ".metaflow").glob(pattern))
    told = runs.command(last, module="lineage")
    assert told.returncode == 0, told.stderr
    assert "evaluate: pass@1 0.500, floor 0.200, ceiling 0.900" in told.stdout
    assert told.stdout.count(": unchanged, written by code") == len(STAGES)
    assert "computed with gymnasium" in told.stdout and ", python 3." in told.stdout
    weights.write_text("altered")
    told = runs.command(last, module="lineage")
    assert told.returncode == 1 and "1 fault(s)" in told.stdout
    assert "weights is not the file that was written there" in told.stdout
    pruned = runs.command("prune", "--dry-run").stdout
    assert pruned.startswith("sft_train frozenlake") and "gone or changed" in pruned
    done = runs()
    run_id_of(done)
    assert "is not the file that was written there" in done.stdout
    assert runs.computed() == ["sft_train"]


@pytest.mark.slow
def test_a_failure_is_never_kept(runs: Runs) -> None:
    (runs.work / "starve").touch()
    assert runs().returncode != 0
    (runs.work / "starve").unlink()
    runs.computed()
    run_id_of(runs())
    assert runs.computed() == list(STAGES[1:])


@pytest.mark.slow
def test_a_new_run_goes_on_from_the_checkpoint_of_one_that_was_killed(runs: Runs) -> None:
    (runs.work / "wait").touch()
    line = [sys.executable, str(runs.flow), "run", "--override", QUIET]
    with (runs.work / "out").open("w") as out:
        process = subprocess.Popen(
            line, cwd=runs.work, stdout=out, stderr=out, start_new_session=True
        )
    deadline = time.monotonic() + 120
    while not (runs.work / "waiting").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (runs.work / "wait").unlink()
    runs.computed()
    run_id_of(runs(override=f"{QUIET} ppo.lr=0.5"))
    trace = (runs.work / "trace.jsonl").read_text().splitlines()
    assert [json.loads(line)["start"] for line in trace if "ppo_train" in line] == [0]
    runs.computed()
    run_id_of(runs())
    trace = (runs.work / "trace.jsonl").read_text().splitlines()
    assert [json.loads(line)["start"] for line in trace if "ppo_train" in line] == [2]
