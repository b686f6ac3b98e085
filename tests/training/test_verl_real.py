# ruff: noqa: E402 (verl may be missing)
"""Our parts inside verl itself, without a GPU: configuration, registry, queue, workers, choice.

What needs models (updates, weights, inference servers) is in `test_ppo_verl_gpu`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

import ray
import torch
import transfer_queue as tq
from verl.trainer.ppo import core_algos
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.transferqueue_utils import kv_batch_meta2batch_meta
from verl.workers.rollout import router

from conf import compose, from_plain
from conf.schema import Config
from steps.errors import StageError
from steps.settings import training_seed
from steps.training import ppo_verl, verl_columns, verl_driver, verl_trainer, verl_watch
from steps.training.verl_advantages import Discounts, episode_advantages
from steps.training.verl_groups import episodes_of, place_of, session_of
from steps.training.verl_launch import TrainerError
from steps.training.verl_router import start_router
from steps.training.verl_rows import training_rows
from steps.training.verl_trainer import EarlyManager, SPATrainer
from steps.training.verl_workers import AgentWorker
from tests.training.test_verl_advantages import MASK, REWARDS, VALUES, WHOLE
from tests.training.toys import toy_config, untrained
from tests.training.verl_server import DoorOpener

TWO_TURNS = replace(
    toy_config().env, id="tests.training.verl_server:TwoDoors", max_turns=2, max_actions=2
)
ROOT = Path(__file__).resolve().parents[2]


def verl_config(**ppo: Any) -> Config:
    config = toy_config()
    section = replace(
        config.ppo,
        **{
            "total_steps": 3,
            "env_groups": 4,
            "group_size": 2,
            "minibatch_size": 4,
            "ppo_epochs": 1,
            "advantage": "token",
            "probe_every": 2,
            "probe_puzzles": 3,
            "probe_samples": 2,
            "filter_ratio": 0.5,
        }
        | ppo,
    )
    return replace(config, ppo=section, verl=replace(config.verl, agent_workers=2))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return untrained(tmp_path_factory.mktemp("model"), toy_config())


def composed(config: Config, model_dir: str, work: Path) -> tuple[Any, str]:
    """verl's configuration of a run, and the run's file."""
    run_file = ppo_verl.prepare(config, model_dir=model_dir, work=work)
    return verl_driver.compose(json.loads(run_file.read_text())["overrides"]), str(run_file)


@pytest.mark.parametrize("profile", ["single_gpu", "multi_gpu", "paper"])
@pytest.mark.parametrize("advantage", ["token", "turn", "bi_level", "grpo"])
def test_verl_accepts_its_configuration(
    profile: str, advantage: str, model_dir: str, tmp_path: Path
) -> None:
    config = compose(env="frozenlake", profile=profile)
    ppo = replace(config.ppo, advantage=advantage, total_steps=2, kl_coef=0.01)
    if advantage == "grpo":
        ppo = replace(ppo, use_critic=False, normalize_advantages=False)
    verl_trainer.register_estimators()
    verl_trainer.validate(composed(replace(config, ppo=ppo), model_dir, tmp_path)[0])


@pytest.mark.parametrize("dynamic", [True, False])
def test_micro_batches_reach_the_engines_of_actor_and_critic(
    dynamic: bool, model_dir: str, tmp_path: Path
) -> None:
    config = compose(env="frozenlake", profile="single_gpu")
    section = replace(
        config.verl,
        max_tokens_per_gpu=5000,
        dynamic_batches=dynamic,
        micro_batch_size_per_gpu=9,
    )
    rows = 8  # the most below 9 that divide a minibatch of 64, and so a step, too
    assert config.ppo.minibatch_size == 64
    made = composed(replace(config, verl=section), model_dir, tmp_path)[0]
    critic = omega_conf_to_dataclass(made.critic)
    engine = critic.engine
    # The next two as in verl/trainer/ppo/v1/trainer_base.py.
    engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    engine.max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    assert engine.use_dynamic_bsz is dynamic
    assert engine.max_token_len_per_gpu == engine.infer_max_token_len_per_gpu == 5000
    assert engine.micro_batch_size_per_gpu == engine.infer_micro_batch_size_per_gpu == rows
    # What verl/workers/engine_workers.py takes for actor and reference.
    actor, rollout = made.actor_rollout_ref.actor, made.actor_rollout_ref.rollout
    reference = made.actor_rollout_ref.ref
    for found in (
        actor.use_dynamic_bsz,
        rollout.log_prob_use_dynamic_bsz,
        reference.log_prob_use_dynamic_bsz,
    ):
        assert found is dynamic
    for found in (
        actor.ppo_max_token_len_per_gpu,
        rollout.log_prob_max_token_len_per_gpu,
        reference.log_prob_max_token_len_per_gpu,
    ):
        assert found == 5000
    for found in (
        actor.ppo_micro_batch_size_per_gpu,
        rollout.log_prob_micro_batch_size_per_gpu,
        reference.log_prob_micro_batch_size_per_gpu,
    ):
        assert found == rows


def test_estimators_stand_in_verls_registry() -> None:
    verl_trainer.register_estimators()
    estimate = core_algos.get_adv_estimator_fn("spa_token")
    settings = {"gamma": 1.0, "lam": 0.5, "gamma_turn": 1.0, "lam_turn": 1.0}
    advantages, returns = estimate(
        token_level_rewards=REWARDS,
        response_mask=MASK,
        config=settings | {"normalize_advantages": False},
        index=["g"],
        places=WHOLE,
        values=VALUES,
    )
    theirs, their_returns = core_algos.compute_gae_advantage_return(
        REWARDS, VALUES, MASK.float(), gamma=1.0, lam=0.5
    )
    learned = MASK[0] > 0
    assert torch.allclose(returns[0, learned], their_returns[0, learned], atol=1e-6)
    ours = advantages[0, learned]
    whitened = (ours - ours.mean()) / ours.std()
    assert torch.allclose(whitened, theirs[0, learned], atol=1e-4)


def test_ours_are_verls_advantages_on_whole_episodes() -> None:
    """GAE over tokens, whitened, on random rows: what the published recipe computes."""
    torch.manual_seed(0)
    mask = (torch.rand(6, 40) < 0.7).long()
    rewards, values = torch.randn(6, 40) * mask, torch.randn(6, 40)
    theirs, their_returns = core_algos.compute_gae_advantage_return(
        rewards, values, mask.float(), gamma=0.99, lam=0.95
    )
    advantages, returns = episode_advantages(
        rewards,
        values,
        mask,
        [(row, 0) for row in range(6)],
        level="token",
        discounts=Discounts(gamma=0.99, lam=0.95),
        normalize=True,
    )
    learned = mask > 0
    assert torch.allclose(returns[learned], their_returns[learned], atol=1e-4)
    # verl divides by the sample's deviation, we by the population's.
    count = int(learned.sum())
    scale = (count / (count - 1)) ** 0.5
    assert torch.allclose(advantages[learned], theirs[learned] * scale, atol=1e-4)


@pytest.fixture(scope="module")
def workers(model_dir: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """A Ray of this machine, verl's queue, and two agent workers; they take half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=":")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # of a cluster that isn't asked for
        verl_driver.start_ray("", 0)
        config, _ = composed(verl_config(), model_dir, tmp_path_factory.mktemp("queue"))
        config.transfer_queue.enable = True
        tq.init(config.transfer_queue)
        worker = ray.remote(AgentWorker).options(max_concurrency=100)
        yield [worker.remote() for _ in range(2)]
        tq.close()
        ray.shutdown()


