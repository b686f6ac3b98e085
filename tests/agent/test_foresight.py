"""What a turn could lead to, asked before it is played; `test_rollout` has it within episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from steps.agent.foresight import Foresight, Played
from steps.agent.prompts import PromptSettings
from steps.agent.records import Transition
from steps.agent.telling import Teller
from tests.agent.worlds import Corridor


def make_teller(slip: float, **settings: Any) -> Teller:
    """Of a corridor in which the player stands in the middle."""
    world = Corridor(slip=slip)
    world.reset(seed=0)
    prompt = PromptSettings(
        style="state_only",
        state_shown="grid",
        prediction="grid",
        max_actions_per_turn=3,
        **settings,
    )
    return Teller(world, prompt, seed=0)


def played(
    teller: Teller,
    states: Sequence[str],
    *,
    chance: float = 1.0,
    terminated: bool = False,
    truncated: bool = False,
) -> Played:
    """These states were reached, each by an action to the right."""
    transitions = [
        Transition(
            action="Right",
            state_before="",
            state_after=state,
            reward=0.0,
            valid=True,
            effective=True,
            terminated=terminated and index == len(states) - 1,
            truncated=truncated and index == len(states) - 1,
        )
        for index, state in enumerate(states)
    ]
    teller.num_played += len(states)
    return Played(
        tuple(transitions), tuple(states) if teller.settings.predicts_each else (), chance
    )


@pytest.mark.parametrize(
    ("terminated", "truncated", "possible"),
    [
        # Two of three actions: luck ended the game, or game and time did, and the plan counts.
        (True, False, {"O_P_G": 0.125, "O__PG": 0.375, "O___P": 0.5}),
        (True, True, {"O_P_G": 0.125, "O__PG": 0.375, "O___P": 0.5}),
        # Time alone did: the third would never have been played.
        (False, True, {"O_P_G": 0.25, "O__PG": 0.5, "O___P": 0.25}),
    ],
)
def test_what_ended_the_plan_says_how_much_of_it_counts(
    terminated: bool, truncated: bool, possible: dict[str, float]
) -> None:
    teller = make_teller(slip=0.5)
    foresight = Foresight(teller, ["Right"] * 3)
    turn = played(teller, ["O__PG", "O___P"], terminated=terminated, truncated=truncated)
    truth, possible_next = foresight.outcome(turn, "O___P")
    assert truth == "O___P"
    assert possible_next == pytest.approx(possible)
    assert foresight.likeliest(possible_next, turn) == max(possible, key=lambda s: possible[s])


def test_of_each_step_the_path_that_came_is_true_and_the_likeliest_one_is_taught() -> None:
    teller = make_teller(slip=0.25, prediction_steps="each")
    foresight = Foresight(teller, ["Right", "Left"])
    turn = played(teller, ["O_P_G", "OP__G"], chance=0.1875)
    truth, possible_next = foresight.outcome(turn, "OP__G")
    assert truth == "O_P_G\n||\nOP__G"
    assert possible_next == {truth: 0.1875}
    assert foresight.likeliest(possible_next, turn) == "O__PG\n||\nO_P_G"


@pytest.mark.parametrize(
    ("terminated", "likely"),
    [(True, "O__PG\n||\nO___P\n||\nO___P"), (False, "O__PG\n||\nO__PG\n||\nO__PG")],
)
def test_of_each_step_the_last_state_stands_for_actions_that_were_left_over(
    terminated: bool, likely: str
) -> None:
    """What the likeliest path is depends on how much of the plan counts."""
    teller = make_teller(slip=0.25, prediction_steps="each")
    foresight = Foresight(teller, ["Right"] * 3)
    states = ["O__PG", "O___P"] if terminated else ["O__PG"]
    turn = played(teller, states, chance=0.5, terminated=terminated, truncated=not terminated)
    truth, possible_next = foresight.outcome(turn, states[-1])
    assert truth == "\n||\n".join([*states, *states[-1:] * (3 - len(states))])
    assert possible_next == {truth: 0.5}
    assert foresight.likeliest(possible_next, turn) == likely


def test_a_turn_without_an_action_leads_to_the_present_state() -> None:
    foresight = Foresight(make_teller(slip=0.5), ())
    assert foresight.outcome(Played((), (), 1.0), "O_P_G") == ("O_P_G", {"O_P_G": 1.0})


def test_a_world_is_not_asked_where_nobody_wants_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    teller = make_teller(slip=0.5)
    monkeypatch.delattr(Corridor, "possible_next")
    foresight = Foresight(teller, ["Right"], is_wanted=False)
    turn = played(teller, ["O__PG"])
    assert foresight.outcome(turn, "O__PG") == ("O__PG", {})
