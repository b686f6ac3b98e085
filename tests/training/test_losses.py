"""PPO, KL, entropy and value losses against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from steps.training.losses import entropy, k3, policy_loss, token_logprobs, value_loss


def _loss(ratio: float, advantage: float, **changes: float) -> tuple[float, float]:
    settings = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0, **changes}
    result = policy_loss(
        torch.tensor([[math.log(ratio)]]),
        torch.zeros(1, 1),
        torch.tensor([[advantage]]),
        torch.ones(1, 1),
        **settings,
    )
    return float(result.loss), result.clipped


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, 0),  # nothing moved
        (1.2, 1.0, -1.2, 0),  # inside the upper bound
        (1.5, 1.0, -1.28, 1),  # clip-higher: 1.28
        (0.5, 1.0, -0.5, 0),  # a good action that became rarer is never clipped
        (0.5, -1.0, 0.8, 1),  # lower bound 0.8
        (2.0, -1.0, 2.0, 0),  # a bad action that became likelier is paid in full
        (9.0, -1.0, 3.0, 0),  # ... up to the dual clip
    ],
)
def test_clipped_objective(ratio: float, advantage: float, loss: float, clipped: int) -> None:
    assert _loss(ratio, advantage) == (pytest.approx(loss, rel=1e-5), clipped)


def test_without_dual_clip_a_bad_action_is_paid_in_full() -> None:
    assert _loss(9.0, -1.0, dual_clip=0.0)[0] == pytest.approx(9.0, rel=1e-5)


def test_masked_tokens_add_nothing_and_get_no_gradient() -> None:
    logprobs = torch.zeros(1, 3, requires_grad=True)
    result = policy_loss(
        logprobs,
        torch.zeros(1, 3),
        torch.tensor([[5.0, 1.0, 7.0]]),
        torch.tensor([[0.0, 1.0, 0.0]]),
        clip_low=0.2,
        clip_high=0.28,
    )
    result.loss.backward()
    assert float(result.loss.detach()) == -1.0
    assert logprobs.grad is not None and logprobs.grad.tolist() == [[0.0, -1.0, 0.0]]


def test_the_anchor_adds_the_k3_estimate() -> None:
    result = policy_loss(
        torch.tensor([[math.log(0.5)]]),
        torch.tensor([[math.log(0.5)]]),
        torch.zeros(1, 1),
        torch.ones(1, 1),
        clip_low=0.2,
        clip_high=0.2,
        reference_logprobs_BT=torch.tensor([[math.log(0.25)]]),
        kl_coef=0.1,
    )
    estimate = 0.5 - math.log(0.5) - 1  # r - log r - 1 with r = 0.25 / 0.5
    assert result.reference_kl == pytest.approx(estimate, rel=1e-5)
    assert float(result.loss) == pytest.approx(0.1 * estimate, rel=1e-5)


def test_k3_averages_to_the_kl_divergence() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.25, 0.25])
    expected = float((p * (p / q).log()).sum())
    assert float((p * k3((q / p).log())).sum()) == pytest.approx(expected, rel=1e-5)
    assert float(k3(torch.tensor(0.0))) == 0.0


def test_token_logprobs_speak_of_the_token_itself() -> None:
    logits = torch.log(torch.tensor([[[0.1, 0.9], [0.75, 0.25], [0.5, 0.5]]]))
    logprobs = token_logprobs(logits, torch.tensor([[0, 1, 0]]))
    assert logprobs[0].tolist() == pytest.approx([0.0, math.log(0.9), math.log(0.75)], rel=1e-5)


def test_temperature_scales_the_logits_of_logprobs() -> None:
    logits = torch.tensor([[[0.0, 2.0], [0.0, 0.0]]])
    (got,) = token_logprobs(logits, torch.tensor([[0, 1]]), temperature=2.0)[:, 1].tolist()
    assert got == pytest.approx(math.log(math.e / (1 + math.e)), rel=1e-5)


def test_entropy_of_a_uniform_and_of_a_certain_token() -> None:
    logits = torch.tensor([[[0.0, 0.0, 0.0, 0.0], [100.0, 0.0, 0.0, 0.0], [0.0] * 4]])
    assert entropy(logits, num_tokens=3)[0].tolist() == pytest.approx(
        [0.0, math.log(4), 0.0], abs=1e-5
    )


def test_entropy_is_that_of_the_distribution_drawn_from() -> None:
    logits = torch.tensor([[[0.0, 2.0], [0.0, 0.0]]])
    high, low = math.e / (1 + math.e), 1 / (1 + math.e)  # at temperature 2
    nats = -high * math.log(high) - low * math.log(low)
    (got,) = entropy(logits, num_tokens=2, temperature=2.0)[:, 1].tolist()
    assert got == pytest.approx(nats, rel=1e-5)


def test_value_loss_takes_the_larger_of_plain_and_clipped() -> None:
    values, old, returns = torch.tensor([[2.0]]), torch.tensor([[0.0]]), torch.tensor([[2.0]])
    # moved by 2 where 0.5 is allowed: the clipped prediction 0.5 is 1.5 away from the return
    assert float(value_loss(values, old, returns, torch.ones(1, 1), clip=0.5)) == 0.5 * 1.5**2
    assert float(value_loss(values, old, returns, torch.ones(1, 1), clip=0.0)) == 0.0
    assert float(value_loss(values, old, returns, torch.zeros(1, 1), clip=0.5)) == 0.0


def test_logits_of_the_last_positions_give_the_same_logprobs() -> None:
    logits = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([[0, 1, 2, 3, 4], [6, 5, 4, 3, 2]])
    whole, tail = token_logprobs(logits, tokens), token_logprobs(logits[:, -3:], tokens)
    assert tail[:, :3].tolist() == [[0.0] * 3] * 2
    assert tail[:, 3:].tolist() == whole[:, 3:].tolist()


def test_one_unlearned_token_cannot_outweigh_the_batch() -> None:
    assert float(k3(torch.tensor(15.0))) == 10.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [
        (1.0, 2.0, -2.0),  # d(-A exp(x))/dx = -A r
        (1.28001, 1.0, 0.0),  # beyond the upper bound nothing pushes on
        (1.25, 1.0, -1.25),  # between 1.2 and 1.28: only the higher bound lets it pass
        (0.79, -1.0, 0.0),  # beyond the lower bound
        (2.5, -1.0, 2.5),
        (3.1, -1.0, 0.0),  # beyond the dual clip: the loss is the constant 3
    ],
)
def test_where_the_objective_is_clipped_no_gradient_is_left(
    ratio: float, advantage: float, gradient: float
) -> None:
    logprobs = torch.tensor([[math.log(ratio)]], requires_grad=True)
    result = policy_loss(
        logprobs,
        torch.zeros(1, 1),
        torch.tensor([[advantage]]),
        torch.ones(1, 1),
        clip_low=0.2,
        clip_high=0.28,
        dual_clip=3.0,
    )
    result.loss.backward()
    assert logprobs.grad is not None
    assert float(logprobs.grad) == pytest.approx(gradient, rel=1e-5, abs=1e-6)


def test_the_objective_of_two_tokens_is_the_sum_of_theirs() -> None:
    # ratios 1.5 (advantage 1, clipped to 1.28) and 1.1 (advantage -2): -1.28 + 2.2
    result = policy_loss(
        torch.log(torch.tensor([[1.5, 1.1]])),
        torch.zeros(1, 2),
        torch.tensor([[1.0, -2.0]]),
        torch.ones(1, 2),
        clip_low=0.2,
        clip_high=0.28,
        dual_clip=3.0,
    )
    assert float(result.loss) == pytest.approx(0.92, rel=1e-5)
    assert result.clipped == 1
    # k3 of (old || new) at log ratios x: exp(x) - x - 1
    kl = (0.5 - math.log(1.5)) + (0.1 - math.log(1.1))
    assert result.approx_kl == pytest.approx(kl, rel=1e-5)


def test_the_anchor_pulls_towards_the_reference() -> None:
    # loss = kl_coef (q/p - log q/p - 1): its slope in log p is kl_coef (1 - q/p)
    logprobs = torch.tensor([[math.log(0.5), math.log(0.2)]], requires_grad=True)
    result = policy_loss(
        logprobs,
        logprobs.detach(),
        torch.zeros(1, 2),
        torch.ones(1, 2),
        clip_low=0.2,
        clip_high=0.2,
        reference_logprobs_BT=torch.log(torch.tensor([[0.25, 0.6]])),
        kl_coef=0.1,
    )
    result.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist()[0] == pytest.approx([0.1 * 0.5, 0.1 * -2.0], rel=1e-5)


@pytest.mark.parametrize(
    ("value", "loss", "gradient"),
    [
        (0.25, 0.5 * 1.75**2, -1.75),  # moved by less than 0.5: plain
        (0.75, 0.5 * 1.5**2, 0.0),  # beyond: the clipped 0.5 is further from 2, and doesn't move
        (-0.75, 0.5 * 2.75**2, -2.75),  # beyond on the wrong side: plain is the larger
    ],
)
def test_value_loss_and_its_gradient(value: float, loss: float, gradient: float) -> None:
    values = torch.tensor([[value]], requires_grad=True)
    result = value_loss(
        values, torch.zeros(1, 1), torch.tensor([[2.0]]), torch.ones(1, 1), clip=0.5
    )
    result.backward()
    assert values.grad is not None
    assert (float(result.detach()), float(values.grad)) == pytest.approx((loss, gradient))
