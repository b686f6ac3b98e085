"""Episodes played each in its own time are those that are played together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from steps.agent.drivers import StreamingPolicy
from steps.agent.prompts import PromptSettings
from steps.agent.records import (
    Completion,
    FinishReason,
    PolicyRequest,
    Sampling,
    StopReason,
    Trajectory,
)
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.agent.splice import write_response
from steps.policies.random_policy import RandomPolicy
from tests.agent.worlds import Corridor

SPECS = [EpisodeSpec(env_seed=seed % 5, member=seed, sampling_seed=seed) for seed in range(40)]
SETTINGS = RolloutSettings(
    prompt=PromptSettings(style="state_only", state_shown="grid", prediction="grid"),
    max_turns=6,
)


class Slippery(Corridor):
    """Moves fail half of the time, so that episodes end after different numbers of turns."""

    def __init__(self) -> None:
        super().__init__(slip=0.5)


class Shuffled:
    """Plays at random, and hands its answers out some at a time in an order of its own."""

    def __init__(self, max_running: int, answer: Callable[..., Completion] | None = None) -> None:
        self.name = RandomPolicy().name
        self.max_running = max_running
        self.asked: dict[int, PolicyRequest] = {}
        self.most = self.aborts = 0
        self._answer = answer or (
            lambda request, sampling: RandomPolicy().complete([request], sampling)[0]
        )
        self._order = random.Random(3)
        self._sampling = Sampling()

    def complete(
        self, requests: Sequence[PolicyRequest], sampling: Sampling
    ) -> Sequence[Completion]:
        raise AssertionError("a streaming policy is asked request by request")

    def submit(self, key: int, request: PolicyRequest, sampling: Sampling) -> None:
        assert key not in self.asked
        self.asked[key], self._sampling = request, sampling
        self.most = max(self.most, len(self.asked))

    def poll(self) -> Sequence[tuple[int, Completion]]:
        count = self._order.randint(1, min(3, len(self.asked)))
        keys = self._order.sample(sorted(self.asked), count)
        return [(key, self._answer(self.asked.pop(key), self._sampling)) for key in keys]

    def abort(self) -> None:
        self.aborts += 1
        self.asked.clear()


def play(
    policy: Shuffled | RandomPolicy, on_done: Callable[..., None] | None = None
) -> list[Trajectory]:
    return run_episodes(
        SPECS,
        env_id="corridor",
        make_env=Slippery,
        policy=policy,
        settings=SETTINGS,
        on_done=on_done,
    )


@pytest.mark.parametrize("max_running", [1, 7, 64])
def test_answers_out_of_order_make_the_same_episodes(max_running: int) -> None:
    policy = Shuffled(max_running)
    assert isinstance(policy, StreamingPolicy)
    played = play(policy)
    assert played == play(RandomPolicy())
    assert len({len(episode.turns) for episode in played}) > 2
    assert policy.most == min(max_running, len(SPECS)) and policy.aborts == 0


def test_an_episode_that_ends_makes_room_for_the_next_one() -> None:
    order: list[int] = []
    played = play(Shuffled(4), on_done=lambda position, _: order.append(position))
    assert sorted(order) == list(range(40)) and order != sorted(order)
    # No more than four run, so number 39 can't end before 36 others have.
    assert order.index(39) >= 36
    assert [episode.member for episode in played] == list(range(40))


def test_a_full_context_ends_one_episode_and_no_other() -> None:
    full = Completion(text="", prompt_ids=(1,), finish_reason=FinishReason.CONTEXT)

    def answer(request: PolicyRequest, sampling: Sampling) -> Completion:
        done = RandomPolicy().complete([request], sampling)[0]
        return full if request.seed % 3 == 0 else done

    played = play(Shuffled(8, answer))
    stops = [episode.stop_reason for episode in played]
    assert 0 < stops.count(StopReason.CONTEXT_FULL) < 40
    assert [len(e.turns) for e in played] == [len(e.turns) for e in play(Shuffled(1, answer))]


def test_a_defect_goes_through_and_nothing_stays_behind() -> None:
    worlds: list[Corridor] = []

    def make_env() -> Corridor:
        worlds.append(Corridor())
        return worlds[-1]

    def answer(request: PolicyRequest, sampling: Sampling) -> Completion:
        if len(worlds) > 5:
            raise RuntimeError("engine died")
        return Completion(text=write_response("world_model", actions=("Right",)))

    policy = Shuffled(4, answer)
    with pytest.raises(RuntimeError, match="engine died"):
        run_episodes(SPECS, env_id="corridor", make_env=make_env, policy=policy, settings=SETTINGS)
    assert policy.aborts == 1 and policy.asked == {}
    assert len(worlds) == 6 and all(world.num_closed == 1 for world in worlds)
