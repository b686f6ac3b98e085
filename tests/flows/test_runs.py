import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import conf
from steps.errors import ConfigError
from steps.orchestration import command_line, runs
from steps.orchestration.runs import Request, read_request, settings_of


def test_options_are_read_in_both_spellings_and_metaflows_are_left_alone() -> None:
    line = ["--datastore", "local", "--environment=local", "run", "--env=a,b", "--seed", "3",
            "--max-workers", "2", "--override", "ppo.lr=1e-5 sft.lr=1e-3"]  # fmt: skip
    assert read_request(line) == Request(env="a,b", seed=3, override="ppo.lr=1e-5 sft.lr=1e-3")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--exp", "--experiment"),
        ("--profil=smoke", "--profile"),
        ("--overrides", "--override"),
        ("--start", "--start-from or --start-at"),
        ("--start_from", "--start-from"),
    ],
)
def test_a_misspelt_option_is_refused_before_anything_is_printed(word: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"no option {word.split('=')[0]}; .* {meant}\?"):
        read_request(["--environment", "local", "run", word, "spa"])


def test_metaflows_options_behind_run_are_known() -> None:
    from metaflow.cli_components.run_cmds import run

    assert {option for each in run.params for option in each.opts} <= {*runs.OF_RUN}
    words = [word for option in runs.OF_RUN for word in (option, "--x")]
    assert read_request(["run", *words]) == Request()


@pytest.mark.parametrize(
    ("cluster", "words", "default", "is_said"),
    [
        ("local", [], "", False),
        ("aws_batch", [], "", True),
        ("aws_batch", ["--with", "kubernetes"], "", True),
        ("aws_batch", ["--with", "retry", "--with=batch:cpu=2"], "", False),
        ("kubernetes", [], "retry kubernetes", False),
    ],
)
def test_a_cluster_without_what_sends_tasks_there_is_told(
    cluster: str, words: list[str], default: str, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAFLOW_DEFAULT_DECOSPECS", default)
    said = runs.elsewhere(["flow.py", "run", "--cluster", cluster, *words], cluster)
    wanted = {"aws_batch": "batch"}.get(cluster, cluster)
    assert (f"these run on this machine; add `--with {wanted}`" in said) == is_said


def test_metaflows_workers_are_read_in_both_spellings() -> None:
    assert runs.max_workers(["flow.py", "run", "--max-workers", "1"]) == 1
    assert runs.max_workers(["flow.py", "run", "--max-workers=2"]) == 2
    assert runs.max_workers(["flow.py", "run"]) == runs.max_workers(["--max-workers=x"]) == 16


def test_overrides_of_several_options_count_together() -> None:
    line = ["run", "--override", "ppo.lr=1e-5", "--seed=3", "--override=sft.lr=1e-3 sft.epochs=2"]
    assert read_request(line) == Request(seed=3, override="ppo.lr=1e-5 sft.lr=1e-3 sft.epochs=2")


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (["--seed", "1", "--env=a", "--seed=2"], r"--seed is given 2 times \('1', '2'\)"),
        (["--start-from", "7", "--start-from", "7"], "--start-from is given 2 times"),
    ],
)
def test_another_option_that_is_given_twice_is_refused(line: list[str], seen: str) -> None:
    with pytest.raises(ConfigError, match=f"{seen}.*give it once"):
        read_request(["run", *line])


@pytest.mark.parametrize("line", [["run", "--seed", "x"], ["run", "--env"]])
def test_an_option_without_a_usable_value_is_refused(line: list[str]) -> None:
    with pytest.raises(ConfigError):
        read_request(line)


def test_a_card_is_named_by_all_that_tells_it_from_another() -> None:
    settings = settings_of(Request(env="frozenlake,bandit", profile="smoke", seed=4))
    said = runs.name_of(settings, ["frozenlake", "bandit"], "17")
    assert said == "frozenlake, bandit · spa · tiny · smoke · seed 4 · run 17"


def test_a_run_names_the_commands_that_look_further_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = Request(env="frozenlake,bandit", profile="smoke", override="ppo.lr=1e-5 sft.lr=1e-3")
    table, sweep = runs.next_lines(settings_of(request), "bandit", "17", tmp_path / "store/model")
    assert table.endswith(" -m steps.report.paper_table 17")
    assert sweep.endswith(
        " -m steps.evaluate passk --env bandit --like tiny --profile smoke "
        "--override 'ppo.lr=1e-5 sft.lr=1e-3' --model store/model --samples 64"
    )
    _, plain = runs.next_lines(settings_of(Request()), "frozenlake", "17", Path("/m"))
    assert plain.endswith(" -m steps.evaluate passk --like tiny --model /m --samples 64")


def test_settings_hold_one_whole_config_for_each_environment() -> None:
    settings = settings_of(
        Request(env="frozenlake, frozenlake_upstream", profile="smoke", seed=4,
                override="ppo.total_steps=9 log_level=debug")
    )  # fmt: skip
    assert list(settings["envs"]) == ["frozenlake", "frozenlake_upstream"]
    config = runs.config_of(settings, "frozenlake_upstream")
    assert (config.env.id, config.seed, config.ppo.total_steps) == ("frozenlake_upstream", 4, 9)
    assert any("ppo.total_steps = 9" in line for line in runs.describe(settings))


