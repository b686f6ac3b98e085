"""What the figures hold: lines, labels, cells; and the arithmetic behind them."""

import struct

import numpy as np
import pytest

from envs.tiles import picture
from steps.report import arm_figures, boards, figures
from steps.report.series import Arm, Phase, Series, mean_curve, running_mean

BOARD, MOVED, HOLE = "P_\nOG", "_P\nOG", "__\nXG"


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn while a test runs; their files are written all the same."""
    seen = []
    write = figures.png

    def keep(figure, *args, **kwargs):
        seen.append(figure)
        return write(figure, *args, **kwargs)

    monkeypatch.setattr(figures, "png", keep)
    monkeypatch.setattr(boards, "png", keep)
    return seen


def texts(figure):
    axes = figure.axes[0]
    return [text.get_text() for text in axes.texts] + [axes.get_title(loc="left")]


def size_of(png):
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])


def level_lines(figure):
    """Heights of the lines that run straight across."""
    return [
        line.get_ydata()[0] for line in figure.axes[0].lines if list(line.get_xdata()) == [0, 1]
    ]


def test_race_draws_a_line_a_seed_their_mean_and_both_bounds(drawn):
    spa = Arm(
        name="SPA",
        runs=[
            Series(name="0", x=[2, 4, 6], y=[0.2, 0.5, 0.8]),
            Series(name="1", x=[2, 4, 6], y=[0.2, 0.3, 0.6]),
        ],
    )
    vanilla = Arm(name="vanilla RL", runs=[Series(name="0", x=[1, 6], y=[0.2, 0.25])])
    png = figures.learning_race(
        [spa, vanilla],
        floor=0.2,
        ceiling=0.91,
        title="success",
        phases=[Phase(name="self-play", start=0, end=2)],
    )
    assert size_of(png) == (1720, 900)
    figure = drawn[0]
    assert level_lines(figure) == [0.2, 0.91]
    assert len(figure.axes[0].lines) == 2 + 1 + 1 + 1 + 2
    assert {
        "SPA 0.70 (2 seeds)",
        "vanilla RL 0.25",
        "random play 0.20",
        "optimal play 0.91",
        "self-play",
        "success",
    } == set(texts(figure))


def test_mean_runs_over_the_stretch_that_all_seeds_cover():
    first = Series(name="0", x=[0, 10], y=[0.0, 1.0])
    second = Series(name="1", x=[2, 4, 8], y=[0.5, 0.5, 0.5])
    x, y = mean_curve([first, second])
    assert (x[0], x[-1]) == (2, 8)
    assert y[0] == pytest.approx((0.2 + 0.5) / 2)
    assert y[-1] == pytest.approx((0.8 + 0.5) / 2)


def test_mean_of_nothing_in_common_is_empty():
    early, late = Series(name="0", x=[0, 1], y=[0, 1]), Series(name="1", x=[2, 3], y=[0, 1])
    assert len(mean_curve([early, late])[0]) == 0
    assert len(mean_curve([])[0]) == 0


def test_gaps_and_disorder_in_a_line_are_no_obstacle():
    x, y = mean_curve([Series(name="0", x=[3, 1, 2, 4], y=[3, 1, None, float("nan")])])
    assert (x[0], x[-1]) == (1, 3)
    assert np.allclose(y, x)


def test_running_mean_by_hand():
    assert running_mean([1, 2, 3, 5], 2) == [1, 1.5, 2.5, 4]
    assert running_mean([4, 2], 5) == [4, 3]


def test_labels_are_pushed_apart_and_keep_their_order_and_place():
    assert figures.spread([0.2, 0.8], 0.05) == [0.2, 0.8]
    assert figures.spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    placed = figures.spread([0.99, 1.0, 0.98], 0.05)
    assert placed == pytest.approx([0.95, 1.0, 0.9], abs=1e-3)


def test_curve_names_its_lines_with_their_last_value(drawn):
    figures.curve([Series(name="loss", x=[1, 2], y=[3.0, 0.5])], title="Loss")
    assert texts(drawn[0]) == ["loss 0.50", "Loss"]
    assert level_lines(drawn[0]) == []


def test_rates_keep_the_whole_axis_however_little_they_move(drawn):
    figures.curve([Series(name="a", x=[1, 2], y=[0.5, 0.51])], is_rate=True)
    bottom, top = drawn[0].axes[0].get_ylim()
    assert bottom == 0 and 1 <= top < 1.1


def test_a_rate_of_many_steps_is_faint_under_its_running_mean(drawn):
    noisy = Series(name="a", x=range(60), y=[0.0, 1.0] * 30)
    figures.curve([noisy], is_rate=True)
    faint, mean = drawn[0].axes[0].lines
    assert (faint.get_alpha(), list(faint.get_ydata()[:4])) == (0.3, [0, 1, 0, 1])
    assert list(mean.get_ydata()[:3]) == pytest.approx([0, 1 / 2, 1 / 3])  # of three steps
    assert texts(drawn[0])[0] == "a 0.67"


def test_the_same_numbers_make_the_same_file():
    series = [Series(name="a", x=[1, 2], y=[0.5, 0.51], low=[0.4, 0.4], high=[0.6, 0.6])]
    assert figures.curve(series) == figures.curve(series)


def test_drop_reasons_show_counts_shares_and_no_empty_reason(drawn):
    figures.drop_reasons(98, {"no_state_tags": 2, "truncated": 0})
    assert [text.strip() for text in texts(drawn[0])] == ["98  (98.0%)", "2  (2.0%)", ""]
    labels = [label.get_text() for label in drawn[0].axes[0].get_yticklabels()]
    assert labels == ["kept", "no state tags"]


def test_nothing_kept_and_nothing_dropped_can_be_drawn():
    assert size_of(figures.drop_reasons(0, {}))
    assert size_of(figures.curve([]))


def test_shares_say_neither_none_nor_all_where_it_is_neither():
    assert figures.share_text(1, 10_000) == "<0.1%"
    assert figures.share_text(9_999, 10_000) == ">99.9%"
    assert figures.share_text(0, 10) == "0.0%"
    assert figures.share_text(10, 10) == "100.0%"


def test_rates_stand_between_named_bounds(drawn):
    figures.between_bounds({"final": (0.7, 0.65, 0.75)}, floor=0.2, ceiling=0.91, title="Pass@1")
    assert set(texts(drawn[0])) == {"0.70", "random 0.20", "optimal 0.91", "Pass@1"}
    bounds = [line.get_xdata()[0] for line in drawn[0].axes[0].lines[-2:]]
    assert bounds == [0.2, 0.91]


def turn(*, prediction=MOVED, truth=MOVED, chance=0.8, observation=BOARD, state=BOARD):
    return {
        "index": 0,
        "state": state,
        "observation": observation,
        "observation_truth": state,
        "prediction": prediction,
        "prediction_truth": truth,
        "chance": chance,
        "actions": ["Right"],
    }


def cells(figure, colour):
    """Number of cells in a frame of this colour."""
    return len(frames(figure, colour))


def frames(figure, colour):
    """Row and column of the cells in a frame of this colour, counted from the first board's."""
    from matplotlib.colors import to_hex

    corners = [
        patch.get_xy()[0]
        for patch in figure.axes[0].patches
        if to_hex(patch.get_edgecolor()) == colour
    ]
    return [(int(y), int(x)) for x, y in corners]


