"""An update from made-up episodes: what is learned, with which numbers, and when nothing is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from conf.schema import Config
from steps.agent.records import Message, Trajectory, Turn
from steps.errors import StageError
from steps.policies.chat_template import encode_prompts
from steps.training.ppo_batch import PPOSample, token_advantages
from steps.training.ppo_learner import Learner, build_learner
from steps.training.ppo_update import estimate, learn
from steps.training.tokenization import system_length
from steps.workers import Peers
from tests.training.episodes import make_trajectory, make_turn
from tests.training.toys import same_weights, toy_config, untrained

SYSTEM, USER = Message(role="system", content="S"), Message(role="user", content="A")
ANSWER = "<answer>Left</answer>"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return untrained(tmp_path_factory.mktemp("update"), toy_config())


def make_learner(model_dir: str, **changes: Any) -> Learner:
    config: Config = toy_config()
    config.prompt.history = "full"
    config.ppo.advantage, config.ppo.lr, config.ppo.critic_lr = "token", 0.0, 0.0
    config.ppo.ppo_epochs, config.ppo.minibatch_size = 1, 100
    for name, value in changes.items():
        assert hasattr(config.ppo, name)
        setattr(config.ppo, name, value)
    return build_learner(Peers(), config, model_dir, "")


def answered(
    learner: Learner, chat: Sequence[Message], index: int, reward: float, answer: str = ANSWER
) -> Turn:
    """A turn whose answer the model gave, with the log-probabilities that it has now."""
    (prompt,) = encode_prompts(learner.tokenizer, [chat])
    ids = learner.tokenizer(answer + "<|end|>")["input_ids"]
    logprobs = model_logprobs(learner, prompt + ids)[len(prompt) :]
    turn = make_turn(index, answer=1, reward=reward)
    completion = replace(
        turn.completion, prompt_ids=tuple(prompt), token_ids=tuple(ids), logprobs=tuple(logprobs)
    )
    return replace(turn, prompt=tuple(chat), completion=completion)


def model_logprobs(learner: Learner, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
    """Of each token given those before it, by a plain forward pass; the first has 0."""
    with torch.no_grad():
        logits = learner.actor(torch.tensor([ids])).logits[0]
    scores = torch.log_softmax(logits / temperature, -1)
    return [0.0, *(float(scores[i - 1, ids[i]]) for i in range(1, len(ids)))]


def two_turns(learner: Learner, reward: float, member: int = 0) -> Trajectory:
    """An episode of 19 tokens: system 3, user 3, header 1, answer 4, user 3, header 1, answer 4."""
    first = answered(learner, [SYSTEM, USER], 0, 0.0)
    chat = [SYSTEM, USER, Message(role="assistant", content=ANSWER), USER]
    return make_trajectory(first, answered(learner, chat, 1, reward), member=member)


def test_the_system_message_ends_where_the_next_one_begins(model_dir: str) -> None:
    learner = make_learner(model_dir)
    turn = two_turns(learner, 1.0).turns[0]
    assert system_length(learner.tokenizer, turn) == 3
    assert system_length(learner.tokenizer, replace(turn, prompt=(USER,))) == 0


def test_by_default_the_sampled_tokens_alone_are_learned(model_dir: str) -> None:
    learner = make_learner(model_dir)
    (sample,), _ = estimate(learner, [two_turns(learner, 1.0)])
    learned = [i for i, weight in enumerate(sample.tokens.loss_mask) if weight]
    assert learned == [7, 8, 9, 10, 15, 16, 17, 18]


def test_loss_on_all_learns_the_worlds_text_with_the_models_own_probabilities(
    model_dir: str,
) -> None:
    learner = make_learner(model_dir, loss_on="all")
    (sample,), _ = estimate(learner, [two_turns(learner, 1.0)])
    assert [i for i, weight in enumerate(sample.tokens.loss_mask) if weight] == list(range(3, 19))
    expected = model_logprobs(learner, sample.tokens.token_ids)
    assert sample.tokens.logprobs[3:] == pytest.approx(expected[3:], abs=1e-5)
    assert sample.tokens.logprobs[:3] == (0.0, 0.0, 0.0)
    metrics = learn(learner, [sample], 0)
    assert metrics["actor/approx_kl"] == pytest.approx(0.0, abs=1e-8)
    # entropy is still that of what was sampled
    sampled = [expected[i] for i in (7, 8, 9, 10, 15, 16, 17, 18)]
    assert metrics["actor/entropy"] == pytest.approx(-sum(sampled) / 8, rel=1e-4)


def test_episodes_whose_prompts_hold_other_tokens_than_were_sampled_are_counted(
    model_dir: str,
) -> None:
    """One of three: its second prompt begins otherwise than its first one went on."""
    learner = make_learner(model_dir, loss_on="all")
    whole = [two_turns(learner, float(member), member) for member in (0, 1)]
    samples, metrics = estimate(learner, [*whole, rewritten(two_turns(learner, 1.0, 2))])
    assert metrics["ppo/loss_on_fallback"] == pytest.approx(1 / 3)
    assert [sum(sample.tokens.loss_mask) for sample in samples] == [16, 16, 4, 4]
    plain = make_learner(model_dir)
    assert "ppo/loss_on_fallback" not in estimate(plain, whole)[1]


def test_where_most_prompts_do_the_setting_is_refused(model_dir: str) -> None:
    learner = make_learner(model_dir, loss_on="all")
    split = [rewritten(two_turns(learner, 1.0, member)) for member in (1, 2)]
    with pytest.raises(StageError, match=r"in 67% .*ppo\.loss_on=sampled"):
        estimate(learner, [two_turns(learner, 0.0), *split])


def rewritten(episode: Trajectory) -> Trajectory:
    """The second prompt with another token in the place of the first answer's second one."""
    first, second = episode.turns
    ids = second.completion.prompt_ids
    place = len(first.completion.prompt_ids) + 1
    other = (*ids[:place], ids[place] + 1, *ids[place + 1 :])
    completion = replace(second.completion, prompt_ids=other)
    return replace(episode, turns=(first, replace(second, completion=completion)))


