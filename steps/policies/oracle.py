"""Plays the environment's own optimal action, one in each answer.

One action a turn is the best that any policy can do when turns are no tighter than actions. Where
they are, the exact ceiling (`envs.solvers`) also weighs plans of several actions, played blind.
"""

from __future__ import annotations

from collections.abc import Sequence

from steps.agent.records import Completion, PolicyRequest, Sampling
from steps.errors import ConfigError
from steps.policies.random_policy import written


class OraclePolicy:
    """Optimal actions in well-formed answers; `sampling` is ignored."""

    name = "oracle"

    def complete(self, requests: Sequence[PolicyRequest], sampling: Sampling) -> list[Completion]:
        """Raises `ConfigError` where the environment has no solver."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: PolicyRequest) -> Completion:
        action = None if request.oracle is None else request.oracle(request.actions_left)
        if action is None:
            raise ConfigError(
                "the policy 'oracle' was asked for an action, but this environment's oracle() "
                "gives none; choose another policy, or give the environment a solver."
            )
        return Completion(text=written(request, (action,), separator="||"))