def drawn_episode(*turns, env_id="frozenlake", **changes):
    return {"trajectory_id": "t", "env_id": env_id, "turns": list(turns), **changes}


def images(figure):
    """Pixels of the boards that are drawn with tiles, column by column."""
    return [np.asarray(image.get_array()) for image in figure.axes[0].images]


def test_cells_that_differ_are_red_and_amber_where_it_was_only_bad_luck(drawn):
    episode = {
        "trajectory_id": "t",
        "turns": [
            turn(),
            turn(truth=HOLE),  # two cells differ, and it was possible
            turn(prediction=HOLE, chance=0.0, observation=MOVED),  # 2 and 2 cells are wrong
        ],
    }
    assert size_of(boards.boards(episode, title="an episode"))
    assert cells(drawn[0], boards._AMBER) == 2
    assert cells(drawn[0], boards._RED) == 2 + 2
    words = texts(drawn[0])
    assert [word for word in words if len(word) > 1 and word.islower()] == [
        "an episode",
        "shown",
        "observed",
        "predicted",
        "happened",
    ]


def test_answers_without_states_show_two_rows_only(drawn):
    episode = {"trajectory_id": "t", "turns": [turn(prediction=None, observation=None)]}
    boards.boards(episode)
    assert {"shown", "happened"} <= set(texts(drawn[0]))
    assert not {"observed", "predicted"} & set(texts(drawn[0]))


def test_wild_predictions_are_drawn_in_bounds(drawn):
    episode = {"trajectory_id": "t", "turns": [turn(prediction="x" * 10_000 + "\ny", chance=0.0)]}
    width, _ = size_of(boards.boards(episode))
    assert width < 2000
    tall = {"trajectory_id": "t", "turns": [turn(prediction="x\n" * 10_000, chance=0.0)]}
    _, height = size_of(boards.boards(tall))
    assert height < 2000


def test_boards_of_a_known_world_are_drawn_with_its_tiles(drawn):
    boards.boards(drawn_episode(turn(prediction=HOLE, truth=MOVED, chance=0.0)))
    tiles = {"P": "player_on_ice", "_": "ice", "O": "hole", "G": "goal", "X": "player_in_hole"}
    shown = [BOARD, BOARD, HOLE, MOVED]
    expected = [picture(text.split("\n"), tiles, 64) for text in shown]
    assert all(map(np.array_equal, images(drawn[0]), expected)) and len(images(drawn[0])) == 4
    # The predicted board is the third, and a board takes 2.9 cells: its top is at 5.8.
    assert frames(drawn[0], boards._RED) == [(5, 1), (6, 0)]
    assert not [word for word in texts(drawn[0]) if len(word) == 1]


