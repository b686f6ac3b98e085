"""verl's PPO trainer with our choice of groups, our advantages and our metrics.

Everything else is verl's: models, updates, inference servers, weights from one to the other. A step
plays `ppo.env_groups` groups; the episodes come back whole (`verl_agent_loop.TRAJECTORY`), are
judged by the local backend's own `chosen_episodes`, and what isn't chosen is dropped before verl
computes anything of it. Workers are handed the columns that they read (`verl_columns`).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.config import validate_config
from verl.utils.logging_utils import configure_verl_logging
from verl.workers.utils.padding import response_to_nested

from conf import from_plain
from conf.schema import Config
from steps.agent.records import Trajectory
from steps.errors import StageError
from steps.settings import env_factory
from steps.training import probe, verl_columns, verl_forced
from steps.training.tokenization import SFTRow
from steps.training.verl_advantages import estimators
from steps.training.verl_driver import say
from steps.training.verl_groups import ALONE, GroupBuffer, place_of
from steps.training.verl_router import start_router
from steps.training.verl_rows import compares_logprobs
from steps.training.verl_watch import Watch


def train(config: Any, run_file: str, workers: Sequence[Any], queue: Future[None]) -> None:
    """What verl's `TaskRunnerV1.run` does, with our parts; `queue` is being started."""
    configure_verl_logging()
    say("verl imported")
    start_router()
    run = json.loads(Path(run_file).read_text("utf-8"))
    settings = from_plain(run["config"])
    register_estimators()
    validate(config)
    config.transfer_queue.enable = True
    OmegaConf.resolve(config)
    queue.result()
    trainer, succeeded = None, False
    try:
        trainer = trainer_class(run["trainer"])(config, settings)
        say("trainer made")
        trainer.init()
        say("models and servers stand")
        manager = EarlyManager.create(
            workers=workers,
            config=config,
            llm_client=trainer.get_llm_client(),
            teacher_client=None,
            reward_loop_worker_handles=trainer.get_reward_handles(),
        )
        say("ready")
        trainer.fit(manager)
        succeeded = True
    finally:
        tracking = getattr(trainer, "logger", None)
        if tracking is not None:
            tracking.finish(exit_code=0 if succeeded else 1)
        tq.close()


def trainer_class(name: str) -> type[SPATrainer]:
    """Ours, or one derived from it by its name `module:Class`."""
    if not name:
        return SPATrainer
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert issubclass(found, SPATrainer), name
    return cast(type[SPATrainer], found)


def validate(config: Any) -> None:
    """verl's own checks."""
    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )


def register_estimators() -> None:
    """Make our advantages known to verl; a second call changes nothing."""
    for name, function in estimators().items():
        if name not in core_algos.ADV_ESTIMATOR_REGISTRY:
            core_algos.register_adv_est(name)(function)


