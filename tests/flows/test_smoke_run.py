"""Real runs with the smoke profile, looked at from several sides: results, sizes, README's claims.

README's commands for `resume` and for the cache are executed as they stand there (`run` ones with
the smoke profile), and its `text` blocks are what they must print, `...` standing for anything.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conf.compose import compose, known
from tests.flows.fake_runs import CARDS, ROOT, STAGES, Done, artifacts, run_id_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

README = (ROOT / "README.md").read_text("utf-8")
FLOW = ROOT / "flows" / "spa_flow.py"
MAX_ARTIFACT = 1_000_000
MAX_OF_JOIN = 32_000
_SIZES = """
import json, pickle, sys
from metaflow import Run, namespace
namespace(None)
sizes = {
    f"{step.id}/{task.id}": {each.id: len(pickle.dumps(each.data, 4)) for each in task.artifacts}
    for step in Run(f"SPAFlow/{sys.argv[1]}") for task in step
}
curve = Run(f"SPAFlow/{sys.argv[1]}")["ppo_train"].task.data.ppo["curve"]
rows = [len(pickle.dumps(curve[:count], 4)) for count in (1, len(curve))]
print(json.dumps([sizes, (rows[1] - rows[0]) / (len(curve) - 1)]))
"""
SCORES = {
    "pass@1", "pass@1_low", "pass@1_high", "pass@8", "n", "floor", "ceiling", "puzzles",
    "format_rate", "observation_exact", "prediction_exact", "prediction_possible",
    "prediction_probability",
}  # fmt: skip


def call(work: Path, *words: str) -> Done:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, *words]
    done = subprocess.run(
        line, cwd=work, env=environment, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def command(words: str, run_id: str = "") -> list[str]:
    """README's line that holds these words, without `python`."""
    (line,) = [line for line in README.splitlines() if re.match(rf"python .*{words}(\s|$)", line)]
    found = shlex.split(line, comments=True)[1:]
    size = ["--profile", "smoke"] if "run" in found and "--profile" not in found else []
    change = {"flows/spa_flow.py": str(FLOW), "RUN_ID": run_id}
    return [change.get(word, word) for word in found] + size


def promised(first_words: str) -> list[str]:
    """Patterns of the lines of README's `text` block that begins so."""
    blocks = re.findall(r"^```text\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if block.startswith(first_words)]
    return [re.escape(line).replace(r"\.\.\.", ".+") for line in block.splitlines()]


def check_printed(patterns: list[str], text: str) -> None:
    for pattern in patterns:
        assert re.search(pattern, text), f"README promises {pattern!r}; printed:\n{text[-3000:]}"


def reused(done: Done) -> list[str]:
    return [stage for stage in STAGES if f"{stage} of frozenlake is reused from" in done.stdout]


def killed_in_ppo(work: Path) -> str:
    """Start README's first run, kill it at its second PPO checkpoint; the id of the run."""
    line = [sys.executable, *command(r"flows/spa_flow.py run --env frozenlake --profile smoke")]
    with (work / "log").open("w") as log:
        process = subprocess.Popen(
            line, cwd=work, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    wanted = "spa.store/*/*/*/ppo_train/checkpoints/*/step_00000002/manifest.json"
    deadline = time.monotonic() + 900
    while not list((work / ".metaflow").glob(wanted)):
        assert process.poll() is None and time.monotonic() < deadline, (work / "log").read_text()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    found = re.search(r"run-id (\d+)", "\n".join((work / "log").read_text().splitlines()[:25]))
    assert found, "README says that the id stands in the first lines"
    return found[1]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def resumed(work: Path) -> tuple[str, Done]:
    """README's way of taking up a killed run, and the id of the run that was killed."""
    killed = killed_in_ppo(work)
    return killed, call(work, *command("resume --origin-run-id RUN_ID", killed))


@pytest.fixture(scope="module")
def run_id(resumed: tuple[str, Done]) -> str:
    found = re.findall(r"run-id (\d+)", resumed[1].stdout)
    return str(found[-1])


def test_resume_does_what_the_readme_says(resumed: tuple[str, Done]) -> None:
    killed, done = resumed
    patterns = [line.replace("RUN_ID", killed) for line in promised("Cloning previously run")]
    check_printed(patterns, done.stdout)
    for step in ("selfplay_generate", "filter_format", "sft_train"):
        assert f"Cloning previously run task {killed}/{step}/" in done.stdout
        assert not re.search(rf"/{step}/\d+ \(pid \d+\)\] Task is starting", done.stdout)
    assert "PPO step 1/3" not in done.stdout and "PPO step 3/3" in done.stdout


def test_artifacts_are_small_and_the_join_reads_the_smallest(work: Path, run_id: str) -> None:
    """Also at the length of the longest profile, whose PPO curve has a row for each step."""
    sizes, bytes_a_row = json.loads(call(work, "-c", _SIZES, run_id).stdout)
    each = {(task, name): size for task, all_ in sizes.items() for name, size in all_.items()}
    assert {task.split("/")[0] for task in sizes} >= {"start", *STAGES, "join", "end"}
    assert max(each.values()) < MAX_ARTIFACT / 10, max(each, key=lambda key: each[key])
    steps = max(compose(profile=profile).ppo.total_steps for profile in known("profile"))
    assert steps >= 1000
    assert bytes_a_row * steps < MAX_ARTIFACT
    (branch,) = [all_ for task, all_ in sizes.items() if task.startswith("evaluate/")]
    assert sum(branch.get(name, 0) for name in read_by_join()) < MAX_OF_JOIN


def read_by_join() -> set[str]:
    """Artifacts of the branches that the join touches: Metaflow loads no others."""
    tree = ast.parse(FLOW.read_text("utf-8"))
    (join,) = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "join"
    ]  # fmt: skip
    found = {
        node.attr for node in ast.walk(join)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name) and node.value.id in ("branch", "first")
    }  # fmt: skip
    assert found == {"env_id", "failure", "settings", "tracking_run", "scores", "final_model"}
    return found