def test_a_board_with_an_unknown_symbol_is_drawn_in_letters(drawn):
    boards.boards(drawn_episode(turn(prediction="_P\nO?", chance=0.0)))
    assert len(images(drawn[0])) == 3
    letters = [word for word in texts(drawn[0]) if len(word) == 1]
    assert letters == ["P", "O", "?"]


@pytest.mark.parametrize("env_id", ["no_such_world", "no_such_package.game:Game"])
def test_a_world_that_cant_be_made_is_drawn_in_letters(drawn, env_id):
    boards.boards(drawn_episode(turn(), env_id=env_id))
    assert not images(drawn[0])
    assert [word for word in texts(drawn[0]) if len(word) == 1] == list("POGPOGPOGPOG")


def test_cells_that_are_missing_or_too_many_are_wrong(drawn):
    boards.boards(drawn_episode(turn(observation="P__\nO", prediction=None)))
    # The observed board is the second; the truth is P_ over OG.
    assert frames(drawn[0], boards._RED) == [(2, 2), (3, 1)]


def test_a_sudoku_is_read_from_its_line(drawn):
    line = "| 1 . | . 2 \nEmpty positions to be filled are at (1,2), (2,1)."
    wrong = "| 1 . | 2 . \nEmpty positions to be filled are at (1,2), (2,2)."
    boards.boards(
        drawn_episode(turn(state=line, observation=wrong, prediction=None), env_id="sudoku")
    )
    tiles = {"1": "digit_1", "2": "digit_2", ".": "blank"}
    assert np.array_equal(images(drawn[0])[1], picture(["1.", "2."], tiles, 64))
    assert cells(drawn[0], boards._RED) == 2


def test_tiles_follow_the_arguments_of_the_environment(drawn):
    room, kwargs = "WWW\nWA.\nWWW", {"symbols": "W.GCBA@"}
    episode = drawn_episode(turn(state=room, observation=None, prediction=None), env_id="sokoban")
    boards.boards(episode)
    boards.boards(episode, env_kwargs=kwargs)
    assert not images(drawn[0])
    tiles = {"W": "wall", ".": "floor", "A": "player"}
    assert np.array_equal(images(drawn[1])[0], picture(room.split("\n"), tiles, 64))


def test_lines_of_different_lengths_are_text():
    page = "Page: search\nHere search[words] finds products."
    assert not boards.has_boards(drawn_episode(turn(state=page), env_id="webshop"))
    assert not boards.has_boards(drawn_episode(turn(state=page), env_id="no_such_world"))
    question = "How many is 2 + 2?"
    assert not boards.has_boards(drawn_episode(turn(state=question), env_id="metamathqa"))


def test_states_without_a_board_are_for_the_text(drawn):
    coords = "Player (P) is at (0,0); goal (G) is at (1,1)."
    episode = {"trajectory_id": "t", "turns": [turn(state=coords)]}
    assert not boards.has_boards(episode)
    assert not boards.has_boards({"trajectory_id": "t", "turns": []})
    with pytest.raises(ValueError, match="shows no board"):
        boards.boards(episode)


def test_pass_at_k_is_drawn_over_powers_with_its_band_and_bounds(drawn):
    scores = {"pass@1": 0.2, "pass@1_low": 0.1, "pass@1_high": 0.3}
    scores |= {"pass@4": 0.5, "pass@4_low": 0.4, "pass@4_high": 0.6, "pass@8": None}
    scores |= {"floor": 0.2, "ceiling": 0.9}
    figures.pass_curve({"SPA": scores}, title="sweep")
    (figure,) = drawn
    axes = figure.axes[0]
    line = axes.lines[0]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([1, 4], [0.2, 0.5])
    assert axes.get_xscale() == "log"
    assert level_lines(figure) == [0.2, 0.9]
    assert "SPA 0.50" in texts(figure)
    assert {"random play, one try 0.20", "optimal play, one try 0.90"} <= set(texts(figure))


def test_of_a_prediction_of_several_states_the_last_is_drawn():
    turn = {"prediction": f"{BOARD}\n||\n{MOVED}", "prediction_truth": HOLE, "state": BOARD}
    assert boards._last_states(turn, "||") == {"prediction": MOVED, "prediction_truth": HOLE}
    assert boards._last_states(turn | {"prediction": None}, "||")["prediction"] is None


def beside(figure):
    """Texts that stand to the right of the axes, where no line runs over them."""
    return {each.get_text() for each in figure.axes[-1].texts if each.xy[0] == 1}


def test_no_curve_runs_over_the_names_of_the_bounds(drawn, monkeypatch):
    monkeypatch.setattr(arm_figures, "png", figures.png)
    line = Series(name="training puzzles", x=[1, 2, 3], y=[0.19, 0.0, 0.06])
    figures.curve([line], floor=0.17, ceiling=0.78, is_rate=True)
    assert beside(drawn[0]) == {"training puzzles 0.06", "random play 0.17", "optimal play 0.78"}
    panel = arm_figures.Panel(
        title="Success", over={"PPO steps": {"spa": [line]}}, floor=0.17, ceiling=0.78
    )
    arm_figures.training([panel])
    assert beside(drawn[1]) == {"random play 0.17", "optimal play 0.78"}
