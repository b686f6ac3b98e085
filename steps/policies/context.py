"""How many tokens a model reads at once, and what a setting leaves of that.

Asked of a model's configuration as transformers has it: a number that `config.json` leaves out is
its class's, and a hub name is looked up. What files alone say, before work and without libraries,
is `steps.policies.model_directory.context_limit`.
"""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

NO_LIMIT = 1 << 30
"""Tokens of a model that names no limit."""


def within_context(config: Any, wanted: int = 0) -> int:
    """Most tokens of prompt and answer: `wanted`, or the model's limit where that is less or 0."""
    limit: int = getattr(config, "max_position_embeddings", None) or NO_LIMIT
    return min(wanted or limit, limit)


def context_length(
    directory: str, wanted: int = 0, *, revision: str = "", trust_remote_code: bool = False
) -> int:
    """`within_context` of a directory or hub name, of which only the configuration is read."""
    config = AutoConfig.from_pretrained(
        directory, revision=revision or "main", trust_remote_code=trust_remote_code
    )
    return within_context(config, wanted)
