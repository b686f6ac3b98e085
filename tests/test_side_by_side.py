"""Many arms on one machine: the arms file, what isn't run again, failures, and being ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import side_by_side
from benchmarks.side_by_side import Arm, is_finished, line_of, read_arms, run_all

ROOT = Path(__file__).resolve().parents[1]
FLOW = """
import json, os, pathlib, subprocess, sys, time
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
name = options["--env"]
with open("calls", "a") as file:
    file.write(name + "\\n")
if name == "never_begins":
    sys.exit("Error: no such option: --envs")
print(f"Workflow starting (run-id {name}), see it in the UI", flush=True)
if name == "waits":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    pathlib.Path("child").write_text(str(child.pid))
    pathlib.Path("waiting").touch()
    time.sleep(120)
if name == "fails":
    task = "2026-11-29 15:42:35.233 [1/sft_train/4 (pid 7)] "
    print(task + "StageError: too few answers are well-formed", task + "Task failed.", sep="\\n")
    print("2026-11-29 15:42:39.632 This failed task will not be retried.\\n    Internal error:")
    print("    The terminal step end was not successful by the end of flow.\\n\\n")
    print("The run ended early. Finished steps are kept; go on with\\n  spa_flow.py resume")
sys.exit(1 if name == "fails" else 0)
"""


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A flow that ends at once, in the place of the real one; its runs are exported as below."""
    from steps.orchestration import export

    path = tmp_path / "flow.py"
    path.write_text(FLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(side_by_side, "FLOW", path)
    monkeypatch.setattr(side_by_side, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(export, "export_run", exported)
    return path


def exported(run_id: str) -> dict[str, Any]:
    stages = {"evaluate": {"summary": {"pass@1": 0.5}}} if run_id != "fails" else {}
    return {
        "run": f"SPAFlow/{run_id}",
        "finished": run_id != "fails",
        "environments": {"frozenlake": stages},
    }


def arm(name: str) -> Arm:
    return Arm(name, ("--env", name))


def calls(tmp_path: Path) -> list[str]:
    return sorted((tmp_path / "calls").read_text().split())


def test_an_arm_is_a_name_and_options_and_comments_are_none(tmp_path: Path) -> None:
    file = tmp_path / "arms.txt"
    file.write_text(
        "# two arms\n\n"
        'spa-s0  --env frozenlake --override "ppo.lr=1e-4 sft.lr=1e-3"  # the first\n'
        "vanilla --experiment vanilla_rl\n"
    )
    assert read_arms(file) == [
        Arm("spa-s0", ("--env", "frozenlake", "--override", "ppo.lr=1e-4 sft.lr=1e-3")),
        Arm("vanilla", ("--experiment", "vanilla_rl")),
    ]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("spa\n", "line 1: write a name and options"),
        ("--env frozenlake\n", "line 1: write a name and options"),
        ("a --seed 0\na --seed 1\n", "line 2: the name 'a' is used twice"),
    ],
)
def test_a_line_that_is_no_arm_is_refused(text: str, seen: str, tmp_path: Path) -> None:
    (tmp_path / "arms.txt").write_text(text)
    with pytest.raises(ValueError, match=seen):
        read_arms(tmp_path / "arms.txt")


def test_every_arm_leaves_its_log_and_its_results(
    flow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_all([arm("a"), arm("b")], tmp_path, parallel=2) == 0
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["name"], found["options"]) == ("a", ["--env", "a"])
    assert found["run"] == "SPAFlow/a"
    assert found["wall_seconds"] > 0
    assert "run-id b" in (tmp_path / "b.log").read_text()
    assert capsys.readouterr().out.count("frozenlake 0.500") == 2


def test_a_finished_arm_is_not_run_again_unless_its_options_changed(
    flow: Path, tmp_path: Path
) -> None:
    run_all([arm("a")], tmp_path, parallel=1)
    assert is_finished(tmp_path, arm("a"))
    run_all([arm("a"), arm("b")], tmp_path, parallel=1)
    assert calls(tmp_path) == ["a", "b"]
    changed = Arm("a", ("--env", "a", "--seed", "1"))
    assert not is_finished(tmp_path, changed)
    run_all([changed], tmp_path, parallel=1)
    assert calls(tmp_path) == ["a", "a", "b"]


def test_a_half_written_result_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"finis')
    assert not is_finished(tmp_path, arm("a"))


def test_a_failing_arm_is_counted_keeps_what_it_has_and_stops_no_other(
    flow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = [arm("never_begins"), arm("fails"), arm("a")]
    assert run_all(arms, tmp_path, parallel=1) == 2
    assert not (tmp_path / "never_begins.json").exists()
    assert json.loads((tmp_path / "fails.json").read_text())["finished"] is False
    assert (tmp_path / "a.json").exists()
    said = capsys.readouterr().out
    first, second = (
        said.split(f"failed ({code})  {name}: ")[1].splitlines()[:3]
        for code, name in ((1, "never_begins"), (1, "fails"))
    )
    log = "           log: {}"
    reason = f"{'':11}Error: no such option: --envs"
    assert first == ["nothing to show", reason, log.format(tmp_path / "never_begins.log")]
    reason = f"{'':11}StageError: too few answers are well-formed"
    assert second == ["frozenlake not evaluated", reason, log.format(tmp_path / "fails.log")]
    assert not is_finished(tmp_path, arm("fails"))


def test_the_line_of_a_result_names_each_environment() -> None:
    stages = {"evaluate": {"summary": {"pass@1": 0.25}}}
    found = {"environments": {"frozenlake": stages, "sokoban": {}}}
    assert line_of(found) == "frozenlake 0.250, sokoban not evaluated"
    assert line_of(None) == "nothing to show"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ending_it_ends_the_runs_and_all_that_they_started(flow: Path, tmp_path: Path) -> None:
    (tmp_path / "arms.txt").write_text("waits --env waits\n")
    code = (
        "import sys, pathlib; from benchmarks import side_by_side; "
        "from steps.orchestration import export; export.export_run = lambda run: {'run': run}; "
        "side_by_side.refusals = lambda arms: []; "
        "side_by_side.FLOW = pathlib.Path('flow.py'); sys.argv[1:] = ['arms.txt', '--out', 'out']; "
        "side_by_side.main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    wait_for((tmp_path / "waiting").exists)
    child = int((tmp_path / "child").read_text())
    assert is_alive(child)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    wait_for(lambda: not is_alive(child))
    assert json.loads((tmp_path / "out" / "waits.json").read_text())["run"] == "waits"


def test_a_wrong_arms_file_is_one_line(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "benchmarks.side_by_side", str(tmp_path / "none.txt")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "none.txt can't be read (No such file or directory): give a file" in done.stderr


def test_no_arm_starts_where_the_settings_of_one_are_wrong(tmp_path: Path) -> None:
    good = "good --env frozenlake --profile smoke"
    bad = 'bad --env frozenlake --profile smoke --override "ppo.lrr=3"'
    (tmp_path / "arms.txt").write_text(f"{good}\n{bad}\nodd --env nowhere\n")
    line = [sys.executable, "-m", "benchmarks.side_by_side", str(tmp_path / "arms.txt")]
    out = tmp_path / "out"
    done = subprocess.run(
        [*line, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    first, second, last = done.stderr.splitlines()
    assert (done.returncode, last) == (2, "No arm was started.")
    assert first.startswith("bad: ") and "did you mean 'ppo.lr'" in first
    assert second.startswith("odd: ") and "nowhere" in second
    assert not out.exists()