def test_the_balancer_that_was_started_early_is_given_the_servers(
    workers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "get_router_handle", router.get_router_handle)
    start_router()
    balancer = router.get_router_handle(servers={"first": 1})
    assert ray.get(balancer.acquire_server.remote(request_id="a")) == ("first", 1)
    assert router.get_router_handle(servers={"second": 2}) is balancer
    assert ray.get(balancer.acquire_server.remote(request_id="b")) == ("second", 2)
    assert ray.get(balancer.acquire_server.remote(request_id="a")) == ("first", 1)
    assert router.get_router_handle(servers={}, full_determinism=True) is not balancer


@ray.remote
def broken(kind: type[Exception]) -> None:
    raise kind("of Ray's process")


def test_a_mistake_in_a_process_of_rays_is_known_from_a_crash(workers: list[Any]) -> None:
    def found(kind: type[Exception]) -> Exception:
        with pytest.raises(kind) as caught:
            ray.get(broken.remote(kind))
        return caught.value

    assert verl_driver.is_mistake(found(StageError))
    assert not verl_driver.is_mistake(found(TrainerError))


class Setting:
    """A trainer that has everything but models, and workers that play against a fake server."""

    def __init__(
        self,
        workers: list[Any],
        config: Config,
        model_dir: str,
        work: Path,
        fail_every: int = 0,
        answers: bool = True,
    ) -> None:
        verl_config_, run_file = composed(config, model_dir, work)
        verl_config_.transfer_queue.enable = True
        verl_trainer.register_estimators()
        settings = from_plain(json.loads(Path(run_file).read_text())["config"])
        self.trainer = SPATrainer(verl_config_, settings)
        self.trainer._init_tokenizer()
        self.trainer._init_dataloader()
        self.trainer.global_steps = 1
        client = DoorOpener(self.trainer.tokenizer, fail_every=fail_every, answers=answers)
        self.trainer.get_llm_client = lambda: client
        self.trainer.agent_loop_manager = EarlyManager.create(
            workers=workers,
            config=verl_config_,
            llm_client=client,
            teacher_client=None,
            reward_loop_worker_handles=[None],
        )

    def close(self) -> None:
        for partition, items in (tq.kv_list() or {}).items():
            if items:
                tq.kv_clear(keys=list(items), partition_id=partition)

    def play(self) -> tuple[Any, dict[str, float]]:
        self.trainer._add_batch_to_generate()
        count = self.trainer.settings.ppo.env_groups
        return self.trainer.replay_buffer.sample(self.trainer.global_steps, "train", count)


