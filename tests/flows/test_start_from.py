"""A run that starts from an earlier run: what is found, what is refused, what is skipped."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import conf
from flows import spa_flow
from steps import preflight, storage
from steps.errors import ConfigError, DataError, ModelError
from steps.orchestration import earlier, fingerprints, runs
from steps.orchestration.runs import Request
from steps.orchestration.stages import Settled
from steps.report.records import Markdown, Table
from steps.report.taken import unless_taken
from tests.flows.fake_runs import QUIET, ROOT, Runs, planted, run_id_of

LAKE = conf.compose(env="frozenlake", model="tiny")


def save_model(directory: Path, **sizes: int) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(
        json.dumps({"n_positions": 256, "n_embd": 64, "n_layer": 2} | sizes)
    )
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return directory


def kept(place: Path, model: str) -> dict[str, Any]:
    """A stage's result, with its directory as the store keeps it."""
    save_model(place / model)
    digest = storage.write_manifest(place)["digest"]
    reference = {"key": place.name, "url": str(place), "digest": digest}
    return {"model": model, "directory": reference, "curve": [{"step": 1}], "seconds": 9.0}


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A finished run on two environments, in the place of the datastore."""
    run: dict[str, Any] = {
        "run": "SPAFlow/7",
        "settings": {"envs": {"frozenlake": {}, "sokoban": {}}},
        "environments": {
            env: {
                "selfplay_generate": {"trajectories": 4},
                "filter_format": {"rows": 4},
                "sft_train": kept(tmp_path / env / "sft", "round_1/model") | {"parameters": 5},
                "ppo_train": kept(tmp_path / env / "ppo", "model"),
            }
            for env in ("frozenlake", "sokoban")
        },
    }
    monkeypatch.setattr(earlier, "export_run", lambda run_id: run)
    return run


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("7", "ppo_train", ("7", "sft_train", "")),
        ("7", "evaluate", ("7", "ppo_train", "")),
        ("SPAFlow/7:sft_train", "evaluate", ("SPAFlow/7", "sft_train", "")),
        ("7@mine:Mine", "ppo_train", ("7", "sft_train", "mine:Mine")),
        ("7:ppo_train@sokoban", "ppo_train", ("7", "ppo_train", "sokoban")),
    ],
)
def test_a_run_its_stage_and_environment_are_told_apart(
    text: str, at: str, expected: tuple[str, str, str]
) -> None:
    assert earlier.read_source(text, at) == (None, *expected)


def test_a_path_is_a_directory_whatever_is_in_its_name(tmp_path: Path) -> None:
    assert earlier.read_source("./a@b:c", "ppo_train").directory == Path.cwd() / "a@b:c"
    assert earlier.read_source(str(tmp_path), "ppo_train").directory == tmp_path


def test_a_stage_that_leaves_no_model_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'ppo_train'.*sft_train"):
        earlier.read_source("7:ppo_trian", "ppo_train")
    with pytest.raises(ConfigError, match="filter_format"):
        earlier.read_source("7:filter_format", "ppo_train")


def test_ppo_starts_from_the_finetuned_model_and_what_is_before_is_taken(
    exported: dict[str, Any], tmp_path: Path
) -> None:
    start = earlier.find(Request(start_from="7"), LAKE)
    assert list(start["taken"]) == ["selfplay_generate", "filter_format", "sft_train"]
    sft = start["taken"]["sft_train"]
    result = exported["environments"]["frozenlake"]["sft_train"]
    assert sft["directory"] == result["directory"]
    assert (sft["parameters"], sft["seconds"]) == (5, 9.0)
    assert "curve" not in sft
    assert sft["taken_from"] == {
        "run": "SPAFlow/7",
        "env": "frozenlake",
        "stage": "sft_train",
        "digest": result["directory"]["digest"],
    }
    assert start["origin"] == sft["taken_from"]
    assert start["model_dir"] == str(tmp_path / "frozenlake" / "sft" / "round_1" / "model")
    json.dumps(start)


def test_evaluation_takes_both_models_of_the_earlier_run(exported: dict[str, Any]) -> None:
    taken = earlier.find(Request(start_from="7", start_at="evaluate"), LAKE)["taken"]
    assert taken["ppo_train"]["taken_from"]["stage"] == "ppo_train"
    assert taken["sft_train"]["taken_from"]["stage"] == "sft_train"
    assert taken["ppo_train"]["parameters"] == 5  # of the finetuned model: PPO adds none
    alone = earlier.find(Request(start_from="7:sft_train", start_at="evaluate"), LAKE)["taken"]
    assert alone["ppo_train"]["taken_from"]["stage"] == "sft_train"
    assert "directory" not in alone["sft_train"]


def test_the_other_environment_is_named(exported: dict[str, Any]) -> None:
    start = earlier.find(Request(start_from="7@sokoban"), LAKE)
    assert start["taken"]["sft_train"]["taken_from"]["env"] == "sokoban"
    harder = conf.compose(env="sokoban_harder", model="tiny")
    with pytest.raises(ConfigError, match=r"of frozenlake, sokoban, and none.*7@frozenlake"):
        earlier.find(Request(start_from="7"), harder)
    with pytest.raises(ConfigError, match="of frozenlake, sokoban, not 'sudoku'"):
        earlier.find(Request(start_from="7@sudoku"), LAKE)


def test_the_only_environment_of_a_run_need_not_be_named(exported: dict[str, Any]) -> None:
    del exported["settings"]["envs"]["frozenlake"]
    start = earlier.find(Request(start_from="7"), LAKE)
    assert start["taken"]["sft_train"]["taken_from"]["env"] == "sokoban"


def test_a_stage_that_has_not_finished_is_refused(exported: dict[str, Any]) -> None:
    del exported["environments"]["frozenlake"]["ppo_train"]
    seen = "no model of ppo_train on frozenlake: finished there is selfplay_generate"
    with pytest.raises(ConfigError, match=seen):
        earlier.find(Request(start_from="7:ppo_train"), LAKE)


def test_a_changed_model_is_refused(exported: dict[str, Any], tmp_path: Path) -> None:
    weights = tmp_path / "frozenlake" / "sft" / "round_1" / "model" / "model.safetensors"
    weights.write_text("others!")
    with pytest.raises(DataError, match="not the file that was written there"):
        earlier.find(Request(start_from="7"), LAKE)
    storage.write_manifest(tmp_path / "frozenlake" / "sft")
    with pytest.raises(DataError, match="holds other files than its run says"):
        earlier.find(Request(start_from="7"), LAKE)


@pytest.mark.parametrize(
    ("experiment", "overrides", "seen"),
    [
        ("vanilla_rl", [], "taught prompt.response_format=world_model.*=plain, which"),
        ("spa", ["sft.state_loss=strip"], "taught prompt.response_format=world_model.*=plain, whi"),
        ("spa_coords", [], "taught prompt.observation=grid, .*prompt.observation=grid_coords,"),
        ("spa", ["prompt.state_shown=coords"], "taught prompt.state_shown=grid, .*shown=coords,"),
        ("spa", ["prompt.prediction_steps=each"], "taught prompt.prediction_steps=last, .*=each,"),
        ("spa_random_coords", [], "taught prompt.random_coords=False, .*coords=True,"),
    ],
)
def test_a_model_from_scratch_is_asked_for_no_other_answers_than_it_was_taught(
    exported: dict[str, Any], experiment: str, overrides: list[str], seen: str
) -> None:
    exported["settings"]["envs"]["frozenlake"] = conf.to_plain(LAKE)
    earlier.find(Request(start_from="7"), LAKE)
    other = conf.compose(experiment=experiment, model="tiny", overrides=overrides)
    with pytest.raises(ConfigError, match=seen):
        earlier.find(Request(start_from="7"), other)
    other.model.from_scratch = False  # a pretrained one reads what it is asked for
    earlier.find(Request(start_from="7"), other)


@pytest.mark.parametrize(
    ("env", "experiment", "source"),
    [
        ("frozenlake", "cross_game", "7@sokoban"),
        ("frozenlake_6x6", "easy_to_hard", "7@frozenlake"),
        ("sokoban_harder", "cross_complexity", "7@sokoban"),
    ],
)
def test_the_experiments_that_start_from_another_game_speak_as_it_does(
    exported: dict[str, Any], env: str, experiment: str, source: str
) -> None:
    for known in ("frozenlake", "sokoban"):
        taught = conf.to_plain(conf.compose(env=known, model="tiny"))
        exported["settings"]["envs"][known] = taught
    del taught["prompt"]["prediction_steps"]  # of a run that is older than the setting
    asked = conf.compose(env=env, model="tiny", experiment=experiment)
    assert earlier.find(Request(start_from=source), asked)["origin"]["run"] == "SPAFlow/7"


def test_a_directory_is_copied_by_the_step_in_whose_place_it_stands(tmp_path: Path) -> None:
    model = save_model(tmp_path / "mine")
    taken = earlier.find(Request(start_from=str(model)), LAKE)["taken"]
    assert taken["sft_train"]["copy"] == str(model)
    assert taken["sft_train"]["taken_from"]["digest"] == storage.directory_digest(model)
    assert "copy" not in taken["selfplay_generate"]
    final = earlier.find(Request(start_from=str(model), start_at="evaluate"), LAKE)["taken"]
    assert [stage for stage, each in final.items() if "copy" in each] == ["ppo_train"]


def test_a_directory_inside_a_kept_stage_is_compared_with_its_manifest(tmp_path: Path) -> None:
    kept(tmp_path / "stage", "round_1/model")
    model = tmp_path / "stage" / "round_1" / "model"
    earlier.find(Request(start_from=str(model)), LAKE)
    (model / "config.json").write_text("{}")
    with pytest.raises(DataError, match="is not the file"):
        earlier.find(Request(start_from=str(model)), LAKE)
    with pytest.raises(ConfigError, match="no such directory"):
        earlier.find(Request(start_from=str(tmp_path / "nowhere")), LAKE)


def test_a_model_that_reads_too_little_or_is_of_another_size_is_refused(tmp_path: Path) -> None:
    preflight.check_start(LAKE, str(save_model(tmp_path / "fits")))
    with pytest.raises(ConfigError, match=r"at most 128 tokens.*max_model_len=256"):
        preflight.check_start(LAKE, str(save_model(tmp_path / "short", n_positions=128)))
    with pytest.raises(ConfigError, match=r"hidden_size 128, and --model tiny has 64"):
        preflight.check_start(LAKE, str(save_model(tmp_path / "large", n_embd=128)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"missing config\.json"):
        preflight.check_start(LAKE, str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("request_", "seen"),
    [
        (Request(start_at="evaluate"), "--start-at evaluate needs a model"),
        (Request(start_from="7", start_at="sft_train"), "unknown stage to start at 'sft_train'"),
        (Request(experiment="cross_game"), "cross_game starts from an earlier run"),
    ],
)
def test_a_start_that_cannot_be_meant_is_refused(request_: Request, seen: str) -> None:
    with pytest.raises(ConfigError, match=seen):
        runs.settings_of(request_)


def test_the_settings_say_where_a_run_starts(exported: dict[str, Any]) -> None:
    request = Request(start_from="7@sokoban", experiment="cross_game")
    settings = runs.settings_of(request, find=earlier.find)
    lines = runs.describe(settings)
    assert any("starts      at ppo_train, from SPAFlow/7, sft_train of sokoban" in x for x in lines)
    assert not any("self-play" in line for line in lines)
    assert runs.settings_of(Request())["start"] == {}


def test_a_run_whose_models_lie_in_another_datastore_is_refused(
    exported: dict[str, Any], tmp_path: Path
) -> None:
    start = earlier.find(Request(start_from="7"), LAKE)
    earlier.check_place(start, ["flow", "--datastore-root", str(tmp_path / "frozenlake"), "run"])
    place = re.escape(str(tmp_path / "frozenlake" / "sft"))
    with pytest.raises(ConfigError, match=f"SPAFlow/7: its model is in {place}, which this run's"):
        earlier.check_place(start, ["flow", "--datastore-root", str(tmp_path), "run"])


def test_the_settings_say_of_what_arm_the_model_is_and_of_what_code_the_run(
    exported: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported["settings"]["envs"]["frozenlake"] = {"experiment": "vanilla_rl"}
    line = ["spa_flow.py", "--datastore-root", str(tmp_path / "frozenlake"), "run"]
    options = ["--profile", "smoke", "--start-from", "7", "--override", "tracking.enabled=false"]
    monkeypatch.setattr(spa_flow, "ARGV", [*line, *options])
    monkeypatch.setattr(preflight, "check", lambda config: None)
    monkeypatch.setattr(preflight, "check_start", lambda config, model_dir: None)
    settings = spa_flow.read_settings("{}")
    assert settings["start"]["frozenlake"]["experiment"] == "vanilla_rl"
    assert settings["commit"] == storage.git_commit()


def test_the_card_of_a_stage_that_was_taken_says_where_from() -> None:
    origin = {"run": "SPAFlow/7", "stage": "sft_train", "env": "sokoban", "digest": "abc"}
    chosen = unless_taken(lambda result: [Markdown(text="computed")])
    text, table = chosen({"taken_from": origin, "parameters": 5, "seconds": 9.0})
    assert isinstance(text, Markdown)
    assert "Taken from an earlier run" in text.text
    assert isinstance(table, Table)
    assert ("run", "SPAFlow/7") in table.rows
    assert ("parameters of the model", "5") in table.rows
    assert chosen({"seconds": 9.0}) == [Markdown(text="computed")]


# What a run that starts elsewhere counts as its input


def fingerprints_of(config: conf.Config) -> dict[str, str]:
    """Stage -> fingerprint, through the flow's own `result_of`, of a run that starts at PPO."""
    taken = {"taken_from": {"run": "SPAFlow/7", "env": "frozenlake", "stage": "sft_train"}}
    skipped = dict.fromkeys(("selfplay_generate", "filter_format", "sft_train"), taken)
    settings = {"start": {config.env.id: {"taken": skipped}}}
    flow: Any = SimpleNamespace(settings=settings, env_id=config.env.id, fingerprint="")
    found = {}
    for name in fingerprints.SETTINGS:
        parts = fingerprints.parts_of(name, config, before=flow.fingerprint)
        key = fingerprints.fingerprint(parts)
        stage: Any = SimpleNamespace(name=name, parts=parts, fingerprint=key)
        stage.settle = lambda compute, key=key: Settled({}, key, None)
        spa_flow.result_of(flow, stage, lambda stage: {})
        found[name] = flow.fingerprint
    return found


