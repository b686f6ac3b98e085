"""Likelihoods of true answers in a probe by verl: `teacher_forced`, told by the inference servers.

The model isn't at hand where a probe is made, and verl's trainers tell no first choices. A server
tells of a prompt's tokens either how likely each was or which one would have come first, so each
row is asked about twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import torch

from steps.training import teacher_forced
from steps.training.tokenization import SFTRow, pad_rows


def scores(client: Any, rows: Sequence[SFTRow]) -> dict[str, float]:
    """`teacher_forced.scores` of the model that verl's `client` answers with."""
    if not rows:
        return {}
    told = asyncio.run(_told(client, rows))
    nats_BT = pad_rows([nats for nats, _ in told], value=0.0, dtype=torch.float32, device="cpu")
    right_BT = pad_rows([right for _, right in told], value=0, dtype=torch.bool, device="cpu")
    return teacher_forced.named(teacher_forced.span_sums(rows, nats_BT, right_BT))


async def _told(client: Any, rows: Sequence[SFTRow]) -> list[tuple[list[float], list[bool]]]:
    return await asyncio.gather(*(_row(client, list(row.token_ids)) for row in rows))


async def _row(client: Any, ids: list[int]) -> tuple[list[float], list[bool]]:
    """Of each token: its negative log-likelihood, and whether it is the first choice."""
    likely, first = await asyncio.gather(_ask(client, ids, 0), _ask(client, ids, 1))
    # Nothing is told of the first token, and a number of nothing stands behind the last.
    nats = [-logprob for (logprob,) in likely["prompt_logprobs"][:-1]]
    right = [
        choice == token for (choice,), token in zip(first["prompt_ids"][:-1], ids[1:], strict=True)
    ]
    return [0.0, *nats], [False, *right]


async def _ask(client: Any, ids: list[int], num_choices: int) -> dict[str, Any]:
    """What is told of a prompt: of its own tokens, or of each place's first choices."""
    output = await client.generate(
        request_id=uuid4().hex,
        prompt_ids=ids,
        sampling_params={
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": num_choices,
            "detokenize": False,
        },
    )
    fields: dict[str, Any] = output.extra_fields
    return fields
