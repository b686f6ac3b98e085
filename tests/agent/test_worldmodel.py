"""World-model scores against values written out by hand."""

import pytest

from steps.agent import states, worldmodel
from steps.agent.records import (
    Completion,
    ParsedResponse,
    ParseStatus,
    ResponseFormat,
    StopReason,
    Trajectory,
    Transition,
    Turn,
)

BOARD = "P_\nOG"
RIGHT = "_P\nOG"
DOWN = "__\nXG"


def transition(action="Right", *, effective=True, terminated=False):
    return Transition(
        action=action,
        state_before=BOARD,
        state_after=RIGHT,
        reward=0.0,
        valid=True,
        effective=effective,
        terminated=terminated,
        truncated=False,
    )


def make_turn(
    observation=BOARD,
    prediction=RIGHT,
    *,
    status=ParseStatus.OK,
    observation_truth=BOARD,
    truth=RIGHT,
    chances=None,
    transitions=None,
    planned=None,
):
    transitions = (transition(),) if transitions is None else transitions
    return Turn(
        index=0,
        prompt=(),
        state_shown=BOARD,
        observation_truth=observation_truth,
        prediction_truth=truth,
        completion=Completion(text=""),
        response="",
        parsed=ParsedResponse(
            status=status,
            observation=observation,
            prediction=prediction,
            actions=planned or tuple(step.action for step in transitions) or ("Right",),
        ),
        transitions=transitions,
        possible_next={truth: 1.0} if chances is None else chances,
    )


def episode(*turns, response_format=ResponseFormat.WORLD_MODEL, separator=""):
    return Trajectory(
        trajectory_id="t",
        env_id="frozenlake",
        env_seed=0,
        puzzle_hash="p",
        group=0,
        member=0,
        policy="scripted",
        turns=turns,
        stop_reason=StopReason.MAX_TURNS,
        success=False,
        response_format=response_format,
        prediction_separator=separator,
    )


def test_perfect_turns_score_one_everywhere():
    scores = worldmodel.scores([episode(make_turn(), make_turn())])
    assert scores.pop("turns") == 2
    assert set(scores) == {"format_rate", *worldmodel.STATE_SCORES}
    assert all(value == 1.0 for value in scores.values())


def test_every_turn_counts_malformed_ones_as_wrong():
    good = make_turn()
    wrong_observation = make_turn(observation=DOWN)
    # Tags and texts are right, and something stands outside them: malformed, hence wrong.
    malformed = make_turn(status=ParseStatus.EXTRA_TEXT)
    silent = make_turn(None, None, status=ParseStatus.NO_ANSWER, transitions=(), chances={})
    scores = worldmodel.scores([episode(good, wrong_observation), episode(malformed, silent)])
    assert scores["turns"] == 4
    assert scores["format_rate"] == 2 / 4
    assert scores["observation_exact"] == 1 / 4
    assert scores["prediction_exact"] == 2 / 4
    assert scores["prediction_possible"] == 2 / 4
    assert scores["prediction_probability"] == 2 / 4
    # BOARD and DOWN agree in two of four cells ("_" and "G"); the malformed turns have none right.
    assert scores["observation_cells"] == pytest.approx((1 + 2 / 4 + 0 + 0) / 4)
    assert scores["prediction_best"] == 1.0


def test_chance_scores_the_set_and_the_probability_besides_the_draw():
    chances = {RIGHT: 0.8, DOWN: 0.1, BOARD: 0.1}
    likely_and_drawn = make_turn(prediction=RIGHT, truth=RIGHT, chances=chances)
    likely_not_drawn = make_turn(prediction=RIGHT, truth=DOWN, chances=chances)
    unlikely_drawn = make_turn(prediction=DOWN, truth=DOWN, chances=chances)
    impossible = make_turn(prediction="__\nO√", truth=RIGHT, chances=chances)
    scores = worldmodel.scores(
        [episode(likely_and_drawn, likely_not_drawn, unlikely_drawn, impossible)]
    )
    assert scores["prediction_exact"] == 2 / 4
    assert scores["prediction_possible"] == 3 / 4
    assert scores["prediction_probability"] == pytest.approx((0.8 + 0.8 + 0.1 + 0.0) / 4)
    assert scores["prediction_best"] == pytest.approx(0.8)