def test_a_password_of_an_override_is_in_the_settings_and_is_neither_said_nor_kept_as_typed() -> (
    None
):
    typed = "tracking.uri=http://user:secret@host:5000 log_level=debug"
    settings = settings_of(Request(override=typed))
    assert runs.config_of(settings, "frozenlake").tracking.uri == "http://user:secret@host:5000"
    assert settings["request"]["override"] == "tracking.uri=http://host:5000 log_level=debug"
    said = "\n".join(runs.describe(settings))
    assert said.count("http://host:5000") == 2  # as an override, and among all settings
    assert "secret" not in said


def test_a_command_line_is_shown_without_the_passwords_of_its_overrides() -> None:
    typed = ["f.py", "--datastore-root", "s3://me@store", "run", "--override", "a=http://u:p@h",
             "--override=b=http://u:p@h c=1", "--tag", "s3://me@store"]  # fmt: skip
    assert command_line.shown_line(typed) == [
        *typed[:5], "a=http://h", "--override=b=http://h c=1", *typed[7:]
    ]  # fmt: skip


def test_resources_follow_the_profile_and_ask_for_no_gpu_where_there_is_none() -> None:
    small = settings_of(Request())["resources"]
    assert small["ppo_train"] == {"cpu": 1, "gpu": None, "memory": 4096}
    large = settings_of(Request(profile="paper", override="resources.ppo_train.gpu=8"))["resources"]
    assert large["ppo_train"] == {"cpu": 32, "gpu": 8, "memory": 262144}
    assert large["filter_format"]["gpu"] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": "frozenlake,"}, "empty name"),
        ({"env": "frozenlake,frozenlake"}, "twice"),
        ({"cache": "of"}, "did you mean 'off'"),
        ({"seed": -1}, "negative"),
        ({"seed": 10**9 + 1}, "seed=1000000001 is above 1000000000"),
        ({"profile": "smok"}, "did you mean 'smoke'"),
    ],
)
def test_requests_that_cannot_be_meant_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings_of(dataclasses.replace(Request(), **changes))


def test_every_environment_is_checked_before_any_work() -> None:
    seen = []
    settings_of(Request(env="a.b:C,frozenlake"), check=lambda config: seen.append(config.env.id))
    assert seen == ["a.b:C", "frozenlake"]


def test_every_registered_environment_has_settings_of_its_own() -> None:
    import envs

    assert set(envs.list_ids()) <= set(conf.known("env"))


def test_the_resume_line_is_the_command_as_it_was_typed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(command_line.shutil, "which", lambda _: "/somewhere/else/python")
    line = command_line.resume_line(
        ["flows/spa_flow.py", "--datastore", "s3", "run", "--env", "a"], "17"
    )
    assert line == (".venv/bin/python flows/spa_flow.py --datastore s3 resume --origin-run-id 17")
    monkeypatch.setattr(command_line.shutil, "which", lambda _: str(python))
    assert command_line.resume_line(["my flow.py", "resume"], "17") == (
        "python 'my flow.py' resume --origin-run-id 17"
    )
    assert command_line.resume_line(
        ["f.py", "--datastore-root", "run", "run", "--tag", "a"], "17"
    ) == ("python f.py --datastore-root run resume --origin-run-id 17")


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        (["flow", "run", "--env", "a"], True),
        (["flow", "resume"], True),
        (["flow", "run", "--help"], False),
        (["flow", "step", "start", "--run-id", "1"], False),
        (["flow", "card", "get", "1/start/1"], False),
        (["flow"], False),
    ],
)
def test_only_run_and_resume_start_a_run(line: list[str], starts: bool) -> None:
    assert command_line.is_starting(line) is starts


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("run --env a --tag resume --tag step", "run"),
        ("resume --tag run", "resume"),
        ("--quiet --datastore-root run --with=retry --no-pylint run --seed 7", "run"),
        ("--with step --datastore=local resume", "resume"),
        ("--config-value cfg run resume", "resume"),
        ("--config=cfg run resume", "resume"),
        ("logs show run/1", "logs"),
        ("--quiet=yes run", "run"),  # Metaflow refuses it
        ("--quiet", ""),
        ("--datastore", ""),
    ],
)
def test_the_command_is_no_options_value(words: str, command: str) -> None:
    line = ["flow", *words.split()]
    assert command_line.command_of(line) == command
    assert command_line.is_starting(line) is (command in ("run", "resume"))


def test_the_options_without_a_value_are_metaflows() -> None:
    from metaflow.cli import start

    known = [each for each in start.params if each.is_flag]
    spellings = {word for each in known for word in (*each.opts, *each.secondary_opts)}
    assert {"--help", *spellings} == set(runs.FLAGS)
    assert {each.nargs for each in start.params} == {1}  # the flow's own add those of two values


@pytest.mark.parametrize(("user", "expected"), [("ada", None), ("root", True), ("", True)])
def test_metaflow_gets_a_user_name_where_the_system_has_none(
    monkeypatch: pytest.MonkeyPatch, user: str, expected: bool | None
) -> None:
    for name in ("METAFLOW_USER", "SUDO_USER", "USERNAME", "USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USER", user)
    runs.name_user()
    given = os.environ.get("METAFLOW_USER")
    assert given is None if expected is None else given not in (None, "", "root")
    os.environ.pop("METAFLOW_USER", None)
