"""What verl's servers tell of true answers makes the scores that the model itself has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conf.schema import Config
from steps.policies.loading import load_model, load_tokenizer
from steps.settings import env_factory
from steps.training import teacher_forced, verl_forced
from steps.training.probe import forced_rows
from steps.workers import Peers
from tests.training.toys import finetuned, toy_config


class Server:
    """Tells of prompts what verl 0.9.1 makes of vLLM's words, by a model on the processor."""

    def __init__(self, model: Any) -> None:
        self.model = model

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Any:
        assert request_id and sampling_params["max_tokens"] == 1
        with torch.inference_mode():
            told = self.model(torch.tensor([prompt_ids])).logits[0, :-1].log_softmax(-1)
        ids = torch.tensor(prompt_ids[1:])
        if sampling_params["prompt_logprobs"] == 1:
            ids = told.argmax(-1)
        logprobs = told.gather(1, ids[:, None])
        return SimpleNamespace(
            extra_fields={
                "prompt_ids": [*ids[:, None].tolist(), [0]],
                "prompt_logprobs": [*logprobs.tolist(), [0.0]],
            }
        )


@pytest.fixture
def config() -> Config:
    return toy_config()


def test_the_scores_are_those_of_the_model(config: Config, tmp_path: Any) -> None:
    directory = finetuned(tmp_path, config)
    model, tokenizer = load_model(directory), load_tokenizer(directory)
    rows = forced_rows(config, env_factory(config), tokenizer, longest=512)
    found = verl_forced.scores(Server(model.eval()), rows)
    assert found == pytest.approx(teacher_forced.scores(Peers(), model, rows), abs=1e-6)
    assert 0.0 < found["answer_tokens"] < 1.0  # the model holds both of two doors for possible


def test_without_answers_nobody_is_asked() -> None:
    assert verl_forced.scores(None, []) == {}
