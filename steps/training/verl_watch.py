"""Whether the workers that play a step are alive, and what went wrong in them.

verl hands a step's rows to its workers without waiting and then looks for episodes without end:
those of a worker that was killed never come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from steps.training.verl_launch import TrainerError

EVERY_S = 5.0
ANSWER_S = 10.0
"""Longest wait for a worker's word on what failed."""


class Watch:
    """Asks the workers, which `workers` names once they stand, without waiting for an answer."""

    def __init__(self, workers: Callable[[], Sequence[Any]]) -> None:
        self._workers = workers
        self._asked: dict[Any, int] = {}
        """Question -> number of the worker; one that is busy answers late."""
        self._next = 0.0

    def check(self) -> None:
        """Raise `TrainerError` where a worker is dead; asks every `EVERY_S` seconds."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        waiting = set(self._asked.values())
        for number, worker in enumerate(self._workers()):
            if number not in waiting:
                self._asked[worker.first_error.remote()] = number
        answered, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for question in answered:
            number = self._asked.pop(question)
            try:
                ray.get(question)
            except ray.exceptions.RayActorError as error:
                raise TrainerError(
                    f"agent worker {number} died while it played, most often because its machine "
                    f"ran out of memory, and its episodes would never come: {error}"
                ) from error

    def first_error(self) -> str:
        """What failed first in this step's episodes, in any worker; empty where none says."""
        questions = [worker.first_error.remote() for worker in self._workers()]
        answered, _ = ray.wait(questions, num_returns=len(questions), timeout=ANSWER_S)
        for question in answered:
            try:
                found: str = ray.get(question)
            except ray.exceptions.RayActorError:
                continue
            if found:
                return found
        return ""
