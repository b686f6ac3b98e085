"""Whether verl takes `verl.overrides` and `verl.sft_overrides`; a program that `verl_told` starts.

A process of its own, since verl brings torch and Ray. Composes verl's
settings by Hydra and makes verl's dataclasses of them, as its trainers do, with files and a model
that needn't exist. Reads settings and stages as JSON, and ends with a line of JSON: the stage, the
override and why it is refused; empty for none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.workers.config import HFModelConfig

from conf import from_plain
from conf.schema import Config
from steps.training import verl_ppo_overrides, verl_sft_overrides
from steps.training.verl_common import kernels
from steps.training.verl_driver import compose
from steps.training.verl_ppo_overrides import PPOPlan
from steps.training.verl_sft_overrides import SFTPlan

NOWHERE = Path("/nowhere")


def refusal(config: Config, stage: str) -> dict[str, str]:
    """The override that verl refuses, and why; empty for none, or where ours alone are refused."""
    own = config.verl.sft_overrides if stage == "sft" else config.verl.overrides
    every = _overrides(config, stage)
    ours = every[: len(every) - len(own)]
    found: dict[str, str] = {}
    # From the last one on: what one says may count on what comes after it.
    for count in range(len(own), -1, -1):
        try:
            check(stage, [*ours, *own[:count]])
        except ImportError:  # of vLLM, say, which verl asks about adapters not merged
            break
        except Exception as error:
            if count == 0:
                return {}
            found = {"stage": stage, "override": own[count - 1], "why": _words(error)}
        else:
            break
    return found


def check(stage: str, overrides: Sequence[str]) -> None:
    """Raise what Hydra or verl raises for a stage's overrides."""
    if stage == "sft":
        _check_sft(compose(overrides, "sft_trainer_engine"))
    else:
        check_ppo(compose(overrides))


def check_ppo(made: Any) -> None:
    """verl's own checks of PPO's settings; whether the model exists isn't asked."""
    actor_rollout, critic = made.actor_rollout_ref, made.critic
    for model in (actor_rollout.model, critic.model):
        _check_model(model)
    critic.model = None  # it would be loaded
    for part in (actor_rollout.actor, actor_rollout.rollout, critic):
        omega_conf_to_dataclass(part)
    validate_config(made, need_reference_policy(made), need_critic(made))


def _check_sft(made: Any) -> None:
    _check_model(made.model)
    for part in (made.engine, made.optim, made.checkpoint, made.profiler):
        omega_conf_to_dataclass(part)


def _check_model(model: Any) -> None:
    """Names and types; the dataclass itself would load the model."""
    OmegaConf.merge(OmegaConf.structured(HFModelConfig), model)


def _overrides(config: Config, stage: str) -> list[str]:
    """A stage's overrides with stand-ins for what only its step knows."""
    chosen, model = kernels(config.verl, has_flash_attn=True), str(NOWHERE / "model")
    if stage == "sft":
        return verl_sft_overrides.to_verl_overrides(
            config,
            SFTPlan(
                model_dir=model,
                train_file=NOWHERE / "train",
                validation_file=NOWHERE / "validation",
                directory=NOWHERE,
                steps=1,
                batch_size=config.sft.batch_size,
                max_length=config.sft.max_length,
                eval_every=0,
                save_every=0,
                num_gpus=config.verl.n_gpus_per_node,
                kernels=chosen,
            ),
        )
    return verl_ppo_overrides.to_verl_overrides(
        config,
        PPOPlan(
            model_dir=model,
            train_rows=NOWHERE / "train",
            probe_rows=NOWHERE / "probe",
            agents_file=NOWHERE / "agents",
            directory=NOWHERE,
            resume_from=None,
            kernels=chosen,
            head_size=64,
        ),
    )


def _words(error: Exception) -> str:
    """An error's message in one line, without where in its own code it was raised."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith("object_type")]
    return " ".join(kept) or type(error).__name__


def main() -> None:
    """The program."""
    told = json.loads(sys.stdin.read())
    config = from_plain(told["config"])
    found = next(filter(None, (refusal(config, stage) for stage in told["stages"])), {})
    print(f"\n{json.dumps(found)}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
