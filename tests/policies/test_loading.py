"""Models come from Hugging Face directories with safetensors; anything else is refused by name."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.schema import ModelSection
from steps.errors import ConfigError, ModelError
from steps.policies import loading
from steps.policies.base import PolicySpec, make_policy
from steps.policies.loading import load_model, load_tokenizer, resolve_device
from steps.training.hub import local_directory
from steps.training.tiny_model import build_tiny


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    section = ModelSection(hidden_size=32, num_heads=2, ffn_size=32, max_positions=48)
    return str(build_tiny(section, tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(
    ("removed", "named"),
    [
        ("config.json", "config.json"),
        ("tokenizer_config.json", "tokenizer_config.json"),
        ("model.safetensors", r"\*.safetensors"),
    ],
)
def test_a_directory_that_is_no_model_is_refused_and_told_what_is_missing(
    removed: str, named: str, model_dir: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model_dir, copy)
    (copy / removed).unlink()
    with pytest.raises(ModelError, match=f"missing {named}"):
        make_policy(PolicySpec(kind="hf", model_dir=str(copy)))


def test_a_tokenizer_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"the tokenizer of .* can't be loaded: ") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_hub_out_of_reach_names_the_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("We couldn't connect to 'https://huggingface.co'.\nSecond line.")

    monkeypatch.setattr(loading.AutoTokenizer, "from_pretrained", refuse)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    for load in (load_tokenizer, local_directory):
        with pytest.raises(ModelError, match=r"connect to .*local directory.*HF_HUB_OFFLINE=1"):
            load("owner/name")


def test_a_long_text_raises_no_alarm_of_transformers(
    model_dir: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    tokenizer = load_tokenizer(model_dir)
    assert len(tokenizer("_" * 100)["input_ids"]) > tokenizer.model_max_length
    assert not caplog.records


def test_a_directory_that_isnt_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model at .*nowhere"):
        make_policy(PolicySpec(kind="hf", model_dir=str(tmp_path / "nowhere")))


def test_weights_in_another_format_than_safetensors_are_refused(
    model_dir: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model_dir, copy)
    (copy / "model.safetensors").unlink()
    torch.save(load_model(model_dir).state_dict(), copy / "pytorch_model.bin")
    with pytest.raises(ModelError, match="other weight formats are not loaded"):
        make_policy(PolicySpec(kind="hf", model_dir=str(copy)))
    with pytest.raises(OSError, match="safetensors"):
        load_model(str(copy))


def test_a_tokenizer_without_chat_template_is_refused(model_dir: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model_dir, copy)
    (copy / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="has no chat template"):
        make_policy(PolicySpec(kind="hf", model_dir=str(copy)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_isnt_there_is_a_clear_error() -> None:
    assert resolve_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="device=auto"):
        resolve_device("cuda")


def test_loading_draws_no_progress_bar(model_dir: str, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(model_dir)
    assert capfd.readouterr().err == ""


def test_a_hub_name_is_loaded_at_its_revision(
    model_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    class Hub:
        def __init__(self, found: Any) -> None:
            self.found = found

        def from_pretrained(self, name: str, *, revision: str, **_: Any) -> Any:
            asked.append((name, revision))
            return self.found

    monkeypatch.setattr(loading, "AutoTokenizer", Hub(load_tokenizer(model_dir)))
    monkeypatch.setattr(loading, "AutoModelForCausalLM", Hub(load_model(model_dir)))
    for revision in ("v1", ""):
        make_policy(PolicySpec(kind="hf", model_dir="owner/name", revision=revision))
    assert asked == [("owner/name", "v1")] * 2 + [("owner/name", "main")] * 2
