"""An update against a plain loop over single tokens: its numbers and the weights that come of it.

Both optimizers are plain gradient descent, so that a gradient's length shows in the weights.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from steps.agent.records import TokenSample
from steps.training.optimizers import Optimizers
from steps.training.ppo_batch import PPOSample
from steps.training.ppo_learner import Learner, build_learner
from steps.training.ppo_update import learn
from steps.workers import Peers
from tests.training.toys import same_weights, toy_config, untrained

LR, CRITIC_LR = 0.02, 0.05
TEMPERATURE, ENTROPY_COEF = 0.5, 0.05
CLIP_LOW, CLIP_HIGH, DUAL_CLIP, VALUE_CLIP = 0.1, 0.4, 2.0, 0.1

RATIOS = (1.0, 1.25, 1.6, 0.8, 0.5, 3.0)
"""Of probabilities now to those of sampling; tokens take them in turn, with either sign of A."""
LENGTHS = ((3, 10), (5, 11), (2, 14), (4, 8))
"""Tokens of the prompt, and of all, in each sample: 7, 6, 12 and 4 are learned."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return untrained(tmp_path_factory.mktemp("plain"), toy_config())


def make_learner(model_dir: str, *, seed: int = 0, **changes: Any) -> Learner:
    config = toy_config()
    config.seed, config.sampling.temperature = seed, TEMPERATURE
    settings = {
        "lr": LR, "critic_lr": CRITIC_LR, "ppo_epochs": 2, "minibatch_size": 2,
        "clip_low": CLIP_LOW, "clip_high": CLIP_HIGH, "dual_clip": DUAL_CLIP,
        "value_clip": VALUE_CLIP, "entropy_coef": ENTROPY_COEF, **changes,
    }  # fmt: skip
    for name, value in settings.items():
        assert hasattr(config.ppo, name)
        setattr(config.ppo, name, value)
    learner = build_learner(Peers(), config, model_dir, "")
    assert learner.critic is not None
    with torch.no_grad():
        learner.critic.head.weight.copy_(torch.linspace(-0.2, 0.3, 32))
    learner.actor_optimizer = Optimizers([torch.optim.SGD(learner.actor.parameters(), lr=LR)])
    learner.critic_optimizer = Optimizers(
        [torch.optim.SGD(learner.critic.parameters(), lr=CRITIC_LR)]
    )
    return learner


def scores_of(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """`[T, V]` log-probabilities of what follows each token, as sampling draws it."""
    return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0] / TEMPERATURE, -1)


def made_up(learner: Learner) -> list[PPOSample]:
    """Four samples of token-level decisions, with ratios, advantages and values for every bound."""
    rng = np.random.default_rng(5)
    samples = []
    for number, (start, stop) in enumerate(LENGTHS):
        ids = tuple(int(token) for token in rng.integers(5, 90, stop))
        with torch.no_grad():
            scores = scores_of(learner.actor, ids)
        count = stop - start
        logs = [
            float(scores[t - 1, ids[t]]) - math.log(RATIOS[t % len(RATIOS)])
            for t in range(start, stop)
        ]
        returns = rng.normal(size=count)
        samples.append(
            PPOSample(
                tokens=TokenSample(
                    trajectory_id=str(number),
                    token_ids=ids,
                    loss_mask=(0.0,) * start + (1.0,) * count,
                    turn_of_token=(-1,) * start + (0,) * count,
                    logprobs=(0.0,) * start + tuple(logs),
                ),
                positions=tuple(range(start - 1, stop - 1)),
                decision_of=(-1,) * start + tuple(range(count)),
                rewards=(0.0,) * count,
                turn_ends=(False,) * (count - 1) + (True,),
                episode=number,
                group=number,
                values=returns + rng.normal(size=count) * 0.5,
                advantages=rng.normal(size=count),
                returns=returns,
            )
        )
    return samples