@pytest.fixture
def setting(
    workers: list[Any], model_dir: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Setting]:
    made = Setting(workers, model_dir=model_dir, work=tmp_path, **request.param)
    yield made
    made.close()


def rows_of(batch: Any, *fields: str) -> Any:
    return tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields)
    )


@pytest.mark.parametrize("setting", [{"config": verl_config()}], indirect=True)
def test_only_chosen_groups_are_trained_on(setting: Setting) -> None:
    trainer = setting.trainer
    batch, metrics = setting.play()
    assert metrics["rollout/chosen_share"] == 0.5 and metrics["rollout/failed_share"] == 0.0
    assert metrics["rollout/num_turns"] == 1.0 and metrics["rollout/format_rate"] == 1.0
    assert len(batch.keys) == 4  # of 4 groups of 2 half are kept
    assert sorted(tq.kv_list("train")["train"]) == sorted(batch.keys)
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
    columns = {"agent_name", "env_seed", "data_source", "raw_prompt", "reward_model", "purpose"}
    assert {"rollout_log_probs", "uid"} <= set(data.keys()) and not columns & set(data.keys())
    sums = [float(row.sum()) for row in data["rm_scores"]]
    assert set(sums) <= {0.0, 1.0}
    assert all(float(row[-1]) == total for row, total in zip(data["rm_scores"], sums, strict=True))
    seeds = [episode.env_seed for episode in episodes_of(batch).values()]
    first = training_seed(trainer.settings, trainer.settings.ppo.base_seed)
    assert all(first <= seed < first + 100 for seed in seeds)
    assert len(set(seeds)) == 2


