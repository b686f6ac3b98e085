"""The table of our rows beside the paper's: means and intervals, splits, common points, files."""

from __future__ import annotations

import copy
import csv
import dataclasses
import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import conf
from steps.errors import DataError
from steps.report import exports, paper_pictures, paper_table
from steps.report.arm_figures import seeds_range
from steps.report.differences import differences
from steps.report.equal import at_equal, line
from steps.report.exports import Collection
from steps.report.paper_rows import Row, estimate, rows_of
from steps.report.published import PUBLISHED, family_of, published_row, text_of
from steps.report.series import Series


def exported(
    *,
    experiment: str = "spa",
    env: str = "frozenlake",
    model: str = "tiny",
    seed: int = 0,
    rate: float = 0.7,
    successes: tuple[float, ...] = (0.1, 0.2),
    **changes: Any,
) -> dict[str, Any]:
    """A finished run as `export_run` gives it; `changes` are settings, dots as two underscores."""
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in changes.items()]
    config = conf.compose(
        env=env, experiment=experiment, model=model, seed=seed, overrides=overrides
    )
    scores = {
        "pass@1": rate, "pass@1_low": rate - 0.04, "pass@1_high": rate + 0.04,
        "pass@8": 0.9, "pass@8_low": 0.85, "pass@8_high": 0.95,
        "n": 1024, "puzzles": 128, "errors": 0, "floor": 0.2, "ceiling": 0.9,
        "observation_exact": 0.95, "prediction_exact": 0.7, "prediction_possible": 0.85,
    }  # fmt: skip
    before = {**scores, "pass@1": 0.21, "observation_exact": 1.0, "prediction_possible": 0.99}
    curve = [
        {"step": step, "ppo/seconds": 2.0 * step, "rollout/success": value, "actor/entropy": 0.1}
        for step, value in enumerate(successes, start=1)
    ]
    ppo = {"steps": len(curve), "seconds": 2.0 * len(curve), "curve": curve, "floor": 0.21}
    return {
        "schema": 1,
        "run": "SPAFlow/17",
        "finished": True,
        "seconds": 99.0,
        "settings": {"request": {}, "envs": {env: conf.to_plain(config)}},
        "environments": {
            env: {
                "sft_train": {"parameters": 103168, "seconds": 5.0},
                "ppo_train": ppo,
                "evaluate": {"summary": {**scores, "after_sft": before}},
            }
        },
    }


def collect(tmp_path: Path, *runs: dict[str, Any]) -> Collection:
    for index, run in enumerate(runs):
        (tmp_path / f"run{index}.json").write_text(json.dumps(run))
    return exports.read([str(tmp_path)])


def rows(tmp_path: Path, *runs: dict[str, Any]) -> list[Row]:
    return rows_of(collect(tmp_path, *runs).played)[0]


def test_one_seed_has_the_bootstrap_interval_of_its_evaluation(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, exported(rate=0.7))
    found = row.score("pass@1")
    assert found is not None
    assert (found.value, found.kind) == (0.7, "bootstrap")
    assert (found.low, found.high) == pytest.approx((0.66, 0.74))


def test_two_seeds_have_their_range_and_three_students_interval(tmp_path: Path) -> None:
    """.6, .7, .8: deviation .1, t(2) = 4.303, so .7 -+ 4.303 x .1 / sqrt(3) = .7 -+ .2484."""
    two = estimate([0.6, 0.8])
    assert (two.value, two.low, two.high, two.kind) == (pytest.approx(0.7), 0.6, 0.8, "range")
    (row,) = rows(tmp_path, *(exported(seed=seed, rate=0.6 + seed / 10) for seed in range(3)))
    three = row.score("pass@1")
    assert three is not None
    assert three.kind == "t"
    assert (three.value, three.low, three.high) == pytest.approx((0.7, 0.4516, 0.9484), abs=1e-4)


def test_students_interval_is_cut_to_rates() -> None:
    found = estimate([0.0, 0.5, 1.0])
    assert (found.low, found.high) == (0.0, 1.0)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=60))
