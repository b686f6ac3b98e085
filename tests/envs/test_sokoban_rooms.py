"""Sokoban's rooms and solver: against slow searches that share no code with them."""

from __future__ import annotations

from collections import Counter, deque
from statistics import mean, median

import numpy as np
import pytest

import envs
from envs.sokoban import Sokoban
from envs.sokoban_rooms import Room, Symbols, _play_back, _ways, draw_room, room_of
from envs.sokoban_solver import random_success, shortest_plan
from envs.solvers import Bounds, Budget

STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))

Cell = tuple[int, int]
Spot = tuple[Cell, frozenset[Cell]]


class Plain:
    """A room as sets of cells, read from its text."""

    def __init__(self, grid: str) -> None:
        at = {(r, c): x for r, row in enumerate(grid.split("\n")) for c, x in enumerate(row)}
        self.walls = {cell for cell, x in at.items() if x == "#"}
        self.targets = frozenset(cell for cell, x in at.items() if x in "O√S")
        (player,) = [cell for cell, x in at.items() if x in "PS"]
        self.start: Spot = (player, frozenset(cell for cell, x in at.items() if x in "X√"))

    def after(self, spot: Spot, step: Cell) -> Spot:
        (r, c), boxes = spot
        ahead, beyond = (r + step[0], c + step[1]), (r + 2 * step[0], c + 2 * step[1])
        if ahead in self.walls or (ahead in boxes and beyond in self.walls | boxes):
            return spot
        return ahead, boxes - {ahead} | {beyond} if ahead in boxes else boxes

    def moves(self) -> int | None:
        """Breadth first: the length of a shortest solution."""
        length, queue = {self.start: 0}, deque([self.start])
        while queue:
            spot = queue.popleft()
            if spot[1] == self.targets:
                return length[spot]
            for step in STEPS:
                ahead = self.after(spot, step)
                if ahead not in length:
                    length[ahead] = length[spot] + 1
                    queue.append(ahead)
        return None

    def luck(self, num_moves: int) -> float:
        """Probability that uniformly random moves win."""
        mass: Counter[Spot] = Counter({self.start: 1.0})
        for _ in range(num_moves):
            ahead: Counter[Spot] = Counter()
            for spot, chance in mass.items():
                for step in STEPS if spot[1] != self.targets else ((0, 0),) * 4:
                    after = self.after(spot, step) if step != (0, 0) else spot
                    ahead[after] += chance / 4  # type: ignore[assignment]
            mass = ahead
        return sum(chance for spot, chance in mass.items() if spot[1] == self.targets)


def text_of(room: Room) -> str:
    cells = list(room.ground)
    for cell in room.boxes:
        cells[cell] = "√" if cell in room.targets else "X"
    cells[room.player] = "S" if room.player in room.targets else "P"
    return "".join(cells)


def rooms(count: int, size: int, num_boxes: int, **arguments: object) -> list[Room]:
    rng = np.random.default_rng(size + num_boxes)
    drawn = [draw_room(size, num_boxes, rng, **arguments) for _ in range(count)]  # type: ignore[arg-type]
    assert None not in drawn
    return [room for room in drawn if room is not None]


@pytest.mark.parametrize(("env_id", "seeds"), [
    ("sokoban", 2000), ("sokoban_2boxes", 500), ("sokoban_larger", 150), ("sokoban_harder", 60),
])  # fmt: skip
def test_every_room_can_be_solved_and_isnt_yet(env_id: str, seeds: int) -> None:
    game = envs.make(env_id).unwrapped
    assert isinstance(game, Sokoban)
    for seed in range(seeds):
        text, info = game.reset(seed=seed)
        grid = text.split("\nPlayer")[0]
        height = game.size
        assert grid.count("X") == grid.count("O") + grid.count("S") == game.num_boxes
        assert grid.count("P") + grid.count("S") == 1 and "√" not in grid
        rows = grid.split("\n")
        assert {len(rows), *map(len, rows)} == {height}
        assert {*rows[0], *rows[-1], *(row[0] for row in rows), *(row[-1] for row in rows)} == {"#"}
        actions = 0
        while not info["success"]:
            *_, info = game.step(str(game.oracle()))
            actions += 1
            assert actions <= game.min_moves()
        assert actions == game.min_moves() > 0


@pytest.mark.parametrize(
    ("size", "num_boxes", "count"), [(5, 1, 150), (6, 1, 150), (6, 2, 60), (6, 3, 20), (7, 2, 20)]
)
def test_plans_are_as_short_as_those_of_breadth_first_search(
    size: int, num_boxes: int, count: int
) -> None:
    for room in rooms(count, size, num_boxes):
        plan = shortest_plan(room)
        assert plan is not None
        plain = Plain(text_of(room))
        spot = plain.start
        for direction in plan:
            assert spot[1] != plain.targets
            spot = plain.after(spot, STEPS[direction])
        assert spot[1] == plain.targets
        assert len(plan) == plain.moves()