@pytest.mark.parametrize(
    "override",
    [
        "seed",
        "env.max_turns=3",
        "model.dtype=bfloat16",
        "prompt.observation=grid_coords",
        "sampling.max_new_tokens=30",
        "generation.max_span_chars=7",
        "sft.state_loss=mask",
        "ppo.base_seed=77",
        "ppo.total_steps=2",
        "verl.overrides=['a.b=1']",
    ],
)
def test_every_setting_of_a_run_that_starts_elsewhere_moves_ppo_and_evaluation(
    override: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = fingerprints_of(LAKE)
    changes: dict[str, Any] = {"seed": 1} if override == "seed" else {"overrides": [override]}
    other = conf.compose(env="frozenlake", model="tiny", **changes)
    moved = fingerprints_of(other)
    for stage in ("ppo_train", "evaluate"):
        assert moved[stage] != base[stage], stage


def test_the_code_of_skipped_stages_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    base, code_of = fingerprints_of(LAKE), fingerprints.code_of
    skipped = ("selfplay_generate", "filter_format", "sft_train")
    monkeypatch.setattr(
        fingerprints,
        "code_of",
        lambda stage, game: {"changed": "1"} if stage in skipped else code_of(stage, game),
    )
    assert fingerprints_of(LAKE) == base


# With the flow


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_goes_on_from_an_earlier_one_on_another_lake(tmp_path: Path) -> None:
    spa = planted(tmp_path)
    first = run_id_of(spa())

    lake = ("--env", "frozenlake_upstream")
    ppo = spa(*lake, "--start-from", first)
    run_id = run_id_of(ppo)
    assert f"at ppo_train, from SPAFlow/{first}, sft_train of frozenlake" in ppo.stdout
    assert "selfplay_generate is skipped: taken from SPAFlow" in ppo.stdout
    model = next((spa.work / ".metaflow").rglob(f"{first}/**/sft_train/attempt_0/round_1/model"))
    alone = spa(*lake, "--start-from", str(model), "--start-at", "evaluate")
    assert run_id_of(alone) != run_id

    for stage in ("selfplay_generate", "filter_format", "sft_train"):
        assert [each["env"] for each in spa.trace(stage)] == ["frozenlake"], stage
    assert [each["env"] for each in spa.trace("ppo_train")] == ["frozenlake", "frozenlake_upstream"]
    both = {"after_sft": "sft", "final": "ppo after 5 steps from 0"}
    assert [each["read"] for each in spa.trace("evaluate")] == [both, both, {"final": "sft"}]

    (model / "weights").write_text("others")
    broken = spa(*lake, "--start-from", first)
    assert broken.returncode == 2
    assert "is not the file that was written there" in broken.stderr
    assert len(broken.stderr.splitlines()) == 1
    unknown = spa(*lake, "--start-from", "12")
    assert unknown.returncode == 2
    assert "--start-from 12: no run SPAFlow/12" in unknown.stderr
    assert len(unknown.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_stages_start_from_a_model_directory(tmp_path: Path) -> None:
    from steps.training.tiny_model import build_tiny

    build_tiny(conf.compose(model="tiny").model, tmp_path / "model")
    spa = Runs(ROOT / "flows" / "spa_flow.py", tmp_path)
    smoke = ("--profile", "smoke", "--start-from", "./model")
    done = spa(
        *smoke, "--env", "frozenlake_deterministic",
        override=f"{QUIET} ppo.total_steps=1 sampling.max_new_tokens=20",
    )  # fmt: skip
    run_id_of(done)
    assert "at ppo_train, from directory" in done.stdout
    assert "sft_train is skipped" in done.stdout
    assert "after PPO" in done.stdout
    assert "the card of this step is incomplete" not in done.stdout
    short = spa(*smoke, override="sampling.max_model_len=512 model.max_positions=512")
    assert short.returncode == 2
    assert "reads at most 256 tokens" in short.stderr
    assert len(short.stderr.splitlines()) == 1