def test_outer_white_space_of_the_world_is_no_mistake():
    turn = make_turn(
        observation="a b",
        prediction="c",
        observation_truth=" a b\n",
        truth="c\n",
        chances={"c\n": 1.0},
    )
    scores = worldmodel.scores([episode(turn)])
    assert scores["observation_exact"] == scores["prediction_exact"] == 1.0
    assert scores["prediction_probability"] == 1.0


@pytest.mark.parametrize("response_format", [ResponseFormat.PLAIN, ResponseFormat.ANSWER_ONLY])
def test_formats_without_states_have_a_format_rate_and_no_state_scores(response_format):
    turns = (make_turn(None, None), make_turn(None, None, status=ParseStatus.EMPTY_ANSWER))
    scores = worldmodel.scores([episode(*turns, response_format=response_format)])
    assert scores["turns"] == 2
    assert scores["format_rate"] == 0.5
    assert all(scores[key] is None for key in worldmodel.STATE_SCORES)


def test_no_turns_give_no_scores():
    scores = worldmodel.scores([])
    assert scores.pop("turns") == 0
    assert all(value is None for value in scores.values())


def test_cells_stop_before_the_coordinates_and_need_a_board():
    grid_coords = "P_\nOG\nPlayer (P) is at (0,0); goal (G) is at (1,1); hole (O) is at (1,0)."
    assert states.board_rows(grid_coords) == ("P_", "OG")
    assert states.board_rows("Player (P) is at (0,0); goal (G) is at (1,1).") == ()
    assert states.board_rows("a line\nand another one") == ()
    shifted = make_turn(observation="_P\nOG\nPlayer (P) is at (0,1)", observation_truth=grid_coords)
    coords = make_turn("Player (P) is at (9,9)", observation_truth="Player (P) is at (0,0)")
    assert worldmodel.scores([episode(shifted)])["observation_cells"] == 2 / 4
    assert worldmodel.scores([episode(coords)])["observation_cells"] is None


def test_short_and_long_guesses_lose_only_the_cells_they_miss():
    short = make_turn(observation="P_")
    ragged = make_turn(observation="P_xx\nO")
    scores = worldmodel.scores([episode(short, ragged)])
    assert scores["observation_cells"] == pytest.approx((2 / 4 + 3 / 4) / 2)


def test_blanks_between_cells_are_no_cells():
    turn = make_turn(observation="1 2\n4 4", observation_truth="1 2\n3 4")
    assert worldmodel.scores([episode(turn)])["observation_cells"] == 3 / 4


def test_classes_of_turns_are_scored_apart():
    wrong = make_turn(prediction=RIGHT, truth=BOARD, transitions=(transition("Up"),))
    right = make_turn()
    two_actions = make_turn(transitions=(transition("Up"), transition("Up")))
    idle = make_turn(transitions=())
    trajectories = [
        episode(wrong, right, two_actions, idle),
        episode(right, response_format=ResponseFormat.PLAIN),
    ]
    by_action = worldmodel.scores_by(trajectories, worldmodel.only_action)
    assert {name: each["turns"] for name, each in by_action.items()} == {"Right": 1, "Up": 1}
    assert by_action["Up"]["prediction_exact"] == 0.0
    assert by_action["Right"]["prediction_exact"] == 1.0
    by_length = worldmodel.scores_by(trajectories, worldmodel.num_actions)
    assert {name: each["turns"] for name, each in by_length.items()} == {"1": 2, "2": 1}
    assert by_length["1"]["prediction_exact"] == 0.5


def test_status_counts_name_the_commonest_first():
    turns = [make_turn(status=ParseStatus.TRUNCATED)] + [make_turn()] * 3
    assert worldmodel.status_counts([episode(*turns)]) == {"ok": 3, "truncated": 1}


