"""The built-in model and its tokenizer: reversible, reproducible, and like any other model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel, LlamaForCausalLM

from conf.schema import ModelSection
from steps.agent.records import Message
from steps.policies.chat_template import render_prompts
from steps.training.tiny_model import build_model, build_tiny, build_tokenizer
from steps.training.tiny_tokenizer import bare_tokenizer, prompt_text
from tests.training.toys import same_weights

TOKENIZER = build_tokenizer()
SMALL = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "ffn_size": 16, "max_positions": 32}


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


@given(st.text())
@example("P _\tO\n√X\r\n")
@example("<think> <|end|><|end|> (1,2)(3,\x00 é\u0301 日本 \U0001f600 ' , ' .")
@example("  two spaces,  and a space before . a stop")
def test_every_text_comes_back_from_its_tokens(text: str) -> None:
    assert TOKENIZER.decode(ids_of(text)) == text


@pytest.mark.parametrize(
    "word",
    [
        *("<think>", "</think>", "<answer>", "</answer>", "<observation>", "</observation>"),
        *("<prediction>", "</prediction>", "Up", "Down", "Left", "Right", " || "),
        *("(0,", "(9,", "0)", "9)", "P", "_", "O", "G", "X", "√", "\n"),
        *("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
    ],
)
def test_tags_actions_symbols_and_halves_of_coordinates_are_one_token(word: str) -> None:
    assert len(ids_of(word)) == 1


def test_a_pair_of_coordinates_is_two_tokens_and_a_conversation_has_one_a_role_and_end() -> None:
    assert [TOKENIZER.decode([token]) for token in ids_of("(1,2)")] == ["(1,", "2)"]
    chat = [{"role": "user", "content": "P"}, {"role": "assistant", "content": "Up"}]
    rendered = str(TOKENIZER.apply_chat_template(chat, tokenize=False))
    assert rendered == "<|user|>P<|end|><|assistant|>Up<|end|>"
    assert len(ids_of(rendered)) == 6


def test_a_chat_is_written_without_transformers_as_the_template_writes_it() -> None:
    said = (("system", "rules"), ("user", "P_\n(1,2)"))
    chat = [Message(role=role, content=content) for role, content in said]
    text = prompt_text(chat)
    assert [text] == render_prompts(TOKENIZER, [chat])
    assert bare_tokenizer().encode(text, add_special_tokens=False).ids == ids_of(text)


def test_equal_seeds_give_equal_weights_and_other_seeds_others() -> None:
    one, same, other = (
        build_model(ModelSection(init_seed=seed, **SMALL), TOKENIZER) for seed in (3, 3, 4)
    )
    assert same_weights(one, same)
    assert not torch.equal(one.transformer.wte.weight, other.transformer.wte.weight)


def test_building_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3).tolist()
    torch.manual_seed(0)
    build_model(ModelSection(**SMALL), TOKENIZER)
    assert torch.rand(3).tolist() == expected


def test_the_number_of_weights_is_that_of_its_shape() -> None:
    model = build_model(ModelSection(**SMALL), TOKENIZER)
    embeddings = (len(TOKENIZER) + 32) * 16
    attention = 16 * 48 + 48 + 16 * 16 + 16
    feed_forward = 16 * 16 + 16 + 16 * 16 + 16
    norms = 3 * 2 * 16
    assert sum(parameter.numel() for parameter in model.parameters()) == (
        embeddings + attention + feed_forward + norms
    )


def test_a_llama_has_the_weights_of_its_shape_and_ties_its_head() -> None:
    model = build_model(ModelSection(architecture="llama", **SMALL), TOKENIZER)
    assert isinstance(model, LlamaForCausalLM)
    attention, feed_forward, norms = 4 * 16 * 16, 3 * 16 * 16, 3 * 16
    assert sum(parameter.numel() for parameter in model.parameters()) == (
        len(TOKENIZER) * 16 + attention + feed_forward + norms
    )
    assert model.config.max_position_embeddings == 32
    assert model.model.embed_tokens.weight.std().item() == pytest.approx(16**-0.5, rel=0.05)


def test_the_directory_of_a_llama_gives_it_back(tmp_path: Path) -> None:
    section = ModelSection(architecture="llama", **SMALL)
    directory = build_tiny(section, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(directory, use_safetensors=True)
    assert same_weights(model, build_model(section, TOKENIZER))


def test_the_directory_is_an_ordinary_hugging_face_model(tmp_path: Path) -> None:
    section = ModelSection(**SMALL)
    directory = build_tiny(section, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(directory, use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert isinstance(model, GPT2LMHeadModel)
    assert same_weights(model, build_model(section, TOKENIZER))
    text = "<answer>Up</answer> √ é"
    assert tokenizer(text)["input_ids"] == ids_of(text)
    assert tokenizer.chat_template == TOKENIZER.chat_template
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|pad|>", "<|end|>")
    assert tokenizer.model_max_length == 32


def test_no_progress_bar_is_drawn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build_tiny(ModelSection(**SMALL), tmp_path)
    assert capfd.readouterr().err == ""
