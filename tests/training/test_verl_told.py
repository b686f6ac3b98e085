"""Overrides that verl doesn't take are refused when a run starts, by verl itself where it is."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from conf import compose
from conf.schema import Config
from steps import preflight
from steps.errors import ConfigError
from steps.training import backends, verl_told
from steps.training.verl_preflight import NEEDED
from steps.training.verl_told import check_told


def told(ppo: list[str], sft: list[str], profile: str = "single_gpu") -> Config:
    config = compose(env="frozenlake", profile=profile)
    return replace(config, verl=replace(config.verl, overrides=ppo, sft_overrides=sft))


class Judge:
    """In place of the process that asks verl."""

    def __init__(self, found: dict[str, str] | None = None, code: int = 0) -> None:
        self.asked: list[list[str]] = []
        self.found, self.code = found or {}, code

    def __call__(self, command: list[str], *, input: str, **_: Any) -> SimpleNamespace:
        self.asked.append(json.loads(input)["stages"])
        printed = f"verl says hello\n{json.dumps(self.found)}\n"
        return SimpleNamespace(returncode=self.code, stdout=printed, stderr="x\nImportError: y\n")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    made = Judge()
    monkeypatch.setattr(verl_told, "installed", lambda: dict(NEEDED))
    monkeypatch.setattr(subprocess, "run", made)
    return made


def test_verl_is_asked_where_there_are_overrides_and_it_is_installed(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_told(told([], []), ["sft", "ppo"])
    check_told(told(["a=1"], []), ["sft"])
    assert judge.asked == []
    check_told(told(["a=1"], ["b=1"]), ["sft", "ppo"])
    check_told(told(["a=1"], []), ["sft", "ppo"])
    assert judge.asked == [["sft", "ppo"], ["ppo"]]
    for found in ({}, {"verl": "0.8.0"}):
        monkeypatch.setattr(verl_told, "installed", lambda found=found: found)
        check_told(told(["a=1"], []), ["ppo"])
    assert len(judge.asked) == 2


def test_what_it_refuses_is_one_sentence(judge: Judge) -> None:
    judge.found = {"stage": "sft", "override": "model.x=1", "why": "Could not override 'model.x'."}
    said = (
        r"^'model\.x=1' among verl\.sft_overrides is refused by verl: Could not override "
        r"'model\.x'\. Mend it or leave it out\.$"
    )
    with pytest.raises(ConfigError, match=said):
        check_told(told([], ["model.x=1"]), ["sft", "ppo"])


def test_a_judge_that_cannot_say_stops_nothing(
    judge: Judge, caplog: pytest.LogCaptureFixture
) -> None:
    judge.code = 1
    check_told(told(["a=1"], []), ["ppo"])
    assert "couldn't be checked: ImportError: y" in caplog.text


def test_it_is_asked_when_a_run_starts_and_in_the_first_task_on_a_cluster(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "visible_gpus", lambda: 1)
    monkeypatch.setattr(backends, "installed", lambda: dict(NEEDED))
    judge.found = {"stage": "ppo", "override": "critic.x=1", "why": "no"}
    here = told(["critic.x=1"], [])
    with pytest.raises(ConfigError, match=r"critic\.x=1"):
        preflight.check(here)
    preflight.check_task(here, "selfplay_generate")
    preflight.check_task(here, "ppo_train")
    there = replace(here, cluster="kubernetes")
    preflight.check_task(there, "sft_train")
    with pytest.raises(ConfigError, match=r"critic\.x=1"):
        preflight.check_task(there, "selfplay_generate")
    own = replace(there, ppo=replace(there.ppo, backend="local"))
    preflight.check_task(own, "selfplay_generate")
    assert judge.asked == [["ppo"], ["ppo"]]


@pytest.mark.verl
@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl isn't installed")
class TestVerl:
    """What verl itself says."""

    def test_what_the_docs_name_passes(self) -> None:
        ppo = [
            "actor_rollout_ref.model.use_fused_kernels=True",
            "critic.model.use_liger=True",
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=uni",
        ]
        check_told(told(ppo, ["model.use_liger=True"]), ["sft", "ppo"])

    def test_what_it_does_not_know_is_named(self) -> None:
        from steps.training.verl_judge import refusal

        known = "actor_rollout_ref.actor.entropy_checkpointing=True"
        for wrong, why in {
            "critic.ppo_foo=1": "Could not override 'critic.ppo_foo'",
            "+critic.model.foo=1": "Key 'foo' not in 'HFModelConfig'",
            "critic.model.lora_rank=many": "full_key: lora_rank",
            "+actor_rollout_ref.actor.foo=1": "unexpected keyword argument 'foo'",
            "actor_rollout_ref.actor.loss_agg_mode=sum": "Invalid loss_agg_mode: sum",
        }.items():
            found = refusal(told([wrong, known], []), "ppo")
            assert found["override"] == wrong and why in found["why"]
        for wrong, why in {
            "model.lorarank=3": "Could not override 'model.lorarank'",
            "engine.strategy=none": "strategy none not supported",
        }.items():
            found = refusal(told([], [wrong]), "sft")
            assert (found["stage"], found["override"]) == ("sft", wrong) and why in found["why"]

    def test_a_library_that_is_missing_is_no_fault_of_an_override(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from steps.training import verl_judge

        def missing(*_: Any) -> None:
            raise ModuleNotFoundError("No module named 'vllm'")

        monkeypatch.setattr(verl_judge, "validate_config", missing)
        assert verl_judge.refusal(told(["critic.model.use_liger=True"], []), "ppo") == {}

    @pytest.mark.parametrize("profile", ["single_gpu", "multi_gpu", "paper"])
    @pytest.mark.parametrize("stage", ["sft", "ppo"])
    def test_it_takes_our_own(self, profile: str, stage: str) -> None:
        from steps.training.verl_judge import _overrides, check

        check(stage, _overrides(told([], [], profile), stage))
