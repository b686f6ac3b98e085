# ruff: noqa: E402 (the platform is chosen before verl is imported)
"""One PPO update by verl's own engines and losses, on a CPU process: `python -m ... RUN.json DUMP`.

Reads the episodes of `DUMP/step_1.parquet`; leaves the tensors of `verl_dump` beside it, and the
metrics of the update in `metrics.json`. `verl.strategy` must be fsdp2 (`verl_cpu`). Processes of
torchrun must share each sequence (`verl.sequence_parallel_size`): all of them hold the whole batch,
and the first one has the numbers.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from verl.plugin.platform import platform_manager

from tests.training.verl_cpu import PlatformCPU

platform_manager.PlatformRegistry.register(platform="cpu")(PlatformCPU)
platform_manager.set_platform(PlatformCPU())

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.utils.losses import ppo_loss, value_loss
from verl.workers.utils.padding import response_from_nested, response_to_nested

from benchmarks import update
from conf import from_plain
from steps.storage import read_trajectories
from steps.training import verl_columns, verl_hooks
from steps.training.verl_advantages import estimators
from steps.training.verl_driver import compose
from steps.training.verl_episode import TrainedSequence, sequences
from tests.training import flash_on_cpu
from tests.training.verl_dump import FIELDS


def batch_of(parts: list[TrainedSequence], **columns: torch.Tensor) -> Any:
    return update.batch_of(
        [part.prompt_ids for part in parts],
        [part.response_ids for part in parts],
        [part.response_mask for part in parts],
        **columns,
    )


def infer(made: Any, parts: list[TrainedSequence], name: str) -> torch.Tensor:
    batch = batch_of(parts)
    read = batch.select(*verl_columns.MODEL, "temperature")
    output = update.infer(made, read, entropies=False)
    found = [None if output is None else response_from_nested(output[name], batch["response_mask"])]
    torch.distributed.broadcast_object_list(found)
    return found[0]


def updated(made: Any, batch: Any, section: Any, size: int) -> dict[str, float]:
    metrics = update.update(made, batch, section, size, entropies=False)
    return {
        name: sum(value) / len(value) if isinstance(value, list) else value
        for name, value in metrics.items()
        if name in ("actor/pg_loss", "critic/vf_loss", "grad_norm")
    }


def register_engines() -> None:
    """verl's engines for a CPU, mended."""
    verl_hooks.install()
    register = partial(EngineRegistry.register, backend=["fsdp", "fsdp2"], device=["cpu"])
    register(model_type="language_model")(FSDPEngineWithLMHead)
    register(model_type="value_model")(FSDPEngineWithValueHead)


def start(dump: Path) -> None:
    """This process as the only rank, or as torchrun's."""
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    else:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{dump / 'rendezvous'}", rank=0, world_size=1
        )
        os.environ["MASTER_PORT"] = "0"
    register_engines()


def main(run_file: Path, dump: Path) -> None:
    start(dump)
    run = json.loads(run_file.read_text())
    flash_on_cpu.install(run["overrides"])
    settings, config = from_plain(run["config"]), compose(run["overrides"])
    episodes = read_trajectories(dump / "step_1.parquet")
    parts = [sequences(each, settings.ppo, history="full")[0] for each in episodes]
    actor = update.engine_of(
        "language_model", config.actor_rollout_ref.actor, config.actor_rollout_ref.model, ppo_loss
    )
    critic = update.engine_of("value_model", config.critic, config.critic.model, value_loss)
    batch = batch_of(parts)
    mask = batch["response_mask"]
    old = infer(actor, parts, "log_probs")
    values = infer(critic, parts, "values")
    rewards = update.nested([torch.tensor(part.rewards) for part in parts])
    name = config.algorithm.adv_estimator
    advantages, returns = estimators()[name](
        token_level_rewards=rewards.to_padded_tensor(0.0),
        response_mask=mask.to_padded_tensor(0),
        config=config.algorithm,
        index=[each.group for each in episodes],
        places=[(row, 0) for row in range(len(parts))],
        values=values.to_padded_tensor(0.0),
    )
    advantages, returns = (response_to_nested(each, mask) for each in (advantages, returns))
    told = updated(
        critic, batch_of(parts, values=values, returns=returns), config.critic, len(parts)
    ) | updated(
        actor,
        batch_of(parts, old_log_probs=old, advantages=advantages),
        config.actor_rollout_ref.actor,
        len(parts),
    )
    if torch.distributed.get_rank() > 0:
        return
    (dump / "metrics.json").write_text(json.dumps(told))
    columns = {
        "prompts": batch["prompts"],
        "responses": batch["responses"],
        "response_mask": mask,
        "rm_scores": rewards,
        "rollout_log_probs": update.nested([torch.tensor(part.logprobs) for part in parts]),
        "old_log_probs": old,
        "values": values,
        "advantages": advantages,
        "returns": returns,
    }
    assert set(columns) == set(FIELDS)
    rows = {key: [row.detach().clone() for row in column] for key, column in columns.items()}
    torch.save(rows, dump / "step_1.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
