"""Arithmetic of Countdown: numbers joined at random, the chance of that, and an exhaustive search.

Expressions that are made here have parentheses around every operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, permutations

Value = int | Fraction
Numbers = tuple[int, ...]

_TABLE_COUNT = 3
"""Up to so many numbers all values are written down; more are parted in groups."""


def apply(sign: str, left: Value | None, right: Value | None) -> Value | None:
    """One of `+ - * /`, exactly; None stands for the result of a division by zero."""
    if left is None or right is None:
        return None
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    return None if right == 0 else Fraction(left, right)


def joined(
    numbers: Sequence[int], operators: str, draws: Sequence[float]
) -> tuple[Value | None, str]:
    """Two of the numbers joined until one is left; three draws in [0, 1) for each time."""
    parts: list[tuple[Value | None, str]] = [(number, str(number)) for number in numbers]
    for index in range(0, 3 * len(numbers) - 3, 3):
        left, left_text = parts.pop(int(draws[index] * len(parts)))
        right, right_text = parts.pop(int(draws[index + 1] * len(parts)))
        sign = operators[int(draws[index + 2] * len(operators))]
        parts.append((apply(sign, left, right), f"({left_text} {sign} {right_text})"))
    return parts[0]


@lru_cache(maxsize=1 << 16)
def random_success(values: tuple[Value, ...], target: int, operators: str) -> float:
    """The chance that `joined` gives the target from these values, ascending."""
    if len(values) == 1:
        return float(values[0] == target)
    total, pairs = 0.0, list(permutations(range(len(values)), 2))
    for first, second in pairs:
        rest = [values[index] for index in range(len(values)) if index not in (first, second)]
        for sign in operators:
            value = apply(sign, values[first], values[second])
            if value is not None:
                total += random_success(tuple(sorted([*rest, value])), target, operators)
    return total / (len(pairs) * len(operators))


@lru_cache(maxsize=1 << 16)
def solution(numbers: Numbers, target: Value, operators: str) -> str | None:
    """An expression of exactly these numbers with this value, or None where there is none.

    The outermost operator parts the numbers in two groups. The smaller one's values are known, and
    each says what the larger one must give.
    """
    if len(numbers) <= _TABLE_COUNT:
        return _values(numbers, operators).get(target)
    for larger, smaller in _partings(numbers):
        for value, text in _values(smaller, operators).items():
            if value == target == 0 and set(operators) & set("*/"):
                any_value = " + ".join(map(str, larger))
                return f"({text} {'*' if '*' in operators else '/'} ({any_value}))"
            for needed, shape in _needed(value, target, operators):
                found = solution(larger, needed, operators)
                if found is not None:
                    return shape.format(found, text)
    return None


def _needed(value: Value, target: Value, operators: str) -> Iterator[tuple[Value, str]]:
    """What must be joined with `value` to give `target`, and how: `{0}` is it, `{1}` the value."""
    if "+" in operators:
        yield target - value, "({0} + {1})"
    if "-" in operators:
        yield target + value, "({0} - {1})"
        yield value - target, "({1} - {0})"
    if value != 0 and "*" in operators:
        yield Fraction(target, value), "({0} * {1})"
    if value != 0 and "/" in operators:
        yield target * value, "({0} / {1})"
        if target != 0:
            yield Fraction(value, target), "({1} / {0})"


@lru_cache(maxsize=1 << 12)
def _values(numbers: Numbers, operators: str) -> dict[Value, str]:
    """Every value of a few numbers, each with an expression."""
    if len(numbers) == 1:
        return {numbers[0]: str(numbers[0])}
    found: dict[Value, str] = {}
    for larger, smaller in _partings(numbers):
        for left, left_text in _values(larger, operators).items():
            for right, right_text in _values(smaller, operators).items():
                for sign in operators:
                    forth, back = apply(sign, left, right), apply(sign, right, left)
                    if forth is not None:
                        found.setdefault(forth, f"({left_text} {sign} {right_text})")
                    if back is not None:
                        found.setdefault(back, f"({right_text} {sign} {left_text})")
    return found


@lru_cache(maxsize=1 << 12)
def _partings(numbers: Numbers) -> tuple[tuple[Numbers, Numbers], ...]:
    """Every way to part the numbers in two groups, the smaller one second; groups ascending."""
    everything = range(len(numbers))
    found: dict[tuple[Numbers, Numbers], None] = {}
    for size in range(1, len(numbers) // 2 + 1):
        for chosen in combinations(everything, size):
            smaller = tuple(numbers[index] for index in chosen)
            larger = tuple(numbers[index] for index in everything if index not in chosen)
            found[larger, smaller] = None
    return tuple(found)
