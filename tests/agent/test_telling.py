"""Coordinates drawn at random: where they agree, and that nothing else changes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envs
from envs.base import COORDS, GRID_COORDS, TextEnv
from envs.frozenlake import FrozenLake
from steps.agent.prompts import PromptSettings
from steps.agent.records import Trajectory
from steps.agent.rollout import EpisodeSpec
from steps.agent.telling import Extent, Teller, extent_of, redrawn
from steps.policies.random_policy import RandomPolicy
from tests.agent.test_rollout import play, rules

WORDS = "Player (P) is at (2,1); holes (O) are at (0, 1), (3,3)."
SHAPE = re.compile(r"\(\d+,\d+\)")


def lake(**kwargs: Any) -> list[Trajectory]:
    """Two random episodes on each of two lakes."""
    prompt = {
        "random_coords": True,
        "state_shown": "grid_coords",
        "observation": "coords",
        "prediction": "grid_coords",
        "history": "full",
    }
    specs = [
        EpisodeSpec(env_seed=seed, member=member, sampling_seed=10 * seed + member)
        for seed in (3, 4)
        for member in (0, 1)
    ]
    return play(RandomPolicy(), rules(**prompt | kwargs), make_env=FrozenLake, specs=specs)


def test_only_places_change_and_stay_on_the_board() -> None:
    drawn = [redrawn(WORDS, Extent(4, 2, 0), (seed,)) for seed in range(200)]
    places = [
        (int(row), int(column))
        for text in drawn
        for row, column in re.findall(r"\((\d+),(\d+)\)", text)
    ]
    # 600 uniform draws leave out one of eight cells with a chance of 8 * (7/8)^600 < 1e-33.
    assert set(places) == {(row, column) for row in range(4) for column in range(2)}
    assert {SHAPE.sub("*", text) for text in drawn} == {
        "Player (P) is at *; holes (O) are at *, *."
    }
    assert redrawn("P_\nOG", Extent(4, 4, 0), (1,)) == "P_\nOG"


@given(st.text(), st.integers(0, 2**63 - 1))
def test_equal_seeds_draw_alike(text: str, seed: int) -> None:
    extent = Extent(6, 6, 0)
    assert redrawn(text, extent, (seed, 1)) == redrawn(text, extent, (seed, 1))


@pytest.mark.parametrize(
    ("rows", "words", "extent"),
    [
        (["P_O", "__G"], "(0,0), (1,2)", (2, 3, 0)),
        (["1 2 . 4", ". . 1 2", "1 . . .", ". . . ."], "(1,3), (4,4)", (4, 4, 1)),
        (["one line"], "(2,5), (3,1)", (4, 6, 0)),
        (["a board", "of words"], "(2,5), (3,1)", (4, 6, 0)),
        (["one line"], "nothing", (1, 1, 0)),
    ],
)
def test_the_board_or_the_places_themselves_say_how_large_the_world_is(
    rows: list[str], words: str, extent: tuple[int, int, int]
) -> None:
    assert extent_of(rows, words) == extent


@pytest.mark.parametrize(
    ("env_id", "extent"),
    [("frozenlake", (4, 4, 0)), ("sokoban", (6, 6, 0)), ("sudoku", (4, 4, 1))],
)
def test_each_games_places_lie_on_its_board(env_id: str, extent: tuple[int, int, int]) -> None:
    settings = PromptSettings(random_coords=True)
    for seed in range(20):
        world = envs.make(env_id).unwrapped
        world.reset(seed=seed)
        assert Teller(world, settings, seed=0).extent == extent


def test_shown_observed_predicted_and_replayed_states_agree() -> None:
    for episode in lake(splice=True):
        for turn, after in zip(episode.turns, episode.turns[1:], strict=False):
            assert turn.state_shown.endswith(f"\n{turn.observation_truth}")
            assert turn.prediction_truth == after.state_shown
            assert f"<prediction>{after.state_shown}</prediction>" in after.prompt[-2].content
            assert after.prompt[-3].content == turn.state_shown
            assert turn.transitions[0].state_after == after.state_shown


def drawn(teller: Teller, world: TextEnv, state_format: str) -> dict[tuple[str, int], str]:
    """True place, and how often it came before -> the place that is told."""
    true, told = (
        SHAPE.findall(world.describe(state_format)),
        SHAPE.findall(teller.state(state_format)),
    )
    keys = [(place, true[:index].count(place)) for index, place in enumerate(true)]
    return dict(zip(keys, told, strict=True))


@pytest.mark.parametrize("other", [COORDS, GRID_COORDS])
@pytest.mark.parametrize("one", [COORDS, GRID_COORDS])
@pytest.mark.parametrize(
    "env_id",
    ["frozenlake", "sokoban", "sokoban_2boxes", "sudoku", "sudoku_hard", "sudoku_9x9"],
)
def test_an_entity_has_one_draw_in_all_formats(env_id: str, one: str, other: str) -> None:
    for seed in range(3):
        world = envs.make(env_id).unwrapped
        world.reset(seed=seed)
        teller = Teller(world, PromptSettings(random_coords=True), seed=seed)
        for teller.num_played in range(50):
            found, theirs = drawn(teller, world, one), drawn(teller, world, other)
            common = found.keys() & theirs.keys()
            assert common == min(found.keys(), theirs.keys(), key=len)
            assert {key: found[key] for key in common} == {key: theirs[key] for key in common}
            if world.step(str(world.oracle(50)))[2]:
                break
        # The last state, too: a player on the goal, a full board.
        found, theirs = drawn(teller, world, one), drawn(teller, world, other)
        assert all(found[key] == theirs[key] for key in found.keys() & theirs.keys())


def test_places_of_one_sentence_are_drawn_in_their_order() -> None:
    """As in every state of lakes and rooms; of two sentences the last is drawn first."""
    extent = Extent(100, 100, 0)
    places = SHAPE.findall(redrawn(WORDS, extent, (1, 2)))
    rng = np.random.default_rng([1, 2])
    assert places == [f"({rng.integers(100)},{rng.integers(100)})" for _ in range(3)]
    more = SHAPE.findall(redrawn(f". . 1\nOnes are at (0,0), (0,1). {WORDS}", extent, (1, 2)))
    assert more[2:] == places


def test_boards_are_true_and_coordinates_are_not() -> None:
    true, random = lake(random_coords=False), lake()
    for one, other in zip(true, random, strict=True):
        boards = [[turn.state_shown.rpartition("\n")[0] for turn in e.turns] for e in (one, other)]
        assert boards[0] == boards[1]
        words = [[turn.observation_truth for turn in e.turns] for e in (one, other)]
        assert words[0] != words[1]
        shapes = [[SHAPE.sub("*", text) for text in each] for each in words]
        assert shapes[0] == shapes[1]
    # Members of a group play the same lake, and each has its own draws.
    assert random[0].turns[0].state_shown != random[1].turns[0].state_shown


def test_what_could_have_happened_is_told_as_what_did() -> None:
    for episode in lake():
        for turn in episode.turns:
            assert turn.prediction_truth in turn.possible_next
            assert sum(turn.possible_next.values()) == pytest.approx(1)
            # Random play predicts in the same words.
            assert turn.parsed.prediction in turn.possible_next


def test_outcomes_that_only_coordinates_told_apart_become_one() -> None:
    for episode in lake(prediction="coords"):
        for turn in episode.turns:
            told = {re.sub(r"Player \(.\)|, (in a hole|on the goal)", "", text)
                    for text in turn.possible_next}  # fmt: skip
            assert len(told) == 1  # the landmarks' draws are the same, whatever happens
            assert sum(turn.possible_next.values()) == pytest.approx(1)


def test_a_turn_without_an_action_shows_the_same_words_again() -> None:
    settings = rules(random_coords=True, state_shown="coords", prediction="coords", max_turns=2)
    (episode,) = play(["?", "?"], settings, make_env=FrozenLake)
    first, second = episode.turns
    assert first.state_shown == second.state_shown == first.prediction_truth
