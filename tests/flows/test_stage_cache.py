"""The stage cache by the flow itself, over stages that take no time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.flows.fake_runs import QUIET, STAGES, Runs, planted, run_id_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # several runs each
FINGERPRINT = dict.fromkeys(STAGES, ("cache_hit", "fingerprint"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, str]:
    """A finished run, in a directory of which every test has a copy."""
    runs = planted(tmp_path_factory.mktemp("first"))
    run_id = run_id_of(runs())
    assert runs.computed() == list(STAGES)
    return runs, run_id


@pytest.fixture
def runs(first: tuple[Runs, str], tmp_path: Path) -> Runs:
    return first[0].copied(tmp_path / "work")


@pytest.fixture
def run_id(first: tuple[Runs, str]) -> str:
    return first[1]


def test_an_unchanged_stage_is_computed_once(runs: Runs, run_id: str) -> None:
    again = runs()
    second = run_id_of(again)
    assert runs.computed() == []
    assert "ppo_train of frozenlake is reused from SPAFlow/" in again.stdout
    own, other = (runs.artifacts(each, FINGERPRINT) for each in (run_id, second))
    for step in STAGES:
        hit, fingerprint = other[step]["cache_hit"], other[step]["fingerprint"]
        assert own[step]["cache_hit"] is None and fingerprint == own[step]["fingerprint"]
        assert re.fullmatch("[0-9a-f]{32}", fingerprint)
        assert hit is not None and hit.startswith(f"SPAFlow/{run_id}/{step}/")
    run_id_of(runs(override=f"{QUIET} ppo.lr=0.5"))
    assert runs.computed() == ["ppo_train", "evaluate"]
    run_id_of(runs("--seed", "1"))
    assert runs.computed() == list(STAGES)


def test_code_counts_and_comments_do_not(tmp_path: Path) -> None:
    runs = planted(tmp_path)
    game = runs.flow.parents[1] / "envs" / "frozenlake.py"
    run_id_of(runs())
    assert runs.computed() == list(STAGES)
    game.write_text("# A comment.\n" + game.read_text() + "\n\n")
    run_id_of(runs())
    assert runs.computed() == []
    game.write_text(game.read_text() + '\nANOTHER_SYMBOL = "~"\n')
    changed = run_id_of(runs())
    assert runs.computed() == list(STAGES)
    said = runs.command("explain", changed).stdout
    assert "code envs.frozenlake:" in said and "(the stage before differs)" in said


def test_the_modes_and_the_command(runs: Runs) -> None:
    listed = runs.command("list").stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(STAGES)
    run_id_of(runs("--cache", "off"))
    assert runs.computed() == list(STAGES)
    assert runs.command("list").stdout == listed  # nothing was kept
    last = run_id_of(runs("--cache", "refresh"))
    assert runs.computed() == list(STAGES)
    refreshed = runs.command("list").stdout
    assert [line.split()[0] for line in refreshed.splitlines()] == list(STAGES)
    assert refreshed != listed
    pattern = f"spa.store/SPAFlow/{last}/frozenlake/sft_train/*/*/model/weights"
    (weights,) = (runs.work / ".metaflow").glob(pattern)
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


def test_resume_finds_what_its_run_did_though_another_did_it_after(runs: Runs) -> None:
    first, second = (run_id_of(runs("--cache", "refresh")) for _ in range(2))
    runs.computed()
    again = run_id_of(runs.spa("resume", "selfplay_generate", "--origin-run-id", first))
    assert runs.computed() == []
    for each in runs.artifacts(again, FINGERPRINT).values():
        assert each["cache_hit"].startswith(f"SPAFlow/{first}/")
    told = runs.command("explain", first)
    assert told.returncode == 2 and "computed by one after it" in told.stderr
    assert runs.command("explain", second).returncode == 0


def test_a_failure_is_never_kept(tmp_path: Path) -> None:
    runs = planted(tmp_path)
    (runs.work / "starve").touch()
    assert runs().returncode != 0
    (runs.work / "starve").unlink()
    runs.computed()
    run_id_of(runs())
    assert runs.computed() == list(STAGES[1:])
