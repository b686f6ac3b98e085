"""Countdown: join the given numbers by arithmetic so that the result is the target.

RAGEN plays problems of the data set Countdown-Tasks-3to4 (three or four numbers) that + and -
suffice for; one answer ends the episode. Here a problem is made from its seed.

Deviations from the published environment
1. Problems are drawn, not read: numbers of the data set's size, joined at random, give the target.
   So each problem can be solved and none depends on a download.
2. The numbers are shown in ascending order: one problem has one text.
3. A text that is no expression changes nothing, and the game goes on; RAGEN ends it.
4. The published code calls `eval` and compares floating-point numbers. Here a small grammar is
   read, and arithmetic is exact.
5. After the answer the state shows it with its value; RAGEN shows nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from envs.base import GRID, GRID_COORDS, STATE_FORMATS, DataSheet, TextEnv, TextSpace
from envs.countdown_solver import Numbers, Value, apply, joined, random_success, solution
from envs.errors import EnvironmentConfigError, unknown_name
from envs.solvers import Bounds, Budget

OPERATORS = "+-*/"
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
}
_MAX_LENGTH, _MAX_DEPTH = 200, 32
_SHAPE = re.compile(rf"[0-9+\-*/() ]{{1,{_MAX_LENGTH}}}")
_LONG_NUMBER = re.compile("[0-9]{7}")
_MAX_COUNT = 6
"""Numbers of a problem; with all operators six take the solver half a second, seconds at worst."""
_EXACT_FLOOR_COUNT = 4
"""With all operators four numbers take 40 ms, five would take seconds."""
_PATIENCE = 5000
"""Draws without a target in range after which an environment's settings count as impossible."""


class Attempt(NamedTuple):
    """An expression that was read."""

    text: str
    """In a standard spacing."""
    value: Value | None
    """None where something is divided by zero."""
    numbers: Numbers
    """Ascending."""


class Problem(NamedTuple):
    """What stays the same through an episode."""

    numbers: Numbers
    """Ascending."""
    target: int