@pytest.mark.parametrize("setting", [{"config": verl_config()}], indirect=True)
def test_advantages_are_put_back_for_every_row_padding_included(setting: Setting) -> None:
    trainer = setting.trainer
    batch, _ = setting.play()
    workers = SimpleNamespace(_dispatch_info={"actor": [0, 1, 2]})  # 3 ranks: 4 rows become 12
    trainer.actor_rollout_wg = workers
    batch = trainer._balance_batch(batch, metrics={})
    assert len(batch.keys) == 12
    masks = rows_of(batch, "response_mask")["response_mask"]
    values = [torch.full((len(row),), 0.25) for row in masks]
    tq.kv_batch_put(
        keys=batch.keys,
        partition_id="train",
        fields=verl_trainer.TensorDict(
            {"values": torch.nested.as_nested_tensor(values, layout=torch.jagged)}, batch_size=12
        ),
    )
    trainer._compute_advantage(batch, {})
    data = rows_of(batch, "advantages", "returns", "response_mask", "rm_scores", "uid")
    learned = torch.cat(
        [row[mask > 0] for row, mask in zip(data["advantages"], masks, strict=True)]
    )
    # One in thirty times the drawn answers earn all episodes the same: nothing stands out.
    deviation = float(len({float(scores.sum()) for scores in data["rm_scores"]}) > 1)
    assert learned.mean().abs() < 1e-5
    assert abs(float(learned.std(correction=0)) - deviation) < 1e-4
    for row, mask, scores in zip(data["returns"], masks, data["rm_scores"], strict=True):
        assert len(row) == len(mask)
        # gamma = lam = 1: the return of every token is the episode's.
        assert torch.allclose(row[mask > 0], torch.full_like(row[mask > 0], float(scores.sum())))


@pytest.mark.parametrize("setting", [{"config": verl_config()}], indirect=True)
def test_each_step_has_its_own_rows_and_a_probe_its_scores(setting: Setting) -> None:
    trainer = setting.trainer
    seen = []
    for step in (1, 2):
        trainer.global_steps = step
        batch, _ = setting.play()
        played = {episode.env_seed for episode in episodes_of(batch).values()}
        rows = training_rows(trainer.settings)
        assert played <= {row["env_seed"] for row in rows if row["step"] == step - 1}
        seen += played
        tq.kv_clear(keys=batch.keys, partition_id="train")
    assert len(set(seen)) == len(seen)
    scores = trainer._validate()
    assert scores["probe/num_turns"] == 1.0 and 0.0 <= scores["probe/success"] <= 1.0
    assert scores["probe/teacher_forced_answer_nll"] == pytest.approx(0.25)
    assert scores["probe/teacher_forced_answer_exact"] == 1.0
    assert "probe/pass@1" in scores and not tq.kv_list("val").get("val")
    trainer.global_steps = 3
    assert trainer._validate() == {}
    with pytest.raises(StageError, match="was given the puzzles of"):
        trainer.global_steps = 7
        trainer._next_train_batch()


class Models:
    """Stands in for verl's groups of GPU workers: numbers of the right shape."""

    def __init__(self) -> None:
        self._dispatch_info = {"actor": [0]}
        self.rows_updated: list[int] = []
        self.saved: list[str] = []
        self.told: list[tuple[str, bool]] = []
        """Who was asked, and whether to put adapters aside."""
        self.read: dict[str, set[str]] = {}
        """The columns that verl would hand to a stage's workers, by the last of these stages."""

    def _put(self, batch: Any, **numbers: float) -> Any:
        lengths = [len(row) for row in rows_of(batch, "input_ids")["input_ids"]]
        fields = {
            name: torch.nested.as_nested_tensor(
                [torch.full((length,), number) for length in lengths], layout=torch.jagged
            )
            for name, number in numbers.items()
        }
        fields = verl_trainer.TensorDict(fields, batch_size=len(lengths))
        return tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)

    def _note(self, stage: str, batch: Any) -> None:
        self.read[stage] = set(kv_batch_meta2batch_meta(batch).field_names)

    def compute_log_prob(self, batch: Any) -> Any:
        self._note("log_probs", batch)
        self.told.append(("compute_log_prob", "no_lora_adapter" in batch.extra_info))
        return self._put(batch, log_probs=-0.5, entropy=0.7)

    def infer_batch(self, batch: Any) -> Any:
        self._note("values", batch)
        self.told.append(("infer_batch", "no_lora_adapter" in batch.extra_info))
        self._put(batch, values=0.0)
        return SimpleNamespace(futures=[])

    def update_actor(self, batch: Any) -> Any:
        self._note("actor", batch)
        self.rows_updated.append(len(batch.keys))
        return {"metrics": {"actor/pg_loss": [0.25], "grad_norm": [1.0], "mfu": [0.1]}}

    def train_mini_batch(self, batch: Any) -> Any:
        self._note("critic", batch)
        return SimpleNamespace(get=lambda: {"metrics": {"vf_loss": [0.5], "mfu": [0.1]}})

    def save_checkpoint(self, path: str, *_: Any, **__: Any) -> None:
        Path(path).mkdir(parents=True)
        self.saved.append(path)


