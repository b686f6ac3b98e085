"""FrozenLake: its text by hand, its dynamics against Gymnasium's and against a slow loop."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections import Counter

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs.base import STATE_FORMATS
from envs.frozenlake import ACTIONS, FrozenLake
from envs.tiles import picture
from steps.agent.splice import likeliest
from tests.envs.processes import said_in_every_process

STEPS = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
SIDES = {
    "Left": ("Up", "Down"),
    "Right": ("Up", "Down"),
    "Up": ("Left", "Right"),
    "Down": ("Left", "Right"),
}


def game_on(rows: list[str], intended_prob: float = 1.0) -> FrozenLake:
    game = FrozenLake(map=rows, intended_prob=intended_prob)
    game.reset(seed=0)
    return game


def played(rows: list[str], *actions: str) -> str:
    game = game_on(rows)
    for action in actions:
        game.step(action)
    return game.describe()


def split_grid(game: FrozenLake) -> tuple[list[list[str]], tuple[int, int]]:
    """Ground without the player, and the player's cell, at the start of an episode."""
    ground = [list(row) for row in game.describe("grid").split("\n")]
    (start,) = [(r, c) for r, row in enumerate(ground) for c, x in enumerate(row) if x == "P"]
    ground[start[0]][start[1]] = "_"
    return ground, start


def moved(ground: list[list[str]], cell: tuple[int, int], action: str) -> tuple[int, int]:
    if ground[cell[0]][cell[1]] != "_":
        return cell
    row, column = cell[0] + STEPS[action][0], cell[1] + STEPS[action][1]
    inside = 0 <= row < len(ground) and 0 <= column < len(ground[0])
    return (row, column) if inside else cell


def written(ground: list[list[str]], cell: tuple[int, int]) -> str:
    """Grid and coordinates, the slow way."""
    here = ground[cell[0]][cell[1]]
    symbol, remark = {
        "_": ("P", ""),
        "O": ("X", ", in a hole"),
        "G": ("√", ", on the goal"),
    }[here]
    drawn = [list(row) for row in ground]
    drawn[cell[0]][cell[1]] = symbol
    everywhere = [(r, c) for r in range(len(ground)) for c in range(len(ground[0]))]
    holes = [f"({r},{c})" for r, c in everywhere if ground[r][c] == "O"]
    (goal,) = [f"({r},{c})" for r, c in everywhere if ground[r][c] == "G"]
    parts = [f"Player ({symbol}) is at ({cell[0]},{cell[1]}){remark}", f"goal (G) is at {goal}"]
    if len(holes) == 1:
        parts.append(f"hole (O) is at {holes[0]}")
    if len(holes) > 1:
        parts.append(f"holes (O) are at {', '.join(holes)}")
    return "\n".join("".join(row) for row in drawn) + "\n" + "; ".join(parts) + "."


def test_state_lists_every_entity_in_reading_order() -> None:
    assert played(["_OG", "_P_", "O__"]) == (
        "_OG\n_P_\nO__\n"
        "Player (P) is at (1,1); goal (G) is at (0,2); holes (O) are at (0,1), (2,0)."
    )


def test_one_hole_is_singular_and_none_is_not_mentioned() -> None:
    assert played(["P_", "OG"]).endswith(
        "\nPlayer (P) is at (0,0); goal (G) is at (1,1); hole (O) is at (1,0)."
    )
    assert played(["P_", "_G"]).endswith("\nPlayer (P) is at (0,0); goal (G) is at (1,1).")


def test_player_in_a_hole_is_drawn_and_said() -> None:
    assert played(["P_G", "O__", "___"], "Down") == (
        "__G\nX__\n___\n"
        "Player (X) is at (1,0), in a hole; goal (G) is at (0,2); hole (O) is at (1,0)."
    )


def test_player_on_the_goal_is_drawn_and_said() -> None:
    assert played(["P_G", "O__", "___"], "Right", "Right") == (
        "__√\nO__\n___\n"
        "Player (√) is at (0,2), on the goal; goal (G) is at (0,2); hole (O) is at (1,0)."
    )


