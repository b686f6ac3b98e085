"""What PPO keeps between steps, built, saved and restored: the models and their optimizers.

Only the actor is a model that anyone else reads. The critic is a copy of the same transformer with
a linear head that starts at zero; the reference is the finetuned model, frozen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel

from conf.schema import Config
from steps.policies.loading import load_model, load_tokenizer, resolve_device
from steps.settings import training_seed
from steps.training.checkpoints import load_trainer_state, save_model, save_trainer_state
from steps.training.optimizers import Optimizers, build_optimizers
from steps.training.schedules import lr_scale
from steps.workers import Peers


class ValueModel(torch.nn.Module):
    """A transformer with a linear head that starts at zero: one value a token."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = torch.nn.Linear(backbone.config.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """`[B, T]` values; padding is on the right, where causal attention never looks."""
        outputs = self.backbone(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT))
        return self.head(outputs.last_hidden_state.float()).squeeze(-1)


@dataclass(kw_only=True)
class Learner:
    """Everything that an update changes, and what it needs beside it."""

    config: Config
    peers: Peers
    actor: Any
    reference: Any | None
    critic: ValueModel | None
    tokenizer: Any
    actor_optimizer: Optimizers
    critic_optimizer: Optimizers | None
    env_cursor: int = 0
    """Next environment seed to look at."""
    time_share: float = 0.0
    """Part of `ppo.time_limit_s` that is used."""
    progress: dict[str, Any] = field(default_factory=dict)
    """Seconds and curve so far, from the checkpoint that this goes on from."""

    @property
    def device(self) -> str:
        """Where the actor lives."""
        return str(self.actor.device)


def build_learner(peers: Peers, config: Config, model_dir: str, resumed: str) -> Learner:
    """Load the models; `resumed` "" starts from `model_dir`, else goes on from that checkpoint."""
    section, device = config.ppo, resolve_device(config.device)
    load: Any = {
        "device": device,
        "dtype": "float32",  # see `model.dtype`
        "trust_remote_code": config.model.trust_remote_code,
    }
    actor = load_model(resumed or model_dir, **load)
    reference = None
    if section.kl_coef > 0:
        reference = load_model(model_dir, **load).eval().requires_grad_(False)
    critic = None
    if section.use_critic:
        critic = ValueModel(
            AutoModel.from_pretrained(
                model_dir,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=config.model.trust_remote_code,
            )
        ).to(device)
    common: Any = {
        "betas": (section.beta1, section.beta2),
        "weight_decay": section.weight_decay,
    }
    learner = Learner(
        config=config,
        peers=peers,
        actor=actor,
        reference=reference,
        critic=critic,
        tokenizer=load_tokenizer(model_dir, trust_remote_code=config.model.trust_remote_code),
        actor_optimizer=build_optimizers(
            actor, kind=section.optimizer, lr=section.lr, muon_lr=section.muon_lr, **common
        ),
        critic_optimizer=critic
        and build_optimizers(critic, kind="adamw", lr=section.critic_lr, muon_lr=0.0, **common),
        env_cursor=training_seed(config, section.base_seed),
    )
    if resumed:
        _restore(learner, Path(resumed))
    return learner


def set_lr(learner: Learner, step: int) -> None:
    """Set both learning rates for this step's updates."""
    section = learner.config.ppo
    scale = lr_scale(
        step,
        total_steps=section.total_steps,
        warmup_steps=section.warmup_steps,
        schedule=section.lr_schedule,
        min_ratio=section.min_lr_ratio,
        time_share=learner.time_share,
    )
    learner.actor_optimizer.scale_lr(scale)
    if learner.critic_optimizer is not None:
        learner.critic_optimizer.scale_lr(scale)


def save_learner(learner: Learner, directory: Path, progress: dict[str, Any]) -> None:
    """Write the actor as a Hugging Face directory, and beside it all that goes on from here."""
    save_model(directory, learner.actor, learner.tokenizer)
    critic_optimizer = learner.critic_optimizer
    save_trainer_state(
        directory,
        {
            "actor_optimizer": learner.actor_optimizer.state_dict(),
            "critic": learner.critic.state_dict() if learner.critic else {},
            "critic_optimizer": critic_optimizer.state_dict() if critic_optimizer else {},
            "env_cursor": learner.env_cursor,
            "progress": progress,
        },
    )


def _restore(learner: Learner, directory: Path) -> None:
    state = load_trainer_state(directory)
    learner.actor_optimizer.load_state_dict(state["actor_optimizer"])
    if learner.critic is not None and learner.critic_optimizer is not None:
        learner.critic.load_state_dict(state["critic"])
        learner.critic_optimizer.load_state_dict(state["critic_optimizer"])
    learner.env_cursor = state["env_cursor"]
    learner.progress = state["progress"]
