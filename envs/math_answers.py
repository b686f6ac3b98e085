r"""Do two short mathematical answers mean the same? `3/4`, `0.75` and `\frac{6}{8}` do.

Reading and comparing is math-verify's, with two precautions. It stops a calculation that takes too
long by an alarm signal, which works in the main thread only; so its alarms are off here, and texts
outside a small grammar never reach it: they are right only when written like the stored answer.
And of its two readers only the one for LaTeX is used: the other one passes text to `eval`.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from envs.errors import EnvironmentConfigError

_MAX_TEXT = 300
_MAX_LENGTH = 80
"""Of a text that the library may see."""
_MAX_DEPTH = 4
"""Of brackets; the reader's time grows about threefold with each level of parentheses."""
_MAX_BRACKETS = 10
_MAX_OPERATORS = 16
_MAX_EXPONENT_PRODUCT = 200
_MAX_EXPONENT_SUM = 12
"""Of texts with letters, which may be multiplied out."""
_MAX_ROOTS = 3
_MAX_LETTERS = 3
_TOLERANCE = 1e-6

_COMMAND = re.compile(r"\\(?:(?:frac|sqrt|pi|cdot|times|div|pm|infty|cup)(?![a-zA-Z])|[{}])")
_EXPONENT = re.compile(r"\^(?:\{(-?[0-9]{1,2}(?:/[0-9]{1,2})?|[a-z])\}|([0-9a-z]))")
_ALLOWED = re.compile(r"[0-9a-zA-Z+\-*/(){}\[\],.:| ]*")
"""`|` stands for a command that has been taken out."""
_REFUSED = re.compile(r"[a-zA-Z]{3}|[0-9]{13}|[0-9.] +[0-9.]|\*\*|\* \*|//")
"""Words, which would be read as products of letters, long numbers, `3 1/2`, and Python's signs."""

_SPACES = re.compile(r"\\left|\\right|\\[,;!: ]")
_FRACTION = re.compile(r"\\[dt]frac")
_WRAPPING = re.compile(r"\$+(.*?)\$+|\\\((.*)\\\)|\\\[(.*)\\\]|\\boxed\{(.*)\}|\\text\{([^{}]*)\}")
_UNIT = re.compile(r"\\?%|\^\{?\\circ\}?|°|\\(?:text|mathrm|mbox)\{[^{}]*\}")
_ASSIGNED = re.compile(r"[a-zA-Z]\s*=\s*")
_THOUSANDS = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")


def require_math_verify() -> None:
    """Raise `EnvironmentConfigError` where the library isn't installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise EnvironmentConfigError(
            "metamathqa: answers are compared by math-verify, which isn't installed; run "
            "`pip install 'spa-agents[math]'`, or pass check='exact'."
        )


def is_same_text(answer: str, stored: str) -> bool:
    """The published rule: equal but for white space and capitals."""
    return _folded(answer) == _folded(stored)


def is_same_answer(answer: str, stored: str) -> bool:
    r"""Equal as texts, as texts without `$`, `\boxed`, units and the like, or as mathematics.

    Decimals agree to six places. An answer of several numbers is a set: `1, 2` is `2, 1`.
    """
    if is_same_text(answer, stored):
        return True
    if max(len(answer), len(stored)) > _MAX_TEXT:
        return False
    answer, stored = bare(answer), bare(stored)
    if not answer or is_same_text(answer, stored):
        return bool(answer)
    return is_tame(answer) and is_tame(stored) and _is_equal(answer, stored)


def bare(text: str) -> str:
    """Without wrapping, spacing commands, a unit at the end, and `x =` at the beginning."""
    text = _FRACTION.sub(r"\\frac", _SPACES.sub("", text)).strip().removesuffix(".").strip()
    if wrapped := _WRAPPING.fullmatch(text):
        text = next(filter(None, wrapped.groups()), "")
    text = text.strip().removeprefix("\\$").removeprefix("$")
    while (units := list(_UNIT.finditer(text))) and units[-1].end() == len(text):
        text = text[: units[-1].start()].rstrip()
    if assigned := _ASSIGNED.match(text):
        text = text[assigned.end() :]
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text


def is_tame(text: str) -> bool:
    """Whether the library may see a text: milliseconds of work as a rule, a second at worst."""
    if not 0 < len(text) <= _MAX_LENGTH:
        return False
    exponents = [first or second for first, second in _EXPONENT.findall(text)]
    plain = _COMMAND.sub("|", _EXPONENT.sub("", text))
    letters = set(re.findall("[a-zA-Z]", plain)) | {each for each in exponents if each.isalpha()}
    return (
        "|" not in text
        and _ALLOWED.fullmatch(plain) is not None
        and _REFUSED.search(plain) is None
        and _nests_well(text)
        and sum(map(text.count, "+-*/^,")) + text.count("\\") <= _MAX_OPERATORS
        and text.count("\\sqrt") <= _MAX_ROOTS
        and len(letters) <= _MAX_LETTERS
        and _has_small_powers(exponents, has_letters=bool(letters))
    )


def _has_small_powers(exponents: list[str], *, has_letters: bool) -> bool:
    sizes = [int(number) for each in exponents for number in re.findall("[0-9]+", each)]
    product = 1
    for size in sizes:
        product *= max(size, 1)
    is_small = not has_letters or sum(sizes) <= _MAX_EXPONENT_SUM
    return is_small and product <= _MAX_EXPONENT_PRODUCT


def _nests_well(text: str) -> bool:
    """Brackets are closed, few and not deep. `[0,1)` is an interval: kinds needn't match."""
    depth = 0
    for symbol in text:
        depth += (symbol in "([{") - (symbol in ")]}")
        if not 0 <= depth <= _MAX_DEPTH:
            return False
    return depth == 0 and sum(map(text.count, "([{")) <= _MAX_BRACKETS


def _folded(text: str) -> str:
    return "".join(text.split()).casefold()


@lru_cache(maxsize=8192)
def _is_equal(answer: str, stored: str) -> bool:
    return _comparison()(answer, stored)


@cache
def _comparison() -> Callable[[str, str], bool]:
    """The library, loaded when the first pair of answers needs it."""
    from math_verify import LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its alarms are off
    reader = [LatexExtractionConfig()]

    def read(text: str) -> Any:
        found = parse(f"${text}$", reader, fallback_mode="no_fallback", parsing_timeout=None)
        return found[0] if found else None

    def is_equal(answer: str, stored: str) -> bool:
        pair = read(stored), read(answer)
        if None in pair or _is_apart(*pair):
            return False
        return bool(verify(*pair, timeout_seconds=None))

    return is_equal


def _is_apart(first: Any, second: Any) -> bool:
    """Whether two expressions differ in number, letters being any number.

    Simplifying the difference of two ugly ones, as the library does next, can take seconds.
    """
    from sympy import Expr

    if not isinstance(first, Expr) or not isinstance(second, Expr):
        return False
    letters = sorted(first.free_symbols | second.free_symbols, key=str)
    values = {letter: 0.7311 + 0.6137 * place for place, letter in enumerate(letters)}
    try:
        here, there = (complex(each.evalf(15, subs=values)) for each in (first, second))
    except Exception:  # infinite, undefined, or a name for no number
        return bool(first != second)
    return not abs(here - there) <= _TOLERANCE * max(1.0, abs(here), abs(there))