def test_formats_are_the_grid_the_coordinates_and_both() -> None:
    game = game_on(["P_", "_G"])
    assert game.describe("grid") == "P_\n_G"
    assert game.describe("coords") == "Player (P) is at (0,0); goal (G) is at (1,1)."
    assert game.describe("grid_coords") == game.describe()
    assert game.describe() == "P_\n_G\nPlayer (P) is at (0,0); goal (G) is at (1,1)."
    with pytest.raises(envs.EnvironmentConfigError, match="did you mean 'coords'"):
        game.describe("coord")


def test_each_action_moves_its_way_and_the_edge_holds() -> None:
    rows = ["___", "_P_", "__G"]
    grids = {action: played(rows, action).split("\nPlayer")[0] for action in ACTIONS}
    assert grids == {
        "Left": "___\nP__\n__G",
        "Down": "___\n___\n_PG",
        "Right": "___\n__P\n__G",
        "Up": "_P_\n___\n__G",
    }
    game = game_on(["P_", "_G"])
    _, reward, terminated, truncated, info = game.step("Up")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": False}


def test_goal_pays_once_and_a_hole_pays_nothing() -> None:
    game = game_on(["PG", "O_"])
    _, reward, terminated, _, info = game.step("Right")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    after, reward, terminated, _, info = game.step("Left")
    assert (reward, terminated, info["success"]) == (0.0, True, True)
    assert not info["action_is_effective"] and after.startswith("_√\n")
    game.reset()
    _, reward, terminated, _, info = game.step("Down")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


@pytest.mark.parametrize("text", ["right", "RIGHT", " Right\n", "rIgHt"])
def test_actions_are_read_in_any_case(text: str) -> None:
    assert game_on(["PG", "O_"]).step(text)[4]["success"]


@pytest.mark.parametrize(
    "text",
    ["", "Right Down", "Right.", "2", "Righ\u0442", "√", "\ud800", "x" * 100_000, " " * 10**5],
)
def test_other_texts_change_nothing_and_draw_nothing(text: str) -> None:
    game = FrozenLake()
    before, _ = game.reset(seed=5)
    stream = game.np_random.bit_generator.state
    after, reward, terminated, truncated, info = game.step(text)
    assert (after, reward, terminated, truncated) == (before, 0.0, False, False)
    assert info == {"success": False, "action_is_valid": False, "action_is_effective": False}
    assert game.possible_next([text]) == {before: 1.0}
    assert game.np_random.bit_generator.state == stream


def as_gymnasium(game: FrozenLake) -> FrozenLakeEnv:
    """Gymnasium's lake on the same map, with a copy of the same random stream."""
    desc = game.describe("grid").translate(str.maketrans("P_O", "SFH")).split("\n")
    other = FrozenLakeEnv(
        desc=desc, is_slippery=game.intended_prob < 1.0, success_rate=game.intended_prob
    )
    other.reset()
    other.np_random = copy.deepcopy(game.np_random)
    return other


IDS = {
    "frozenlake": (4, 0.8),
    "frozenlake_deterministic": (4, 1.0),
    "frozenlake_upstream": (4, 1 / 3),
    "frozenlake_6x6": (6, 0.8),
    "frozenlake_6x6_upstream": (6, 1 / 3),
}


def test_ids_differ_in_size_and_slip() -> None:
    made = {env_id: envs.make(env_id).unwrapped for env_id in envs.list_ids() if "lake" in env_id}
    assert {env_id: (game.size, game.intended_prob) for env_id, game in made.items()} == IDS
    assert FrozenLake.sheet is not None and set(FrozenLake.sheet.variants) == set(IDS)


