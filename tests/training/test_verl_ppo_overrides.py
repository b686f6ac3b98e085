"""PPO's settings in verl's words, golden for each profile, and what can't be said in them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf import compose
from conf.schema import Config
from steps.training.schedules import lr_scale
from steps.training.verl_common import Kernels
from steps.training.verl_ppo_limits import lacks
from steps.training.verl_ppo_overrides import ENGINE, PPOPlan, to_verl_overrides
from tests.training.toys import verls_scale

GOLDEN = Path(__file__).parents[1] / "golden" / "verl"
PROFILES = ("single_gpu", "multi_gpu", "paper")


def config_of(profile: str, **ppo: Any) -> Config:
    config = compose(env="frozenlake", profile=profile)
    return replace(config, ppo=replace(config.ppo, **ppo))


def plan(*, resume: bool = False) -> PPOPlan:
    return PPOPlan(
        model_dir="/run/sft/model",
        train_rows=Path("/run/work/train.jsonl"),
        probe_rows=Path("/run/work/probe.jsonl"),
        agents_file=Path("/run/work/agents.yaml"),
        directory=Path("/run/work/checkpoints"),
        resume_from=Path("/run/work/resume/global_step_40") if resume else None,
        kernels=Kernels(attention="sdpa", remove_padding=False),
        head_size=128,
    )


def as_dict(overrides: list[str]) -> dict[str, str]:
    pairs = dict(text.split("=", 1) for text in overrides)
    assert len(pairs) == len(overrides), "a key is given twice"
    return pairs


@pytest.mark.parametrize("profile", PROFILES)
def test_overrides_of_each_profile(profile: str) -> None:
    config = config_of(profile)
    assert lacks(config) == ""
    text = "\n".join(to_verl_overrides(config, plan())) + "\n"
    assert text == (GOLDEN / f"ppo_{profile}.txt").read_text("utf-8")


@pytest.mark.parametrize(
    ("dtype", "word"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")]
)
def test_actor_critic_reference_and_vllm_compute_in_the_same(dtype: str, word: str) -> None:
    config = config_of("paper")
    config.verl.dtype = dtype
    found = as_dict(to_verl_overrides(config, plan()))
    assert found["actor_rollout_ref.rollout.dtype"] == dtype
    engines = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config")
    for engine in (*engines, "critic.fsdp"):
        assert found[f"+{engine}.mixed_precision.param_dtype"] == word
        assert found[f"+{engine}.mixed_precision.reduce_dtype"] == "fp32"
        assert found[f"{engine}.model_dtype"] == "fp32"


def test_attention_is_in_all_graphs_where_that_was_seen_to_be_right() -> None:
    def mode(head_size: int, max_model_len: int) -> str:
        config = config_of("paper")
        config.sampling.max_model_len = max_model_len
        overrides = to_verl_overrides(config, replace(plan(), head_size=head_size))
        return as_dict(overrides)[f"+{ENGINE}.compilation_config.cudagraph_mode"]

    assert mode(128, 2048) == "FULL"
    assert mode(64, 2048) == mode(128, 2047) == "FULL_AND_PIECEWISE"


def test_groups_and_minibatches_are_counted_as_verl_does() -> None:
    found = as_dict(to_verl_overrides(config_of("paper"), plan()))
    assert found["data.train_batch_size"] == "32"
    assert found["actor_rollout_ref.rollout.n"] == "8"
    # 64 episodes: eight rows of the data set.
    assert found["actor_rollout_ref.actor.ppo_mini_batch_size"] == "8"
    assert found["critic.ppo_mini_batch_size"] == "8"


def test_a_bound_of_zero_is_none() -> None:
    found = as_dict(
        to_verl_overrides(
            config_of("paper", dual_clip=0.0, value_clip=0.0, max_grad_norm=0.0), plan()
        )
    )
    assert float(found["actor_rollout_ref.actor.clip_ratio_c"]) == 1e9
    assert float(found["critic.cliprange_value"]) == 1e9
    for part in ("actor_rollout_ref.actor", "critic"):  # verl would cut gradients to nothing
        assert float(found[f"{part}.grad_clip"]) == float(found[f"{part}.optim.clip_grad"]) == 1e9


def test_the_critic_warms_up_for_as_many_steps() -> None:
    """verl updates the actor from step `critic_warmup` on, and its first step is number 1."""
    found = as_dict(to_verl_overrides(config_of("paper", critic_warmup=3), plan()))
    assert found["trainer.critic_warmup"] == "4"


@pytest.mark.parametrize("prefix", ["actor_rollout_ref.actor.optim", "critic.optim"])
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 4, 20])
def test_each_steps_learning_rate_is_that_of_the_local_backend(
    prefix: str, schedule: str, warmup: int
) -> None:
    config = config_of(
        "paper", lr_schedule=schedule, warmup_steps=warmup, total_steps=20, min_lr_ratio=0.1
    )
    found = as_dict(to_verl_overrides(config, plan()))
    ours = [
        lr_scale(step, total_steps=20, warmup_steps=warmup, schedule=schedule, min_ratio=0.1)
        for step in range(20)
    ]
    assert [verls_scale(found, prefix, step) for step in range(20)] == pytest.approx(ours)


def test_resuming_is_said_outright() -> None:
    fresh = as_dict(to_verl_overrides(config_of("paper"), plan()))
    again = as_dict(to_verl_overrides(config_of("paper"), plan(resume=True)))
    assert fresh["trainer.resume_mode"] == "disable"
    assert again["trainer.resume_mode"] == "resume_path"
    assert again["trainer.resume_from_path"] == "/run/work/resume/global_step_40"


@pytest.mark.parametrize(
    ("every", "resume", "probed"),
    [(10, False, "True"), (10, True, "False"), (0, False, "False")],
)
def test_a_training_that_begins_is_probed_before_its_first_step(
    every: int, resume: bool, probed: str
) -> None:
    found = as_dict(to_verl_overrides(config_of("paper", probe_every=every), plan(resume=resume)))
    assert found["trainer.val_before_train"] == probed


def test_own_overrides_come_last() -> None:
    config = config_of("paper")
    own = ["trainer.project_name=mine"]
    config = replace(config, verl=replace(config.verl, overrides=own))
    assert to_verl_overrides(config, plan())[-1:] == own


@pytest.mark.parametrize(
    ("ppo", "message"),
    [
        ({"lr_schedule": "linear"}, "ppo.lr_schedule=linear"),
        ({"time_limit_s": 5.0}, "ppo.time_limit_s=5"),
        ({"exclude_zero_variance": True}, "ppo.exclude_zero_variance"),
        ({"target_kl": 0.02}, "ppo.target_kl"),
        ({"loss_on": "all"}, "ppo.loss_on=all"),
        ({"keep": "best", "save_every": 7}, r"divisor of ppo.probe_every \(10\)"),
        ({"minibatch_size": 60}, r"multiple of ppo.group_size \(8\)"),
        ({"minibatch_size": 512}, "256 episodes of a step"),
    ],
)
def test_what_verl_cannot_follow_is_told(ppo: dict[str, Any], message: str) -> None:
    assert re.search(message, lacks(config_of("paper", **ppo)))


def test_the_best_may_be_kept_where_each_probe_has_its_checkpoint() -> None:
    assert lacks(config_of("paper", keep="best", save_every=5)) == ""


@pytest.mark.parametrize(
    ("verl", "message"),
    [
        ({"n_gpus_per_node": 4, "tensor_parallel_size": 3}, "doesn't divide its 4 GPUs"),
        ({"n_gpus_per_node": 3}, r"number of ranks \(3\)"),
        ({"max_tokens_per_gpu": 1000}, "can't hold a sequence"),
        ({"n_gpus_per_node": 4, "sequence_parallel_size": 3}, "doesn't divide its 4 GPUs"),
        ({"n_gpus_per_node": 6, "sequence_parallel_size": 3}, "^$"),
        ({"max_tokens_per_gpu": 1800, "n_gpus_per_node": 2}, "of 1800 tokens .* can't hold"),
        (
            {"max_tokens_per_gpu": 1800, "n_gpus_per_node": 2, "sequence_parallel_size": 2},
            "^$",
        ),
        (
            {"dynamic_batches": False, "n_gpus_per_node": 6, "sequence_parallel_size": 3},
            "256 episodes of a step must be a multiple of its 6 GPUs",
        ),
        ({"nnodes": 2}, "nnodes=2 needs a Ray cluster .*verl.ray_address"),
        ({"nnodes": 2, "ray_address": "auto"}, "^$"),
    ],
)
def test_parallelism_that_does_not_fit_is_told(verl: dict[str, Any], message: str) -> None:
    config = config_of("single_gpu")
    assert re.search(message, lacks(replace(config, verl=replace(config.verl, **verl))))


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (["algorithm.use_kl_in_reward=True"], "use_kl_in_reward .* no effect.*set ppo.kl_coef"),
        (["algorithm.filter_groups.enable=true"], "filter_groups.enable .*set ppo.filter_ratio"),
        (["+trainer.v1.sampler.x=1"], "trainer.v1.sampler.x among verl.overrides has no effect"),
        (["algorithm.rollout_correction.rollout_is=token"], "rollout_is .* without .*bypass_mode"),
        (["algorithm.use_kl_in_reward=False", "algorithm.filter_groups.enable=False"], "^$"),
        (
            [
                "algorithm.rollout_correction.rollout_is=token",
                "algorithm.rollout_correction.bypass_mode=True",
            ],
            "^$",
        ),
        (["algorithm.rollout_correction.rollout_is=null"], "^$"),
    ],
)
def test_what_would_have_no_effect_is_refused(told: list[str], message: str) -> None:
    config = config_of("paper")
    assert re.search(message, lacks(replace(config, verl=replace(config.verl, overrides=told))))


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("algorithm.norm_adv_by_std_in_grpo=False", "set ppo.reward_norm"),
        ("algorithm.adv_estimator=grpo", "set ppo.advantage"),
        ("algorithm.kl_ctrl.kl_coef=0.1", "set ppo.kl_coef"),
        ("data.shuffle=True", "in the order of steps"),
        ("data.train_batch_size=4", "set ppo.env_groups"),
        ("+data.gen_batch_size=4", "set ppo.env_groups"),
        ("actor_rollout_ref.rollout.n=4", "set ppo.group_size"),
        ("actor_rollout_ref.rollout.val_kwargs.n=4", "ppo.probe_samples"),
        ("actor_rollout_ref.rollout.temperature=0.7", "set sampling.temperature"),
        ("actor_rollout_ref.actor.optim.lr=1e-5", "set ppo.lr,"),
        ("actor_rollout_ref.actor.checkpoint.save_contents=[model]", "leave it whole"),
        ("reward.custom_reward_function.path=a.py", "rewards are the world's"),
        ("trainer.total_training_steps=2", "set ppo.total_steps"),
        ("trainer.save_freq=-1", "set ppo.save_every"),
        ("trainer.val_before_train=True", "set ppo.probe_every"),
        ("trainer.v1.trainer_mode=colocate_async", "synchronous"),
        ("~trainer.resume_mode", "where it looks for them"),
        ("trainer.logger=[console,wandb]", "trainer.logger .* leaves out file"),
        ("trainer.logger=['console','file','wandb']", "^$"),
        ("data.dataloader_num_workers=2", "^$"),
        ("trainer.project_name=mine", "^$"),
        ("trainer.rollout_data_dir=/tmp/rollouts", "without the columns"),
        ("algorithm.gamma=0.9", "^$"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "^$"),
        ("actor_rollout_ref.actor.optim.lr_decay=1", "^$"),  # no key is a part of another's word
        ("critic.optim.lr=1e-5", "^$"),
    ],
)
def test_what_contradicts_our_own_is_refused(told: str, message: str) -> None:
    config = config_of("paper")
    found = lacks(replace(config, verl=replace(config.verl, overrides=[told])))
    assert re.search(message, found)
    assert not found or told.lstrip("+~").split("=")[0] in found


def test_adapters_are_the_actors_alone() -> None:
    config = config_of("paper")
    config = replace(config, model=replace(config.model, lora_rank=8))
    found = as_dict(to_verl_overrides(config, plan()))
    assert found["actor_rollout_ref.model.lora_rank"] == "8"
    assert found["actor_rollout_ref.model.lora.merge"] == "True"
    assert found["actor_rollout_ref.actor.strategy"] == "fsdp2"
    assert "critic.model.lora_rank" not in found
    assert lacks(config) == ""
    split = replace(config, verl=replace(config.verl, strategy="fsdp"))
    assert "set verl.strategy=fsdp2" in lacks(split)