def comparing(config: Config, every: int) -> Config:
    return replace(config, verl=replace(config.verl, logprobs_every=every))


@pytest.mark.parametrize(
    "setting", [{"config": comparing(verl_config(save_every=2), 2)}], indirect=True
)
def test_verls_own_loop_runs_to_its_end_and_its_metrics_become_ours(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    trainer, models = setting.trainer, Models()
    nothing = SimpleNamespace(
        update_weights=lambda *_: None, sleep_replicas=lambda: None, get_n_gpus=lambda: 1
    )
    trainer.actor_rollout_wg = trainer.critic_wg = models
    trainer.checkpoint_manager = trainer.resource_pool_manager = nothing
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[None])
    trainer.global_steps = 0
    trainer._init_dump_executor()
    trainer.fit(trainer.agent_loop_manager)
    assert models.rows_updated == [4, 4, 4]
    assert models.read == {
        "log_probs": set(verl_columns.MODEL),
        "values": set(verl_columns.MODEL),
        "critic": set(verl_columns.CRITIC),
        "actor": set(verl_columns.ACTOR) - {"ref_log_prob", "rollout_is_weights"},
    }
    steps = [Path(path).parent.name for path in models.saved if path.endswith("actor")]
    assert steps == ["global_step_2", "global_step_3"]
    run = ppo_verl.VerlRun(config=trainer.settings, directory=tmp_path)
    ppo_verl.follow_jsonl(tmp_path / "metrics.jsonl", run.on_row)()
    assert [point["step"] for point in run.curve] == [0, 1, 2, 3]
    before, first, second, third = run.curve
    named = {name for name in second if name.startswith("probe/")}
    assert before.keys() == {"step", "ppo/seconds", "timing_s/probe"} | named
    assert before["ppo/seconds"] == 0.0 < before["timing_s/probe"]
    assert (first["actor/loss"], first["critic/loss"]) == (0.25, 0.5)
    assert first["rollout/num_turns"] == 1.0 and first["rollout/chosen_share"] == 0.5
    assert first["rollout/probability_difference"] == third["rollout/probability_difference"] == 0.0
    assert "rollout/probability_difference" not in second
    assert first["actor/entropy"] == pytest.approx(0.7)
    for name in ("rollout", "old_logprobs", "values", "update_actor", "update_critic", "step"):
        assert first[f"timing_s/{name}"] >= 0.0
    assert "probe/success" in second and "probe/success" not in first
    assert "timing_s/checkpoint" in second and run.seconds > 0.0


@pytest.mark.parametrize("every", [0, 1])
def test_the_overrides_of_verl_decide_whether_log_probabilities_are_told_at_all(
    every: int, workers: list[Any], model_dir: str, tmp_path: Path
) -> None:
    told = "actor_rollout_ref.rollout.calculate_log_probs=False"
    config = comparing(verl_config(), every)
    config = replace(config, verl=replace(config.verl, overrides=[told] if every else []))
    made = Setting(workers, config, model_dir, tmp_path)
    try:
        batch, _ = made.play()
        data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
        assert "rm_scores" in set(data.keys()) and "rollout_log_probs" not in set(data.keys())
        made.trainer.actor_rollout_wg = Models()
        metrics: dict[str, Any] = {}
        made.trainer._compute_old_log_prob(batch, metrics)
        assert metrics["actor/entropy"] == pytest.approx(0.7) and len(metrics) == 1
    finally:
        made.close()


