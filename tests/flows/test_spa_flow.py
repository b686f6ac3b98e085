"""The flow's own command line, and its wiring over stages that take no time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.flows.fake_runs import QUIET, ROOT, Done, Runs, begun, planted, run_id_of

FLOW = ROOT / "flows" / "spa_flow.py"


def spa(*words: str, cwd: Path) -> Done:
    line = [sys.executable, str(FLOW), *words]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=280)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return planted(tmp_path)


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["--env", "frozenlak"], "unknown environment 'frozenlak'; did you mean 'frozenlake'?"),
        (["--env", "frozenlake,no.such:Game"], "no.such"),
        (["--model", "tyny"], "unknown model 'tyny'; did you mean 'tiny'?"),
        (["--model", "./nowhere"], "model directory './nowhere' doesn't exist"),
        (["--profile", "smok"], "unknown profile 'smok'; did you mean 'smoke'?"),
        (["--experiment", "spam"], "unknown experiment 'spam'; did you mean 'spa'?"),
        (["--override", "ppo.lrr=1"], "unknown setting 'ppo.lrr'; did you mean 'ppo.lr'?"),
        (["--override", "env.kwargs.sise=6"], "did you mean 'size'?"),
        (["--cache", "of"], "unknown cache mode 'of'; did you mean 'off'?"),
        (["--seed", "x"], "--seed takes a whole number"),
        (["--seed", "-1"], "seed=-1 is negative"),
        (["--seed", "-1", "--tag", "resume"], "seed=-1 is negative"),
        (["--override", "ppo.lrr=1", "--override", "ppo.lr=1"], "unknown setting 'ppo.lrr'"),
        (["--seed", "1", "--seed", "2"], "--seed is given 2 times"),
        (["--profile", "single_gpu"], "the verl backend needs a CUDA GPU, and none is seen here"),
        (["--override", "tracking.uri=runs"], "tracking.uri='runs'"),
        (["--override", "tracking.uri=user:secret@host"], "tracking.uri='host'"),
    ],
)
def test_a_wrong_name_is_one_line_before_any_work(
    words: list[str], seen: str, tmp_path: Path
) -> None:
    done = spa("run", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert seen in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.strip()]) == 1
    assert "Workflow starting" not in done.stdout


def test_an_unwritable_tracking_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / ".spa").write_text("a file where a folder should be")
    done = spa("run", cwd=tmp_path)
    assert done.returncode == 2
    assert ".spa" in done.stderr
    assert "Workflow starting" not in done.stdout


def test_resume_of_an_unknown_run_is_one_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = spa("resume", "--origin-run-id", "12345", cwd=tmp_path)
    assert done.returncode == 2
    assert "no run '12345'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_help_names_what_there_is(tmp_path: Path) -> None:
    text = " ".join(spa("run", "--help", cwd=tmp_path).stdout.split())
    for word in ("frozenlake_upstream", "tiny", "smoke", "vanilla_rl", "kubernetes", "refresh",
                 "--override", "--seed"):  # fmt: skip
        assert word in text


def test_the_code_package_is_all_that_a_remote_task_needs(tmp_path: Path) -> None:
    done = spa("package", "save", "code.tar", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    remote = tmp_path / "remote"
    with tarfile.open(tmp_path / "code.tar") as archive:
        archive.extractall(remote, filter="data")
    for name in ("spa_flow.py", "steps/training/losses.py", "conf/profile/smoke.yaml"):
        assert (remote / name).is_file(), name
    code = (
        "import spa_flow, envs.frozenlake, steps.evaluate, steps.orchestration.stages, conf; "
        "conf.compose(profile='smoke'); print(steps.__file__, conf.__file__)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=remote, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        str(remote / "steps" / "__init__.py"), str(remote / "conf" / "__init__.py")
    ]  # fmt: skip


def test_loading_the_flow_file_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='spa_flow'); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(FLOW)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    heavy = {"torch", "transformers", "mlflow", "matplotlib", "pyarrow", "gymnasium", "numpy"}
    assert not (heavy | {"hydra"}) & set(done.stdout.split())


@pytest.mark.slow
def test_two_environments_run_side_by_side_and_a_killed_ppo_goes_on_at_its_retry(
    runs: Runs,
) -> None:
    (runs.work / "kill_once").touch()
    (runs.work / "mine.py").write_text(
        "from envs.frozenlake import FrozenLake\n\n\nclass Mine(FrozenLake):\n    pass\n"
    )
    done = runs(
        "--env", "frozenlake,mine:Mine", "--seed", "7",
        override=f"{QUIET} selfplay.rounds=2 ppo.lr=1e-5",
    )  # fmt: skip
    run_id = run_id_of(done)
    starts = [(each["env"], each["start"]) for each in runs.trace("ppo_train")]
    assert sorted(starts) == [
        ("frozenlake", 0), ("frozenlake", 2), ("mine:Mine", 0), ("mine:Mine", 2)
    ]  # fmt: skip
    played = [each["round"] for each in runs.trace("selfplay_generate")]
    assert sorted(played) == [1, 1, 2, 2]
    learned = {(each["data"], each["model_dir"]) for each in runs.trace("sft_train")}
    assert learned == {("round 1 of 7", False), ("round 2 of 7", True)}
    for each in runs.trace("evaluate"):
        assert each["read"] == {"after_sft": "sft", "final": "ppo after 5 steps from 2"}
    end = runs.artifacts(run_id, {"end": ["summary", "settings", "models"]})["end"]
    assert list(end["summary"]) == ["frozenlake", "mine:Mine"]
    assert end["summary"]["frozenlake"]["after_sft"]["n"] == 64
    assert end["settings"]["envs"]["mine:Mine"]["ppo"]["lr"] == 1e-5
    model = end["models"]["frozenlake"]
    assert (Path(model["url"]) / model["model"] / "weights").read_text().startswith("ppo after 5")
    assert "optimal play" in done.stdout
    table, sweep = done.stdout.rstrip().splitlines()[-2:]
    assert table.endswith(f"-m steps.report.paper_table {run_id}")
    assert "passk --env frozenlake" not in sweep and f"--model {model['url']}" not in sweep
    assert "--override 'tracking.enabled=false selfplay.rounds=2 ppo.lr=1e-5' --model " in sweep
    assert Path(runs.work, sweep.split("--model ")[1].split()[0], "weights").is_file()


@pytest.mark.slow
def test_a_password_in_an_override_is_kept_in_the_settings_alone(runs: Runs) -> None:
    uri = "http://user:secret@127.0.0.1:9"
    done = runs("--env", "frozenlake", override=f"{QUIET} tracking.uri={uri}")
    run_id = run_id_of(done)
    assert "tracking.uri=http://127.0.0.1:9" in done.stdout
    assert "secret" not in done.stdout + done.stderr
    kept = runs.artifacts(run_id, {"start": ["override", "settings"]})["start"]
    assert kept["override"] == f"{QUIET} tracking.uri=http://127.0.0.1:9"
    assert kept["settings"]["request"]["override"] == kept["override"]
    assert kept["settings"]["envs"]["frozenlake"]["tracking"]["uri"] == uri
    exported = runs.command(run_id, module="export")
    assert exported.returncode == 0, exported.stderr
    assert "secret" not in exported.stdout
    lineage = runs.command(run_id, module="lineage").stdout
    digest = next(word for word in done.stdout.split() if word.endswith(")") and len(word) == 17)
    assert digest.removesuffix(")") in lineage


@contextmanager
def handled(number: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    """A process that starts inside inherits that the signal is ignored, or isn't."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_run_ends_its_tasks_and_says_how_to_go_on(
    runs: Runs, ending: signal.Signals
) -> None:
    with handled(signal.SIGHUP, signal.SIG_DFL):  # these tests may be run under nohup
        process = runs.waiting()
    process.send_signal(ending)
    assert process.wait(280) != 0
    said = (runs.work / "out").read_text()
    assert "resume --origin-run-id" in said
    deadline = time.monotonic() + 60
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:  # who has ended is there until init has looked
            os.killpg(process.pid, 0)
            time.sleep(0.05)


