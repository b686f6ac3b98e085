"""The benchmark of rollouts: its tokenizer, its lengths, and what it asks of vLLM's own loop."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("steps.policies.vllm_engine")

from benchmarks.rollout import Asked, Measured, asked_of, build_tokenizer, engine_steps
from steps.agent.prompts import PromptSettings
from steps.agent.records import Completion, FinishReason, Message, PolicyRequest, ResponseFormat
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.agent.seeds import mix_seed
from tests.agent.worlds import Corridor


def test_the_tokenizer_has_a_piece_for_every_id_and_loses_nothing() -> None:
    tokenizer = build_tokenizer()
    pieces = tokenizer.convert_ids_to_tokens(list(range(49152)))
    assert len(set(pieces)) == 49152 and None not in pieces
    text = "Player (P) is at (0,1); the quick brown fox √"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("the slippery")["input_ids"]) < len("the slippery") / 1.5


def test_lengths_have_the_mean_that_is_asked_for_and_depend_on_the_seed_alone() -> None:
    policy: Any = Measured.__new__(Measured)
    policy.mean_tokens = 50.0
    asked = [
        PolicyRequest(
            messages=(Message(role="user", content="x"),),
            seed=seed,
            response_format=ResponseFormat.PLAIN,
            max_actions=1,
        )
        for seed in range(4000)
    ]
    lengths = [policy._limit(each, 1000) for each in asked]
    assert sum(lengths) / 4000 == pytest.approx(50, abs=2)
    assert lengths[:5] == [policy._limit(each, 1000) for each in asked[:5]]
    assert policy._limit(asked[0], 3) <= 3


def test_generate_is_asked_turn_by_turn_with_the_seeds_of_the_episodes() -> None:
    class Writes:
        name = "writes"

        def complete(self, requests: list[PolicyRequest], sampling: object) -> list[Completion]:
            return [
                Completion(
                    text="", prompt_ids=(r.seed % 97,), token_ids=(1,) * (r.seed % 7),
                    finish_reason=FinishReason.STOP,
                )
                for r in requests
            ]  # fmt: skip

    specs = [EpisodeSpec(env_seed=0, sampling_seed=seed) for seed in (4, 9)]
    settings = RolloutSettings(prompt=PromptSettings(), max_turns=2)
    episodes = run_episodes(
        specs, env_id="corridor", make_env=Corridor, policy=Writes(), settings=settings
    )
    seeds = [mix_seed(4, 0), mix_seed(9, 0), mix_seed(4, 1), mix_seed(9, 1)]
    assert asked_of(episodes, specs) == [Asked([s % 97], s, s % 7) for s in seeds]


@pytest.mark.parametrize(
    ("episodes", "slots", "running", "steps"),
    [
        ([[5], [3], [2]], 1, 3, 10),
        ([[5], [3], [2]], 2, 3, 5),
        ([[2, 2], [4], [4]], 2, 2, 8),  # the last one enters at step 4
        ([[4], [4], [2, 2]], 2, 2, 8),
        ([[1, 1, 1, 1], [6], [6]], 2, 2, 10),
        ([[1, 1, 1, 1], [6], [6]], 2, 3, 9),  # in order of asking: its second turn waits till 6
        ([], 2, 2, 0),
    ],
)
def test_the_engine_steps_that_an_order_of_turns_needs(
    episodes: list[list[int]], slots: int, running: int, steps: int
) -> None:
    assert engine_steps(episodes, slots=slots, running=running) == steps