def test_plans_hold_from_every_state_and_stuck_boxes_have_none() -> None:
    rng = np.random.default_rng(0)
    stuck = 0
    for room in rooms(25, 6, 2):
        plain = Plain(text_of(room))
        spot = plain.start
        for _ in range(40):
            spot = plain.after(spot, STEPS[int(rng.integers(4))])
            if spot[1] == plain.targets:
                break
            (r, c), boxes = spot
            cells = tuple(sorted(row * room.stride + column for row, column in boxes))
            here = room._replace(player=r * room.stride + c, boxes=cells)
            plan, plain_here = shortest_plan(here), Plain(text_of(here))
            assert (None if plan is None else len(plan)) == plain_here.moves()
            stuck += plan is None
    assert stuck > 50


def test_five_boxes_are_solved_too() -> None:
    room = room_of(["#######", "#P____#", "#XXXXX#", "#OOOOO#", "#######"])
    plan = shortest_plan(room)
    assert plan is not None and len(plan) == 1 + 4 * 3 == Plain(text_of(room)).moves()


@pytest.mark.parametrize("num_moves", [0, 1, 4, 10])
def test_floor_is_the_enumerated_luck(num_moves: int) -> None:
    for size, num_boxes in ((6, 1), (6, 2)):
        for room in rooms(12, size, num_boxes):
            expected = Plain(text_of(room)).luck(num_moves)
            assert random_success(room, num_moves) == pytest.approx(expected, abs=1e-12)


def test_floor_by_hand() -> None:
    """One push to win: a quarter at once; else the player stays (up, down) or steps back."""
    room = room_of(["######", "#_PXO#", "######"])
    assert random_success(room, 1) == 1 / 4
    # after a first move: stays with 1/2, and wins then with 1/4; on the cell to the left with 1/4
    assert random_success(room, 2) == 1 / 4 + 1 / 2 * 1 / 4
    assert random_success(room_of(["######", "#P_XO#", "######"]), 2) == 1 / 16


def test_floor_is_unknown_where_too_many_states_can_be_reached() -> None:
    field = ["#" * 14, *["#" + "_" * 12 + "#"] * 12, "#" * 14]
    field[5], field[7] = "#_____X____O_#", "#__P___X___O_#"
    room = room_of(field)
    assert random_success(room, 4) is not None
    assert random_success(room, 80) is None


def test_bounds_count_the_actions_that_fill_every_turn() -> None:
    game = Sokoban(map=["######", "#___O#", "#__X_#", "#__P_#", "#____#", "######"])
    game.reset(seed=0)
    assert game.min_moves() == 4
    assert game.success_bounds(Budget(3)) == Bounds(0.0, 0.0)
    assert game.success_bounds(Budget(4)) == Bounds(1 / 256, 1.0)
    assert game.success_bounds(Budget(10, 1, 3)) == Bounds(0.0, 0.0)
    game.step("Left")
    assert game.min_moves() == 4
    assert game.success_bounds(Budget(10, 2, 2)) == Bounds(1 / 256, 1.0)


def test_oracle_says_something_after_a_mistake_that_cant_be_undone() -> None:
    game = Sokoban(map=["#####", "#___#", "#OXP#", "#___#", "#####"])
    game.reset(seed=0)
    assert game.oracle() == "Left"
    for action in ("Up", "Left", "Down"):
        game.step(action)
    assert game.describe("grid") == "#####\n#___#\n#OP_#\n#_X_#\n#####"
    assert game.oracle() == game.oracle(3) == "Up"
    game.reset()
    game.step("Left")
    assert game.oracle() == "Up"


def test_published_lengths_and_luck_of_six_by_six() -> None:
    """RAGEN's 600 seeds: random 0.195, median 4 moves, 9.2% in one move, 99.2% within ten."""
    game = Sokoban()
    lengths, floors = [], []
    for seed in range(10_000, 10_600):
        game.reset(seed=seed)
        lengths.append(game.min_moves())
        floor, ceiling = game.success_bounds(Budget(10))
        assert ceiling == (lengths[-1] <= 10)
        floors.append(floor or 0.0)
    share = {limit: mean(length <= limit for length in lengths) for limit in (1, 10)}
    print(f"\nrandom {mean(floors):.4f}, median {median(lengths)}, longest {max(lengths)}, {share}")
    assert median(lengths) == 4
    assert mean(floors) == pytest.approx(0.195, abs=0.03)
    assert share[1] == pytest.approx(0.092, abs=0.035)
    assert share[10] == pytest.approx(0.992, abs=0.012)


