"""One uniform number draws one token, by temperature and top-p."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steps.agent.records import Sampling
from steps.policies.drawing import draw, uniforms

LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()


def drawn(uniform: float, sampling: Sampling, logits: torch.Tensor = LOGITS) -> tuple[int, float]:
    token, logprob = draw(logits, torch.tensor([uniform]), sampling)
    return int(token), float(logprob)


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (0.94, 2), (0.96, 3), (0.9999, 3)],
)
def test_a_token_owns_its_probability_of_the_unit_interval(uniform: float, token: int) -> None:
    assert drawn(uniform, Sampling()) == (
        token,
        pytest.approx(float(LOGITS[0, token]), abs=1e-6),
    )


@pytest.mark.parametrize(
    ("top_p", "uniform", "token"),
    [
        # 0.5 and 0.3 reach 0.7: of 0.8, the first owns 0.625
        *((0.7, 0.62, 0), (0.7, 0.63, 1), (0.7, 0.9999, 1)),
        # 0.5 alone reaches these
        *((0.49, 0.9999, 0), (0.1, 0.9999, 0)),
        # three of them reach 0.9: of 0.95, the first two own 0.842
        *((0.9, 0.84, 1), (0.9, 0.85, 2), (0.9, 0.9999, 2)),
    ],
)
def test_top_p_drops_the_tail_and_reports_the_whole_distributions_probability(
    top_p: float, uniform: float, token: int
) -> None:
    assert drawn(uniform, Sampling(top_p=top_p)) == (
        token,
        pytest.approx(float(LOGITS[0, token]), abs=1e-6),
    )


def test_top_p_keeps_the_likeliest_wherever_they_stand() -> None:
    logits = torch.tensor([[0.05, 0.5, 0.15, 0.3]]).log()
    assert [drawn(u, Sampling(top_p=0.7), logits)[0] for u in (0.0, 0.62, 0.63, 0.999)] == [
        *(1, 1, 3, 3)
    ]


def test_temperature_sharpens_or_flattens() -> None:
    logits = torch.tensor([[0.25, 0.75]]).log()
    # squared, 1 to 9; square-rooted, 1 to sqrt(3)
    cold, hot = Sampling(temperature=0.5), Sampling(temperature=2.0)
    assert [drawn(u, cold, logits)[0] for u in (0.09, 0.11)] == [0, 1]
    assert drawn(0.11, cold, logits)[1] == pytest.approx(-0.10536, abs=1e-4)
    assert [drawn(u, hot, logits)[0] for u in (0.36, 0.37)] == [0, 1]
    assert drawn(0.37, hot, logits)[1] == pytest.approx(-0.45575, abs=1e-4)


def test_temperature_zero_takes_the_likeliest_and_reports_the_models_own_probability() -> None:
    token, logprob = drawn(0.99, Sampling(temperature=0.0))
    assert (token, logprob) == (0, pytest.approx(-0.693147, abs=1e-5))


def test_numbers_are_the_start_of_each_seeds_own_stream() -> None:
    seeds = [0, 1, 2**31, 2**63 - 1, 1]
    for seed, row in zip(seeds, uniforms(seeds, 7), strict=True):
        assert row.tolist() == np.random.Generator(np.random.Philox(seed)).random(7).tolist()