def advantages_of(samples: Sequence[PPOSample]) -> list[list[float]]:
    return [
        [a for a, weight in zip(token_advantages(s), s.tokens.loss_mask, strict=True) if weight]
        for s in samples
    ]


def test_each_kind_of_advantage_reaches_the_tokens(model_dir: str) -> None:
    """A new critic says 0 everywhere: advantages are returns, before they are whitened."""
    common = {"normalize_advantages": False, "gamma": 0.5, "lam": 1.0}
    expected = {
        # each token further from the end costs a factor of 0.5; the context between doesn't count
        "token": [[0.5**n for n in (7, 6, 5, 4, 3, 2, 1, 0)]],
        "turn": [[0.5] * 4 + [1.0] * 4],
        # from turn to turn 0.25, inside a turn 0.5
        "bi_level": [[0.25 * 0.5**n for n in (3, 2, 1, 0)] + [0.5**n for n in (3, 2, 1, 0)]],
    }
    for advantage, numbers in expected.items():
        learner = make_learner(model_dir, advantage=advantage, gamma_turn=0.25, **common)
        samples, _ = estimate(learner, [two_turns(learner, 1.0)])
        assert advantages_of(samples) == [pytest.approx(row) for row in numbers], advantage


def test_grpo_needs_no_critic_and_compares_the_episodes_of_a_group(model_dir: str) -> None:
    learner = make_learner(
        model_dir, advantage="grpo", use_critic=False, normalize_advantages=False
    )
    assert learner.critic is None
    # [0, 1, 1, 2]: the mean is 1, the sample's deviation sqrt(2/3)
    episodes = [two_turns(learner, reward, i) for i, reward in enumerate((0.0, 1.0, 1.0, 2.0))]
    samples, _ = estimate(learner, episodes)
    far = 1.5**0.5
    assert [row[0] for row in advantages_of(samples)] == pytest.approx([-far, 0, 0, far], abs=1e-5)
    assert [set(row) for row in advantages_of(samples)] == [
        {row[0]} for row in advantages_of(samples)
    ]


def test_an_episodes_reward_waits_for_its_end(model_dir: str) -> None:
    learner = make_learner(
        model_dir, advantage="turn", reward_at="episode", gamma=0.5, normalize_advantages=False
    )
    episode = two_turns(learner, 1.0)
    early = replace(episode.turns[0], reward=3.0, penalty=-1.0)
    samples, _ = estimate(learner, [replace(episode, turns=(early, episode.turns[1]))])
    assert advantages_of(samples) == [[1.5] * 4 + [3.0] * 4]


