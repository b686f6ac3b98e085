"""PPO on a game of two states: learns, from the sampled tokens alone, and resumes to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.schema import Config
from envs.splits import draw_seeds, split_of
from steps.agent.records import Trajectory
from steps.errors import DataError
from steps.policies.loading import load_model
from steps.settings import env_factory
from steps.tracking import NullTracker
from steps.training import ppo_learner, ppo_local, probe, tokenization
from steps.training.checkpoints import CheckpointStore, DirectoryCheckpoints
from steps.training.ppo_local import PPORun, train_ppo
from steps.training.probe import run_probe
from steps.workers import Peers
from tests.training.toys import (
    BreakingOff,
    PowerCutError,
    batches_of,
    finetuned,
    same_weights,
    toy_config,
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return finetuned(tmp_path_factory.mktemp("ppo"), toy_config())


def train(
    config: Config,
    model_dir: str,
    work: Path,
    *,
    tracker: NullTracker | None = None,
    checkpoints: CheckpointStore | None = None,
) -> PPORun:
    return train_ppo(Peers(), config, model_dir, "f", work, tracker, checkpoints)


@contextmanager
def episodes_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[Trajectory]]]:
    """The episodes of each play, in training and probes."""
    plays: list[list[Trajectory]] = []
    play = probe.play

    def recording(*args: Any, **kwargs: Any) -> list[Trajectory]:
        plays.append(play(*args, **kwargs))
        return plays[-1]

    with monkeypatch.context() as patch:
        patch.setattr(probe, "play", recording)
        yield plays


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"advantage": "token", "kl_coef": 0.01},
        {"use_critic": False, "filter_ratio": 0.75, "optimizer": "muon", "lr": 5e-3},
        {"advantage": "bi_level", "gamma_turn": 0.95, "lam_turn": 0.95},
        {"advantage": "grpo", "use_critic": False, "normalize_advantages": False},
        {"reward_at": "episode", "reward_norm": "asym_clip", "reward_norm_group": "batch"},
    ],
)
def test_it_learns_which_door_the_prize_is_behind(
    changes: dict[str, Any], model_dir: str, tmp_path: Path
) -> None:
    config, tracker = toy_config(), NullTracker()
    for name, value in changes.items():
        setattr(config.ppo, name, value)
    run = train(config, model_dir, tmp_path, tracker=tracker)
    success = [metrics["rollout/success"] for _, metrics in tracker.logged]
    assert 0.25 < success[0] < 0.75
    assert sum(success[-3:]) / 3 > 0.9
    assert run.steps == 20 and [step for step, _ in tracker.logged] == list(range(1, 21))
    # Of 64 answers a step; the chance of a malformed one is about 0.05.
    assert sum(metrics["rollout/format_rate"] for _, metrics in tracker.logged[-5:]) / 5 > 0.9


def test_an_update_learns_from_exactly_the_tokens_that_were_sampled(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config()
    config.ppo.total_steps, config.ppo.ppo_epochs = 1, 1
    config.ppo.lr = 0.0
    with (
        batches_of(ppo_learner, monkeypatch) as batches,
        episodes_of(monkeypatch) as plays,
    ):
        run = train(config, model_dir, tmp_path)
    completions = [turn.completion for episode in plays[0] for turn in episode.turns]
    sampled = sorted(completion.prompt_ids + completion.token_ids for completion in completions)
    longest = max(map(len, sampled))
    padding = pad_id(model_dir)
    learned = sorted(tuple(row) for batch in batches for row in batch)
    assert len(sampled) == 64 and [len(batch) for batch in batches] == [32, 32]
    assert [row[: len(ids)] for row, ids in zip(learned, sampled, strict=True)] == sampled
    assert all(set(row[len(ids) :]) <= {padding} for row, ids in zip(learned, sampled, strict=True))
    assert max(map(len, learned)) == longest
    # at a rate of zero the second minibatch still finds the probabilities of sampling
    assert run.curve[0]["actor/approx_kl"] == pytest.approx(0.0, abs=1e-8)
    assert run.curve[0]["actor/clip_fraction"] == 0.0


def pad_id(model_dir: str) -> int:
    return int(ppo_learner.load_tokenizer(model_dir).pad_token_id)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_interrupted_and_resumed_it_ends_with_the_same_weights_having_seen_the_same_puzzles(
    optimizer: str, model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config()
    config.ppo.total_steps, config.ppo.save_every, config.ppo.probe_every = 6, 2, 3
    config.ppo.optimizer, config.ppo.kl_coef = optimizer, 0.01
    config.ppo.lr_schedule, config.ppo.warmup_steps = "cosine", 2
    with episodes_of(monkeypatch) as whole_plays:
        whole = train(config, model_dir, tmp_path / "whole")
    with episodes_of(monkeypatch) as plays:
        with pytest.raises(PowerCutError):
            train(
                config,
                model_dir,
                tmp_path,
                checkpoints=BreakingOff(tmp_path / "store", last_step=4),
            )
        resumed = train(
            config, model_dir, tmp_path, checkpoints=DirectoryCheckpoints(tmp_path / "store")
        )
    assert same_weights(resumed.model, whole.model)
    assert not same_weights(resumed.model, load_model(model_dir))
    assert [without_time(point) for point in resumed.curve] == [
        without_time(point) for point in whole.curve
    ]
    expected = draw_seeds(env_factory(config), "train", 6 * 32, config.ppo.base_seed)
    assert seeds_of(whole_plays) == expected
    assert seeds_of(plays) == expected


def test_another_seed_trains_on_other_puzzles_and_is_probed_on_the_same(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config()
    config.ppo.total_steps, config.ppo.probe_every, config.ppo.probe_puzzles = 1, 1, 8
    trained, probed = {}, {}
    for config.seed in (0, 1):
        with episodes_of(monkeypatch) as plays:
            train(config, model_dir, tmp_path / str(config.seed))
        trained[config.seed] = {(each.env_seed, each.puzzle_hash) for each in plays[1]}
        probed[config.seed] = [each.env_seed for each in plays[2]]
        assert [each.env_seed for each in plays[0]] == probed[config.seed]  # before the first step
    assert min(trained[0])[0] // 10**8 == 0 and min(trained[1])[0] // 10**8 == 1
    assert {split_of(puzzle) for _, puzzle in trained[0] | trained[1]} == {"train"}
    assert probed[0] == probed[1] == sorted(set(probed[0])) and len(probed[0]) == 8


def without_time(point: dict[str, float]) -> dict[str, float]:
    return {
        name: value
        for name, value in point.items()
        if name != "ppo/seconds" and not name.startswith("timing_s/")
    }


def seeds_of(plays: list[list[Trajectory]]) -> list[int]:
    """One seed a group of each training play, in the order of playing; probes are left out."""
    return [episode.env_seed for play in plays if len(play) == 64 for episode in play[::2]]


def test_resumed_after_its_last_step_it_plays_no_more(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config()
    config.ppo.total_steps, config.ppo.save_every = 2, 2
    store = DirectoryCheckpoints(tmp_path / "store")
    done = train(config, model_dir, tmp_path, checkpoints=store)
    with episodes_of(monkeypatch) as plays:
        again = train(config, model_dir, tmp_path, checkpoints=store)
    assert plays == [] and again.steps == 2
    assert same_weights(again.model, done.model) and again.curve == done.curve


def test_a_step_without_a_sampled_token_is_an_error(model_dir: str, tmp_path: Path) -> None:
    config = toy_config()
    config.sampling.max_new_tokens, config.sampling.max_model_len = 1, 2
    with pytest.raises(DataError, match=r"step 1 \(100% of them context_full\).*max_model_len"):
        train(config, model_dir, tmp_path)


def test_a_time_limit_ends_it_after_the_step_that_passes_it(model_dir: str, tmp_path: Path) -> None:
    config = toy_config()
    config.ppo.time_limit_s = 1e-9
    assert train(config, model_dir, tmp_path).steps == 1


def test_the_rate_falls_with_the_time_limit_where_that_is_further_on_than_the_steps(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that stands still but in play, which takes ten seconds; the limit is forty."""
    clock = {"now": 0.0}
    play = probe.play

    def slow(*args: Any, **kwargs: Any) -> list[Trajectory]:
        clock["now"] += 10.0
        return play(*args, **kwargs)

    monkeypatch.setattr("steps.training.ppo_local.time.perf_counter", lambda: clock["now"])
    monkeypatch.setattr(probe, "play", slow)
    config = toy_config()
    config.ppo.total_steps, config.ppo.time_limit_s = 100, 40.0
    config.ppo.lr_schedule, config.ppo.lr = "linear", 0.001
    run = train(config, model_dir, tmp_path)
    rates = [point["actor/lr"] for point in run.curve]
    assert rates == pytest.approx([0.001, 0.00075, 0.0005, 0.00025])


