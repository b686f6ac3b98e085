"""A model's context, by its loaded configuration and by its files alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import GPT2Config, LlamaConfig

from steps.policies.context import NO_LIMIT, context_length, within_context
from steps.policies.model_directory import context_limit


@pytest.mark.parametrize(
    ("limit", "wanted", "expected"),
    [
        (40, 10, 10),
        (40, 40, 40),
        (40, 3600, 40),
        (40, 0, 40),
        (None, 10, 10),
        (None, 0, NO_LIMIT),
        (0, 10, 10),
    ],
)
def test_the_smaller_of_what_is_wanted_and_what_the_model_reads(
    limit: int | None, wanted: int, expected: int
) -> None:
    assert within_context(SimpleNamespace(max_position_embeddings=limit), wanted) == expected


def test_a_configuration_that_names_no_limit_has_none() -> None:
    assert within_context(SimpleNamespace(), 7) == 7
    assert within_context(SimpleNamespace()) == NO_LIMIT


@pytest.mark.parametrize("config", [GPT2Config(n_positions=40), LlamaConfig()])
def test_files_and_library_say_the_same_of_a_saved_model(
    config: GPT2Config | LlamaConfig, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)
    expected = 40 if isinstance(config, GPT2Config) else 2048
    assert context_limit(str(tmp_path)) == context_length(str(tmp_path)) == expected
    assert context_length(str(tmp_path), 30) == 30


def test_of_a_number_that_the_file_leaves_out_the_library_alone_knows(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', "utf-8")
    assert context_limit(str(tmp_path)) is None
    assert context_length(str(tmp_path)) == 2048


def test_files_say_nothing_of_a_hub_name() -> None:
    assert context_limit("owner/name") is None