def test_an_interval_holds_its_mean_and_no_order_matters(values: list[float]) -> None:
    found = estimate(values)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1
    turned = estimate(values[::-1])
    assert (turned.low, turned.high) == pytest.approx((found.low, found.high))


def test_share_of_the_attainable_by_hand(tmp_path: Path) -> None:
    """(.7 - .2) / (.9 - .2) = 5/7, and .66 and .74 likewise."""
    (row,) = rows(tmp_path, exported(rate=0.7))
    share = row.attainable
    assert share is not None
    assert share.value == pytest.approx(5 / 7)
    assert (share.low, share.high) == pytest.approx((0.46 / 0.7, 0.54 / 0.7))


def test_runs_that_differ_in_more_than_the_seed_are_split_and_a_line_says_in_what(
    tmp_path: Path,
) -> None:
    runs = [exported(), exported(seed=1), exported(seed=2, ppo__lr=0.001)]
    found, lines = rows_of(collect(tmp_path, *runs).played)
    assert [len(row.runs) for row in found] == [2, 1]
    assert lines == [
        "spa on frozenlake with tiny is split into 2 rows, whose runs differ in more than the "
        "seed: ppo.lr 0.0004 | 0.001."
    ]
    assert [row.arm for row in found] == ["spa (1: ppo.lr 0.0004)", "spa (2: ppo.lr 0.001)"]


def test_what_does_not_change_a_result_does_not_split_a_row(tmp_path: Path) -> None:
    runs = [exported(), exported(seed=1, workers=1, device="cpu", tracking__enabled=False)]
    found, lines = rows_of(collect(tmp_path, *runs).played)
    assert (len(found), lines) == (1, [])


def test_an_older_export_without_a_newer_setting_is_of_the_same_row(tmp_path: Path) -> None:
    old = exported(seed=1)
    del old["settings"]["envs"]["frozenlake"]["prompt"]["random_coords"]
    assert len(rows(tmp_path, exported(), old)) == 1


def test_a_seed_that_was_run_twice_counts_once(tmp_path: Path) -> None:
    found, lines = rows_of(collect(tmp_path, exported(rate=0.5), exported(rate=0.6)).played)
    assert [each.summary["pass@1"] for each in found[0].runs] == [0.6]
    assert lines == ["run0: seed 0 was run again as run1, which counts."]


def started(
    number: int, *, experiment: str = "vanilla_rl", seed: int = 0, directory: str = "", of: str = ""
) -> dict[str, Any]:
    """A run that measured a model of run `number`, or of a directory."""
    run = exported(experiment=experiment, seed=seed, rate=number / 100)
    origin = {"run": f"SPAFlow/{number}", "env": "frozenlake", "stage": "ppo_train"}
    if directory:
        origin = {"directory": directory}
    origin["digest"] = f"{number}" * 32
    start = {"at": "evaluate", "origin": origin, "experiment": of}
    run["settings"]["start"] = {"frozenlake": start}
    stages = run["environments"]["frozenlake"]
    del stages["ppo_train"]["curve"]
    for stage in ("sft_train", "ppo_train"):
        stages[stage] |= {"taken_from": origin, "directory": {}}
    return run


def test_models_of_several_runs_that_are_measured_with_one_seed_all_count(tmp_path: Path) -> None:
    found, lines = rows_of(collect(tmp_path, *map(started, (50, 60, 70))).played)
    assert [[each.summary["pass@1"] for each in row.runs] for row in found] == [[0.5, 0.6, 0.7]]
    assert lines == []
    again = collect(tmp_path, started(50), started(50), started(60))
    (row,), lines = rows_of(again.played)
    assert (len(row.runs), lines) == (2, ["run0: seed 0 was run again as run1, which counts."])


def test_directories_are_rows_of_their_own_whatever_the_seed(tmp_path: Path) -> None:
    runs = [started(50, directory="a"), started(60, directory="b", seed=1)]
    found, (line,) = rows_of(collect(tmp_path, *runs).played)
    assert [len(row.runs) for row in found] == [1, 1]
    assert line.endswith("start.directory 505050505050 | 606060606060.")
    moved = [started(50, directory="a"), started(50, directory="c")]
    (row,), _ = rows_of(collect(tmp_path, *moved).played)
    assert len(row.runs) == 1