def test_where_no_group_differs_nothing_moves_not_even_by_momentum(model_dir: str) -> None:
    learner = make_learner(
        model_dir, lr=0.01, critic_lr=0.01, exclude_zero_variance=True, weight_decay=0.1
    )
    assert learner.critic is not None
    differing = [two_turns(learner, reward, i) for i, reward in enumerate((0.0, 1.0))]
    samples, metrics = estimate(learner, differing)
    before = deepcopy(learner.actor)
    learn(learner, samples, 0)
    assert metrics["rollout/chosen_share"] == 1.0
    assert not same_weights(learner.actor, before)  # there is momentum now
    actor, critic = deepcopy(learner.actor), deepcopy(learner.critic)
    samples, metrics = estimate(learner, [two_turns(learner, 1.0, i) for i in (0, 1)])
    assert samples == [] and metrics["rollout/chosen_share"] == 0.0
    assert learn(learner, samples, 1)["actor/loss"] == 0.0
    assert same_weights(learner.actor, actor) and same_weights(learner.critic, critic)


def test_beyond_the_target_kl_the_actor_stays_and_the_critic_goes_on(model_dir: str) -> None:
    def trained(target_kl: float, epochs: int) -> tuple[Learner, dict[str, float]]:
        learner = make_learner(
            model_dir, lr=0.01, critic_lr=0.01, minibatch_size=1, ppo_epochs=epochs,
            target_kl=target_kl,
        )  # fmt: skip
        samples, _ = estimate(learner, [two_turns(learner, i, i) for i in (0, 1)])
        return learner, learn(learner, samples, 0)

    # Two minibatches of eight tokens a pass: the first can't have moved yet, the second has.
    free, without = trained(0.0, 3)
    short, first = trained(1e-9, 1)
    long, metrics = trained(1e-9, 3)
    assert "actor/update_share" not in without
    assert (first["actor/update_share"], metrics["actor/update_share"]) == (1 / 2, 1 / 6)
    assert same_weights(short.actor, long.actor) and not same_weights(free.actor, long.actor)
    assert short.critic is not None and not same_weights(short.critic, long.critic)
    assert same_weights(free.critic, long.critic)
    second = 2 * first["actor/approx_kl"]  # the mean of both, of which one is 0
    assert second > 1e-6
    assert trained(0.999 * second, 1)[1]["actor/update_share"] == 1 / 2
    assert trained(1.001 * second, 1)[1]["actor/update_share"] == 1.0


def test_the_entropy_bonus_lowers_the_loss_by_the_entropy_of_the_learned_tokens(
    model_dir: str,
) -> None:
    losses = []
    for coefficient in (0.0, 0.5):
        learner = make_learner(model_dir, entropy_coef=coefficient)
        samples, _ = estimate(learner, [two_turns(learner, 1.0)])
        losses.append(learn(learner, samples, 0)["actor/loss"])
    ids = samples[0].tokens.token_ids
    with torch.no_grad():
        scores = torch.log_softmax(learner.actor(torch.tensor([ids])).logits[0], -1)
    nats = [-float((scores[i - 1].exp() * scores[i - 1]).sum()) for i in range(7, 11)]
    nats += [-float((scores[i - 1].exp() * scores[i - 1]).sum()) for i in range(15, 19)]
    assert losses[0] - losses[1] == pytest.approx(0.5 * sum(nats) / 8, rel=1e-4)
    assert 0 < sum(nats) / 8 < math.log(learner.actor.config.vocab_size)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_anchor_adds_its_share_to_the_loss(temperature: float, model_dir: str) -> None:
    """Actor and reference are compared at the temperature of sampling."""
    plain = make_learner(model_dir, entropy_coef=0.0)
    anchored = make_learner(model_dir, entropy_coef=0.0, kl_coef=0.25)
    with torch.no_grad():
        assert anchored.reference is not None
        for parameter in anchored.reference.parameters():
            parameter.mul_(1.1)
    results = []
    for learner in (plain, anchored):
        learner.config.sampling.temperature = temperature
        samples, _ = estimate(learner, [two_turns(learner, 1.0)])
        results.append(learn(learner, samples, 0))
    ids = samples[0].tokens.token_ids
    mine = model_logprobs(anchored, ids, temperature)
    anchored.actor = anchored.reference
    theirs = model_logprobs(anchored, ids, temperature)
    ratios = [theirs[i] - mine[i] for i in (7, 8, 9, 10, 15, 16, 17, 18)]
    kl = sum(math.exp(x) - x - 1 for x in ratios) / 8
    assert kl > 0.001 and max(ratios) < 2
    assert results[1]["actor/reference_kl"] == pytest.approx(kl, rel=1e-3)
    difference = results[1]["actor/loss"] - results[0]["actor/loss"]
    assert difference == pytest.approx(0.25 * kl, rel=1e-3)