@pytest.mark.parametrize(
    "env_id", ["frozenlake", "frozenlake_deterministic", "frozenlake_upstream"]
)
@pytest.mark.parametrize("size", [4, 6])
def test_walks_are_gymnasiums_transition_by_transition(env_id: str, size: int) -> None:
    game = envs.make(env_id, size=size).unwrapped
    assert isinstance(game, FrozenLake)
    choose = np.random.default_rng(0)
    transitions = 0
    for seed in range(150):
        game.reset(seed=seed)
        other = as_gymnasium(game)
        for _ in range(20):
            action = int(choose.integers(4))
            text, reward, terminated, _, info = game.step(ACTIONS[action])
            state, other_reward, other_terminated, _, _ = other.step(action)
            row, column = divmod(int(state), size)
            assert f") is at ({row},{column})" in text.split("; goal")[0]
            assert (reward, terminated) == (other_reward, other_terminated)
            assert info["success"] == (other.desc[row, column] == b"G")
            transitions += 1
            if terminated:
                break
    assert transitions > 600


@pytest.mark.parametrize("intended_prob", [1 / 3, 0.8, 1.0])
def test_tables_are_gymnasiums(intended_prob: float) -> None:
    game = FrozenLake(size=5, intended_prob=intended_prob)
    for seed in range(30):
        game.reset(seed=seed)
        expected = np.zeros((4, 25, 25))
        for state, actions in as_gymnasium(game).P.items():
            for action, outcomes in actions.items():
                for chance, target, _, _ in outcomes:
                    expected[action, state, target] += chance
        cells = [row * 6 + column for row in range(5) for column in range(5)]
        table = game.tabular_world().transition_ASS[:, cells][:, :, cells]
        np.testing.assert_allclose(table, expected, atol=1e-15)


@pytest.mark.parametrize(("intended_prob", "side"), [(0.8, 0.1), (1 / 3, 1 / 3), (1.0, 0.0)])
def test_slips_as_often_as_the_settings_say(intended_prob: float, side: float) -> None:
    game = game_on(["___", "_P_", "__G"], intended_prob)
    ends: Counter[str] = Counter()
    for _ in range(10_000):
        game.reset()
        game.step("Up")
        ends[game.describe("grid")] += 1
    rates = [ends[grid] / 10_000 for grid in ("_P_\n___\n__G", "___\nP__\n__G", "___\n__P\n__G")]
    assert rates == pytest.approx([intended_prob, side, side], abs=0.02)
    assert sum(rates) == pytest.approx(1.0)


def test_coordinates_agree_with_the_grid_in_every_reachable_state() -> None:
    states = 0
    for seed, size in itertools.product(range(60), (2, 4, 6)):
        game = FrozenLake(size=size, intended_prob=1.0, frozen_prob=0.7)
        game.reset(seed=seed)
        ground, start = split_grid(game)
        paths: dict[tuple[int, int], list[str]] = {start: []}
        for cell, path in (queue := list(paths.items())):
            assert game.possible_next(path) == {written(ground, cell): 1.0}
            for action in ACTIONS:
                target = moved(ground, cell, action)
                if target not in paths:
                    paths[target] = [*path, action]
                    queue.append((target, paths[target]))
        states += len(paths)
    assert states > 60 * (2 + 8 + 16)


def enumerated(game: FrozenLake, actions: tuple[str, ...]) -> dict[str, float]:
    """Every combination of intended moves and slips, one by one."""
    ground, start = split_grid(game)
    side = (1 - game.intended_prob) / 2
    outcomes: Counter[str] = Counter()
    for luck in itertools.product(range(3), repeat=len(actions)):
        cell, chance = start, 1.0
        for action, turn in zip(actions, luck, strict=True):
            cell = moved(ground, cell, (action, *SIDES[action])[turn])
            chance *= (game.intended_prob, side, side)[turn]
        outcomes[written(ground, cell)] += chance
    return {text: chance for text, chance in outcomes.items() if chance > 0.0}


