"""States taken apart: entities by coordinates and on boards, and texts of several states."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import envs
from envs.base import COORDS, GRID, STATE_FORMATS, TextEnv
from steps.agent.states import (
    board_entities,
    board_rows,
    join_states,
    named_entities,
    right_cells,
    right_entities,
    split_states,
)

LAKE = "Player (P) is at (0,0); goal (G) is at (1,1); holes (O) are at (1,0), (0,1)."
STATES = st.text(alphabet="P_O#G √(0,1;.)|\nat is", max_size=60)


def test_every_place_of_a_clause_is_an_entity_of_its_symbol() -> None:
    expected = {("P", 0, 0): 1, ("G", 1, 1): 1, ("O", 1, 0): 1, ("O", 0, 1): 1}
    assert named_entities(LAKE) == expected
    # The board above doesn't count twice, and what follows a place is no other place.
    assert named_entities(f"P_\nOG\n{LAKE}") == expected
    assert named_entities("Player (X) is at (2, 3), in a hole; box (X) at (2,3)") == {
        ("X", 2, 3): 2
    }


def test_entities_without_a_symbol_go_by_their_words() -> None:
    many = "| . 1 |\nEmpty positions to be filled are at (1,1), (4,2)."
    one = "| . 1 |\nEmpty position to be filled is at (1,1)."
    name = "empty position to be filled"
    assert named_entities(many) == {(name, 1, 1): 1, (name, 4, 2): 1}
    assert named_entities(one) == {(name, 1, 1): 1}
    assert named_entities("Boxes: (0, 1)\nPlayer: (2, 2)") == {
        ("box", 0, 1): 1,
        ("player", 2, 2): 1,
    }
    assert named_entities("No empty positions found (the board is complete).") == {}


def test_misplaced_missing_and_made_up_entities_cost_alike() -> None:
    misplaced = LAKE.replace("(0,0)", "(0,2)")
    missing = LAKE.replace(", (0,1)", "")
    made_up = LAKE.replace("(0,1).", "(0,1), (3,3).")
    doubled = LAKE.replace("(0,1).", "(0,1), (0,1).")
    assert right_entities(misplaced, LAKE) == 3 / 4
    assert right_entities(missing, LAKE) == 3 / 4
    assert right_entities(made_up, LAKE) == 4 / 5
    assert right_entities(doubled, LAKE) == 4 / 5
    assert right_entities("", LAKE) == right_entities("P_\nOG", LAKE) == 0.0
    # Written in another order, and as single clauses.
    shuffled = "hole (O) is at (0,1); hole (O) is at (1,0); player (P) is at (0,0); G (G) at (1,1)"
    assert right_entities(shuffled, LAKE) == 1.0


def test_bare_boards_are_compared_by_what_stands_on_the_floor() -> None:
    room = "####\n#P_#\n#_X#\n####"
    assert board_entities(room) == {("P", 1, 1): 1, ("X", 2, 2): 1}
    assert right_entities("####\n#_P#\n#_X#\n####", room) == 1 / 2
    assert right_entities("P_", "P_\nOG") == 1 / 3
    assert right_entities("P_\nOG\nOO", "P_\nOG") == 3 / 5
    # Walls and floor, which count here, are nearly all of a board.
    assert right_cells("####\n#_P#\n#_X#\n####", room) == 14 / 16


FOUR = "| 1 . | . 2 "
"""Two rows of two, as Sudoku writes its board."""
EMPTY = "Empty positions to be filled are at (1,2), (2,1)."


def test_a_board_on_one_line_has_rows_between_its_strokes() -> None:
    assert board_rows(FOUR) == board_rows(f"{FOUR}\n{EMPTY}") == ("1.", ".2")
    assert board_entities(FOUR, stroked=True) == {("1", 0, 0): 1, ("2", 1, 1): 1}
    assert right_cells("| 1 . | . 3 ", FOUR) == right_cells("|1.|.3", FOUR) == 3 / 4
    assert right_cells("| 1 . ", FOUR) == 2 / 4
    assert right_cells("1 . | . 2", FOUR) == 1.0
    assert right_cells("", FOUR) == right_cells(EMPTY, FOUR) == 0.0
    # A digit that is wrong is one missing and one made up: one of two is right, of two.
    assert right_entities("| 1 . | . 3 ", FOUR) == 1 / 2
    assert right_entities("| 1 4 | . 2 ", FOUR) == 2 / 3
    assert right_entities("| . . | . . ", FOUR) == right_entities("", FOUR) == 0.0


def test_digits_count_beside_the_empty_cells_below_them() -> None:
    truth = f"{FOUR}\n{EMPTY}"
    assert right_entities(truth, truth) == right_cells(truth, truth) == 1.0
    assert right_entities(f"| 1 . | . 3 \n{EMPTY}", truth) == 3 / 4
    assert right_entities(EMPTY, truth) == right_entities(FOUR, truth) == 2 / 4
    assert right_entities(truth.replace("(2,1)", "(2,2)"), truth) == 3 / 4


@pytest.mark.parametrize(
    ("env_id", "size", "filled"), [("sudoku", 4, 10), ("sudoku_hard", 4, 6), ("sudoku_9x9", 9, 36)]
)
@pytest.mark.parametrize("state_format", STATE_FORMATS)
def test_sudokus_states_have_shares(env_id: str, size: int, filled: int, state_format: str) -> None:
    """The move that is made changes one cell; its digit is one entity more, in two formats one
    empty cell fewer."""
    game = envs.make(env_id).unwrapped
    assert isinstance(game, TextEnv)
    game.reset(seed=1)
    before = game.describe(state_format)
    game.step(str(game.oracle()))
    after = game.describe(state_format)
    cells, places = size * size, size * size - filled
    assert right_cells(after, after) == (None if state_format == COORDS else 1.0)
    assert right_entities(after, after) == 1.0
    if state_format == GRID:
        assert board_rows(after) == tuple(game.board_rows(after))
        assert right_cells(before, after) == (cells - 1) / cells
        assert right_entities(before, after) == filled / (filled + 1)
    else:
        assert right_entities(before, after) == (filled + places - 1) / cells


@pytest.mark.parametrize(
    "text", ["| one word | more words ", "| x | is 3", "| a b | c ", "|x-1| + |y|", "| 1 2 3 "]
)
def test_strokes_in_prose_make_no_board(text: str) -> None:
    assert board_rows(text) == ()
    assert right_cells(text, text) is None
    assert right_entities("| . 1 | 2 . ", "| x | (1,2)") == 0.0


@pytest.mark.parametrize("env_id", ["countdown", "metamathqa", "webshop", "bandit"])
def test_games_without_a_board_have_no_share_of_cells(env_id: str) -> None:
    game = envs.make(env_id).unwrapped
    assert isinstance(game, TextEnv)
    for seed in range(20):
        state, _ = game.reset(seed=seed)
        assert right_cells(state, state) is None
        assert not board_rows(state)


def test_states_that_name_nothing_have_no_share() -> None:
    assert right_entities("a", "one line") is None
    assert right_entities("__\n__", "__\n__") is None
    assert right_cells("a", "one line") is None


@given(STATES, STATES)
def test_any_two_texts_have_a_share_between_nothing_and_all(guess: str, truth: str) -> None:
    for share_right in (right_entities, right_cells):
        share = share_right(guess, truth)
        assert share is None or 0.0 <= share <= 1.0
        assert share_right(truth, truth) in (None, 1.0)


def test_several_states_are_split_at_lines_of_the_separator_alone() -> None:
    text = join_states(["P_\nOG", "a || b", "_P\nOG"], " || ")
    assert text == "P_\nOG\n||\na || b\n||\n_P\nOG"
    assert split_states(text, "||") == ["P_\nOG", "a || b", "_P\nOG"]
    assert split_states(f" {text} ", "") == [text]


@given(st.lists(st.text(alphabet="P_O\n", min_size=1).map(str.strip), min_size=1))
def test_splitting_undoes_joining(states: list[str]) -> None:
    assert split_states(join_states(states, "||"), "||") == states


@pytest.mark.parametrize(
    "text", ["(" * 5000, "(1,1" * 5000, "(1,1)" * 2000, ";" * 5000, "\n" * 5000]
)
def test_long_nonsense_is_read_like_any_text(text: str) -> None:
    assert right_entities(text, LAKE) == 0.0
