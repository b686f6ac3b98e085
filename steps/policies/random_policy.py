"""Plays uniformly at random and writes it in the right format: floor, smoke test, first teacher.

The states in its answers are true as far as they can be: the present one, and the likeliest next.
"""

from __future__ import annotations

from collections.abc import Sequence

from steps.agent.records import Completion, PolicyRequest, ResponseFormat, Sampling
from steps.agent.seeds import mix_seed
from steps.agent.splice import likeliest, write_response


class RandomPolicy:
    """Uniform actions of the environment's own action space; `sampling` is ignored."""

    name = "random"

    def __init__(
        self, *, actions_per_turn: int = 0, thought: str = "", separator: str = "||"
    ) -> None:
        """`actions_per_turn` 0 writes as many actions as the answer may hold."""
        self.actions_per_turn = actions_per_turn
        self.thought = thought
        self.separator = separator

    def complete(self, requests: Sequence[PolicyRequest], sampling: Sampling) -> list[Completion]:
        """Each answer depends on its request's seed alone."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: PolicyRequest) -> Completion:
        assert request.sample_action is not None
        num_actions = request.max_actions
        if self.actions_per_turn:
            num_actions = min(num_actions, self.actions_per_turn)
        actions = tuple(
            request.sample_action(mix_seed(request.seed, i)) for i in range(num_actions)
        )
        return Completion(
            text=written(request, actions, separator=self.separator, thought=self.thought)
        )


def written(
    request: PolicyRequest, actions: tuple[str, ...], *, separator: str, thought: str = ""
) -> str:
    """The actions in the request's format, with the true state and the likeliest next one."""
    prediction = ""
    if request.response_format is ResponseFormat.WORLD_MODEL and request.predict is not None:
        prediction = likeliest(request.predict(actions))
    return write_response(
        request.response_format,
        observation=request.observation_truth,
        thought=thought,
        prediction=prediction,
        actions=actions,
        separator=separator,
    )
