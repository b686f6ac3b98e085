"""Answers of several actions: the oracle's plan is worth what the ceiling says."""

from __future__ import annotations

from functools import cache as cached

import numpy as np
import pytest

import envs
from envs.base import TextEnv
from envs.frozenlake import ACTIONS, FrozenLake
from envs.tabular import best_success
from tests.agent.worlds import Corridor


def game_of(env_id: str, seed: int) -> TextEnv:
    game = envs.make(env_id).unwrapped
    assert isinstance(game, TextEnv)
    game.reset(seed=seed)
    return game


@pytest.mark.parametrize("intended_prob", [1 / 3, 0.8, 1.0])
@pytest.mark.parametrize(("actions", "turns", "per_turn"), [(10, 5, 5), (10, 2, 5), (7, 3, 3)])
def test_on_ice_the_plans_win_as_often_as_the_ceiling_says(
    intended_prob: float, actions: int, turns: int, per_turn: int
) -> None:
    """Summed over everything that may happen between them."""
    for seed in range(6):
        game = FrozenLake(intended_prob=intended_prob)
        game.reset(seed=seed)
        world = game.tabular_world()

        @cached
        def wins(
            state: int, left: int, turns_left: int, game: FrozenLake = game, world=world
        ) -> float:
            is_over = bool((world.transition_ASS[:, state, state] == 1).all())
            if is_over or left == 0 or turns_left == 0:
                return float(world.success_S[state])
            game._cell = state
            plan = game.oracle_plan(left, turns_left, per_turn)
            assert 1 <= len(plan) <= min(per_turn, left)
            reached = np.eye(len(world.success_S))[state]
            for action in plan:
                reached = reached @ world.transition_ASS[ACTIONS.index(action)]
            return sum(
                chance * wins(int(cell), left - len(plan), turns_left - 1)
                for cell, chance in enumerate(reached)
                if chance
            )

        best = best_success(world, actions, max_turns=turns, max_actions_per_turn=per_turn)
        assert wins(world.start, actions, turns) == pytest.approx(best, abs=1e-9)


def test_of_equal_plans_the_one_that_gets_there_sooner() -> None:
    """Nothing but the goal's own row matters here, and slips to the side lead back to it."""
    game = FrozenLake(map=["P__G", "OOOO", "OOOO", "OOOO"], intended_prob=0.8)
    game.reset(seed=0)
    assert game.oracle_plan(10, 2, 5)[0] == "Up"
    assert game.oracle_plan(10, 10, 5) == (game.oracle(10),)


@pytest.mark.parametrize("env_id", ["frozenlake_deterministic", "sokoban", "sudoku"])
def test_without_luck_a_plan_is_the_oracles_own_moves(env_id: str) -> None:
    for seed in range(5):
        game = game_of(env_id, seed)
        before = game.describe(), game.np_random.bit_generator.state
        plan = game.oracle_plan(50, 1, 50)
        assert (game.describe(), game.np_random.bit_generator.state) == before
        moves: list[str | None] = []
        over = success = False
        while not over:
            moves.append(game.oracle(50 - len(moves)))
            _, _, over, _, info = game.step(str(moves[-1]))
            success = info["success"]
        assert success
        assert list(plan) == moves


def test_a_plan_holds_as_many_as_the_turn_and_the_budget_allow() -> None:
    game = game_of("sudoku", 0)
    assert [len(game.oracle_plan(50, 5, size)) for size in (1, 3, 5, 50)] == [1, 3, 5, 6]
    assert len(game.oracle_plan(4, 2, 50)) == 4
    assert len(game.oracle_plan(4, 4, 50)) == 1, "one who may look after each action looks"


def test_a_plan_ends_with_the_first_action_that_luck_has_a_say_in() -> None:
    """Corridor knows one move at a time; its copy isn't played on where moves may fail."""
    game = Corridor(slip=0.5)
    game.reset(seed=0)
    assert game.oracle_plan(10, 2, 5) == ("Right",)
    game = Corridor()
    game.reset(seed=0)
    assert game.oracle_plan(10, 2, 5) == ("Right", "Right")


def test_no_oracle_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    game = game_of("sudoku", 0)
    monkeypatch.setattr(type(game), "oracle", lambda *_: None)
    assert game.oracle_plan(50, 5, 5) == ()
