"""`python -m steps.selfplay_generate format-rate`, and what self-play says of forced answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conf.schema import Config, ModelSection
from steps import selfplay_cli
from steps.errors import ConfigError
from steps.selfplay_cli import format_rates, main
from steps.selfplay_generate import selfplay_generate
from steps.storage import read_trajectories
from steps.tracking import NullTracker
from steps.training.tiny_model import build_tiny

pytest.importorskip("xgrammar")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random weights."""
    section = ModelSection(hidden_size=32, num_heads=2, ffn_size=32, max_positions=192)
    return str(build_tiny(section, tmp_path_factory.mktemp("model")))


@pytest.fixture
def config() -> Config:
    """Eight episodes of at most two turns."""
    made = Config(workers=1, device="cpu")
    made.selfplay.env_groups, made.selfplay.group_size, made.selfplay.batches = 4, 1, 2
    made.selfplay.policy, made.model.from_scratch = "model", False
    made.env.max_turns = 2
    made.prompt.style, made.prompt.history, made.prompt.state_shown = (
        "state_only",
        "single_turn",
        "grid",
    )
    made.sampling.max_new_tokens, made.sampling.max_model_len = 100, 192
    return made


def test_forced_self_play_yields_nothing_but_well_formed_rows_and_says_so(
    config: Config, model_dir: str, tmp_path: Path
) -> None:
    tracker = NullTracker()
    results = {}
    for constrained in (False, True):
        config.generation.constrained = constrained
        out_dir = tmp_path / str(constrained)
        results[constrained] = selfplay_generate(
            config, model_dir=model_dir, out_dir=out_dir, tracker=tracker
        )
    assert [results[key]["format_rate"] for key in (False, True)] == [0.0, 1.0]
    assert [results[key]["constrained"] for key in (False, True)] == [False, True]
    logged = [metrics["selfplay/constrained"] for _, metrics in tracker.logged]
    assert logged == [0.0, 0.0, 1.0, 1.0]
    for trajectory in read_trajectories(tmp_path / "True" / results[True]["file"]):
        for turn in trajectory.turns:
            assert f"<observation>{turn.observation_truth}</observation>" in turn.response
            assert f"<prediction>{turn.prediction_truth}</prediction>" in turn.response


def test_a_baseline_is_never_said_to_be_forced(config: Config, tmp_path: Path) -> None:
    config.generation.constrained, config.selfplay.policy = True, "random"
    result = selfplay_generate(config, model_dir="", out_dir=tmp_path, tracker=NullTracker())
    assert (result["policy"], result["constrained"]) == ("random", False)


def test_too_few_tokens_are_refused_before_anything_is_stored(
    config: Config, model_dir: str, tmp_path: Path
) -> None:
    config.generation.constrained, config.sampling.max_new_tokens = True, 10
    with pytest.raises(ConfigError, match=r"max_new_tokens=10 is too few"):
        selfplay_generate(config, model_dir=model_dir, out_dir=tmp_path, tracker=NullTracker())
    assert not (tmp_path / "trajectories.parquet").exists()


def test_rates_with_and_without_force_stand_side_by_side(config: Config, model_dir: str) -> None:
    rates = format_rates(config, model_dir)
    assert rates["constrained"]["format_rate"] == 1.0
    assert rates["constrained"]["statuses"] == {"ok": rates["constrained"]["turns"]}
    free = rates["unconstrained"]
    # a malformed answer holds no action to be played, so both turns are used up
    assert (free["format_rate"], free["turns"]) == (0.0, 16)
    assert sum(free["statuses"].values()) == 16 and "ok" not in free["statuses"]


def test_the_command_prints_a_table(
    model_dir: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--env", "frozenlake", "--model", model_dir, "--like", "tiny", "--episodes", "3"]
    more = "sampling.max_model_len=192 sampling.max_new_tokens=90 workers=1 env.max_turns=2"
    more += " model.hidden_size=32"
    main(["format-rate", *words, "--override", more])
    header, free, forced = capsys.readouterr().out.splitlines()
    assert header.split() == ["answers", "well-formed", "turns", "faults"]
    assert free.split()[:3] == ["unconstrained", "0.000", "6"]
    assert forced.split()[:2] == ["constrained", "1.000"] and forced.split()[3:] == ["none"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "random"], "name a model"),
        (["--model", "./nowhere"], "nowhere"),
        (["--model", "./nowhere", "--like", "tiny"], "model directory './nowhere' doesn't exist"),
        (["--model", "DIRECTORY", "--like", "tiny"], "unknown model 'DIRECTORY'"),
        (["--model", "./nowhere", "--like", "tinny"], "did you mean 'tiny'"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["format-rate", *words])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_model_that_reads_less_than_the_settings_say_is_refused(
    model_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", model_dir, "--like", "tiny"]
    with pytest.raises(SystemExit):
        main(["format-rate", *words])
    (line,) = capsys.readouterr().err.splitlines()
    assert "has hidden_size 32, and --like tiny has 64" in line
    with pytest.raises(SystemExit):
        main(["format-rate", *words, "--override", "model.hidden_size=32"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "reads at most 192 tokens" in line and "sampling.max_model_len=256" in line


def test_the_module_of_the_stage_is_the_command(root: Path) -> None:
    command = [sys.executable, "-m", "steps.selfplay_generate", "format-rate", "--model", "oracle"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "oracle" in done.stderr
    assert selfplay_cli.__doc__ is not None and "format-rate --env" in selfplay_cli.__doc__