@pytest.mark.parametrize("intended_prob", [1 / 3, 0.8, 1.0])
def test_possible_next_is_the_enumerated_dynamics(intended_prob: float) -> None:
    game = FrozenLake(intended_prob=intended_prob)
    choose = np.random.default_rng(1)
    for seed in range(60):
        game.reset(seed=seed)
        state, stream = game.describe(), game.np_random.bit_generator.state
        for length in range(5):
            actions = tuple(game.sample_action(choose) for _ in range(length))
            assert game.possible_next(actions) == pytest.approx(enumerated(game, actions))
        assert (game.describe(), game.np_random.bit_generator.state) == (state, stream)


@pytest.mark.parametrize("intended_prob", [1 / 3, 0.5, 0.8])
@pytest.mark.parametrize("action", ACTIONS)
def test_what_was_meant_is_the_likeliest_also_where_all_are_as_likely(
    action: str, intended_prob: float
) -> None:
    middle = ["____", "_P__", "____", "___G"]
    (meant,) = game_on(middle).possible_next([action], "grid")
    possible = game_on(middle, intended_prob).possible_next([action], "grid")
    assert len(possible) == 3 and likeliest(possible) == meant


def test_possible_next_by_hand_in_each_format() -> None:
    game = game_on(["P_", "OG"], 0.8)
    by_hand = {
        "grid": {"_P\nOG": 0.8, "__\nXG": 0.1, "P_\nOG": 0.1},
        "coords": {
            "Player (P) is at (0,1); goal (G) is at (1,1); hole (O) is at (1,0).": 0.8,
            "Player (X) is at (1,0), in a hole; goal (G) is at (1,1); hole (O) is at (1,0).": 0.1,
            "Player (P) is at (0,0); goal (G) is at (1,1); hole (O) is at (1,0).": 0.1,
        },
    }
    for state_format, expected in by_hand.items():
        assert game.possible_next(["Right"], state_format) == pytest.approx(expected)
    assert len(STATE_FORMATS) == 3
    assert game_on(["P_", "OG"]).possible_next(["Right", "Down", "Up"], "grid") == {"__\nO√": 1.0}


def test_no_action_may_be_played_from_the_present_state() -> None:
    game = game_on(["P_", "OG"], 0.8)
    assert game.possible_next([]) == {game.describe(): 1.0}


def test_every_drawn_lake_can_be_crossed_and_start_is_not_goal() -> None:
    for size in (2, 3, 4, 8):
        game = FrozenLake(size=size, frozen_prob=0.5, intended_prob=1.0)
        for seed in range(300):
            game.reset(seed=seed)
            assert Counter(game.describe("grid"))["P"] == Counter(game.describe("grid"))["G"] == 1
            for left in range(size * size, 0, -1):
                action = game.oracle(left)
                assert action is not None
                if game.step(action)[2]:
                    break
            assert "√" in game.describe("grid")


def test_frozen_prob_is_the_share_of_ice() -> None:
    """Start and goal replace two cells of a large lake, the demand for a path few of the rest."""
    holes = 0
    game = FrozenLake(size=20, frozen_prob=0.9)
    for seed in range(50):
        game.reset(seed=seed)
        holes += game.describe("grid").count("O")
    assert holes / (50 * 400) == pytest.approx(0.1, abs=0.01)


def test_no_ice_at_all_still_ends_with_start_beside_goal() -> None:
    game = FrozenLake(size=6, frozen_prob=0.0)
    text, _ = game.reset(seed=0)
    assert Counter(text.split("\nPlayer")[0]) == {"O": 34, "P": 1, "G": 1, "\n": 5}


HASHES = {
    0: "119eec4e2c65af3c",
    1: "39ee8633a9242af5",
    2: "13863a86c9206cf7",
    123: "bc2636896f197595",
}


def test_seeds_give_the_same_puzzles_in_every_process() -> None:
    """Written down once: a changed draw would move puzzles between the splits of old runs."""
    code = (
        "import envs, json; env = envs.make('frozenlake'); out = {}\n"
        f"for seed in {list(HASHES)}:\n"
        "    env.reset(seed=seed); out[seed] = [env.unwrapped.puzzle_hash(),"
        " [env.step(a)[0] for a in ('Up', 'Left', 'Down')]]\n"
        "print(json.dumps(out))"
    )
    output = said_in_every_process(code)
    hashes = {int(seed): value[0] for seed, value in json.loads(output).items()}
    assert hashes == HASHES


