"""Answers from a script: for tests, for demonstrations, and to replay what a model wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from steps.agent.records import Completion, PolicyRequest, Sampling
from steps.errors import DataError

Script = Sequence[str | Completion] | Callable[[PolicyRequest], str | Completion]


class ScriptedPolicy:
    """A function of the request, or a list: its n-th entry answers the n-th call's requests.

    Episodes that start together are asked together, so that the n-th call is turn n of them all.
    The last entry answers all further calls.
    """

    def __init__(self, script: Script, *, name: str = "scripted") -> None:
        assert callable(script) or len(script) > 0, "an empty script can't answer"
        self.name = name
        self.script = script
        self.batches: list[list[PolicyRequest]] = []
        """The requests of each call so far."""

    @classmethod
    def from_file(cls, path: str | Path) -> ScriptedPolicy:
        """Reads a JSON list of answers, one a turn; `DataError` where it is anything else."""
        try:
            answers = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"script {str(path)!r} can't be read: {error}") from error
        if not answers or not isinstance(answers, list):
            raise DataError(f"script {str(path)!r} holds no list of answers; write a JSON list.")
        if not all(isinstance(answer, str) for answer in answers):
            raise DataError(f"script {str(path)!r} holds answers that aren't text; quote each.")
        return cls(answers)

    def complete(self, requests: Sequence[PolicyRequest], sampling: Sampling) -> list[Completion]:
        """One completion for each request; the sampling is ignored."""
        call = len(self.batches)
        self.batches.append(list(requests))
        return [_completion(self._entry(request, call)) for request in requests]

    def _entry(self, request: PolicyRequest, call: int) -> str | Completion:
        if callable(self.script):
            return self.script(request)
        return self.script[min(call, len(self.script) - 1)]


def _completion(entry: str | Completion) -> Completion:
    return entry if isinstance(entry, Completion) else Completion(text=entry)
