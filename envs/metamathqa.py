"""MetaMathQA: answer a question of mathematics; each further attempt is worth half of the last.

RAGEN's environment on the data set meta-math/MetaMathQA. Reading the data is `envs.math_data`'s,
comparing answers `envs.math_answers`'s.

Deviations from the published environment
1. Answers are compared as mathematics; the published rule, equal but for white space and capitals,
   is `check="exact"`.
2. After a wrong answer the state holds the question and all answers so far. RAGEN's state is
   "Incorrect. Please think again." alone.
3. An empty text, or one that is no single short answer, isn't counted as an attempt.
4. A question that the data holds several times counts once, and rows without an answer are left
   out; RAGEN plays them, and nobody can win.
5. Without data of the user's a small sample of our own is played, so that nothing is downloaded
   unasked; the hub's data set is read at one fixed revision.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envs.base import GRID, GRID_COORDS, STATE_FORMATS, DataSheet, TextEnv, TextSpace, digest_of
from envs.errors import EnvironmentConfigError, unknown_name
from envs.math_answers import is_same_answer, is_same_text, require_math_verify
from envs.math_data import Item, one_line, read_questions
from envs.solvers import Bounds, Budget

CHECKS: dict[str, Callable[[str, str], bool]] = {"math": is_same_answer, "exact": is_same_text}


class MetaMathQA(TextEnv):
    r"""A question and as many attempts as the player has actions.

    Action: any text of at most 300 printable characters.
    Reward: 1/2^k for the right answer after k wrong ones, else 0. End: the right answer (success).
    """

    sheet = DataSheet(
        title="MetaMathQA",
        summary="Answer a question of mathematics; each further attempt is worth half as much.",
        state=(
            "The question; below it a line for each answer so far, `Answer 1: 12 (wrong)`. No "
            "grid: every state format is the same text."
        ),
        actions=(
            "Any text of 1 to 300 printable characters is an answer; line breaks count as spaces. "
            "An empty, longer or unprintable text is no action."
        ),
        reward="1 for the right answer at once, 1/2^k after k wrong ones; 0 for a wrong one.",
        end="The right answer ends the episode, and is its success. Attempts aren't limited here.",
        puzzles=(
            "A seed picks one of the questions, uniformly; the question's text makes the puzzle. "
            "Without `data` that is a sample of 70 easy problems of our own. So few can't be "
            "divided: there each seed is a puzzle, and every split has every question. It shows "
            "that a set-up works, not what a model can do. "
            "`data='hub:meta-math/MetaMathQA'` fetches the published 395,000 rows at a fixed "
            "revision; a Parquet, JSON or JSON Lines file or a directory of them is read as it is."
        ),
        solver=(
            "The oracle gives the stored answer, so the ceiling is 1. The floor is played: answers "
            "of other questions."
        ),
        source=(
            "RAGEN `ragen/env/metamathqa`; data set meta-math/MetaMathQA (MIT since 2023-11-10), "
            "arXiv 2309.12284. Answers are compared by math-verify."
        ),
        deviations=(
            r"Answers are compared as mathematics (`0.75` for `\frac{3}{4}`); RAGEN compares texts "
            "without white space and capitals, which is `check='exact'`. Long or unusual answers "
            "are compared as texts in both.",
            "The state holds the question and all answers so far; RAGEN's holds a verdict only.",
            "A text that is no answer doesn't count as an attempt; RAGEN's empty answer does.",
            "Questions that occur several times count once; rows without an answer are left out.",
        ),
        variants={"metamathqa": "Our sample of 70 problems, compared as mathematics."},
    )

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        check: str = "math",
        render_mode: str | None = None,
    ) -> None:
        """`data` is a file, a directory, `hub:owner/name`, or None for our sample.

        `revision` is a commit of a hub's data set; the published one has a default. `check` is
        `math` (needs the extra `math`) or `exact`.
        """
        _check_settings(data, revision, check)
        self.questions = read_questions(data, revision)
        self.few_puzzles = data is None
        self.render_mode = render_mode
        self._is_same = CHECKS[check]
        self.action_space = TextSpace(("42", r"\frac{3}{4}", "2.5"))
        self.observation_space = TextSpace()
        self.instruction = _INSTRUCTION

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Pick a question."""
        super().reset(seed=seed)
        self._index = int(self.np_random.integers(len(self.questions.items)))
        self._item: Item = self.questions.items[self._index]
        self._answers: tuple[str, ...] = ()
        self._is_solved = False
        info = {"success": False, "action_is_valid": False, "action_is_effective": False}
        return self.describe(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge an answer; after the right one nothing counts any more."""
        answer, wrong, reward = one_line(action), len(self._answers), 0.0
        is_effective = answer is not None and not self._is_solved
        self._answers, self._is_solved = self._after(action)
        if is_effective and self._is_solved:
            reward = 0.5**wrong
        info = {
            "success": self._is_solved,
            "action_is_valid": answer is not None,
            "action_is_effective": is_effective,
        }
        return self.describe(), reward, self._is_solved, False, info

    def render(self) -> str:
        """The state."""
        return self.describe(GRID)

    def describe(self, state_format: str = GRID_COORDS) -> str:
        """See `TextEnv`. One text for all formats."""
        return _describe(self._item, self._answers, self._is_solved, state_format)

    def state_key(self) -> str:
        """The question."""
        return "metamathqa\n" + self._item.question

    def data_digest(self) -> str:
        """Of all questions and stored answers: random play answers with those of others."""
        return digest_of(self.questions.items)

    def oracle(self, actions_left: int | None = None) -> str | None:
        """The stored answer."""
        return self._item.answer

    def sample_action(self, rng: np.random.Generator) -> str:
        """The answer of another question."""
        items = self.questions.items
        if len(items) == 1:
            return "0"
        other = int(rng.integers(len(items) - 1))
        return items[other + (other >= self._index)].answer

    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        """See `TextEnv`."""
        answers, is_solved = self._after(*actions)
        return {_describe(self._item, answers, is_solved, state_format): 1.0}

    def success_bounds(self, budget: Budget) -> Bounds:
        """The stored answer is right at once; how often another one is isn't computed."""
        return Bounds(None, 1.0)

    def _after(self, *actions: str) -> tuple[tuple[str, ...], bool]:
        """Answers so far and whether the last is right, after more actions."""
        answers, is_solved = self._answers, self._is_solved
        for action in actions:
            answer = one_line(action)
            if answer is not None and not is_solved:
                answers = (*answers, answer)
                is_solved = self._is_same(answer, self._item.answer)
        return answers, is_solved


def _describe(item: Item, answers: Sequence[str], is_solved: bool, state_format: str) -> str:
    if state_format not in STATE_FORMATS:
        raise EnvironmentConfigError(unknown_name("state format", state_format, STATE_FORMATS))
    lines = [item.question]
    for number, answer in enumerate(answers, start=1):
        verdict = "right" if is_solved and number == len(answers) else "wrong"
        lines.append(f"Answer {number}: {answer} ({verdict})")
    return "\n".join(lines)


def _check_settings(data: Any, revision: Any, check: Any) -> None:
    if data is not None and not isinstance(data, str | os.PathLike):
        raise EnvironmentConfigError(f"metamathqa: data is {data!r}; it must be a path or None.")
    if revision is not None and not isinstance(revision, str):
        raise EnvironmentConfigError(f"metamathqa: revision is {revision!r}; it must be a text.")
    if check not in CHECKS:
        raise EnvironmentConfigError(unknown_name("check of metamathqa", str(check), CHECKS))
    if check == "math":
        require_math_verify()


_INSTRUCTION = (
    "You are given a question of mathematics. Answer it with the final result alone, without "
    "units, words or the way there: a number such as 12 or 2.5, a fraction such as 3/4, or LaTeX "
    r"such as \frac{3}{4} or 2\sqrt{2}."
    "\nThe right answer is worth 1 at once, and half as much after each wrong answer. You see your "
    "wrong answers below the question. The game ends with the right answer."
)