class Countdown(TextEnv):
    """Numbers, a target, and one expression to offer.

    Action: an arithmetic expression of whole numbers, `+ - * /`, parentheses and minus signs before
    a number or parenthesis; at most 200 characters.
    Reward: 1 for the target's value with exactly the given numbers, 0.1 for these numbers with
    another value, else 0. End: any expression; success is the reward of 1.
    """

    sheet = DataSheet(
        title="Countdown",
        summary="Join all given numbers by arithmetic so that the result is the target.",
        state=(
            "`Target: 24, nums: [3, 8, 13]`, the numbers in ascending order. After the answer a "
            "second line holds it with its value: `Expression: 13 + 8 + 3 = 24 (right)`, or "
            "`(wrong value)`, or `(wrong numbers)`. No grid: every state format is the same text."
        ),
        actions=(
            "An expression of whole numbers, `+ - * /` and parentheses, at most 200 characters; a "
            "minus sign may stand before a number or a parenthesis. Any other text, an equation "
            "included, is no action and changes nothing."
        ),
        reward=(
            "1 for the target with exactly the given numbers, each used once; 0.1 for the right "
            "numbers with another value or none (a division by zero); 0 for other numbers."
        ),
        end="The first expression ends the episode; it succeeds if it is right.",
        puzzles=(
            "How many numbers is drawn from `num_numbers`; each is uniform in 1..`max_number`. "
            "Two of them are joined by a random operator until one is left, and the draw is "
            "repeated until that is a whole number in `min_target`..`max_target`. Numbers and "
            "target make the puzzle."
        ),
        solver=(
            "Exact: the oracle searches all orders, groupings and operators, so the ceiling is 1. "
            "The floor is the chance that numbers joined at random, as the puzzle was, give the "
            "target: exact up to four numbers, played beyond."
        ),
        source=(
            "RAGEN `ragen/env/countdown` on the data set Jiayi-Pan/Countdown-Tasks-3to4 (TinyZero)."
        ),
        deviations=(
            "Problems are drawn instead of read from a file, and each can be solved. RAGEN picks "
            "those of its file that + and - suffice for; targets reached in many ways come more "
            "often here.",
            "Numbers are shown in ascending order, so that one problem has one text.",
            "A text that is no expression doesn't end the episode; RAGEN's does.",
            "Exact arithmetic on a small grammar instead of `eval` and floating point; `**`, `//` "
            "and plus signs before a number are refused.",
            "After the answer the state shows it; RAGEN's is empty.",
        ),
        variants={"countdown": "Three or four numbers up to 99, targets from 10 to 100, + and -."},
    )

    def __init__(
        self,
        num_numbers: int | Sequence[int] = (3, 4),
        max_number: int = 99,
        min_target: int = 10,
        max_target: int = 100,
        operators: str = "+-",
        render_mode: str | None = None,
    ) -> None:
        """`num_numbers` is a count, or a list of counts that are drawn from uniformly.

        `operators` are those that the target is made with, and that suffice for it; a player may
        use all four. The defaults are the sizes in the published data set.
        """
        counts = list(num_numbers) if isinstance(num_numbers, Sequence) else [num_numbers]
        _check_settings(counts, max_number, min_target, max_target, operators)
        self.num_numbers, self.max_number, self.operators = tuple(counts), max_number, operators
        self.min_target, self.max_target = min_target, max_target
        self.render_mode = render_mode
        self.action_space = TextSpace(("3 + 8 + 13", "(7 - 2) * 4"))
        self.observation_space = TextSpace()
        self.instruction = _instruction(operators)
        for count in self.num_numbers:
            if self._drawn(np.random.default_rng(0), count) is None:
                raise EnvironmentConfigError(
                    f"countdown: {count} numbers up to {max_number} joined by {operators!r} gave "
                    f"no target from {min_target} to {max_target} in {_PATIENCE} draws; widen the "
                    "range."
                )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Draw a problem."""
        super().reset(seed=seed)
        count = self.num_numbers[int(self.np_random.integers(len(self.num_numbers)))]
        problem = None
        while problem is None:
            problem = self._drawn(self.np_random, count)
        self._problem: Problem = problem
        self._attempt: Attempt | None = None
        info = {"success": False, "action_is_valid": False, "action_is_effective": False}
        return self.describe(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge the first expression; after it nothing counts any more."""
        attempt, reward = read_expression(action), 0.0
        is_effective = attempt is not None and self._attempt is None
        if is_effective:
            self._attempt = attempt
            reward = _reward(self._problem, self._attempt)
        info = {
            "success": _reward(self._problem, self._attempt) == 1.0,
            "action_is_valid": attempt is not None,
            "action_is_effective": is_effective,
        }
        return self.describe(), reward, self._attempt is not None, False, info

    def render(self) -> str:
        """The state."""
        return self.describe(GRID)

    def describe(self, state_format: str = GRID_COORDS) -> str:
        """See `TextEnv`. One text for all formats."""
        return _describe(self._problem, self._attempt, state_format)

    def state_key(self) -> str:
        """Target and numbers; the operators that made the target aren't part of it."""
        return "countdown\n" + _describe(self._problem, None, GRID)

    def oracle(self, actions_left: int | None = None) -> str | None:
        """An expression that is right."""
        numbers, target = self._problem
        found = solution(numbers, target, self.operators)
        assert found is not None, self._problem
        return _tidy(found)

    def sample_action(self, rng: np.random.Generator) -> str:
        """All numbers, joined in random order by random operators of `operators`."""
        numbers = self._problem.numbers
        draws = rng.random(3 * (len(numbers) - 1)).tolist()
        return _tidy(joined(numbers, self.operators, draws)[1])

    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        """See `TextEnv`; the first expression decides."""
        attempt = self._attempt
        for action in actions:
            attempt = attempt or read_expression(action)
        return {_describe(self._problem, attempt, state_format): 1.0}

    def success_bounds(self, budget: Budget) -> Bounds:
        """The first expression ends the episode, so no budget changes them."""
        numbers, target = self._problem
        is_small = len(numbers) <= _EXACT_FLOOR_COUNT
        floor = random_success(numbers, target, self.operators) if is_small else None
        return Bounds(floor, 1.0)

    def _drawn(self, rng: np.random.Generator, count: int) -> Problem | None:
        """Numbers with a target in range; None after many draws without one."""
        for _ in range(_PATIENCE):
            draws = rng.random(4 * count - 3).tolist()
            numbers = tuple(1 + int(draw * self.max_number) for draw in draws[:count])
            value, _ = joined(numbers, self.operators, draws[count:])
            if value is None or value.denominator != 1:
                continue
            if self.min_target <= value <= self.max_target:
                return Problem(tuple(sorted(numbers)), int(value))
        return None


