"""State perplexity by hand: models whose logits are known, and which tokens count."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

import conf
from steps.agent.rollout import EpisodeSpec, run_episodes
from steps.errors import DataError
from steps.policies.base import make_policy
from steps.policies.chat_template import render_prompts
from steps.settings import env_factory, policy_spec, prompt_settings, rollout_settings
from steps.training.perplexity import (
    prompt_around,
    read_states,
    scores,
    state_perplexity,
    visited_states,
)
from tests.training.fakes import KnownModel, uniform
from tests.training.templates import SHAPES, make_tokenizer


class Letters:
    """A tokenizer that cuts a text at given places."""

    def __init__(self, *cuts: int) -> None:
        self.cuts = cuts

    def __call__(self, texts: list[str], **_: object) -> dict[str, list[object]]:
        offsets = [list(pairwise((0, *self.cuts, len(text)))) for text in texts]
        return {
            "input_ids": [list(range(len(each))) for each in offsets],
            "offset_mapping": offsets,  # type: ignore[dict-item]
        }


@pytest.mark.parametrize("shape", SHAPES)
def test_of_a_model_that_knows_nothing_it_is_the_number_of_tokens(shape: str) -> None:
    tokenizer, _ = make_tokenizer(shape)
    size = len(tokenizer)
    config = conf.compose(overrides=["workers=1"])
    found = state_perplexity(
        config, uniform(size), tokenizer, state_formats=["grid", "coords"], seeds=[1, 2]
    )
    for each in found.values():
        assert each["perplexity"] == pytest.approx(size)
        assert each["perplexity_mean"] == pytest.approx(size)
        per_character = size ** (each["tokens"] / each["characters"])
        assert each["character_perplexity"] == pytest.approx(per_character)
    # A 4x4 grid is 16 cells and 3 ends of lines, a token each.
    assert found["grid"]["tokens"] == 19 * found["grid"]["states"]
    assert found["grid"]["states"] == found["coords"]["states"]


def test_long_states_weigh_more_in_one_mean_and_not_in_the_other() -> None:
    """Token 1 is expected with 1/2 after any token, token 2 with 1/8."""
    tokenizer, _ = make_tokenizer("tiny")
    one, two = (tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in "ab")
    chances = torch.full((len(tokenizer),), (1 - 1 / 2 - 1 / 8) / (len(tokenizer) - 2))
    chances[one], chances[two] = 1 / 2, 1 / 8
    model = KnownModel(lambda ids: chances.log().expand(*ids.shape, -1), len(tokenizer))
    found = scores(model, read_states(tokenizer, "x", ["aaa", "b"], "z"))
    # Three tokens of log 2 and one of log 8: six log 2 over four.
    assert found["perplexity"] == pytest.approx(2 ** (6 / 4))
    assert found["perplexity_mean"] == pytest.approx((2 + 8) / 2)
    assert found["character_perplexity"] == pytest.approx(2 ** (6 / 4))
    assert (found["states"], found["tokens"], found["characters"]) == (2, 4, 4)


@pytest.mark.parametrize(
    ("cuts", "inside"),
    [
        ((2, 4, 6), [False, True, True]),  # xx|st|at|yy
        ((1, 4, 7), [False, True, True]),  # x|xst|aty|y: two of three are the state's
        ((3, 7), [False, True]),  # xxs|taty|y: one of three isn't
        ((1, 3, 5, 7), [False, False, True]),  # x|xs|ta|ty|y: a half is no majority
    ],
)
def test_tokens_over_the_edge_belong_where_most_of_them_is(
    cuts: tuple[int, ...], inside: list[bool]
) -> None:
    (state,) = read_states(Letters(*cuts), "xx", ["stat"], "yy")
    assert list(state.is_state) == inside
    assert len(state.token_ids) == len(inside)  # nothing after the state is read


def test_the_first_token_of_all_has_nothing_before_it() -> None:
    (state,) = read_states(Letters(2), "", ["stat"], "")
    assert state.is_state == (False, True)


def test_the_prompt_is_cut_where_the_state_stands() -> None:
    tokenizer, _ = make_tokenizer("smollm2")
    config = conf.compose(profile="paper", overrides=["device=cpu"])
    before, after = prompt_around(config, prompt_settings(config), tokenizer)
    assert before.startswith("<|im_start|>system\n")
    assert before.endswith("Turn 1\nState:\n")
    assert after.startswith("\nYou have 10 actions left.")
    assert after.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("env", ["countdown", "bandit", "metamathqa", "frozenlake"])
def test_the_prompt_is_the_one_that_play_shows(env: str) -> None:
    tokenizer, _ = make_tokenizer("smollm2")
    overrides = ["device=cpu", "prompt.style=full", "prompt.history=full"]
    overrides += ["env.kwargs.check=exact"] if env == "metamathqa" else []
    config = conf.compose(profile="smoke", env=env, overrides=overrides)
    (played,) = run_episodes(
        [EpisodeSpec(env_seed=0, sampling_seed=0)],
        env_id=config.env.id,
        make_env=env_factory(config),
        policy=make_policy(policy_spec(config, "random")),
        settings=rollout_settings(config),
    )
    first = played.turns[0]
    before, after = prompt_around(config, prompt_settings(config), tokenizer)
    (shown,) = render_prompts(tokenizer, [first.prompt])
    assert before + first.state_shown + after == shown


def test_a_state_counts_once_a_puzzle_and_is_the_same_in_every_format() -> None:
    config = conf.compose(overrides=["workers=1"])
    settings = prompt_settings(config)
    one, two = (visited_states(config, settings, seeds) for seeds in ([1], [1, 2]))
    assert len(set(one)) == len(one) > 1
    assert two[: len(one)] == one
    assert all(len(state) == 19 for state in two)


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    tokenizer, _ = make_tokenizer("tiny")
    states = read_states(tokenizer, "x" * 50, ["aaa"], "")
    with pytest.raises(DataError, match="has 53 tokens, the model reads 1 to 40"):
        scores(uniform(len(tokenizer), max_positions=40), states)
    with pytest.raises(DataError, match="has 0 tokens"):
        scores(uniform(len(tokenizer)), [])


def test_batches_do_not_change_the_result() -> None:
    tokenizer, _ = make_tokenizer("tiny")
    states = read_states(tokenizer, "x", ["a", "bb", "abab" * 5], "y")
    size = len(tokenizer)
    weights = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    model = KnownModel(lambda ids: weights[ids], size)
    whole = scores(model, states)
    nats = [math.log(scores(model, [state])["perplexity"]) for state in states]
    tokens = [sum(state.is_state) for state in states]
    assert tokens == [1, 2, 20]
    mean = sum(n * t for n, t in zip(nats, tokens, strict=True)) / 23
    assert whole["perplexity"] == pytest.approx(math.exp(mean))
