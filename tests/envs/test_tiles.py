"""Boards as pictures: where each cell lands, its colours, and that no two tiles look alike."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import envs
from envs.tiles import NAMES, picture

SYMBOLS = {chr(ord("A") + index): name for index, name in enumerate(NAMES)}
PROMISED = {
    *("floor", "wall", "target", "box", "box_on_target", "player", "player_on_target"),
    *("ice", "hole", "goal", "player_in_hole", "player_on_goal", "start", "blank"),
    *(f"{kind}_{digit}" for kind in ("digit", "given") for digit in range(1, 10)),
}
BOARDS = {
    "sokoban": ("floor", "wall", "target", "box", "box_on_target", "player", "player_on_target"),
    "lake": ("ice", "hole", "goal", "start", "player_on_ice", "player_in_hole", "player_on_goal"),
    "sudoku": ("blank", *(name for name in NAMES if name[-1].isdigit())),
}
EYES = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "grey": ((1 / 3, 1 / 3, 1 / 3),),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413)),
    "tritan": ((1.255528, -0.076749, -0.178779), (0.004733, 0.691367, 0.303900)),
}
"""Channels of the picture as an eye mixes them; the three colour-blind ones without the channel
that adds least (Machado et al., 2009, severity 1)."""


def test_every_promised_tile_is_there() -> None:
    assert set(NAMES) >= PROMISED


@pytest.mark.parametrize("cell", [8, 16, 17, 32, 48])
def test_a_picture_is_its_cells_side_by_side(cell: int) -> None:
    whole = picture(
        ["#_", "_P", "O#"], {"#": "wall", "_": "floor", "P": "player", "O": "hole"}, cell
    )
    assert whole.shape == (3 * cell, 2 * cell, 3) and whole.dtype == np.uint8
    for row, names in enumerate((("wall", "floor"), ("floor", "player"), ("hole", "wall"))):
        for column, name in enumerate(names):
            part = whole[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell]
            assert np.array_equal(part, picture(["x"], {"x": name}, cell))


@pytest.mark.parametrize("cell", [16, 32, 48])
def test_colours_and_edges_by_hand(cell: int) -> None:
    """A floor is sand (#f3eee3) with a darker line (#e2dac9) of a sixteenth at right and below."""
    expected = np.full((cell, cell, 3), (0xE2, 0xDA, 0xC9), dtype=np.uint8)
    line = cell // 16
    expected[:-line, :-line] = (0xF3, 0xEE, 0xE3)
    assert np.array_equal(picture(["_"], {"_": "floor"}, cell), expected)
    middle = picture(["O"], {"O": "hole"}, cell)[cell // 2, cell // 2]
    assert tuple(middle) == (0x16, 0x28, 0x3C)


def test_a_digit_by_hand() -> None:
    """At 8 pixels a dot is a pixel: `1` is five dots wide and seven high."""
    ink = (picture(["1"], {"1": "given_1"}, 8) == (0x1D, 0x1D, 0x1F)).all(axis=-1)
    drawn = ["".join(".#"[int(dot)] for dot in row) for row in ink]
    assert drawn == [
        "........",
        "....#...",
        "...##...",
        "....#...",
        "....#...",
        "....#...",
        "....#...",
        "...###..",
    ]


@pytest.mark.parametrize("cell", [16, 32, 48])
@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("board", BOARDS)
def test_no_two_tiles_of_a_board_look_alike_to_any_eye(board: str, eye: str, cell: int) -> None:
    """One part in fifty of the tile changes by a tenth of the range. A digit that is given and the
    same one entered differ in their paper and ink instead: see the next test."""
    looks = {name: picture(["x"], {"x": name}, cell).astype(float) for name in BOARDS[board]}
    pairs = 0
    for one, other in itertools.combinations(looks, 2):
        if one[-1] == other[-1] and one[-1].isdigit():
            continue
        change = np.abs((looks[one] - looks[other]) @ np.array(EYES[eye]).T).max(axis=-1)
        assert (change > 25).mean() > 0.02, (one, other)
        pairs += 1
    assert pairs >= 21


def test_given_and_entered_digits_differ_in_paper_and_ink() -> None:
    for digit in "123456789":
        given = picture(["x"], {"x": f"given_{digit}"}).reshape(-1, 3)
        entered = picture(["x"], {"x": f"digit_{digit}"}).reshape(-1, 3)
        assert given.max() == 0xEA and entered.max() == 0xFF
        assert given.min(axis=0).tolist() == [0x1D, 0x1D, 0x1F]
        assert entered.min(axis=0).tolist() == [0x00, 0x72, 0xAE + 4]


def test_a_picture_is_ones_own() -> None:
    first = picture(["_"], {"_": "ice"})
    first[:] = 0
    assert picture(["_"], {"_": "ice"}).max() == 255


@pytest.mark.parametrize(
    ("rows", "tiles", "cell", "said"),
    [
        (["P"], {"P": "playr"}, 32, "unknown tile 'playr'; did you mean 'player'"),
        (["P"], {"P": "digit_0"}, 32, "unknown tile 'digit_0'"),
        (["PX"], {"P": "player"}, 32, "symbol 'X' has no tile; tiles knows 'P'"),
        (["PP", "P"], {"P": "player"}, 32, r"rows of lengths \[1, 2\]"),
        ([], {"P": "player"}, 32, r"rows of lengths \[\]"),
        (["", ""], {"P": "player"}, 32, r"rows of lengths \[0\]"),
        (["P"], {"P": "player"}, 7, "cell is 7"),
        (["P"], {"P": "player"}, 257, "cell is 257"),
        (["P"], {"P": "player"}, True, "cell is True"),
        (["P"], {"P": "player"}, 32.0, "cell is 32.0"),
    ],
)
def test_what_cant_be_drawn_is_told(rows, tiles, cell, said) -> None:
    with pytest.raises(envs.EnvironmentConfigError, match=said):
        picture(rows, tiles, cell)
