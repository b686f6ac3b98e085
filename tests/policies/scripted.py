"""Answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from steps.agent.records import Completion, PolicyRequest, Sampling

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
