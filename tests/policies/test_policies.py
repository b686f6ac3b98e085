from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steps.agent.parsing import parse_response
from steps.agent.prompts import PromptSettings
from steps.agent.records import (
    Completion,
    Message,
    ParseStatus,
    PolicyRequest,
    ResponseFormat,
    Sampling,
    StopReason,
)
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.agent.splice import likeliest
from steps.errors import ConfigError
from steps.policies.base import PolicySpec, make_policy
from steps.policies.oracle import OraclePolicy
from steps.policies.random_policy import RandomPolicy
from tests.agent.worlds import Corridor
from tests.policies.scripted import ScriptedPolicy

NAMES = ("Left", "Down", "Right", "Up")


def draw(seed: int) -> str:
    return NAMES[int(np.random.default_rng(seed).integers(4))]


def predict(actions: tuple[str, ...]) -> Mapping[str, float]:
    return {"slipped": 0.2, "after " + "+".join(actions): 0.8}


def request(**kwargs: Any) -> PolicyRequest:
    fields: dict[str, Any] = {
        "messages": (Message(role="user", content="S"),),
        "seed": 0,
        "response_format": ResponseFormat.WORLD_MODEL,
        "max_actions": 1,
        "observation_truth": "S",
        "action_names": NAMES,
        "oracle": lambda: ("Up",),
        "sample_action": draw,
        "predict": predict,
    }
    return PolicyRequest(**fields | kwargs)


def text_of(policy: Any, **kwargs: Any) -> str:
    (completion,) = policy.complete([request(**kwargs)], Sampling())
    assert isinstance(completion, Completion)
    assert (completion.token_ids, completion.prompt_ids, completion.logprobs) == ((), (), None)
    return completion.text


def test_the_oracle_writes_true_states_and_the_games_optimal_actions() -> None:
    assert text_of(OraclePolicy()) == (
        "<think><observation>S</observation><prediction>after Up</prediction></think>"
        "<answer>Up</answer>"
    )
    plan = {"oracle": lambda: ("Up", "Down"), "response_format": ResponseFormat.PLAIN}
    for separator in ("||", ";"):
        policy = make_policy(PolicySpec(kind="oracle", separator=separator))
        assert text_of(policy, **plan) == f"<think></think><answer>Up {separator} Down</answer>"


@pytest.mark.parametrize("oracle", [None, lambda: ()])
def test_the_oracle_refuses_a_world_without_solver(oracle: Any) -> None:
    with pytest.raises(ConfigError, match="'oracle' was asked for an action"):
        text_of(OraclePolicy(), oracle=oracle)


@pytest.mark.parametrize("response_format", list(ResponseFormat))
@pytest.mark.parametrize("max_actions", [1, 3])
def test_random_answers_are_well_formed(response_format: ResponseFormat, max_actions: int) -> None:
    for seed in range(20):
        text = text_of(
            RandomPolicy(), seed=seed, response_format=response_format, max_actions=max_actions
        )
        parsed = parse_response(text, response_format, action_names=NAMES, max_actions=max_actions)
        assert parsed.status is ParseStatus.OK
        assert parsed.num_emitted == max_actions
        if response_format is ResponseFormat.WORLD_MODEL:
            assert parsed.observation == "S"
            assert parsed.prediction == "after " + "+".join(parsed.actions)


def test_random_actions_are_uniform_and_independent() -> None:
    requests = [
        request(seed=seed, max_actions=2, response_format=ResponseFormat.ANSWER_ONLY)
        for seed in range(4000)
    ]
    counts = Counter(
        completion.text for completion in RandomPolicy().complete(requests, Sampling())
    )
    assert len(counts) == 16
    # 250 expected of each pair; five standard deviations are 77.
    assert all(abs(count - 250) < 77 for count in counts.values())


