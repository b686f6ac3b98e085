"""How well a model knows its world: what it wrote in the state tags against the simulator.

Every score is a mean over *all* turns of the answers that should hold state tags: a malformed
answer is a wrong one, never a missing one. What the model wrote is scored, not the text that
entered the history (`Turn.parsed` is from before any splice).

In a world of chance the state that happened is one draw of several. A prediction is therefore
scored three times: against the draw (`prediction_exact`), against the set of states that could
have come (`prediction_possible`) and by the chance of the state it names
(`prediction_probability`). An ideal model reaches 1, 1 and `prediction_best`: no more is possible.
No model can expect more than `prediction_best` of `prediction_exact` either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from steps.agent.records import ResponseFormat, Trajectory, Turn

STATE_SCORES = (
    "observation_exact",
    "observation_cells",
    "prediction_exact",
    "prediction_cells",
    "prediction_possible",
    "prediction_probability",
    "prediction_best",
)
"""Keys of `state_scores`; the `_cells` ones exist only where states hold a board."""


def scores(trajectories: Iterable[Trajectory]) -> dict[str, float | None]:
    """`turns`, `format_rate` and the `STATE_SCORES` over all turns of the episodes.

    A score without a single turn to judge is None: the state scores of formats without state tags,
    cell scores of states without a board, every score of no turns at all.
    """
    turns: list[Turn] = []
    stating: list[Turn] = []
    for trajectory in trajectories:
        turns.extend(trajectory.turns)
        if trajectory.response_format == ResponseFormat.WORLD_MODEL:
            stating.extend(trajectory.turns)
    well_formed = sum(turn.parsed.is_well_formed for turn in turns)
    overall: dict[str, float | None] = {
        "turns": len(turns),
        "format_rate": _share(well_formed, len(turns)),
    }
    return overall | state_scores(stating)


def state_scores(turns: Sequence[Turn]) -> dict[str, float | None]:
    """The `STATE_SCORES` of turns whose answers should hold state tags."""
    observed, predicted = _BoardTally(), _BoardTally()
    possible = probability = best = 0.0
    for turn in turns:
        # Without an executed action, and in a world that can't tell, only the truth is possible.
        chances = turn.possible_next or {turn.prediction_truth: 1.0}
        best += max(chances.values())
        well_formed = turn.parsed.is_well_formed
        observation = turn.parsed.observation if well_formed else None
        prediction = turn.parsed.prediction if well_formed else None
        observed.add(observation, turn.observation_truth)
        predicted.add(prediction, turn.prediction_truth)
        chance = 0.0 if prediction is None else _chance_of(prediction, chances)
        possible += chance > 0
        probability += chance
    num = len(turns)
    return {
        "observation_exact": _share(observed.exact, num),
        "observation_cells": _share(observed.cells, observed.boards),
        "prediction_exact": _share(predicted.exact, num),
        "prediction_cells": _share(predicted.cells, predicted.boards),
        "prediction_possible": _share(possible, num),
        "prediction_probability": _share(probability, num),
        "prediction_best": _share(best, num),
    }


def scores_by(
    trajectories: Iterable[Trajectory], key: Callable[[Turn], str | None]
) -> dict[str, dict[str, float | None]]:
    """`state_scores` and `turns` of each class of turns, classes in order of their names.

    Turns for which `key` is None belong to no class; episodes without state tags are left out.
    """
    classes: dict[str, list[Turn]] = {}
    for trajectory in trajectories:
        if trajectory.response_format != ResponseFormat.WORLD_MODEL:
            continue
        for turn in trajectory.turns:
            name = key(turn)
            if name is not None:
                classes.setdefault(name, []).append(turn)
    return {
        name: {"turns": len(classes[name])} | state_scores(classes[name])
        for name in sorted(classes)
    }


def num_actions(turn: Turn) -> str | None:
    """Key of `scores_by`: how many actions the prediction looks ahead; None where none ran."""
    return str(len(turn.parsed.actions)) if turn.transitions else None


def only_action(turn: Turn) -> str | None:
    """Key of `scores_by`: the action of a turn that was to run exactly one, and did."""
    return turn.transitions[0].action if num_actions(turn) == "1" else None


def status_counts(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """`ParseStatus` value -> number of turns, the commonest first."""
    counts = Counter(
        str(turn.parsed.status) for trajectory in trajectories for turn in trajectory.turns
    )
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


class _BoardTally:
    """Counts of states that are right as a whole, and sums of the share of right cells."""

    __slots__ = ("boards", "cells", "exact")

    def __init__(self) -> None:
        self.exact = 0
        self.boards = 0
        self.cells = 0.0

    def add(self, guess: str | None, truth: str) -> None:
        is_exact = guess is not None and guess.strip() == truth.strip()
        self.exact += is_exact
        rows = board_rows(truth)
        if rows:
            self.boards += 1
            self.cells += 1.0 if is_exact else _right_cells(guess or "", rows)


def board_rows(state: str) -> tuple[str, ...]:
    """The rows of the board that a state begins with; empty where it begins with none.

    A board is two or more lines of equal length before the first line with a parenthesis: in all
    state formats the coordinates follow the board and are the first to have one.
    """
    rows = []
    for line in state.strip().split("\n"):
        if "(" in line:
            break
        rows.append(line.rstrip())
    return tuple(rows) if len(rows) > 1 and len(set(map(len, rows))) == 1 else ()


def _right_cells(guess: str, rows: Sequence[str]) -> float:
    """Share of the board's cells (its non-blank characters) that the guess has in their place."""
    right = total = 0
    lines = guess.strip().split("\n")
    for index, row in enumerate(rows):
        line = lines[index] if index < len(lines) else ""
        for column, symbol in enumerate(row):
            if symbol != " ":
                total += 1
                right += column < len(line) and line[column] == symbol
    return right / total if total else 0.0


def _chance_of(state: str, chances: Mapping[str, float]) -> float:
    """Probability of a state; outer white space doesn't count, as the parser strips it."""
    known = chances.get(state)
    if known is not None:
        return known
    return sum(chance for name, chance in chances.items() if name.strip() == state.strip())


def _share(amount: float, num: int) -> float | None:
    return amount / num if num else None
