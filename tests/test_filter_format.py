"""The filter: what becomes a row, what is dropped and why, and who is held out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.schema import Config, FilterSection
from steps.agent.parsing import parse_response
from steps.agent.prompts import PromptSettings
from steps.agent.records import (
    Completion,
    Message,
    ResponseFormat,
    SpanKind,
    StopReason,
    Trajectory,
    Transition,
    Turn,
)
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.errors import ConfigError, StageError
from steps.filter_format import (
    filter_format,
    split_by_puzzle,
    strip_states,
    to_row,
)
from steps.storage import read_examples, write_trajectories
from steps.tracking import NullTracker
from tests.agent.worlds import Corridor
from tests.policies.scripted import ScriptedPolicy

GOOD = (
    "<think><observation>P_G</observation>go<prediction>_PG</prediction></think>"
    "<answer>Right</answer>"
)
STEP = Transition(
    action="Right",
    state_before="P_G",
    state_after="_PG",
    reward=0.0,
    valid=True,
    effective=True,
    terminated=False,
    truncated=False,
)


def turn(text: str = GOOD, index: int = 0, **changes: Any) -> Turn:
    parsed = parse_response(
        text, "world_model", action_names=("Left", "Right"), max_actions=2, truncated=False
    )
    made = Turn(
        index=index,
        prompt=(Message(role="user", content="P_G"),),
        state_shown="P_G",
        observation_truth="P_G",
        prediction_truth="_PG",
        completion=Completion(text=text),
        response=text,
        parsed=parsed,
        transitions=(STEP,),
    )
    return replace(made, **changes)


def episode(*turns: Turn, puzzle: str = "aa") -> Trajectory:
    return Trajectory(
        trajectory_id=f"t-{puzzle}",
        env_id="corridor",
        env_seed=0,
        puzzle_hash=puzzle,
        group=0,
        member=0,
        policy="scripted",
        turns=turns,
        stop_reason=StopReason.MAX_TURNS,
        success=False,
        response_format=ResponseFormat.WORLD_MODEL,
    )


def sift(config: Config, directory: Path, *episodes: Trajectory) -> dict[str, Any]:
    write_trajectories(directory / "t.parquet", episodes)
    return filter_format(
        config,
        trajectories=[directory / "t.parquet"],
        out_dir=directory,
        tracker=NullTracker(),
    )


def test_each_reason_is_counted_with_the_text_that_was_dropped(tmp_path: Path) -> None:
    bad = {
        "no_answer": "I go right.",
        "no_state_tags": "<think>go</think><answer>Right</answer>",
        "extra_text": GOOD + " Done.",
        "empty_answer": GOOD.replace("Right", ""),
        "too_many_actions": GOOD.replace("Right", "Right || Right || Right"),
        "unknown_action": GOOD.replace("Right", "Jump"),
        "unclosed_tag": GOOD.replace("</answer>", ""),
        "duplicate_tags": GOOD + "<answer>Left</answer>",
    }
    texts = [*bad.values(), "I go left.", *[GOOD] * 10]
    turns = [turn(text, index) for index, text in enumerate(texts)]
    result = sift(Config(), tmp_path, episode(*turns))
    assert (result["rows"], result["kept"]) == (19, 10)
    assert result["dropped"] == {"no_answer": 2, **{name: 1 for name in bad if name != "no_answer"}}
    assert result["examples"]["no_answer"] == ["I go right.", "I go left."]
    assert result["examples"]["extra_text"] == [GOOD + " Done."]
    json.dumps(result)


def test_a_row_is_the_turn_byte_for_byte(tmp_path: Path) -> None:
    spliced = GOOD.replace("_PG", "P_G")
    sift(Config(), tmp_path, episode(turn(response=spliced, index=3)))
    (row,) = read_examples(tmp_path / "sft_train.parquet")
    assert row.response == spliced
    assert row.prompt == (Message(role="user", content="P_G"),)
    assert (row.trajectory_id, row.turn_index, row.env_id) == ("t-aa", 3, "corridor")
    assert (row.model_observation, row.model_prediction) == ("P_G", "_PG")
    pieces = [(span.kind, spliced[span.start : span.end]) for span in row.spans]
    assert [piece for piece in pieces if piece[0] is not SpanKind.TAG] == [
        (SpanKind.OBSERVATION, "P_G"),
        (SpanKind.THOUGHT, "go"),
        (SpanKind.PREDICTION, "P_G"),
        (SpanKind.ANSWER, "Right"),
    ]
    assert "".join(text for _, text in pieces) == spliced


def test_well_formed_actions_that_the_game_does_not_know_go(tmp_path: Path) -> None:
    """A move without effect is known, and stays; one unknown action of several is enough."""
    nonsense = replace(STEP, action="x]6)", valid=False, effective=False)
    forbidden = replace(STEP, effective=False)
    result = sift(
        Config(),
        tmp_path,
        episode(
            turn(),
            turn(index=1, transitions=(forbidden,)),
            turn(index=2, transitions=(nonsense,)),
            turn(index=3, transitions=(STEP, nonsense)),
        ),
    )
    assert (result["kept"], result["dropped"]) == (2, {"invalid_action": 2})
    unfiltered = Config()
    unfiltered.filter.enabled = False
    assert sift(unfiltered, tmp_path, episode(turn(transitions=(nonsense,)), turn()))["kept"] == 2


def test_actions_beyond_the_budget_are_told_from_those_beyond_the_limit_of_an_answer(
    tmp_path: Path,
) -> None:
    long = GOOD.replace("Right", "Right || Right || Right")
    over, within = turn(long, 1, actions_left=2), turn(long, 2, actions_left=3)
    result = sift(Config(), tmp_path, episode(turn(), over, within))
    assert result["dropped"] == {"over_budget": 1, "too_many_actions": 1}


def test_an_answer_that_is_played_may_contradict_the_budget_that_its_prompt_tells(
    tmp_path: Path,
) -> None:
    """Of three actions an answer may hold two; the third answer has one left."""
    texts = [GOOD.replace("Right", actions) for actions in ("Left", "Right", "Left || Right")]
    settings = RolloutSettings(
        prompt=PromptSettings(max_actions_per_turn=2),
        max_turns=5, max_actions=3, max_actions_per_turn=2,
    )  # fmt: skip
    played = run_episodes(
        [EpisodeSpec(env_seed=0, group=0, sampling_seed=0)],
        env_id="corridor", make_env=Corridor, policy=ScriptedPolicy(texts), settings=settings,
    )  # fmt: skip
    assert [each.actions_left for each in played[0].turns] == [3, 2, 1]
    assert sift(Config(), tmp_path, *played)["dropped"] == {"over_budget": 1}


def test_a_row_holds_the_truth_beside_the_models_guess(tmp_path: Path) -> None:
    wrong = GOOD.replace("_PG", "wish")
    sift(Config(), tmp_path, episode(turn(wrong)))  # kept as written: a self-belief
    (row,) = read_examples(tmp_path / "sft_train.parquet")
    assert row.response == wrong
    assert (row.model_prediction, row.true_prediction) == ("wish", "_PG")
    assert (row.model_observation, row.true_observation) == ("P_G", "P_G")


def test_long_rows_go_only_where_a_limit_is_set(tmp_path: Path) -> None:
    config = Config()
    long = GOOD.replace("go", "go " * 50)
    rows = episode(turn(), turn(long, 1))
    assert sift(config, tmp_path, rows)["dropped"] == {}
    config.filter.max_response_chars = len(GOOD)
    assert sift(config, tmp_path, rows)["dropped"] == {"too_long": 1}


def test_repeats_go_only_where_asked_and_the_prompt_counts(tmp_path: Path) -> None:
    config = Config()
    other = turn(index=2, prompt=(Message(role="user", content="other"),))
    rows = episode(turn(), turn(index=1), other)
    result = sift(config, tmp_path, rows)
    assert (result["kept"], result["distinct"]) == (3, 2)
    config.filter.deduplicate = True
    result = sift(config, tmp_path, rows)
    assert (result["dropped"], result["distinct"]) == ({"duplicate": 1}, 2)
    assert result["settings"] == {"enabled": True, "deduplicate": True, "max_ineffective": 1.0}


def idle_and_others(num_idle: int, num_others: int, *, puzzle: str = "aa") -> Trajectory:
    idle = (replace(STEP, effective=False),)
    turns = [turn(index=index, transitions=idle) for index in range(num_idle)]
    return episode(
        *turns, *(turn(index=num_idle + index) for index in range(num_others)), puzzle=puzzle
    )


def test_turns_that_changed_nothing_are_kept_up_to_a_share_and_no_others_go(tmp_path: Path) -> None:
    config = Config(filter=FilterSection(max_ineffective=0.25, validation_share=0))
    result = sift(config, tmp_path, idle_and_others(60, 30))
    assert (result["kept"], result["dropped"]) == (40, {"ineffective": 50})
    assert len(result["examples"]["ineffective"]) == 5
    places = [row.turn_index for row in read_examples(tmp_path / "sft_train.parquet")]
    idle = [place for place in places if place < 60]
    assert places == [*sorted(idle), *range(60, 90)]
    assert len(idle) == 10 and idle != list(range(10))
    # With more that did something those stay, and others of the same join them.
    sift(config, tmp_path, idle_and_others(60, 60))
    more = {row.turn_index for row in read_examples(tmp_path / "sft_train.parquet")}
    assert more > {*idle, *range(60, 120)} and len(more) == 80


@pytest.mark.parametrize(
    ("section", "num_idle", "num_others"),
    [
        (FilterSection(max_ineffective=0.5), 3, 3),
        (FilterSection(max_ineffective=1.0), 9, 1),
        (FilterSection(max_ineffective=0.5, enabled=False), 9, 1),
        (FilterSection(max_ineffective=0.0), 4, 0),
    ],
)
def test_none_go_where_they_are_few_or_all_there_is(
    section: FilterSection, num_idle: int, num_others: int, tmp_path: Path
) -> None:
    section = replace(section, validation_share=0)
    result = sift(Config(filter=section), tmp_path, idle_and_others(num_idle, num_others))
    assert (result["kept"], result["dropped"]) == (num_idle + num_others, {})


def test_unfiltered_data_lose_only_turns_without_an_answer(tmp_path: Path) -> None:
    config = Config()
    config.filter.enabled = False
    rows = episode(turn("nonsense"), turn("", 1), turn(index=2))
    result = sift(config, tmp_path, rows)
    assert result["dropped"] == {"no_response": 1}
    kept = read_examples(tmp_path / "sft_train.parquet")
    assert [str(row.status) for row in kept] == ["no_answer", "ok"]


def test_too_small_a_yield_stops_with_the_table(tmp_path: Path) -> None:
    config = Config()
    config.filter.min_yield = 0.5
    rows = episode(turn(), turn("nonsense", 1), turn("<think>", 2))
    with pytest.raises(StageError) as caught:
        sift(config, tmp_path, rows)
    message = str(caught.value)
    assert "kept 1 of 3 rows (33.3%) of frozenlake" in message
    assert "  kept                     1\n  no_answer                2\n" in message
    assert not (tmp_path / "sft_train.parquet").exists()


@pytest.mark.parametrize(
    ("section", "setting", "value", "said"),
    [
        ("sft", "state_loss", "stripped", r"sft.state_loss.*did you mean 'strip'"),
        ("filter", "validation_share", 1.5, r"filter.validation_share=1.5 is outside 0..1"),
    ],
)
def test_a_bad_setting_is_refused_before_a_file_is_written(
    section: str, setting: str, value: Any, said: str, tmp_path: Path
) -> None:
    config = Config()
    setattr(getattr(config, section), setting, value)
    with pytest.raises(ConfigError, match=said):
        filter_format(config, trajectories=[], out_dir=tmp_path, tracker=NullTracker())
    assert not list(tmp_path.iterdir())


def test_nothing_kept_stops_even_without_a_minimum(tmp_path: Path) -> None:
    config = Config()
    config.filter.min_yield = 0.0
    with pytest.raises(StageError, match="kept 0 of 1 rows"):
        sift(config, tmp_path, episode(turn("nonsense")))
    with pytest.raises(StageError, match="kept 0 of 0 rows"):
        sift(config, tmp_path)


def test_long_examples_are_cut(tmp_path: Path) -> None:
    result = sift(Config(), tmp_path, episode(turn(), turn("x" * 2005, 1)))
    assert result["examples"]["no_answer"] == ["x" * 2000 + " [5 characters more]"]


def test_several_files_are_read_in_order(tmp_path: Path) -> None:
    paths = [tmp_path / "1.parquet", tmp_path / "2.parquet"]
    for index, path in enumerate(paths):
        write_trajectories(path, [episode(turn(index=index), puzzle="aa")])
    tracker = NullTracker()
    result = filter_format(Config(), trajectories=paths, out_dir=tmp_path, tracker=tracker)
    rows = read_examples(tmp_path / "sft_train.parquet")
    assert [row.turn_index for row in rows] == [0, 1]
    assert result["puzzles"] == 1
    assert tracker.logged == [(0, {"filter/rows": 2, "filter/kept": 2, "filter/yield": 1.0})]


# Stripped states


def test_stripping_leaves_a_plain_answer() -> None:
    assert strip_states(GOOD) == "<think>go</think><answer>Right</answer>"
    assert strip_states("no tags at all") == "no tags at all"


def test_stripped_rows_hold_no_state_in_response_or_history(tmp_path: Path) -> None:
    config = Config()
    config.sft.state_loss = "strip"
    prompt = (
        Message(role="user", content="<observation> is a tag"),
        Message(role="assistant", content=GOOD),
        Message(role="user", content="_PG"),
    )
    sift(config, tmp_path, episode(turn(prompt=prompt)))
    (row,) = read_examples(tmp_path / "sft_train.parquet")
    assert row.response == "<think>go</think><answer>Right</answer>"
    assert [message.content for message in row.prompt] == [
        "<observation> is a tag",
        "<think>go</think><answer>Right</answer>",
        "_PG",
    ]
    kinds = {span.kind for span in row.spans}
    assert kinds == {SpanKind.TAG, SpanKind.THOUGHT, SpanKind.ANSWER}


PIECES = ["<think>", "</think>", "<observation>", "</observation>", "<prediction>", "a", "\n"]


@given(st.lists(st.sampled_from(PIECES)))
def test_stripping_any_text_only_takes_away(pieces: list[str]) -> None:
    stripped = strip_states("".join(pieces))
    letters = iter("".join(pieces))
    assert all(letter in letters for letter in stripped)
    assert "observation>" not in stripped
    assert "prediction>" not in stripped


# Split


def rows_of(puzzles: list[str]) -> list[Any]:
    return [to_row(episode(turn(), puzzle=puzzle), turn()) for puzzle in puzzles]


def test_no_puzzle_is_on_both_sides_and_the_share_is_kept() -> None:
    puzzles = [f"{number:016x}" for number in range(2000)]
    rows = split_by_puzzle(rows_of(puzzles * 2), 0.1)
    sides: dict[str, set[str]] = {"train": set(), "validation": set()}
    for row in rows:
        sides[row.split].add(row.puzzle_hash)
    assert not sides["train"] & sides["validation"]
    # Binomial with n = 2000 and p = 0.1: four standard deviations are 54.
    assert abs(len(sides["validation"]) - 200) < 54


def test_a_puzzle_keeps_its_side_when_others_come() -> None:
    puzzles = [f"{number:016x}" for number in range(300)]
    before = {row.puzzle_hash: row.split for row in split_by_puzzle(rows_of(puzzles[:150]), 0.1)}
    after = {row.puzzle_hash: row.split for row in split_by_puzzle(rows_of(puzzles), 0.1)}
    assert before == {puzzle: after[puzzle] for puzzle in before}
    assert "validation" in before.values()


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_two_puzzles_give_one_to_each_side(share: float) -> None:
    rows = split_by_puzzle(rows_of(["aa", "bb"]), share)
    assert sorted(row.split for row in rows) == ["train", "validation"]


def test_one_puzzle_or_no_share_is_all_training() -> None:
    assert [row.split for row in split_by_puzzle(rows_of(["aa", "aa"]), 0.9)] == ["train"] * 2
    assert {row.split for row in split_by_puzzle(rows_of(["aa", "bb"]), 0.0)} == {"train"}


def test_an_answer_that_a_true_state_breaks_is_dropped_and_counted(tmp_path: Path) -> None:
    """A state may hold our own tags; the model's answer was well-formed, what is taught isn't."""
    broken = GOOD.replace("P_G", "P<answer>G")
    odd = turn(index=1, response=broken, observation_truth="P<answer>G")
    spliced = turn(index=2, response=GOOD.replace("P_G", "PxG"), observation_truth="PxG")
    result = sift(Config(), tmp_path, episode(turn(), odd, spliced))
    assert (result["kept"], result["dropped"]) == (2, {"state_holds_tags": 1})
    assert result["examples"]["state_holds_tags"] == [GOOD]
    config = Config()
    config.filter.enabled = False
    assert sift(config, tmp_path, episode(turn(), odd))["kept"] == 2