def test_random_answers_depend_on_their_own_seed_alone() -> None:
    requests = [request(seed=seed, max_actions=4) for seed in range(10)]
    together = RandomPolicy().complete(requests, Sampling())
    assert [RandomPolicy().complete([r], Sampling())[0] for r in requests] == together


@pytest.mark.parametrize(("asked", "allowed", "written"), [(0, 3, 3), (2, 3, 2), (5, 3, 3)])
def test_how_many_random_actions(asked: int, allowed: int, written: int) -> None:
    text = text_of(RandomPolicy(actions_per_turn=asked), max_actions=allowed)
    assert parse_response(text, "world_model").num_emitted == written


def test_random_answers_hold_the_thought_they_are_given() -> None:
    policy = make_policy(PolicySpec(kind="random", actions_per_turn=2, thought="I try."))
    parsed = parse_response(text_of(policy, max_actions=3), "world_model")
    assert (parsed.status, parsed.thought, parsed.num_emitted) == (ParseStatus.OK, "I try.", 2)


def test_random_answers_use_the_separator_they_are_given() -> None:
    policy = make_policy(PolicySpec(kind="random", separator=";"))
    parsed = parse_response(text_of(policy, max_actions=3), "world_model", separator=";")
    assert len(parsed.actions) == 3


def test_of_equally_likely_states_always_the_same_is_taken() -> None:
    assert likeliest({"a": 0.4, "c": 0.4, "b": 0.2}) == "a"
    assert likeliest({"c": 0.4, "b": 0.2, "a": 0.4}) == "c"


def test_a_script_answers_call_by_call_and_keeps_to_its_last_line() -> None:
    policy = ScriptedPolicy(["one", Completion(text="two", token_ids=(1,))])
    calls = [policy.complete([request(), request()], Sampling()) for _ in range(3)]
    assert [[c.text for c in call] for call in calls] == [["one"] * 2, ["two"] * 2, ["two"] * 2]
    assert calls[1][0].token_ids == (1,)
    assert [len(batch) for batch in policy.batches] == [2, 2, 2]


def test_a_scripted_function_sees_the_request() -> None:
    policy = ScriptedPolicy(lambda asked: f"{asked.seed}", name="echo")
    answers = policy.complete([request(seed=4), request(seed=2)], Sampling())
    assert [answer.text for answer in answers] == ["4", "2"]
    assert policy.name == "echo"


def test_an_unknown_policy_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="unknown policy 'oracel'; did you mean 'oracle'"):
        make_policy(PolicySpec(kind="oracel"))


def test_a_policy_in_plain_values_can_be_sent_to_another_process() -> None:
    spec = PolicySpec(kind="random", max_batch=3)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert make_policy(spec).name == "random"


def test_baselines_load_no_torch(root: Path) -> None:
    code = (
        "import sys\n"
        "from steps.policies.base import PolicySpec, make_policy\n"
        "make_policy(PolicySpec(kind='random')), make_policy(PolicySpec(kind='oracle'))\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0


def test_oracle_wins_where_random_play_often_loses() -> None:
    settings = RolloutSettings(prompt=PromptSettings(style="state_only"))  # type: ignore[arg-type]
    specs = [EpisodeSpec(env_seed=seed, sampling_seed=seed) for seed in range(400)]
    wins = {}
    for policy in (OraclePolicy(), RandomPolicy()):
        episodes = run_episodes(
            specs, env_id="corridor", make_env=Corridor, policy=policy, settings=settings
        )
        assert all(turn.parsed.is_well_formed for e in episodes for turn in e.turns)
        assert {e.stop_reason for e in episodes} <= {
            StopReason.TERMINATED,
            StopReason.ACTION_BUDGET,
        }
        wins[policy.name] = sum(episode.success for episode in episodes)
    assert wins["oracle"] == 400
    # From the middle a walk of at most ten steps wins with 1/2 - 1/64; a standard deviation is 10.
    assert abs(wins["random"] - 193.75) < 50
