"""An inference server for verl's agent loops that needs no model: it opens doors at random."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from tests.training.toys import Doors


class TwoDoors(Doors):
    """A wrong door leads back; only the right one ends the episode."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        state, reward, _, truncated, info = super().step(action)
        return state, reward, bool(info["success"]), truncated, info


class DoorOpener:
    """Well-formed answers to `tests.training.toys.Doors`; fails at each `fail_every`-th request.

    Without `answers` none ever comes. Every token of a prompt is its first choice, at .25 nats.
    """

    def __init__(self, tokenizer: Any, *, fail_every: int = 0, answers: bool = True) -> None:
        end = tokenizer.convert_tokens_to_ids("<|end|>")
        texts = [f"<answer>{action}</answer>" for action in ("Left", "Right")]
        self.answers = [
            [*tokenizer(text, add_special_tokens=False)["input_ids"], end] for text in texts
        ]
        self.fail_every = fail_every
        self.asked = 0
        self.is_answering = answers

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput:
        self.asked += 1
        if not self.is_answering:
            await asyncio.sleep(3600)
        if self.fail_every and self.asked % self.fail_every == 0:
            raise RuntimeError("the server is gone")
        if "prompt_logprobs" in sampling_params:
            return TokenOutput(
                token_ids=[0],
                extra_fields={
                    "prompt_logprobs": [[-0.25]] * len(prompt_ids),
                    "prompt_ids": [[token] for token in [*prompt_ids[1:], 0]],
                },
            )
        assert sampling_params["stop_token_ids"] and not sampling_params["ignore_eos"]
        ids = random.Random(f"{request_id}{len(prompt_ids)}").choice(self.answers)
        ids = ids[: sampling_params["max_tokens"]]
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids) if sampling_params["logprobs"] else None,
            stop_reason="completed",
            extra_fields={"min_global_steps": 0, "max_global_steps": 0},
        )