def read_expression(text: str) -> Attempt | None:
    """An arithmetic expression, or None for any other text."""
    text = text.strip(" \t\n")
    if not _SHAPE.fullmatch(text) or _LONG_NUMBER.search(text):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError, RecursionError):
        return None
    numbers: list[int] = []
    try:
        value = _value(tree, numbers, _MAX_DEPTH)
    except _NotArithmeticError:
        return None
    return Attempt(ast.unparse(tree), value, tuple(sorted(numbers)))


class _NotArithmeticError(Exception):
    """A tree holds something other than numbers and the four operators."""


def _value(node: ast.expr, numbers: list[int], depth: int) -> Value | None:
    """The value of a tree, None with a division by zero; appends its numbers."""
    if depth == 0:
        raise _NotArithmeticError
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        numbers.append(node.value)
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, numbers, depth - 1)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        left = _value(node.left, numbers, depth - 1)
        right = _value(node.right, numbers, depth - 1)
        return apply(_SIGNS[type(node.op)], left, right)
    raise _NotArithmeticError


def _tidy(expression: str) -> str:
    """Without parentheses that change nothing."""
    return ast.unparse(ast.parse(expression, mode="eval"))


def _reward(problem: Problem, attempt: Attempt | None) -> float:
    if attempt is None or attempt.numbers != problem.numbers:
        return 0.0
    return 1.0 if attempt.value == problem.target else 0.1


def _describe(problem: Problem, attempt: Attempt | None, state_format: str) -> str:
    if state_format not in STATE_FORMATS:
        raise EnvironmentConfigError(unknown_name("state format", state_format, STATE_FORMATS))
    text = f"Target: {problem.target}, nums: {list(problem.numbers)}"
    if attempt is None:
        return text
    value = "has no value" if attempt.value is None else f"= {attempt.value}"
    if attempt.numbers != problem.numbers:
        verdict = "wrong numbers"
    else:
        verdict = "right" if attempt.value == problem.target else "wrong value"
    return f"{text}\nExpression: {attempt.text} {value} ({verdict})"


def _check_settings(
    counts: list[Any], max_number: Any, min_target: Any, max_target: Any, operators: Any
) -> None:
    problem = ""
    if not counts or not all(_is_whole(count) and 2 <= count <= _MAX_COUNT for count in counts):
        problem = f"num_numbers is {counts}; it holds whole numbers from 2 to {_MAX_COUNT}."
    elif not _is_whole(max_number) or not 1 <= max_number <= 999_999:
        problem = f"max_number is {max_number!r}; it must be a whole number from 1 to 999999."
    elif not _is_whole(min_target) or not _is_whole(max_target):
        problem = f"targets go from {min_target!r} to {max_target!r}; both must be whole numbers."
    elif not 1 <= min_target <= max_target:
        problem = f"targets go from {min_target} to {max_target}; they must go from 1 or more up."
    elif not _is_operators(operators):
        problem = f"operators is {operators!r}; it must be + and any of - * /, such as '+-*/'."
    if problem:
        raise EnvironmentConfigError(f"countdown: {problem}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_operators(value: Any) -> bool:
    is_list = isinstance(value, str) and len(set(value)) == len(value)
    return is_list and "+" in value and not set(value) - set(OPERATORS)


def _instruction(operators: str) -> str:
    enough = " and ".join(filter(None, (", ".join(operators[:-1]), operators[-1])))
    is_or_are = "is" if len(operators) == 1 else "are"
    return (
        "You are given a target and a list of numbers. Write one arithmetic expression that uses "
        "each number of the list exactly once and has the target as its value.\n"
        f"You may use +, -, *, / and parentheses; {enough} {is_or_are} enough for every target. "
        "Write the expression only, without an equals sign.\n"
        "For the target 4 and the numbers [2, 3, 5], 5 + 2 - 3 is right.\n"
        "The game ends with your first expression. It is worth 1 if it is right, 0.1 if it uses "
        "the right numbers and has another value, and nothing otherwise."
    )