class EarlyManager(AgentLoopManagerTQ):
    """verl's agent loops on workers that were started before."""

    def __init__(self, *, workers: Sequence[Any], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._started = list(workers)

    async def _init_agent_loop_workers(self) -> None:
        self.agent_loop_workers = self._started
        await asyncio.gather(
            *(
                worker.setup.remote(
                    self.config,
                    self.llm_client,
                    self.teacher_client,
                    self.reward_loop_worker_handles,
                )
                for worker in self._started
            )
        )


class SPATrainer(PPOTrainerSync):
    """verl's synchronous trainer; see the module's docstring."""

    def __init__(self, config: Any, settings: Config) -> None:
        self.settings = settings
        super().__init__(config)

    def _build_replay_buffer(self) -> GroupBuffer:
        return GroupBuffer(self.settings, Watch(lambda: self.agent_loop_manager.agent_loop_workers))

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """The rows of this step; that they are is checked, since a resumed loader places them."""
        batch = super()._next_train_batch(num_prompts)
        steps = {int(step) for step in _plain(batch["step"])}
        if steps != {self.global_steps - 1}:
            raise StageError(
                f"step {self.global_steps} was given the puzzles of {sorted(steps)}: the "
                "checkpoint isn't of this run; start again with --cache refresh."
            )
        return batch

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's, which compares with what the servers told where they were asked."""
        rollout = self.config.actor_rollout_ref.rollout
        asked = rollout.calculate_log_probs
        rollout.calculate_log_probs = asked and compares_logprobs(
            self.settings, self.global_steps - 1
        )
        batch.fields = list(verl_columns.MODEL)
        try:
            return super()._compute_old_log_prob(batch, metrics)
        finally:
            rollout.calculate_log_probs = asked

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """verl's, which leaves word to put adapters aside; the critic, who is next, has none."""
        batch.fields = list(verl_columns.MODEL)
        batch = super()._compute_ref_log_prob(batch, metrics)
        batch.extra_info.pop("no_lora_adapter", None)
        return batch

    def _compute_values(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch.fields = list(verl_columns.MODEL)
        return super()._compute_values(batch, metrics)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """By the registered estimator, which unlike verl's sees whole episodes and the values."""
        fields = ["uid", "response_mask", "rm_scores", *(["values"] if self.use_critic else [])]
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
        )
        mask = data["response_mask"]
        advantages, returns = core_algos.get_adv_estimator_fn(self.config.algorithm.adv_estimator)(
            token_level_rewards=_padded(data["rm_scores"]),
            response_mask=_padded(mask),
            config=self.config.algorithm,
            index=_plain(data["uid"]),
            places=[place_of(key) for key in batch.keys],
            values=_padded(data["values"]) if self.use_critic else None,
        )
        output = {
            "advantages": response_to_nested(advantages, _nested(mask)),
            "returns": response_to_nested(returns, _nested(mask)),
        }
        return tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict(output, batch_size=len(batch)),
        )

    def _update_critic(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch.fields = list(verl_columns.CRITIC)
        return super()._update_critic(batch, metrics)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch.fields = list(verl_columns.ACTOR)
        return super()._update_actor(batch, metrics)

    @cached_property
    def _true_answers(self) -> list[SFTRow]:
        """Of every probe; a server takes no prompt that leaves no room for an answer."""
        longest = self.settings.sampling.max_model_len - 1
        make_env = env_factory(self.settings)
        return probe.forced_rows(self.settings, make_env, self.tokenizer, longest=longest)

    def _validate(self) -> dict[str, float]:
        """A probe, scored as the local backend's; verl asks for one at the last step, too.

        The one before the first step is step 0's, which verl doesn't time.
        """
        every, began = self.settings.ppo.probe_every, time.perf_counter()
        if not every or self.global_steps % every:
            return {}
        for rows in self.val_dataloader:
            rows["uid"] = np.array([str(uuid.uuid4()) for _ in rows["raw_prompt"]], dtype=object)
            batch = tu.get_tensordict(rows)
            tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
            tu.assign_non_tensor_data(batch, "validate", True)
            tag = {"is_prompt": True, "status": "pending", "global_steps": self.global_steps}
            tq.kv_batch_put(
                keys=list(rows["uid"]), partition_id="val", tags=[dict(tag) for _ in rows["uid"]]
            )
            self.agent_loop_manager.generate_sequences(batch)
            done, _ = self.replay_buffer.sample(self.global_steps, "val", len(rows["uid"]))
            tq.kv_clear(keys=done.keys, partition_id="val")
        scores = probe_scores(self.settings, self.replay_buffer.probed)
        forced = verl_forced.scores(self.get_llm_client(), self._true_answers)
        scores |= {f"probe/teacher_forced_{name}": value for name, value in forced.items()}
        if self.global_steps == 0:
            scores["timing_s/testing"] = time.perf_counter() - began
        return scores


def probe_scores(settings: Config, trajectories: list[Trajectory]) -> dict[str, float]:
    """`probe/...` of what was played, as in `steps.training.probe`."""
    found = probe.summarize(ALONE, trajectories)
    found |= probe.pass_scores(ALONE, settings, trajectories)
    found |= probe.class_scores(ALONE, trajectories)
    return {f"probe/{name}": value for name, value in found.items() if value is not None}


def _plain(values: Any) -> list[Any]:
    """A column that holds no tensors, as a list."""
    return [getattr(value, "data", value) for value in values]


def _padded(column: torch.Tensor) -> torch.Tensor:
    return column.to_padded_tensor(0) if column.is_nested else column


def _nested(column: torch.Tensor) -> torch.Tensor:
    if column.is_nested:
        return column
    return torch.nested.as_nested_tensor(list(column), layout=torch.jagged)