def test_a_probe_takes_no_time_of_the_training(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that moves by a second whenever it is read, and by a thousand in a probe."""
    clock = {"now": 0.0}

    def read() -> float:
        clock["now"] += 1.0
        return clock["now"]

    def slow(*_: object, **__: object) -> dict[str, float]:
        clock["now"] += 1000.0
        return {"probe/success": 0.5}

    monkeypatch.setattr("steps.training.ppo_local.time.perf_counter", read)
    monkeypatch.setattr(probe, "run_probe", slow)
    config = toy_config()
    config.ppo.total_steps, config.ppo.probe_every = 2, 1
    run = train(config, model_dir, tmp_path)
    assert run.seconds < 100
    assert [point["timing_s/probe"] for point in run.curve] == [1001.0] * 3
    assert [point["step"] for point in run.curve] == [0, 1, 2]
    assert run.curve[0]["ppo/seconds"] == 0.0 < run.curve[1]["ppo/seconds"]


def test_probes_begin_with_the_model_as_it_came_and_change_nothing_of_the_training(
    model_dir: str, tmp_path: Path
) -> None:
    config = toy_config()
    config.ppo.total_steps, config.ppo.probe_every = 3, 2
    probed = train(config, model_dir, tmp_path / "probed")
    rows = [point for point in probed.curve if "probe/success" in point]
    assert [point["step"] for point in rows] == [0, 2]
    assert not any(name.startswith(("rollout/", "actor/")) for name in rows[0])
    config.ppo.probe_every = 0
    plain = train(config, model_dir, tmp_path / "plain")
    assert [point["step"] for point in plain.curve] == [1, 2, 3]
    assert same_weights(plain.model, probed.model)
    config.ppo.probe_every, config.ppo.total_steps = 2, 0
    assert train(config, model_dir, tmp_path / "none").curve == []  # nothing is trained


def test_before_the_critic_is_warm_the_actor_stays_as_it_is(model_dir: str, tmp_path: Path) -> None:
    config = toy_config()
    config.ppo.total_steps, config.ppo.critic_warmup = 2, 2
    run = train(config, model_dir, tmp_path)
    assert same_weights(run.model, load_model(model_dir))
    assert run.curve[1]["critic/loss"] > 0.0


def test_a_new_critic_values_everything_at_zero(model_dir: str) -> None:
    learner = ppo_learner.build_learner(Peers(), toy_config(), model_dir, "")
    assert learner.critic is not None
    assert learner.critic(torch.tensor([[1, 2, 3]])).tolist() == [[0.0, 0.0, 0.0]]


def test_both_optimizers_have_the_settings_of_their_section(model_dir: str) -> None:
    config = toy_config()
    section = config.ppo
    section.optimizer, section.lr, section.muon_lr, section.critic_lr = "muon", 0.01, 0.02, 0.04
    section.beta1, section.beta2, section.weight_decay = 0.7, 0.95, 0.03
    section.lr_schedule, section.min_lr_ratio = "linear", 0.2
    section.warmup_steps, section.total_steps = 3, 7
    learner = ppo_learner.build_learner(Peers(), config, model_dir, "")
    assert learner.critic_optimizer is not None
    adamw, muon, critic = [
        part.param_groups[0]
        for part in (*learner.actor_optimizer.parts, *learner.critic_optimizer.parts)
    ]
    assert adamw["betas"] == critic["betas"] == (0.7, 0.95)
    assert adamw["weight_decay"] == muon["weight_decay"] == critic["weight_decay"] == 0.03
    rates = []
    for step in range(7):
        ppo_learner.set_lr(learner, step)
        rates.append((adamw["lr"], muon["lr"], critic["lr"]))
    # three steps of warm-up, then from 1 down by a quarter of 0.8 each
    scales = (0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4)
    for row, scale in zip(rates, scales, strict=True):
        assert row == pytest.approx((0.01 * scale, 0.02 * scale, 0.04 * scale))


def test_a_small_step_of_a_model_that_plays_in_bfloat16_isnt_lost(
    model_dir: str, tmp_path: Path
) -> None:
    config = toy_config()
    config.model.dtype, config.ppo.lr, config.ppo.total_steps = "bfloat16", 1e-6, 1
    run = train(config, model_dir, tmp_path)
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    moved = [
        float((new != old).float().mean())
        for new, old in zip(run.model.parameters(), load_model(model_dir).parameters(), strict=True)
        if new.ndim == 2
    ]
    assert max(moved) > 0.5


def test_a_probe_plays_the_same_held_out_puzzles_each_time_and_changes_nothing(
    model_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config()
    learner = ppo_learner.build_learner(Peers(), config, model_dir, "")
    policy = ppo_local.HFPolicy(learner.actor, learner.tokenizer)
    make_env = env_factory(config)
    with episodes_of(monkeypatch) as plays:
        scores = [run_probe(Peers(), config, policy, make_env, puzzles=16) for _ in range(2)]
    assert plays[0] == plays[1] and scores[0] == scores[1]
    assert len({episode.puzzle_hash for episode in plays[0]}) == 16
    won = sum(episode.success for episode in plays[0])
    assert scores[0]["probe/success"] == pytest.approx(won / 16)
    assert same_weights(learner.actor, load_model(model_dir))


def test_a_minibatch_taken_in_parts_has_the_gradient_of_the_whole(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config()
    config.ppo.total_steps = 1
    (whole,) = train(config, model_dir, tmp_path / "whole").curve
    monkeypatch.setattr(tokenization, "MAX_ROWS", 3)
    (parts,) = train(config, model_dir, tmp_path / "parts").curve
    for name in ("actor/loss", "actor/grad_norm", "critic/loss"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-6), name