def test_no_seed_varies_the_lake() -> None:
    game = FrozenLake()
    game.reset(seed=0)
    assert len({game.reset()[0] for _ in range(20)}) > 10


def test_the_puzzle_is_the_map_not_the_walk_nor_the_slip() -> None:
    keys = set()
    for env_id in ("frozenlake", "frozenlake_deterministic", "frozenlake_upstream"):
        env = envs.make(env_id)
        env.reset(seed=11)
        env.step("Left")
        keys.add(env.unwrapped.state_key())
    (key,) = keys
    assert re.fullmatch(r"frozenlake\n([PGO_]{4}\n){3}[PGO_]{4}", key)


def test_map_takes_gymnasiums_symbols_and_sets_the_size() -> None:
    game = game_on(["SFF", "FHF", "FFG"])
    assert game.describe("grid") == "P__\n_O_\n__G" and game.size == 3
    assert "grid of 3 rows and 3 columns" in game.instruction
    assert "(2,2) the bottom right" in game.instruction


def test_pixels_show_the_grid_cell_by_cell() -> None:
    game = FrozenLake(map=["P_", "OG"], intended_prob=1.0, render_mode="rgb_array")
    shown = {
        (): ("player_on_ice", "ice", "hole", "goal"),
        ("Down",): ("ice", "ice", "player_in_hole", "goal"),
        ("Right", "Down"): ("ice", "ice", "hole", "player_on_goal"),
    }
    for actions, tiles in shown.items():
        game.reset(seed=0)
        for action in actions:
            game.step(action)
        frame = game.render()
        assert isinstance(frame, np.ndarray) and frame.shape == (64, 64, 3)
        parts = [
            frame[row : row + 32, column : column + 32] for row in (0, 32) for column in (0, 32)
        ]
        for part, tile in zip(parts, tiles, strict=True):
            assert np.array_equal(part, picture(["x"], {"x": tile}))


@pytest.mark.parametrize("render_mode", [None, "ansi"])
def test_text_is_rendered_as_the_grid(render_mode: str | None) -> None:
    game = FrozenLake(map=["P_", "OG"], render_mode=render_mode)
    game.reset(seed=0)
    assert game.render() == "P_\nOG"