@pytest.mark.parametrize("setting", [{"config": verl_config()}], indirect=True)
def test_a_resumed_loader_goes_on_with_the_next_step(setting: Setting) -> None:
    trainer = setting.trainer
    trainer._next_train_batch()
    state = trainer.train_dataloader.state_dict()
    trainer._init_dataloader()
    trainer.train_dataloader.load_state_dict(state)
    trainer.global_steps = 2
    batch = trainer._next_train_batch()
    assert [int(getattr(each, "data", each)) for each in batch["index"]] == [4, 5, 6, 7]


@pytest.mark.parametrize("setting", [{"config": verl_config(), "fail_every": 3}], indirect=True)
def test_failures_are_counted_and_too_many_end_the_run(setting: Setting) -> None:
    with pytest.raises(
        StageError, match=r"of 8 episodes of .* failed, .* raise verl.max_failed_share"
    ):
        setting.play()


@pytest.mark.parametrize("setting", [{"config": verl_config(), "fail_every": 1}], indirect=True)
def test_a_step_without_any_episode_says_what_failed(setting: Setting) -> None:
    said = r"8 of 8 episodes of .* failed, the first with RuntimeError: the server is gone"
    with pytest.raises(StageError, match=said):
        setting.play()
    setting.close()
    setting.trainer.settings.verl.max_failed_share = 1.0
    setting.trainer.global_steps = 2
    with pytest.raises(StageError, match=r"6 of 6 episodes of .* the server is gone.* Mend it\.$"):
        setting.trainer._validate()


def test_the_death_of_an_agent_worker_ends_the_wait(
    workers: list[Any], model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verl_watch, "EVERY_S", 0.2)
    mortal = ray.remote(AgentWorker).remote()
    made = Setting([workers[0], mortal], verl_config(), model_dir, tmp_path, answers=False)
    try:
        made.trainer._add_batch_to_generate()
        made.trainer.replay_buffer.watch.check()
        ray.kill(mortal)
        with pytest.raises(TrainerError, match="agent worker 1 died while it played"):
            made.trainer.replay_buffer.sample(1, "train", 4)
    finally:
        made.close()


@pytest.mark.parametrize("setting", [{"config": verl_config()}], indirect=True)
def test_the_critic_is_not_told_to_put_adapters_aside(setting: Setting) -> None:
    """With adapters the reference is the actor without them; verl tells all who come after."""
    trainer, models = setting.trainer, Models()
    batch, _ = setting.play()
    trainer.actor_rollout_wg = trainer.critic_wg = models
    trainer.ref_in_actor = True
    trainer._compute_ref_log_prob(batch, {})
    trainer._compute_values(batch, {})
    assert models.told == [("compute_log_prob", True), ("infer_batch", False)]


@pytest.mark.parametrize(
    "setting",
    [{"config": verl_config(reward_at="episode", reward_norm="mean", reward_norm_group="batch")}],
    indirect=True,
)
def test_normalised_returns_replace_the_rewards(setting: Setting) -> None:
    batch, metrics = setting.play()
    data = rows_of(batch, "rm_scores")["rm_scores"]
    won = metrics["rollout/return"]
    assert {round(float(row.sum()), 4) for row in data} <= {round(-won, 4), round(1 - won, 4)}


@pytest.mark.parametrize(
    "setting", [{"config": replace(verl_config(), env=TWO_TURNS)}], indirect=True
)
def test_single_turns_are_rows_of_their_own_each_with_its_reward(setting: Setting) -> None:
    batch, metrics = setting.play()
    assert metrics["rollout/num_turns"] > 1.0
    sessions: dict[str, list[str]] = {}
    for key in sorted(batch.keys, key=place_of):
        sessions.setdefault(session_of(key), []).append(key)
    assert max(map(len, sessions.values())) == 2
    for keys in sessions.values():
        data = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["rm_scores"])
        rewards = [float(row.sum()) for row in data["rm_scores"]]
        # verl would copy the last reward to both; a closed first door has none.
        assert len(keys) == 1 or rewards[0] == 0.0


def test_keys_name_episodes_and_their_sequences() -> None:
    assert session_of("a-b_3_0") == session_of("a-b_3_11") == "a-b_3"
    assert place_of("a-b_3_11") == ("a-b_3", 11)