def test_a_plan_that_the_end_of_the_game_cut_short_keeps_its_length():
    cut = make_turn(transitions=(transition(terminated=True),), planned=("Right", "Up"))
    assert worldmodel.num_actions(cut) == "2"
    assert worldmodel.only_action(cut) is None


def test_entities_are_scored_beside_cells():
    # Truth: P at (0,0), O at (1,0), G at (1,1). RIGHT has P elsewhere, DOWN only G in its place.
    turns = (make_turn(observation=RIGHT), make_turn(observation=DOWN), make_turn(observation=""))
    scores = worldmodel.scores([episode(*turns)])
    assert scores["observation_entities"] == pytest.approx((2 / 3 + 1 / 3 + 0) / 3)
    assert scores["observation_cells"] == pytest.approx((2 / 4 + 2 / 4 + 0) / 3)
    assert scores["prediction_entities"] == 1.0


def test_steps_of_a_prediction_are_compared_one_by_one():
    truth = f"{RIGHT}\n||\n{BOARD}"
    half = make_turn(prediction=f"{RIGHT}\n||\n{RIGHT}", truth=truth)
    short = make_turn(prediction=RIGHT, truth=truth)
    right = make_turn(prediction=truth, truth=truth)
    scores = worldmodel.scores([episode(half, short, right, separator="||")])
    assert scores["prediction_exact"] == scores["prediction_possible"] == 1 / 3
    # A state too many is a wrong one.
    longer = make_turn(prediction=f"{truth}\n||\n{BOARD}", truth=truth)
    found = worldmodel.scores([episode(longer, separator="||")])
    assert found["prediction_cells"] == found["prediction_entities"] == 2 / 3
    # Of RIGHT, taken for BOARD, two of four cells and two of three entities are right.
    assert scores["prediction_cells"] == pytest.approx((3 / 4 + 1 / 2 + 1) / 3)
    assert scores["prediction_entities"] == pytest.approx((5 / 6 + 1 / 2 + 1) / 3)


def test_turns_whose_chances_are_not_all_known_have_no_scores_of_chance():
    known = make_turn(truth=RIGHT, chances={RIGHT: 0.8, BOARD: 0.2})
    path = make_turn(truth=RIGHT, chances={RIGHT: 0.3})
    scores = worldmodel.scores([episode(known, path)])
    assert scores["prediction_exact"] == 1.0
    assert scores["prediction_best"] == scores["prediction_probability"] == 0.8
    only = worldmodel.scores([episode(path)])
    assert only["prediction_best"] is only["prediction_possible"] is None


def test_turns_are_told_apart_by_whether_anything_changed():
    moved, stood = make_turn(), make_turn(transitions=(transition(effective=False),))
    some = make_turn(transitions=(transition(effective=False), transition()))
    idle = make_turn(transitions=())
    assert [worldmodel.effect(turn) for turn in (moved, stood, some, idle)] == [
        "effective", "ineffective", "effective", None
    ]  # fmt: skip


def test_many_classes_become_few():
    turns = [make_turn(transitions=(transition(f"a{i:02}"),)) for i in range(20)]
    turns += [make_turn(prediction=BOARD, transitions=(transition("zz"),))] * 3
    found = worldmodel.scores_by([episode(*turns)], worldmodel.only_action)
    assert list(found) == [*(f"a{i:02}" for i in range(10)), "zz", "other"]
    assert (found["zz"]["turns"], found["other"]["turns"]) == (3, 10)
    assert (found["zz"]["prediction_exact"], found["other"]["prediction_exact"]) == (0.0, 1.0)


def test_sums_of_two_halves_make_the_scores_of_the_whole():
    turns = [
        make_turn(),
        make_turn(observation=DOWN),
        make_turn(None, None, status=ParseStatus.NO_ANSWER),
        make_turn(prediction=BOARD, chances={RIGHT: 0.7, BOARD: 0.3}),
    ]
    halves = [worldmodel.tally([episode(*part)]) for part in (turns[:1], turns[1:])]
    assert halves[0].merge(halves[1]).scores() == pytest.approx(
        worldmodel.tally([episode(*turns)]).scores()
    )