def test_pixels_come_through_gymnasiums_own_wrappers() -> None:
    env = gymnasium.make("spa/frozenlake_6x6", render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert isinstance(frame, np.ndarray) and frame.shape == (192, 192, 3)
    assert env.metadata["render_fps"] == 4


def naive_step(
    ground: list[list[str]], cell: tuple[int, int], text: str, luck: float, prob: float
) -> tuple[tuple[int, int], bool]:
    """Cell after a text, and whether it was an action. The sides of a move, in the order in which
    Gymnasium counts them: one action number less, then one more."""
    numbers = {"left": 0, "down": 1, "right": 2, "up": 3}
    number = numbers.get(text.strip().lower())
    if number is None:
        return cell, False
    side = (1 - prob) / 2
    turn = -1 if luck < side else 0 if luck < side + prob else 1
    return moved(ground, cell, ("Left", "Down", "Right", "Up")[(number + turn) % 4]), True


@given(
    seed=st.integers(0, 10**6),
    size=st.integers(2, 7),
    frozen_prob=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    prob=st.sampled_from([1 / 3, 0.8, 0.95, 1.0, 0.0]),
    texts=st.lists(
        st.one_of(st.sampled_from([*ACTIONS, "UP", " left\n"]), st.text(max_size=8)),
        min_size=100,
        max_size=100,
    ),
)
@settings(max_examples=100)
def test_10_000_moves_are_those_of_a_naive_step(
    seed: int, size: int, frozen_prob: float, prob: float, texts: list[str]
) -> None:
    game = FrozenLake(size=size, frozen_prob=frozen_prob, intended_prob=prob)
    game.reset(seed=seed)
    ground, cell = split_grid(game)
    lucks = copy.deepcopy(game.np_random)
    for text in texts:
        before, is_over = cell, ground[cell[0]][cell[1]] != "_"
        is_action = text.strip().lower() in ("left", "down", "right", "up")
        luck = lucks.random() if is_action and not is_over else 0.0
        cell, is_action = naive_step(ground, cell, text, luck, prob)
        here = ground[cell[0]][cell[1]]
        after, reward, terminated, truncated, info = game.step(text)
        assert after == written(ground, cell)
        assert reward == float(here == "G" and cell != before)
        assert (terminated, truncated) == (here in "GO", False)
        assert info == {
            "success": here == "G",
            "action_is_valid": is_action,
            "action_is_effective": cell != before,
        }


@given(text=st.text(max_size=10**5))
@settings(max_examples=50)
def test_any_text_is_survived_and_changes_nothing_unless_it_is_an_action(text: str) -> None:
    game = FrozenLake()
    before, _ = game.reset(seed=1)
    after, _, _, _, info = game.step(text)
    is_action = text.strip().lower() in ("left", "down", "right", "up")
    assert info["action_is_valid"] == is_action
    assert is_action or after == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size": 1}, "size is 1"),
        ({"size": 4.0}, "size is 4.0; it must be a whole number"),
        ({"frozen_prob": 1.5}, "frozen_prob is 1.5"),
        ({"intended_prob": -0.1}, "intended_prob is -0.1"),
        ({"intended_prob": "high"}, "intended_prob is 'high'"),
        ({"size": True}, "size is True"),
        ({"intended_prob": True}, "intended_prob is True"),
        ({"intended_prob": float("nan")}, "intended_prob is nan"),
        ({"render_mode": "human"}, "unknown render mode 'human'"),
        ({"map": []}, "it must be a square"),
        ({"map": ["P_", "G"]}, "it must be a square"),
        ({"map": ["P_G", "___"]}, "it must be a square"),
        ({"map": ["PG"]}, "it must be a square"),
        ({"map": ["PG", "__", "__"]}, "it must be a square"),
        ({"map": ["PG", "_\n"]}, "it must be a square"),
        ({"map": "PG"}, "list of rows"),
        ({"map": ["PX", "_G"]}, "P _ O G only"),
        ({"map": ["PG", "G_"]}, "one goal"),
        ({"map": ["_G", "__"]}, "one player"),
        ({"map": ["PO", "OG"]}, "no path"),
    ],
)
def test_a_bad_argument_is_refused_with_its_value(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(envs.EnvironmentConfigError, match=said):
        FrozenLake(**arguments)  # type: ignore[arg-type]


def test_the_rules_state_the_slip() -> None:
    assert FrozenLake().instruction == (
        "You stand on a frozen lake and want to reach the goal without falling into a hole.\n"
        "The lake is a grid of 4 rows and 4 columns. P is you, _ is ice, O is a hole, G is the "
        "goal, X is you in a hole and √ is you on the goal.\n"
        "Coordinates are written (row,column) and count from 0: (0,0) is the top left cell and "
        "(3,3) the bottom right one.\n"
        "A move takes you one cell to the left, down, to the right or up; at the edge of the lake "
        "you stay where you are. The ice is slippery: a move goes where you want with probability "
        "0.8, and to each of the two sides with probability 0.1.\n"
        "The game ends when you reach the goal, which is worth 1, or fall into a hole, which is "
        "worth nothing."
    )
    upstream = FrozenLake(intended_prob=1 / 3).instruction
    assert "probability 0.333, and to each of the two sides with probability 0.333." in upstream
    assert (
        "isn't slippery: a move goes where you want.\n" in FrozenLake(intended_prob=1).instruction
    )
