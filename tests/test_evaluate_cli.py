"""`python -m steps.evaluate`: its two commands, and the mistakes it answers in one line."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

import conf
from steps import evaluate_cli, storage
from steps.agent.success import pass_at_k
from steps.evaluate_cli import main
from steps.settings import model_source
from steps.training.tiny_model import build_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The built-in model, untrained."""
    directory = tmp_path_factory.mktemp("model")
    return str(build_tiny(conf.compose().model, directory))


def test_a_sweep_estimates_every_k_from_the_same_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate_cli, "CHUNK", 40)  # three pieces: of 2, 2 and 1 puzzles
    command = ["passk", "--model", "random", "--samples", "16", "--puzzles", "5", "--out"]
    secret = "tracking.uri=http://me:secret@host"
    main([*command, str(tmp_path), "--override", secret])
    result = json.loads((tmp_path / "passk.json").read_text())
    assert result["settings"]["tracking"]["uri"] == "http://host"
    assert result["n"] == 80
    assert [each[1] for each in result["puzzles"].values()] == [16] * 5
    for k in (1, 2, 4, 8, 16):
        expected = [pass_at_k(16, won, k) for won, _ in result["puzzles"].values()]
        assert result["scores"][f"pass@{k}"] == pytest.approx(sum(expected) / 5)
    assert (tmp_path / "passk.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr()
    written = [str(tmp_path / name) for name in ("passk.json", "passk.png")]
    assert said.err == f"written: {', '.join(written)}\n"
    lines = said.out.splitlines()
    assert lines[0].startswith(
        "80 episodes of 5 puzzles of frozenlake; a single try of random play"
    )
    assert [line.split()[0] for line in lines[1:]] == ["k", "1", "2", "4", "8", "16"]

    monkeypatch.setattr(evaluate_cli, "CHUNK", 8192)
    main([*command, str(tmp_path / "whole"), "--override", secret])
    assert json.loads((tmp_path / "whole" / "passk.json").read_text()) == result


def test_chosen_k_are_the_only_ones(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--samples", "3", "--puzzles", "4", "--k", "1,3"]
    main(["passk", "--env", "frozenlake_deterministic", "--model", "oracle", *chosen])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("optimal play 1.000")
    assert [line.split()[:2] for line in lines[2:]] == [["1", "1.000"], ["3", "1.000"]]


def test_perplexity_reads_any_model_directory(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["perplexity", "--model", tiny, "--like", "tiny", "--puzzles", "3"]
    main([*command, "--states", "grid,coords", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "perplexity.json").read_text())["states"]
    assert list(found) == ["grid", "coords"]
    # Random weights: about as surprised as by some 300 tokens of equal chances.
    assert 250 < found["grid"]["perplexity"] < 450
    assert found["grid"]["tokens"] == 19 * found["grid"]["states"]
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "grid"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("passk --model /nowhere", "model directory '/nowhere' doesn't exist"),
        ("passk --model random --samples 4 --k 8", "needs more than evaluation.samples=4"),
        ("passk --model random --puzzles 0", "evaluation.puzzles"),
        ("passk --model random --env frozen --puzzles 2 --samples 2", "unknown environment"),
        ("passk --model oracle --like tyny", "did you mean 'tiny'"),
        ("perplexity --model random", "random reads no text"),
        ("perplexity --model TINY --states gird --like tiny", "did you mean 'grid'"),
        ("perplexity --model TINY", "reads at most 256 tokens"),
        ("perplexity --model DIRECTORY --like tiny", "unknown model 'DIRECTORY'"),
        ("passk --model tinny --like tiny", "unknown model 'tinny'; did you mean 'tiny'?"),
        ("passk --model tiny", "has learned nothing; give the directory"),
        ("passk --model TINY --like tiny_3m", "has hidden_size 64, and --like tiny_3m has 256;"),
    ],
)
def test_mistakes_are_one_line(
    command: str, message: str, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(command.replace("TINY", tiny).split())
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["passk", "perplexity"])
@pytest.mark.parametrize("place", ["file", "file/below", "/proc/x"])
def test_a_place_that_cant_be_written_is_refused_before_the_first_episode(
    command: str,
    place: str,
    tiny: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluate_cli, "passk", None)
    monkeypatch.setattr(evaluate_cli, "perplexity", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stopped:
        main([command, "--model", tiny, "--like", "tiny", "--out", str(tmp_path / place)])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--out {tmp_path / place} can't be written: ")


def test_a_disk_that_refuses_at_the_end_costs_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "atomic_write_json", full)
    command = ["passk", "--model", "random", "--samples", "2", "--puzzles", "2"]
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out.startswith("4 episodes of 2 puzzles")
    assert "No space left on device. Name another place." in said.err


def test_a_file_of_models_stands_for_its_hub_name(tiny: str) -> None:
    assert model_source("qwen2.5-0.5b") == "Qwen/Qwen2.5-0.5B-Instruct"
    assert model_source("owner/name") == "owner/name"
    assert model_source(tiny) == tiny


@pytest.mark.parametrize("workers", [1, 2])
def test_how_far_the_episodes_are_is_told_beside_the_table(
    workers: int, tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate_cli, "EVERY_S", 0.0)
    command = ["passk", "--model", tiny, "--like", "tiny", "--samples", "32", "--puzzles", "4"]
    short = f"sampling.max_new_tokens=8 env.max_turns=1 workers={workers}"
    main([*command, "--override", short])
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == "128 of 128 episodes played"
    assert "played\n" not in said.out


def test_a_list_of_k_that_cant_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["passk", "--model", "random", "--k", "3,x"])
    said = capsys.readouterr().err
    assert "argument --k: '3,x' isn't whole numbers separated by commas" in said


def test_the_module_of_the_stage_is_the_command(root: Path) -> None:
    command = [sys.executable, "-m", "steps.evaluate", "passk", "--model", "random"]
    command += ["--samples", "1", "--puzzles", "1"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 episodes of 1 puzzles of frozenlake")