@pytest.fixture(scope="module")
def changed(work: Path, run_id: str) -> Done:
    """README's run with another learning rate."""
    return call(work, *command(r'run --env frozenlake --override "ppo.lr=3e-4"'))


@pytest.fixture(scope="module")
def listed(work: Path, changed: Done) -> list[str]:
    """What the index holds then."""
    return call(work, *command("stage_cache list")).stdout.splitlines()


@pytest.fixture(scope="module")
def anew(work: Path, listed: list[str]) -> Done:
    """README's run that computes everything anew: all five stages, and nobody disturbs them."""
    return call(work, *command("run --env frozenlake --cache refresh"))


def test_the_cache_does_what_the_readme_says(
    work: Path, changed: Done, listed: list[str], anew: Done
) -> None:
    assert reused(changed) == list(STAGES[:3])  # "self-play and finetuning are reused"
    assert [line.split()[0] for line in listed] == sorted(
        [*STAGES, "ppo_train", "evaluate"], key=STAGES.index
    )
    explained = call(work, *command("stage_cache explain RUN_ID", run_id_of(changed))).stdout
    check_printed(promised("sft_train of frozenlake is reused"), changed.stdout + explained)
    assert call(work, *command("stage_cache prune --days 30")).stdout == ""  # nothing is old
    assert reused(anew) == []
    assert len(call(work, *command("stage_cache list")).stdout.splitlines()) == 7


def test_all_five_stages_end_in_a_summary_and_have_cards(work: Path, anew: Done) -> None:
    run_id = run_id_of(anew)
    end = artifacts(work, run_id, {"end": ["summary", "models"]})["end"]
    scores = end["summary"]["frozenlake"]
    assert scores.keys() >= SCORES | {"after_sft"}
    assert scores["after_sft"].keys() >= SCORES
    assert (scores["n"], scores["puzzles"]) == (64, 8)
    assert 0 < scores["floor"] < scores["ceiling"] < 1
    assert "the card of this step is incomplete" not in anew.stdout
    call(work, "-c", CARDS, run_id, *STAGES, "join")
    model = end["models"]["frozenlake"]
    assert (Path(model["url"]) / model["model"] / "config.json").is_file()


def test_the_lineage_does_what_the_readme_says(work: Path, run_id: str) -> None:
    told = call(work, *command("steps.orchestration.lineage RUN_ID", run_id)).stdout
    assert "everything is there and unchanged" in told