def learned(learner: Learner, samples: list[PPOSample], step: int = 0) -> tuple[Any, list[Any]]:
    """What `learn` tells, and the numbers of the samples in each minibatch of it."""
    batches: list[list[int]] = []

    def record(model: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        rows = kwargs["input_ids"].tolist()
        starts = [list(sample.tokens.token_ids[:8]) for sample in samples]
        batches.append([starts.index(row[:8]) for row in rows])

    handle = learner.actor.register_forward_pre_hook(record, with_kwargs=True)
    metrics = learn(learner, samples, step)
    handle.remove()
    return metrics, batches


def stepped(model: torch.nn.Module, loss: torch.Tensor, *, lr: float, longest: float) -> float:
    """One step down the gradient, cut to length `longest`; its length before."""
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= lr * min(1.0, longest / norm) * gradient
    return norm


def actor_step(
    actor: Any, batch: Sequence[PPOSample], sums: dict[str, float], *, longest: float
) -> None:
    loss, num = torch.tensor(0.0), 0
    for sample in batch:
        ids, first = sample.tokens.token_ids, sample.positions[0] + 1
        scores = scores_of(actor, ids)
        for t in range(first, len(ids)):
            log_ratio = scores[t - 1, ids[t]] - sample.tokens.logprobs[t]
            ratio, advantage = log_ratio.exp(), float(sample.advantages[t - first])
            objective = ratio * advantage
            if advantage > 0 and ratio > 1 + CLIP_HIGH:
                objective = torch.tensor((1 + CLIP_HIGH) * advantage)
                sums["high"] += 1
            elif advantage < 0 and ratio < 1 - CLIP_LOW:
                objective = torch.tensor((1 - CLIP_LOW) * advantage)
                sums["low"] += 1
            elif advantage < 0 and ratio > DUAL_CLIP:
                objective = torch.tensor(DUAL_CLIP * advantage)
                sums["dual"] += 1
            nats = -(scores[t - 1].exp() * scores[t - 1]).sum()
            loss = loss - objective - ENTROPY_COEF * nats
            sums["kl"] += min(float((ratio - 1 - log_ratio).detach()), 10.0)
            num += 1
    sums["loss"] += float(loss.detach())
    sums["tokens"] += num
    sums["norm"] += stepped(actor, loss / num, lr=LR, longest=longest)


def critic_step(
    critic: Any, batch: Sequence[PPOSample], sums: dict[str, float], *, longest: float
) -> None:
    loss, num = torch.tensor(0.0), 0
    for sample in batch:
        values = critic(torch.tensor([sample.tokens.token_ids]))[0]
        for place, old, target in zip(sample.positions, sample.values, sample.returns, strict=True):
            error, moved = values[place] - float(target), values[place].item() - old
            cut = old + math.copysign(VALUE_CLIP, moved) - target
            if abs(moved) > VALUE_CLIP and abs(cut) > abs(error.item()):
                error = torch.tensor(cut, dtype=torch.float32)
                sums["cut values"] += 1
            loss = loss + error**2 / 2
            num += 1
    sums["critic loss"] += float(loss.detach())
    norm = stepped(critic, loss / num, lr=CRITIC_LR, longest=longest)
    sums["critic norm"] += norm


@pytest.mark.parametrize("max_grad_norm", [0.01, 1000.0, 0.0])
def test_an_update_is_that_of_a_plain_loop_over_its_tokens(
    max_grad_norm: float, model_dir: str
) -> None:
    learner = make_learner(model_dir, max_grad_norm=max_grad_norm)
    actor, critic = deepcopy(learner.actor), deepcopy(learner.critic)
    samples = made_up(learner)
    metrics, batches = learned(learner, samples)
    assert [len(batch) for batch in batches] == [2] * 4
    sums: dict[str, float] = defaultdict(float)
    longest = max_grad_norm or math.inf
    for batch in batches:
        actor_step(actor, [samples[i] for i in batch], sums, longest=longest)
        critic_step(critic, [samples[i] for i in batch], sums, longest=longest)
    assert min(sums[bound] for bound in ("high", "low", "dual", "cut values")) > 3
    assert (sums["norm"] / 4 > longest) == (sums["critic norm"] / 4 > longest) == (longest < 1)

    returns = np.concatenate([sample.returns for sample in samples])
    errors = returns - np.concatenate([sample.values for sample in samples])
    expected = {
        "actor/loss": sums["loss"] / sums["tokens"],
        "actor/clip_fraction": (sums["high"] + sums["low"]) / sums["tokens"],
        "actor/approx_kl": sums["kl"] / sums["tokens"],
        "actor/grad_norm": sums["norm"] / 4,
        "critic/loss": sums["critic loss"] / sums["tokens"],
        "critic/explained_variance": 1 - float(np.mean(errors**2) / np.var(returns)),
    }
    assert sums["tokens"] == 2 * (7 + 6 + 12 + 4)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert critic is not None and learner.critic is not None
    for mine, by_hand in ((learner.actor, actor), (learner.critic, critic)):
        for one, other in zip(mine.parameters(), by_hand.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_each_seed_and_each_step_has_its_own_order_of_samples(model_dir: str) -> None:
    orders = {}
    for seed in range(3):
        learner = make_learner(model_dir, seed=seed, lr=0.0, critic_lr=0.0, minibatch_size=1)
        samples = made_up(learner)
        for step in range(3):
            orders[seed, step] = learned(learner, samples, step)[1]
        assert learned(learner, samples, 2)[1] == orders[seed, 2]
    assert len({str(order) for order in orders.values()}) == 9
    for order in orders.values():  # two passes, each over all samples
        assert sorted(order[:4]) == sorted(order[4:]) == [[0], [1], [2], [3]]


def test_once_the_critic_is_warm_the_actor_learns(model_dir: str) -> None:
    learner = make_learner(model_dir, critic_warmup=1)
    samples, before = made_up(learner), deepcopy(learner.actor)
    assert learned(learner, samples, 0)[1] == []
    assert same_weights(learner.actor, before)
    learned(learner, samples, 1)
    assert not same_weights(learner.actor, before)


@pytest.mark.parametrize("broken", ["advantages", "returns"])
def test_a_gradient_that_is_no_number_moves_nothing(broken: str, model_dir: str) -> None:
    learner = make_learner(model_dir)
    samples = made_up(learner)
    for sample in samples:
        setattr(sample, broken, sample.returns * math.nan)
    actor, critic = deepcopy(learner.actor), deepcopy(learner.critic)
    learn(learner, samples, 0)
    assert critic is not None and learner.critic is not None
    assert same_weights(learner.actor, actor) == (broken == "advantages")
    assert same_weights(learner.critic, critic) == (broken == "returns")
