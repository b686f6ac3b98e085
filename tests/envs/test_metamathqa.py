"""MetaMathQA: its text and rewards by hand, its data files and their errors, its promises."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs import EnvironmentConfigError, math_data
from envs.base import STATE_FORMATS
from envs.math_answers import bare, is_tame
from envs.math_data import SAMPLE, Item, answer_of, one_line, read_questions
from envs.metamathqa import MetaMathQA
from envs.solvers import Bounds, Budget, HasBounds
from envs.testing import check_text_env
from tests.envs.processes import said_in_every_process

ROWS = [
    {"query": "What is 1 + 1?", "response": "One and one.\nThe answer is: 2", "type": "a"},
    {"query": "What is half of 3?", "response": "3 / 2.\nThe answer is: \\frac{3}{2}", "type": "b"},
    {"query": "Odd or even: 4?", "response": "4 = 2 * 2.\nThe answer is: even", "type": "b"},
]


def written(folder: Path, rows: Sequence[Mapping[str, Any]], name: str = "rows.jsonl") -> Path:
    path = folder / name
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        lines = [json.dumps(row) + "\n\n" for row in rows]
        path.write_text("".join(lines), encoding="utf-8")
    return path


def game_on(folder: Path, question: int = 1, check: str = "math") -> MetaMathQA:
    game = MetaMathQA(written(folder, ROWS), check=check)
    game.reset(seed=0)
    game._index, game._item = question, game.questions.items[question]
    return game


@pytest.fixture(scope="module")
def sample() -> MetaMathQA:
    game = MetaMathQA()
    game.reset(seed=0)
    return game


def test_it_keeps_the_promises_of_an_environment(tmp_path: Path) -> None:
    check_text_env("metamathqa")
    path = written(tmp_path, ROWS)
    check_text_env(lambda: envs.make("metamathqa", data=str(path), check="exact"))
    assert isinstance(envs.make("metamathqa").unwrapped, HasBounds)


def test_the_state_by_hand(tmp_path: Path) -> None:
    game = game_on(tmp_path)
    assert [game.describe(each) for each in STATE_FORMATS] == ["What is half of 3?"] * 3
    for answer in ("3", " 2 /\n3 ", "1.5"):
        game.step(answer)
    assert game.describe() == (
        "What is half of 3?\nAnswer 1: 3 (wrong)\nAnswer 2: 2 / 3 (wrong)\nAnswer 3: 1.5 (right)"
    )
    assert game.render() == game.describe()
    assert game.state_key() == "metamathqa\nWhat is half of 3?"


@pytest.mark.parametrize(("wrong", "reward"), [(0, 1.0), (1, 0.5), (2, 0.25), (3, 0.125)])
def test_each_wrong_answer_halves_the_reward(tmp_path: Path, wrong: int, reward: float) -> None:
    game = game_on(tmp_path)
    for number in range(wrong):
        text, got, terminated, truncated, info = game.step(str(number))
        assert (got, terminated, truncated) == (0.0, False, False)
        assert info == {"success": False, "action_is_valid": True, "action_is_effective": True}
        assert text.count("\n") == number + 1
    _, got, terminated, truncated, info = game.step("3/2")
    assert (got, terminated, truncated) == (reward, True, False)
    assert info == {"success": True, "action_is_valid": True, "action_is_effective": True}


def test_a_text_that_is_no_answer_costs_no_attempt(tmp_path: Path) -> None:
    game = game_on(tmp_path)
    for text in ("", " \n\t", "x" * 301, "1" * 100_000, "3\x00", "\ud800", "\u200b3"):
        before = game.describe()
        assert game.possible_next([text]) == {before: 1.0}
        info = {"success": False, "action_is_valid": False, "action_is_effective": False}
        assert game.step(text) == (before, 0.0, False, False, info)
    assert game.step("3/2")[1] == 1.0


def test_the_same_wrong_answer_again_counts_again(tmp_path: Path) -> None:
    game = game_on(tmp_path)
    game.step("7")
    assert game.step("7")[4]["action_is_effective"]
    assert game.step("3/2")[1] == 0.25


def test_nothing_changes_after_the_right_answer(tmp_path: Path) -> None:
    game = game_on(tmp_path)
    text, *_ = game.step("3/2")
    assert game.possible_next(["7", "3/2"]) == {text: 1.0}
    for answer in ("7", "3/2"):
        after, reward, terminated, _, info = game.step(answer)
        assert (after, reward, terminated, info["success"]) == (text, 0.0, True, True)
        assert info["action_is_valid"] and not info["action_is_effective"]


def test_the_published_rule_wants_the_letters(tmp_path: Path) -> None:
    game = game_on(tmp_path, check="exact")
    assert game.step("3/2")[1] == 0.0
    assert game.step("1.5")[1] == 0.0
    assert game.step(r" \FRAC{3} {2}")[1] == 0.25


def test_possible_next_plays_several_answers_and_touches_nothing(tmp_path: Path) -> None:
    game = game_on(tmp_path)
    before, stream = game.describe(), game.np_random.bit_generator.state
    expected = "What is half of 3?\nAnswer 1: 1 (wrong)\nAnswer 2: 1.5 (right)"
    assert game.possible_next(["1", "", "1.5", "9"]) == {expected: 1.0}
    assert game.possible_next([]) == {before: 1.0}
    assert (game.describe(), game.np_random.bit_generator.state) == (before, stream)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=20) | st.text("0123456789/ x", max_size=6), max_size=4))
def test_no_text_raises_and_the_state_tells_what_was_answered(
    sample: MetaMathQA, texts: list[str]
) -> None:
    sample.reset(seed=len(texts))
    (expected,) = sample.possible_next(texts)
    attempts = 0
    for text in texts:
        before = sample.describe()
        after, reward, terminated, _, info = sample.step(text)
        is_answer = bool(text.strip()) and all(map(str.isprintable, text.split()))
        assert info["action_is_valid"] == is_answer
        assert info["action_is_effective"] == is_answer == (after != before)
        assert terminated == info["success"] == (reward > 0.0)
        if terminated:
            assert reward == 0.5**attempts
            break
        attempts += is_answer
    assert sample.describe() == expected


def test_the_oracle_solves_every_problem_of_the_sample(sample: MetaMathQA) -> None:
    for index, item in enumerate(sample.questions.items):
        sample.reset(seed=index)
        sample._index, sample._item = index, item
        answer = sample.oracle()
        assert answer is not None
        _, reward, terminated, _, info = sample.step(answer)
        assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_the_sample_is_readable_varied_and_within_the_grammar(sample: MetaMathQA) -> None:
    items = sample.questions.items
    assert len(items) == sample.questions.rows == 70 and sample.questions.skipped == 0
    assert all(is_tame(bare(item.answer)) for item in items), "compared as mathematics"
    assert sum("frac" in item.answer for item in items) >= 10
    assert sum("sqrt" in item.answer for item in items) >= 3
    assert sum("x" in item.answer for item in items) >= 2
    assert sum(item.answer.isdigit() for item in items) >= 30
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    assert all(len(row["query"]) < 200 and row["response"].isascii() for row in rows)


def test_wrong_answers_to_the_sample_are_wrong(sample: MetaMathQA) -> None:
    for index, item in enumerate(sample.questions.items):
        for wrong in ("0", "-1", "1000001", "x^3", r"\frac{1}{77}", r"\sqrt{13}", "I don't know"):
            sample.reset(seed=index)
            sample._item = item
            assert sample.step(wrong)[1] == 0.0, item


def test_bounds_leave_the_floor_to_play(sample: MetaMathQA) -> None:
    assert sample.success_bounds(Budget(1)) == Bounds(None, 1.0)
    assert sample.success_bounds(Budget(5, 5, 1)) == Bounds(None, 1.0)


def test_random_answers_are_those_of_the_other_questions(tmp_path: Path) -> None:
    game = game_on(tmp_path, question=1)
    rng = np.random.default_rng(0)
    drawn = [game.sample_action(rng) for _ in range(2000)]
    assert set(drawn) == {"2", "even"}
    assert 900 < drawn.count("2") < 1100
    alone = MetaMathQA(written(tmp_path, ROWS[:1], "one.jsonl"))
    alone.reset(seed=0)
    assert alone.sample_action(rng) == "0"


def test_seeds_pick_questions_uniformly(tmp_path: Path) -> None:
    game = game_on(tmp_path)
    picked = [game.reset(seed=seed)[0] for seed in range(1500)]
    assert all(400 < picked.count(row["query"]) < 600 for row in ROWS)
    game.reset(seed=0)
    assert len({game.reset()[0] for _ in range(30)}) == 3


HASHES = {
    0: "f47e4175c04771e9",
    1: "093c6ec7eeed8423",
    2: "b50c54923f1cb74d",
    123: "eca5041d9e00261b",
}
"""By `printf 'metamathqa\\n<question>\\nseed <seed>' | sha256sum`."""


def test_seeds_give_the_same_puzzles_in_every_process() -> None:
    """Written down once: a changed draw would move puzzles between the splits of old runs."""
    code = (
        "import envs, json; env = envs.make('metamathqa'); out = {}\n"
        f"for seed in {list(HASHES)}:\n"
        "    env.reset(seed=seed); out[seed] = env.unwrapped.puzzle_hash()\n"
        "print(json.dumps(out))"
    )
    output = said_in_every_process(code)
    assert {int(seed): value for seed, value in json.loads(output).items()} == HASHES


def test_only_our_sample_is_shared_by_every_split(sample: MetaMathQA, tmp_path: Path) -> None:
    assert sample.few_puzzles
    assert not game_on(tmp_path).few_puzzles


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_each_kind_of_file_reads_the_same(tmp_path: Path, name: str) -> None:
    questions = read_questions(written(tmp_path, ROWS, name), None)
    assert questions.items == (
        Item("What is 1 + 1?", "2"),
        Item("What is half of 3?", r"\frac{3}{2}"),
        Item("Odd or even: 4?", "even"),
    )
    assert (questions.rows, questions.skipped) == (3, 0)


def test_a_directory_is_read_with_its_folders_in_order(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    written(tmp_path, ROWS[2:], "b.parquet")
    written(tmp_path, ROWS[:1], "a.json")
    written(tmp_path / "part", ROWS[1:2], "c.jsonl")
    (tmp_path / "README.md").write_text("no data")
    questions = read_questions(tmp_path, None)
    assert [item.answer for item in questions.items] == ["2", "even", r"\frac{3}{2}"]


def test_rows_without_an_answer_are_skipped_and_counted(tmp_path: Path) -> None:
    bad: list[dict[str, Any]] = [
        {"query": "No answer", "response": "I don't know."},
        {"query": "Empty answer", "response": "The answer is: "},
        {"query": "Long answer", "response": "The answer is: " + "1" * 301},
        {"query": "Unprintable", "response": "The answer is: 1\x00"},
        {"query": " ", "response": "The answer is: 1"},
        {"query": None, "response": "The answer is: 1"},
        {"query": "No response", "response": None},
        {"query": "A number", "response": 7},
    ]
    questions = read_questions(written(tmp_path, [*ROWS, *bad]), None)
    assert (len(questions.items), questions.rows, questions.skipped) == (3, 11, 8)


def test_a_question_that_occurs_again_counts_once(tmp_path: Path) -> None:
    again = {"query": " What is 1 + 1?\n", "response": "Two.\nThe answer is: 2.0"}
    questions = read_questions(written(tmp_path, [*ROWS, again]), None)
    assert [item.answer for item in questions.items] == ["2", r"\frac{3}{2}", "even"]
    assert (questions.rows, questions.skipped) == (4, 0)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("The answer is: 5", "5"),
        ("So.\n#### 5\nThe answer is: 5\n", "5"),
        ("The answer is: 4? No.\nThe answer is: 5", "5"),
        ("The answer is:5", "5"),
        ("The answer is: \\frac{1}{2}\n ", r"\frac{1}{2}"),
        ("The answer is: a\n  b", "a b"),
        ("The answer is: ", None),
        ("the answer is 5", None),
        ("", None),
        (None, None),
        (5, None),
    ],
)
def test_the_answer_is_what_stands_last(response: Any, answer: str | None) -> None:
    assert answer_of(response) == answer


def test_one_line_by_hand() -> None:
    assert one_line(" 1 \n /\t2 ") == "1 / 2"
    assert one_line("x" * 300) == "x" * 300
    assert one_line("x" * 301) is None
    assert one_line(" " * 100_000 + "5") == "5"
    assert one_line("\x7f") is None


def refusal(**arguments: Any) -> str:
    with pytest.raises(EnvironmentConfigError) as caught:
        envs.make("metamathqa", **arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_missing_columns_are_named_with_those_seen(tmp_path: Path, name: str) -> None:
    rows = [{"question": "1 + 1?", "response": "The answer is: 2"}]
    place = name if name == "rows.parquet" else f"row 1 of {name}"
    assert refusal(data=written(tmp_path, rows, name)) == (
        f"metamathqa: {place} has no query; it needs query and response, and has question, "
        "response."
    )
    assert "has no query and no response; it needs" in refusal(
        data=written(tmp_path, [{"a": 1}], name)
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b"", "a.jsonl holds no rows."),
        ("a.json", b"[]", "a.json holds no rows."),
        ("a.jsonl", b"{", "a.jsonl can't be read: Expecting"),
        ("a.json", b"{", "a.json can't be read: Expecting"),
        ("a.json", b'{"query": "q"}', "a.json holds no list of rows, but one value of type dict."),
        ("a.json", b'"text"', "a.json holds no list of rows, but one value of type str."),
        ("a.json", b"5", "a.json holds no list of rows, but one value of type int."),
        ("a.json", b"[5]", "row 1 of a.json is no object, but of type int."),
        ("a.jsonl", b"[1, 2]", "row 1 of a.jsonl is no object, but of type list."),
        ("a.json", b"[{}]", "row 1 of a.json has no query and no response"),
        ("a.jsonl", b"\xff\xfe", "a.jsonl can't be read: 'utf-8' codec"),
        ("a.parquet", b"no parquet at all", "a.parquet can't be read: Parquet magic bytes"),
        ("a.parquet", b"", "a.parquet can't be read: Parquet file size is 0"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert refusal(data=str(tmp_path / name)).startswith(f"metamathqa: {said}")


def test_data_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    rows = [{"query": "q", "response": "No idea."}] * 2
    assert refusal(data=written(tmp_path, rows)) == (
        "metamathqa: none of the 2 rows of rows.jsonl ends in 'The answer is: ' and an answer of "
        "at most 300 characters."
    )
    missing = str(tmp_path / "none.parquet")
    assert refusal(data=missing) == f"metamathqa: data {missing!r} is no file and no directory."
    (tmp_path / "empty").mkdir()
    assert "holds no file that ends in .parquet, .jsonl, .json." in refusal(data=tmp_path / "empty")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"data": 5}, "metamathqa: data is 5; it must be a path or None."),
        ({"revision": 5}, "metamathqa: revision is 5; it must be a text."),
        ({"check": "maths"}, "unknown check of metamathqa 'maths'; did you mean 'math'?"),
        ({"revision": "main"}, "revision 'main' goes with data='hub:owner/name'"),
        ({"data": "hub:me/mine"}, "needs a revision of 40 hexadecimal digits"),
        ({"data": "hub:me/mine", "revision": "main"}, "since a branch moves; it is 'main'."),
        ({"data": "hub:meta-math/MetaMathQA", "revision": "main"}, "it is 'main'."),
    ],
)
def test_a_bad_argument_is_refused_with_its_value(arguments: dict[str, Any], said: str) -> None:
    assert said in refusal(**arguments)


def test_the_hub_is_asked_for_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return str(tmp_path)

    written(tmp_path, ROWS, "MetaMathQA-395K.json")
    hub = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    game = MetaMathQA("hub:meta-math/MetaMathQA")
    assert len(game.questions.items) == 3 and not game.few_puzzles
    MetaMathQA("hub:me/mine", revision="0123456789abcdef" * 2 + "01234567")
    assert [(name, options["revision"]) for name, options in asked] == [
        ("meta-math/MetaMathQA", "aa4f34d3d2d3231299b5b03d9b3e5a20da45aa18"),
        ("me/mine", "0123456789abcdef0123456789abcdef01234567"),
    ]
    assert asked[0][1]["repo_type"] == "dataset"
    assert asked[0][1]["allow_patterns"] == ["*.parquet", "*.jsonl", "*.json"]


def test_a_hub_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(name: str, **options: Any) -> str:
        raise OSError("no network\nand much more to say")

    hub = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    message = refusal(data="hub:meta-math/MetaMathQA")
    assert message.endswith("can't be fetched: OSError: no network")
    assert "aa4f34d3d2d3231299b5b03d9b3e5a20da45aa18" in message


def test_a_file_is_read_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, ROWS)
    reads: list[Path] = []
    rows_of = math_data._rows
    monkeypatch.setattr(math_data, "_rows", lambda file: [reads.append(file), *rows_of(file)][1:])
    first = read_questions(path, None)
    assert read_questions(str(path), None) is first and reads == [path]
    written(tmp_path, ROWS[:1])
    os.utime(path, ns=(1, 1))
    assert len(read_questions(path, None).items) == 1 and reads == [path, path]


def test_the_exact_rule_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "spa-agents[math]" in refusal()
    assert envs.make("metamathqa", check="exact").reset(seed=0)[0]


def test_an_unknown_format_is_refused(sample: MetaMathQA) -> None:
    with pytest.raises(EnvironmentConfigError, match="unknown state format 'gird'"):
        sample.describe("gird")