@pytest.mark.slow
def test_a_run_under_nohup_outlives_its_terminal(runs: Runs) -> None:
    with handled(signal.SIGHUP, signal.SIG_IGN):
        process = runs.waiting()
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    process.terminate()
    assert process.wait(280) != 0


@pytest.mark.slow
def test_a_failing_stage_says_why_once_and_how_to_go_on(runs: Runs) -> None:
    (runs.work / "starve").touch()
    done = runs()
    assert done.returncode != 0
    assert len(runs.trace("filter_format")) == 1  # a retry couldn't help
    assert "filter_format: StageError: 0 of 9 rows survived" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    line = f"spa_flow.py resume --origin-run-id {begun(done)}"
    assert [each for each in done.stdout.splitlines() if each.endswith(line)]
    (runs.work / "starve").unlink()
    again = runs.spa("resume", "--origin-run-id", begun(done))
    run_id_of(again)
    header = done.stdout.splitlines()[:8]
    assert header[0].startswith("SPA: experiment spa") and "  overrides:" in header[7]
    assert again.stdout.splitlines()[:8] == header
    assert len(runs.trace("selfplay_generate")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("envs", ["frozenlake", "frozenlake,sokoban"])
def test_what_the_settings_meet_again_is_no_matter_for_resume(envs: str, runs: Runs) -> None:
    (runs.work / "contradict").write_text(envs.split(",")[-1])
    done = runs("--env", envs, override=f"{QUIET} tracking.uri=http://me:secret@host")
    assert done.returncode != 0
    said = done.stdout.partition("The run ended early by its settings, which `resume` keeps.")[2]
    assert said, done.stdout + done.stderr
    new, further = (line.strip() for line in said.splitlines()[1:4:2])
    words = f"spa_flow.py run --override '{QUIET} tracking.uri=http://host' --env {envs}"
    assert new.endswith(words)
    step = "sft_train " if "," in envs else ""
    assert further.endswith(f"spa_flow.py resume {step}--origin-run-id {begun(done)}")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--env", "nosuch"], ["--exp", "spa"]])
def test_a_run_that_is_refused_leaves_nothing_and_says_one_line(
    words: list[str], runs: Runs
) -> None:
    done = runs(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert not list(runs.work.iterdir())
