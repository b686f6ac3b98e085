import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOW = ROOT / "flows" / "spa_flow.py"
QUIET = "tracking.enabled=false"
Done = subprocess.CompletedProcess[str]


def spa(*words: str, cwd: Path, flow: Path = FLOW) -> Done:
    line = [sys.executable, str(flow), *words]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=280)


def fake_flow(tmp_path: Path) -> Path:
    path = Path(__file__).with_name("fake_stages.py")
    spec = importlib.util.spec_from_file_location("fake_stages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plant: Callable[[Path, Path], Path] = module.plant
    return plant(ROOT, tmp_path / "tree")


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    """The flow over stages that take no time; run it in `tmp_path / "work"`."""
    (tmp_path / "work").mkdir()
    return fake_flow(tmp_path)


@pytest.fixture
def work(tmp_path: Path, flow: Path) -> Path:
    return tmp_path / "work"


def trace(work: Path, stage: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (work / "trace.jsonl").read_text().splitlines())
    return [line for line in lines if line["stage"] == stage]


def artifacts(work: Path, run_id: str, task: str, *names: str) -> dict[str, Any]:
    """Artifacts of a task as plain JSON, read in another process, as any client would."""
    code = (
        "import json, sys; from metaflow import Step, namespace; namespace(None); "
        "task = Step(f'SPAFlow/{sys.argv[1]}/{sys.argv[2]}').task; "
        "print(json.dumps({name: task[name].data for name in sys.argv[3:]}))"
    )
    line = [sys.executable, "-c", code, run_id, task, *names]
    done = subprocess.run(line, cwd=work, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def run_id_of(done: Done) -> str:
    found = re.search(r"run-id (\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    return found[1]


def start(flow: Path, work: Path) -> subprocess.Popen[bytes]:
    """Start a run in its own process group; returns when its PPO waits to be killed."""
    line = [sys.executable, str(flow), "run", "--override", QUIET]
    with (work / "out").open("w") as out:
        process = subprocess.Popen(line, cwd=work, stdout=out, stderr=out, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (work / "waiting").exists():
        assert time.monotonic() < deadline, (work / "out").read_text()
        assert process.poll() is None, (work / "out").read_text()
        time.sleep(0.1)
    return process


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
        (["--seed", "-1"], "--seed -1 is negative"),
        (["--profile", "single_gpu"], "the verl backend needs a CUDA GPU, and none is seen here"),
        (["--override", "tracking.uri=runs"], "tracking.uri='runs'"),
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
    assert not heavy & set(done.stdout.split())


@pytest.mark.slow
def test_two_environments_run_side_by_side_and_a_killed_ppo_goes_on_at_its_retry(
    flow: Path, work: Path
) -> None:
    (work / "kill_once").touch()
    (work / "mine.py").write_text(
        "from envs.frozenlake import FrozenLake\n\n\nclass Mine(FrozenLake):\n    pass\n"
    )
    done = spa(
        "run", "--env", "frozenlake,mine:Mine", "--seed", "7", "--override",
        f"{QUIET} selfplay.rounds=2 ppo.lr=1e-5", cwd=work, flow=flow,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    starts = [(each["env"], each["start"]) for each in trace(work, "ppo_train")]
    assert sorted(starts) == [
        ("frozenlake", 0), ("frozenlake", 2), ("mine:Mine", 0), ("mine:Mine", 2)
    ]  # fmt: skip
    played = [each["round"] for each in trace(work, "selfplay_generate")]
    assert sorted(played) == [1, 1, 2, 2]
    learned = {(each["data"], each["model_dir"]) for each in trace(work, "sft_train")}
    assert learned == {("round 1 of 7", False), ("round 2 of 7", True)}
    for each in trace(work, "evaluate"):
        assert each["read"] == {"after_sft": "sft", "final": "ppo after 5 steps from 2"}
    end = artifacts(work, run_id_of(done), "end", "summary", "settings", "models")
    assert list(end["summary"]) == ["frozenlake", "mine:Mine"]
    assert end["summary"]["frozenlake"]["after_sft"]["n"] == 64
    assert end["settings"]["envs"]["mine:Mine"]["ppo"]["lr"] == 1e-5
    model = end["models"]["frozenlake"]
    assert (Path(model["url"]) / model["model"] / "weights").read_text().startswith("ppo after 5")
    assert "optimal play" in done.stdout


@pytest.mark.slow
def test_resume_takes_up_a_killed_run_at_its_ppo_checkpoint(flow: Path, work: Path) -> None:
    (work / "wait").touch()
    process = start(flow, work)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (work / "wait").unlink()
    run_id = (work / ".metaflow" / "SPAFlow" / "latest_run").read_text()
    done = spa("resume", "--origin-run-id", run_id, cwd=work, flow=flow)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each["start"] for each in trace(work, "ppo_train")] == [0, 2]
    for stage in ("selfplay_generate", "filter_format", "sft_train", "evaluate"):
        assert len(trace(work, stage)) == 1, stage
    ppo = artifacts(work, run_id_of(done), "ppo_train", "ppo")["ppo"]
    assert (ppo["start"], ppo["steps"], ppo["model"]) == (2, 5, "model")
    assert "optimal play" in done.stdout


@pytest.mark.slow
def test_a_terminated_run_ends_its_tasks_and_says_how_to_go_on(flow: Path, work: Path) -> None:
    (work / "wait").touch()
    process = start(flow, work)
    process.terminate()
    assert process.wait(60) != 0
    said = (work / "out").read_text()
    assert "resume --origin-run-id" in said
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.slow
def test_a_failing_stage_says_why_once_and_how_to_go_on(flow: Path, work: Path) -> None:
    (work / "starve").touch()
    done = spa("run", "--override", QUIET, cwd=work, flow=flow)
    assert done.returncode != 0
    assert len(trace(work, "filter_format")) == 1  # a retry couldn't help
    assert "filter_format: StageError: 0 of 9 rows survived" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    line = f"spa_flow.py resume --origin-run-id {run_id_of(done)}"
    assert [each for each in done.stdout.splitlines() if each.endswith(line)]
    (work / "starve").unlink()
    again = spa("resume", "--origin-run-id", run_id_of(done), cwd=work, flow=flow)
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(trace(work, "selfplay_generate")) == 1


SCORES = {
    "pass@1", "pass@1_low", "pass@1_high", "pass@8", "n", "floor", "ceiling", "puzzles",
    "format_rate", "observation_exact", "prediction_exact", "prediction_possible",
    "prediction_probability",
}  # fmt: skip


@pytest.mark.slow
def test_the_real_stages_in_the_smoke_profile_end_in_a_summary(tmp_path: Path) -> None:
    done = spa("run", "--env", "frozenlake", "--profile", "smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run_id = run_id_of(done)
    summary = artifacts(tmp_path, run_id, "end", "summary")["summary"]
    scores = summary["frozenlake"]
    assert scores.keys() >= SCORES | {"after_sft"}
    assert scores["after_sft"].keys() >= SCORES
    assert (scores["n"], scores["puzzles"]) == (64, 8)
    assert 0 < scores["floor"] < scores["ceiling"] < 1
    assert "the card of this step is incomplete" not in done.stdout
    for step in ("selfplay_generate", "filter_format", "sft_train", "ppo_train", "evaluate"):
        card = spa("card", "get", f"{run_id}/{step}", "card.html", cwd=tmp_path)
        assert card.returncode == 0, card.stderr
    models = artifacts(tmp_path, run_id, "end", "models")["models"]["frozenlake"]
    assert (Path(models["url"]) / models["model"] / "config.json").is_file()