def test_models_of_several_arms_are_rows_of_their_own(tmp_path: Path) -> None:
    runs = [started(50, of="spa"), started(60, of="vanilla_rl", seed=1)]
    found, _ = rows_of(collect(tmp_path, *runs).played)
    assert [row.variant for row in found] == [
        "1: start.experiment spa", "2: start.experiment vanilla_rl"
    ]  # fmt: skip


def test_steps_of_another_run_are_not_shown_as_this_ones(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, started(50))
    (record,) = csv.DictReader(io.StringIO(paper_table.as_csv([row])))
    facts = ("ppo_steps", "ppo_episodes", "ppo_seconds", "sft_seconds")
    assert [record[name] for name in facts] == [""] * len(facts)
    assert record["parameters"] == "103168.0"
    text = paper_table.markdown([row], [])
    assert "– (–)" in text
    assert "starts from ppo_train of SPAFlow/50 on frozenlake" in text


def test_the_later_run_counts_whatever_the_files_are_called(tmp_path: Path) -> None:
    later, sooner = exported(rate=0.6), exported(rate=0.5)
    later["run"], sooner["run"] = "SPAFlow/1795839932192760", "SPAFlow/1795839932192759"
    found, lines = rows_of(collect(tmp_path, later, sooner).played)
    assert [each.summary["pass@1"] for each in found[0].runs] == [0.6]
    assert lines == ["run1: seed 0 was run again as run0, which counts."]
    sooner["began"] = 1795839999.0  # by the clock, where the ids are another service's
    found, _ = rows_of(collect(tmp_path, later, sooner).played)
    assert [each.summary["pass@1"] for each in found[0].runs] == [0.5]


def test_a_row_of_runs_of_different_code_says_so(tmp_path: Path) -> None:
    runs = [exported(seed=seed) for seed in range(4)]
    for run, commit in zip(runs, ("a" * 40, "a" * 40, f"{'b' * 40}-dirty"), strict=False):
        run["settings"]["commit"] = commit
    found, lines = rows_of(collect(tmp_path, *runs).played)
    assert len(found) == 1
    assert lines == [
        "spa on frozenlake with tiny is of different commits: aaaaaaaaaaaa: run0, run1; "
        "bbbbbbbbbbbb-dirty: run2; unknown: run3."
    ]
    (tmp_path / "same").mkdir()
    assert rows_of(collect(tmp_path / "same", *runs[:2]).played)[1] == []


@pytest.mark.parametrize("unit", ["episodes", "seconds"])
def test_the_probe_before_the_first_step_stands_at_nothing(tmp_path: Path, unit: str) -> None:
    short, long = exported(successes=(0.1,)), exported(seed=1, successes=(0.1,) * 40)
    curve = long["environments"]["frozenlake"]["ppo_train"]["curve"]
    curve[-1] |= {"probe/success": 0.9, "probe/pass@8": 0.9}
    curve.insert(0, {"step": 0, "ppo/seconds": 0.0, "probe/success": 0.2, "probe/pass@8": 0.4})
    found = rows(tmp_path, short, long)
    (pair,) = found
    (_, run) = pair.runs
    assert line(run, "probe/pass@8", unit).x[0] == 0.0
    (alone,) = at_equal([dataclasses.replace(pair, runs=(run,))], unit)
    assert alone.probe == {"success": 0.9, "pass@8": 0.9}
    shortened = dataclasses.replace(pair, runs=(pair.runs[0],), model="short")
    compared = at_equal([shortened, dataclasses.replace(pair, runs=(run,))], unit)[1]
    assert (compared.probe_at, compared.probe["pass@8"]) == (0.0, 0.4)
    assert compared.success.value == 0.1


