"""Likelihoods of true answers under models whose every logit is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import conf
from conf.schema import Config
from steps.agent.parsing import parse_response, spans
from steps.agent.records import Message, SFTExample
from steps.settings import env_factory
from steps.training import teacher_forced
from steps.training.teacher_forced import scores, tokenized, true_answers
from steps.training.tiny_model import build_tokenizer
from steps.training.tokenization import SFTRow
from steps.workers import Peers
from tests.training.fakes import KnownModel, prophet, uniform
from tests.training.toys import finetuned, toy_config

TOKENIZER = build_tokenizer()
SIZE = len(TOKENIZER)
ANSWERS = (
    "<think><observation>P_</observation>go<prediction>_P</prediction></think>"
    "<answer>Right</answer>",
    "<think><observation>_P</observation><prediction>P_</prediction></think><answer>Left</answer>",
)


def example(response: str) -> SFTExample:
    return SFTExample(
        prompt=(Message(role="user", content="P_"),),
        response=response,
        spans=spans(response, "world_model"),
        trajectory_id="t",
        turn_index=0,
        puzzle_hash="p",
        split="probe",
    )


def rows_of(*answers: str, longest: int = 1024) -> list[SFTRow]:
    return tokenized([example(each) for each in answers], TOKENIZER, longest=longest)


def forced(model: KnownModel, *answers: str) -> dict[str, float]:
    found: dict[str, float] = scores(Peers(), model, rows_of(*answers))
    return found


def test_a_model_that_knows_nothing_has_the_likelihood_of_chance() -> None:
    found = forced(uniform(SIZE), *ANSWERS)
    for kind in ("observation", "thought", "prediction", "answer"):
        assert found[f"{kind}_nll"] == pytest.approx(math.log(SIZE))
        assert found[f"{kind}_tokens"] == found[f"{kind}_exact"] == 0.0


def test_a_model_that_knows_all_has_every_token_as_its_first_choice() -> None:
    found = forced(prophet(SIZE, odds=9.0), *ANSWERS)
    for kind in ("observation", "thought", "prediction", "answer"):
        # 9 of 9 + (SIZE - 1) chances.
        assert found[f"{kind}_nll"] == pytest.approx(-math.log(9 / (8 + SIZE)))
        assert found[f"{kind}_tokens"] == found[f"{kind}_exact"] == 1.0


def test_each_kind_of_span_is_judged_by_its_own_tokens() -> None:
    (right,) = TOKENIZER("Right", add_special_tokens=False)["input_ids"]
    (left,) = TOKENIZER("Left", add_special_tokens=False)["input_ids"]
    found = forced(prophet(SIZE, odds=9.0, unknown=frozenset({right})), *ANSWERS)
    assert found["observation_exact"] == found["prediction_exact"] == 1.0
    # One answer of two is known.
    assert found["answer_tokens"] == found["answer_exact"] == 1 / 2
    assert found["answer_nll"] == pytest.approx((math.log(SIZE) - math.log(9 / (8 + SIZE))) / 2)
    board = TOKENIZER("_", add_special_tokens=False)["input_ids"]
    found = forced(prophet(SIZE, odds=9.0, unknown=frozenset(board)), ANSWERS[0])
    # `P_` is two tokens: one of them is right, and no observation is as a whole.
    assert (found["observation_tokens"], found["observation_exact"]) == (1 / 2, 0.0)
    assert found["thought_exact"] == found["answer_exact"] == 1.0
    assert left != right


def test_kinds_that_no_answer_has_are_left_out() -> None:
    found = forced(uniform(SIZE), ANSWERS[1])
    assert not [key for key in found if key.startswith(("thought", "tag"))]
    assert scores(Peers(), uniform(SIZE), []) == {}


def test_answers_longer_than_the_context_are_left_out() -> None:
    lengths = [len(row.token_ids) for row in rows_of(*ANSWERS)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[1]
    assert len(rows_of(*ANSWERS, longest=lengths[0])) == 1


def test_ranks_read_a_share_each() -> None:
    class Half(Peers):
        def sum(self, values):  # type: ignore[no-untyped-def]
            return list(values)

    model = uniform(SIZE)
    scores(Half(1, 2), model, rows_of(*[ANSWERS[0]] * 5))
    assert model.num_rows == 2


def world_model_config() -> Config:
    return conf.compose(experiment="spa_coords", overrides=["workers=1"])


def test_true_answers_are_well_formed_and_hold_the_truth() -> None:
    config = world_model_config()
    examples = true_answers(config, env_factory(config), [5, 6, 7])
    assert {row.trajectory_id.split("-")[1] for row in examples} == {"s5", "s6", "s7"}
    env = env_factory(config)()
    env.reset(seed=5)
    world = env.unwrapped
    first = parse_response(examples[0].response, "world_model", action_names=world.action_names)  # type: ignore[attr-defined]
    assert first.is_well_formed
    assert examples[0].prompt[-1].content == world.describe("grid")  # type: ignore[attr-defined]
    assert first.observation == world.describe("grid_coords")  # type: ignore[attr-defined]
    possible = world.possible_next(first.actions, "grid")  # type: ignore[attr-defined]
    assert first.prediction == max(possible, key=possible.get)
    assert examples == true_answers(config, env_factory(config), [5, 6, 7])


def test_what_self_play_teaches_is_not_what_is_measured() -> None:
    """On the slippery lake the state that came is not always the likeliest one."""
    taught = [conf.compose(overrides=[f"selfplay.prediction={name}"]) for name in
              ("likeliest", "sampled")]  # fmt: skip
    likeliest, sampled = (true_answers(each, env_factory(each), range(20)) for each in taught)
    assert likeliest == sampled


def test_a_model_directory_is_measured(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = toy_config()
    found = teacher_forced.measure(config, finetuned(tmp_path, config), range(8), cores=1)
    # The answer is one token of two that the model holds for equally likely.
    assert found["answer_nll"] == pytest.approx(math.log(2), abs=0.25)
    assert set(found) == {"answer_nll", "answer_tokens", "answer_exact"}
    assert replace(config) == toy_config()
