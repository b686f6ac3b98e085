"""Plays the environment's own optimal answers (`TextEnv.oracle_plan`).

One action a turn is the best that any policy can do when turns are no tighter than actions. Where
they are, an answer holds several, and in a world of luck they are the plan, played blind, by which
the exact ceiling (`envs.solvers`) is defined.
"""

from __future__ import annotations

from collections.abc import Sequence

from steps.agent.records import Completion, PolicyRequest, Sampling
from steps.errors import ConfigError
from steps.policies.random_policy import written


class OraclePolicy:
    """Optimal actions in well-formed answers; `sampling` is ignored."""

    name = "oracle"

    def __init__(self, *, separator: str = "||") -> None:
        self.separator = separator

    def complete(self, requests: Sequence[PolicyRequest], sampling: Sampling) -> list[Completion]:
        """Raises `ConfigError` where the environment has no solver."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: PolicyRequest) -> Completion:
        actions = () if request.oracle is None else request.oracle()
        if not actions:
            raise ConfigError(
                "the policy 'oracle' was asked for an action, but this environment's oracle() "
                "gives none; choose another policy, or give the environment a solver."
            )
        return Completion(text=written(request, actions, separator=self.separator))