@pytest.mark.parametrize(("least", "most"), [(1, 1), (3, 5), (6, None), (None, 2)])
def test_min_and_max_moves_bound_the_shortest_solution(least: int | None, most: int | None) -> None:
    game = Sokoban(min_moves=least, max_moves=most)
    lengths = set()
    for seed in range(60):
        game.reset(seed=seed)
        lengths.add(game.min_moves())
    assert min(lengths) >= (least or 1) and max(lengths) <= (most or 99)
    assert len(lengths) > 1 or least == most


def backwards(room_text: str, *, depth: int, is_free: bool) -> tuple[int, Spot] | None:
    """Reverse play the slow way: recursion and sets, boxes that never moved are told apart."""
    plain = Plain(room_text)
    home = dict(enumerate(sorted(plain.targets)))
    seen: set[object] = set()
    best: list[object] = [0, None]

    def visit(
        player: Cell, at: dict[int, Cell], swaps: int, last: int, pulled: frozenset[int], left: int
    ) -> None:
        state = (player, frozenset((cell, number in pulled) for number, cell in at.items()))
        if left <= 0 or state in seen:
            return
        seen.add(state)
        far = sum(abs(at[n][0] - home[n][0]) + abs(at[n][1] - home[n][1]) for n in home)
        if not plain.targets & {player, *at.values()} and swaps * far > best[0]:  # type: ignore[operator]
            best[:] = swaps * far, (player, frozenset(at.values()))
        for may_pull in (True, False) if is_free else (True,):
            for down, right in STEPS:
                ahead = (player[0] + down, player[1] + right)
                behind = (player[0] - down, player[1] - right)
                if ahead in plain.walls or ahead in at.values():
                    continue
                boxes, more, drawn, moved_at = dict(at), swaps, pulled, last
                for number, cell in at.items():
                    if may_pull and cell == behind:
                        boxes[number] = player
                        more += is_free or last != number
                        drawn, moved_at = pulled | {number}, number
                visit(ahead, boxes, more, moved_at, drawn, left - 1)

    visit(plain.start[0], home, 0, -1, frozenset(), depth - 1)
    return None if best[1] is None else (best[0], best[1])  # type: ignore[return-value]


@pytest.mark.parametrize("is_free", [True, False])
@pytest.mark.parametrize("depth", [4, 10, 30, 300])
def test_reverse_play_is_that_of_the_slow_search(is_free: bool, depth: int) -> None:
    """From random players in random rooms; the state that is found, not only its score."""
    rng = np.random.default_rng(depth)
    found = 0
    for size, num_boxes, count in ((6, 1, 80), (6, 2, 40), (7, 3, 10)):
        for room in rooms(count, size, num_boxes):
            floor = {cell for cell, x in enumerate(room.ground) if x in "_O"}
            start = int(rng.choice(sorted(floor - set(room.targets))))
            expected = backwards(text_of(room._replace(player=start)), depth=depth, is_free=is_free)
            ours = _play_back(
                _ways(floor, room.stride), room.stride, room.targets, start, depth, is_free=is_free
            )
            if ours is None:
                assert expected is None
                continue
            player, load = ours
            boxes = frozenset(divmod(cell, room.stride) for cell in load.boxes)
            assert (load.score, (divmod(player, room.stride), boxes)) == expected
            found += 1
    assert found > 20


def test_deeper_search_pulls_boxes_further() -> None:
    def far(depth: int) -> float:
        drawn = rooms(100, 8, 1, search_depth=depth, is_walked=False)
        return mean(len(shortest_plan(room) or ()) for room in drawn)

    assert far(4) < far(8) < far(100)


def test_the_player_walks_off_as_often_as_published() -> None:
    """Without the walk every player stands behind a box, ready to push it back."""

    def is_behind_a_box(room: Room) -> bool:
        return any(abs(room.player - box) in (1, room.stride) for box in room.boxes)

    assert all(map(is_behind_a_box, rooms(300, 8, 1, is_walked=False)))
    beside = mean(map(is_behind_a_box, rooms(2000, 8, 1)))
    assert 0.5 < beside < 0.7


def test_rows_become_a_room() -> None:
    room = room_of(["######", "#PXO_#", "#_√__#", "#____#", "######"])
    assert room == Room("######\n#__O_#\n#_O__#\n#____#\n######", 7, (10, 16), 8, (9, 16))


def test_a_player_on_a_target_and_other_symbols_become_a_room_too() -> None:
    words = Symbols(*"W.GCBA@")
    assert room_of(["WWWWW", "W.B@W", "WWWWW"], words) == room_of(["#####", "#_XS#", "#####"])
    assert room_of(["#####", "#_XS#", "#####"]) == Room("#####\n#__O#\n#####", 6, (9,), 9, (8,))