def test_the_order_is_the_papers(tmp_path: Path) -> None:
    arms = ("spa_epochs_2", "spa", "vanilla_rl", "spa_no_coords")
    found = rows(tmp_path, *(exported(experiment=arm) for arm in arms))
    assert [row.experiment for row in found] == [
        "vanilla_rl", "spa", "spa_no_coords", "spa_epochs_2"
    ]  # fmt: skip


def test_a_run_that_was_not_evaluated_is_listed_with_what_it_has(tmp_path: Path) -> None:
    unfinished = exported(experiment="vanilla_rl", seed=4)
    del unfinished["environments"]["frozenlake"]["evaluate"]
    found = collect(tmp_path, exported(), unfinished)
    assert len(found.played) == 1
    seen = "run1: vanilla_rl on frozenlake, seed 4, wasn't evaluated (finished: sft_train, ppo_tra"
    assert found.left_out[0].startswith(seen)
    never_begun = exported(env="sokoban")
    never_begun["environments"] = {}
    assert "finished: nothing" in collect(tmp_path / ".", never_begun).left_out[0]


def test_a_strange_file_in_a_directory_is_listed_and_a_given_one_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "notes.json").write_text("[]")
    found = collect(tmp_path, exported())
    assert len(found.played) == 1
    assert "notes.json is no exported run" in found.left_out[0]
    with pytest.raises(DataError, match="no exported run"):
        exports.read([str(tmp_path / "notes.json")])
    (tmp_path / "half.json").write_text('{"sch')
    with pytest.raises(DataError, match="can't be read"):
        exports.read([str(tmp_path / "half.json")])
    with pytest.raises(DataError, match="can't be read"):
        exports.read([str(tmp_path / "none.json")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no exported run"):
        exports.read([str(tmp_path / "empty")])
    with pytest.raises(DataError, match="no file or directory"):
        exports.read([str(tmp_path / "resluts")])
    newer = exported() | {"schema": 2}
    (tmp_path / "newer.json").write_text(json.dumps(newer))
    with pytest.raises(DataError, match="schema 2"):
        exports.read([str(tmp_path / "newer.json")])


def test_a_run_id_is_exported_from_the_datastore(monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.orchestration import export

    monkeypatch.setattr(export, "export_run", lambda run_id: exported())
    (run,) = exports.read(["17"]).played
    assert (run.name, run.env_id) == ("17", "frozenlake")


# The paper's side


def test_published_rows_by_hand() -> None:
    spa = published_row("spa", "frozenlake_upstream", "")
    assert spa is not None
    assert (spa.after, spa.before) == ((0.709, 0.75), (0.098, 0.438))
    assert (spa.model, spa.where) == ("Qwen2.5-1.5B-Instruct", "tables 2 and 7")
    small = published_row("state_estimation_rl", "sudoku", "qwen2.5-0.5b")
    assert small is not None
    assert small.after == (0.045, 0.141)
    large = published_row("spa", "frozenlake_6x6", "")
    assert large is not None
    assert (large.model, large.after) == ("Qwen2.5-3B", (0.413, 0.461))
    masked = published_row("spa_masked_states", "sokoban", "")
    assert masked is not None
    assert masked.is_read_off
    assert "read off a plot" in text_of(masked)
    assert published_row("spa_masked_states", "sudoku", "") is None
    assert published_row("spa", "webshop", "") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Llama-3.2-1B-Instruct", 0.530),
        ("meta-llama/Llama-3.2-1B-Instruct", 0.530),
        ("Qwen2.5-0.5B-Instruct", 0.367),
        ("qwen2.5-0.5b", 0.367),
        ("qwen2.5-1.5b", 0.598),
        ("Qwen2.5-3B", 0.497),
        ("Qwen3-1.7B", None),
        ("hf", None),
    ],
)
def test_a_models_own_row_stands_beside_it_or_none(name: str, expected: float | None) -> None:
    found = published_row("spa", "sokoban", name)
    assert (found.after[0] if found else None) == expected
    assert published_row("spa_no_coords", "sokoban", "qwen2.5-0.5b") is None  # not its own


def test_spa_with_coordinates_is_the_papers(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, exported(experiment="spa_coords"))
    assert row.published == published_row("spa", "frozenlake", "")
    assert row.published is not None


def test_published_rates_are_fractions_of_experiments_and_games_that_there_are() -> None:
    assert {row.experiment for row in PUBLISHED} <= set(conf.known("experiment"))
    for row in PUBLISHED:
        for rates in (row.after, row.before or row.after):
            assert 0 <= rates[0] <= rates[1] <= 1, row
        assert row.family in ("frozenlake", "sokoban", "sudoku")
    # four models, four arms, three games; then eleven on Sokoban, and three that change the world
    assert len(PUBLISHED) == 4 * 4 * 3 + 11 + 3


@pytest.mark.parametrize(
    ("env_id", "family"),
    [("frozenlake_6x6", "frozenlake"), ("sokoban_harder", "sokoban"), ("bandit", "")],
)
def test_a_game_is_told_by_its_name(env_id: str, family: str) -> None:
    assert family_of(env_id) == family


def test_differences_are_computed_from_both_settings(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, exported())
    notes = differences(row, published_row("spa", "frozenlake", ""))
    for note in (
        "model tiny (Qwen2.5-1.5B-Instruct)",
        "chance to go where one wants 0.8 (0.333)",
        "turns 10 (5)",
        "actions a turn 1 (5)",
        "first round played by random (model)",
        "observation grid (grid_coords)",
        "gamma 0.9 (1)",
        "PPO steps 120 (1000)",
        "KL weight 0.02 (0)",
    ):
        assert note in notes
    assert not any(note.startswith("action budget") for note in notes)  # ten, as published
    assert differences(row, None) == []


def test_the_papers_own_setting_differs_in_nothing(tmp_path: Path) -> None:
    config = conf.compose(profile="paper", env="frozenlake_upstream")
    run = exported(env="frozenlake_upstream")
    run["settings"]["envs"]["frozenlake_upstream"] = conf.to_plain(config)
    (row,) = rows(tmp_path, run)
    assert differences(row, published_row("spa", row.env_id, row.model)) == []


def test_settings_without_words_of_their_own_are_counted(tmp_path: Path) -> None:
    config = conf.compose(
        profile="paper",
        env="frozenlake_upstream",
        overrides=["ppo.lr=1e-5", "sft.lr=1e-5", "ppo.lam=0.9", "sft.backend=local"],
    )
    run = exported(env="frozenlake_upstream")
    run["settings"]["envs"]["frozenlake_upstream"] = conf.to_plain(config)
    (row,) = rows(tmp_path, run)
    notes = differences(row, published_row("spa", row.env_id, row.model))
    assert notes == ["3 other settings of sft, ppo"]


@pytest.mark.parametrize(
    ("override", "note"),
    [
        ("evaluation.temperature=0.2", "measured at temperature 0.2 (1)"),
        ("evaluation.split=validation", "measured on puzzles of validation (test)"),
        ("model.lora_rank=8", "rank of adapters 8 (0)"),
        ("verl.overrides=['x=1']", "told to verl ['x=1'] ([])"),
    ],
)
def test_settings_that_change_the_score_are_told(override: str, note: str, tmp_path: Path) -> None:
    config = conf.compose(profile="paper", env="sokoban", overrides=[override])
    run = exported(env="sokoban")
    run["settings"]["envs"]["sokoban"] = conf.to_plain(config)
    (row,) = rows(tmp_path, run)
    assert differences(row, published_row("spa", row.env_id, row.model)) == [note]


def test_the_large_models_lakes_are_held_against_its_own(tmp_path: Path) -> None:
    (large,) = rows(tmp_path, exported(env="frozenlake_6x6_upstream"))
    published = published_row("spa", large.env_id, "qwen2.5-3b")
    assert not any(note.startswith("board size") for note in differences(large, published))
    (small,) = rows(tmp_path, exported(env="frozenlake_upstream"))
    assert "board size 4 (6)" in differences(small, published)


# The same point


def two_arms(tmp_path: Path) -> list[Row]:
    """SPA: four steps of two episodes, two seconds each; vanilla RL: three steps."""
    small = {"ppo__env_groups": 1, "ppo__group_size": 2, "ppo__filter_ratio": 1}
    spa = exported(successes=(0.1, 0.2, 0.3, 0.8), **small)
    curve = spa["environments"]["frozenlake"]["ppo_train"]["curve"]
    curve[1] |= {"probe/success": 0.25, "probe/pass@8": 0.6, "probe/pass@8_low": 0.5}
    curve[3] |= {"probe/success": 0.75, "probe/pass@8": 0.9}
    other = exported(experiment="vanilla_rl", successes=(0.0, 0.1, 0.2), **small)
    return rows(tmp_path, spa, other)


@pytest.mark.parametrize("unit", ["episodes", "seconds"])
def test_arms_are_compared_where_the_shortest_ends(unit: str, tmp_path: Path) -> None:
    """At six episodes, which take six seconds: SPA's mean of .1, .2, .3; its probe at 4 is as near
    as the one at 8, and the earlier one counts."""
    vanilla, spa = at_equal(two_arms(tmp_path), unit)
    assert (vanilla.at, spa.at) == (6, 6)
    assert spa.success.value == pytest.approx(0.2)
    assert vanilla.success.value == pytest.approx(0.1)
    assert (spa.probe, spa.probe_at) == ({"success": 0.25, "pass@8": 0.6}, 4)
    assert (vanilla.probe, vanilla.probe_at) == ({}, None)


def test_a_running_mean_reaches_back_ten_steps(tmp_path: Path) -> None:
    """Steps 1 to 12 with success .01 to .12: the mean of the last ten is .075."""
    run = exported(successes=tuple(step / 100 for step in range(1, 13)))
    (found,) = at_equal(rows(tmp_path, run), "episodes")
    assert found.success.value == pytest.approx(0.075)


def test_environments_have_common_points_of_their_own(tmp_path: Path) -> None:
    lake, room = exported(successes=(0.1,) * 4), exported(env="sokoban", successes=(0.1,) * 2)
    assert [each.at for each in at_equal(rows(tmp_path, lake, room), "seconds")] == [8, 4]


def test_arms_without_steps_of_ppo_are_named_below_the_comparison(tmp_path: Path) -> None:
    trained = exported(successes=(0.1,) * 4)
    bare = [
        exported(experiment="vanilla_rl", seed=0, successes=(0.1,)),
        exported(experiment="vanilla_rl", seed=1),
    ]
    bare[1]["environments"]["frozenlake"]["ppo_train"].pop("curve")
    found = rows(tmp_path, trained, *bare)
    text = paper_table.markdown(found, [], "episodes")
    below = text.partition("### At equal episodes")[2]
    table, _, missing = below.partition("Not compared:")
    assert "| spa |" in table and "vanilla_rl" not in table
    (line,) = [line for line in missing.splitlines() if line.startswith("- ")]
    assert line.startswith("- frozenlake, vanilla_rl, ") and "no steps of PPO in " in line
    spa, vanilla = sorted(found, key=lambda row: row.experiment)
    assert "Not compared" not in paper_table.markdown([spa], [], "seconds")
    only = paper_table.markdown([vanilla], [], "seconds")
    assert "### At equal seconds\n\nNot compared:" in only


def test_the_range_of_seeds_is_drawn_over_what_all_cover() -> None:
    x, mean, low, high = seeds_range(
        [Series(name="0", x=[0, 10], y=[0.0, 1.0]), Series(name="1", x=[5, 20], y=[0.5, 0.5])]
    )
    assert (x[0], x[-1]) == (5, 10)
    assert (mean[-1], low[-1], high[-1]) == pytest.approx((0.75, 0.5, 1.0))


# What is printed and written


def test_the_table_says_what_it_must_not_leave_out(tmp_path: Path) -> None:
    found = rows(tmp_path, *(exported(seed=seed, rate=0.6 + seed / 10) for seed in range(3)))
    text = paper_table.markdown(found, ["x: vanilla_rl wasn't evaluated."])
    headers, _, cells = (line.split(" | ") for line in text.splitlines()[:3])
    row = dict(zip(headers, cells, strict=True))
    assert row["Pass@1"] == "0.700 [0.45, 0.95] t"
    assert (row["seeds"], row["random"], row["optimal"]) == ("3", "0.200", "0.900")
    assert row["share"] == "71%"
    assert row["model"] == "tiny (0.1M)"
    assert row["Pass@1 before"].startswith("0.210")
    assert row["next possible"] == "0.990 → 0.850"
    assert row["PPO steps (episodes)"] == "2 (1,024)"
    assert row["paper"] == "0.709 / 0.750, tables 2 and 7, Qwen2.5-1.5B-Instruct"
    assert "turns 10 (5)" in row["differs |"]
    assert "- x: vanilla_rl wasn't evaluated." in text
    assert "Student's 95% interval over the seeds" in text


def test_without_a_row_the_reasons_stand_alone() -> None:
    text = paper_table.markdown([], ["a: not evaluated."])
    assert text.startswith("No run was evaluated.")
    assert "- a: not evaluated." in text


def test_a_row_names_the_run_it_started_from(tmp_path: Path) -> None:
    run = exported(experiment="easy_to_hard")
    origin = {"run": "SPAFlow/7", "env": "sokoban", "stage": "sft_train", "digest": "abc"}
    sft = run["environments"]["frozenlake"]["sft_train"]
    sft |= {"taken_from": origin, "directory": {}}
    run["settings"]["start"] = {"frozenlake": {"at": "ppo_train", "origin": origin}}
    (row,) = rows(tmp_path, run)
    text = paper_table.markdown([row], [])
    assert "starts from sft_train of SPAFlow/7 on sokoban" in text
    assert row.runs[0].settings["start.env"] == "sokoban"


def test_csv_has_a_column_a_number(tmp_path: Path) -> None:
    other = exported(experiment="vanilla_rl", env="bandit")
    found = rows(tmp_path, exported(), other)
    records = list(csv.DictReader(io.StringIO(paper_table.as_csv(found))))
    bandit, lake = records
    assert (lake["pass@1"], lake["pass@1_interval"]) == ("0.7", "bootstrap")
    assert (lake["paper_pass@1"], lake["paper_is_read_off"]) == ("0.709", "False")
    assert (lake["before_prediction_possible"], lake["seeds"]) == ("0.99", "0")
    assert bandit["paper_pass@1"] == ""


def test_scores_that_a_run_lacks_leave_gaps(tmp_path: Path) -> None:
    run = exported(experiment="vanilla_rl")
    summary = run["environments"]["frozenlake"]["evaluate"]["summary"]
    del summary["after_sft"]
    summary |= {"observation_exact": None, "ceiling": None}
    del run["environments"]["frozenlake"]["sft_train"]
    (row,) = rows(tmp_path, run)
    assert row.attainable is None
    cells = paper_table.markdown([row], []).splitlines()[2].split(" | ")
    assert cells[7:11] == ["unknown", "–", "–", "–"]


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_the_command_writes_the_table_and_its_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [exported(seed=seed) for seed in range(2)] + [exported(experiment="vanilla_rl")]
    collect(tmp_path, *runs)
    paper_table.main([str(tmp_path), "--out", str(tmp_path / "out"), "--at-equal", "seconds"])
    said = capsys.readouterr()
    printed = said.out
    assert said.err.startswith(f"written: {tmp_path / 'out' / 'table.md'}, ")
    assert (tmp_path / "out" / "table.md").read_text() == printed
    assert "### At equal seconds" in printed
    assert (tmp_path / "out" / "table.csv").is_file()
    for name in ("table.png", "curves.png"):
        width, height = size_of((tmp_path / "out" / name).read_bytes())
        assert min(width, height) > 300


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("probe", ["probe/success", "probe/pass@8"])
def test_bounds_are_drawn_where_the_budget_is_theirs(
    factor: float, probe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = exported(env="sokoban")
    ppo = run["environments"]["sokoban"]["ppo_train"]
    ppo |= {"ceiling": 0.9, "budget_factor": factor}
    ppo["curve"][1][probe] = 0.3
    found = rows(tmp_path, run)
    drawn: list[Any] = []
    monkeypatch.setattr(
        paper_pictures, "training", lambda panels, *, title: drawn.append((panels, title)) or b""
    )
    paper_pictures.curves(found)
    ((panels, title),) = drawn
    play, probes = panels[:2]
    assert play.floor == (0.21 if factor == 1 else None)
    assert ("1.5 times the actions" in play.title) == (factor == 1.5)
    assert probes.ceiling == (0.9 if probe == "probe/success" else None)
    assert ("dashed" in title) == (factor == 1 or probe == "probe/success")
    words = paper_table._words(at_equal(found, "episodes"))
    assert ("with 1.5 times the actions" in words) == (factor == 1.5)


def test_curves_of_several_environments_have_files_of_their_own(tmp_path: Path) -> None:
    found = rows(tmp_path, exported(), exported(env="sokoban"))
    untrained = copy.deepcopy(found[0])
    bare = {**untrained.runs[0].stages, "ppo_train": {}}
    untrained = dataclasses.replace(
        untrained,
        experiment="base",
        runs=(dataclasses.replace(untrained.runs[0], stages=bare),),
    )
    list(paper_table.write(tmp_path / "out", [*found, untrained], "text\n"))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "table.md", "table.csv", "table.png", "curves_frozenlake.png", "curves_sokoban.png"
    }  # fmt: skip


def test_a_place_that_cant_be_written_is_refused_before_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect(tmp_path, exported())
    place = tmp_path / "taken"
    place.write_text("")
    with pytest.raises(SystemExit) as stopped:
        paper_table.main([str(tmp_path), "--out", str(place)])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said == f"--out {place} can't be written: Not a directory. Name another place.\n"


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        paper_table.main([str(tmp_path / "none.json")])
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_caption_calls_no_shared_start_unseen(tmp_path: Path) -> None:
    lake, bandit = exported(), exported(env="bandit")
    assert "(but " not in paper_table.markdown(rows(tmp_path, lake, bandit), [])
    bandit["environments"]["bandit"]["evaluate"]["summary"]["few_puzzles"] = True
    text = paper_table.markdown(rows(tmp_path, lake, bandit), [])
    assert "has seen (but bandit: new seeds; starts may be those of training), mean" in text


def test_a_terminal_gets_a_short_table_and_files_the_whole_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (exported(), exported(experiment="vanilla_rl"), exported(env="sokoban"))
    for index, run in enumerate(found):
        (tmp_path / f"{index}.json").write_text(json.dumps(run))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    words = [str(tmp_path), "--at-equal", "seconds"]
    paper_table.main([*words, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert said.startswith(
        "frozenlake\n"
        "arm                     Pass@1  Pass@8  attainable  random  optimal\n"
        "vanilla_rl  0.700 [0.66, 0.74]   0.900         71%   0.200    0.900\n"
        "spa         0.700 [0.66, 0.74]   0.900         71%   0.200    0.900\n\n"
        "sokoban\narm  "
    )
    assert "|" not in said and "At equal seconds" in said
    assert said.endswith(f"The whole table, beside the paper's: {tmp_path / 'out' / 'table.md'}\n")
    whole = (tmp_path / "out" / "table.md").read_text()
    assert "| environment | experiment |" in whole
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    paper_table.main(words)
    assert capsys.readouterr().out == whole


def test_optimal_play_that_nobody_knows_is_called_so(tmp_path: Path) -> None:
    run = exported()
    run["environments"]["frozenlake"]["evaluate"]["summary"]["ceiling"] = None
    found = rows(tmp_path, run)
    assert "| 0.200 | unknown | – |" in paper_table.markdown(found, [])
    assert "–   0.200  unknown" in paper_table.short(found, [])
