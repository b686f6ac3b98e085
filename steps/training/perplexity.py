"""State perplexity: how surprising the words of a state are to a model (the paper's table 1).

The paper gives neither conditioning nor averaging. Ours:

1. States are those that random play on N test puzzles passes through, each one once a puzzle. The
   play is the same for every state format.
2. The model reads the game's first prompt, chat template included, up to the state, then the state
   itself. What follows in the prompt isn't read.
3. Tokens are those of the whole prompt, and count as the state's where most of their characters are
   the state's: a token may reach over its edge. A state's very first token counts only where
   something stands before it.
4. `perplexity` is exp of the mean negative log-likelihood over all tokens of all states, so that
   long states weigh more; `perplexity_mean` is the mean over states of each one's own.
5. Both again per character instead of per token: tokenizers that cut differently can be compared by
   these only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from conf.schema import Config
from steps.agent.prompts import History, PromptSettings, build_messages
from steps.agent.records import StateFormat
from steps.agent.rollout import EpisodeSpec, has_board, run_episodes
from steps.agent.seeds import Stream, mix_seed
from steps.errors import DataError
from steps.policies.base import make_policy
from steps.policies.chat_template import render_prompts
from steps.policies.context import within_context
from steps.policies.loading import load_model, load_tokenizer
from steps.settings import env_factory, policy_spec, prompt_settings, rollout_settings
from steps.training.losses import token_logprobs
from steps.training.tokenization import micro_batches, pad_rows
from steps.workers import limit_threads

_MARK = "\x02state\x03"
"""Stands for the state in a prompt until its place is known."""


class ReadState(NamedTuple):
    """A state in its prompt, as tokens."""

    token_ids: tuple[int, ...]
    """Up to the state's last token."""
    is_state: tuple[bool, ...]
    num_characters: int


def measure(
    config: Config,
    model_dir: str,
    *,
    state_formats: Sequence[str],
    seeds: Sequence[int],
    cores: int,
) -> dict[str, dict[str, float]]:
    """`state_perplexity` of a model directory or hub name."""
    limit_threads(1, cores)
    origin: Any = {
        "revision": config.model.revision,
        "trust_remote_code": config.model.trust_remote_code,
    }
    tokenizer = load_tokenizer(model_dir, **origin)
    model = load_model(model_dir, device=config.device, dtype=config.model.dtype, **origin)
    return state_perplexity(config, model, tokenizer, state_formats=state_formats, seeds=seeds)


def state_perplexity(
    config: Config,
    model: Any,
    tokenizer: Any,
    *,
    state_formats: Sequence[str],
    seeds: Sequence[int],
) -> dict[str, dict[str, float]]:
    """State format -> `perplexity`, `perplexity_mean`, and the like; see the module's docstring."""
    found = {}
    for state_format in state_formats:
        settings = replace(
            prompt_settings(config),
            state_shown=StateFormat(state_format),
            history=History.SINGLE_TURN,
        )
        states = visited_states(config, settings, seeds)
        before, after = prompt_around(config, settings, tokenizer)
        found[state_format] = scores(model, read_states(tokenizer, before, states, after))
    return found


def visited_states(config: Config, settings: PromptSettings, seeds: Sequence[int]) -> list[str]:
    """The states of a random episode of each puzzle, each state once a puzzle."""
    played = run_episodes(
        [
            EpisodeSpec(env_seed=seed, sampling_seed=mix_seed(seed, Stream.PERPLEXITY))
            for seed in seeds
        ],
        env_id=config.env.id,
        make_env=env_factory(config),
        policy=make_policy(policy_spec(config, "random")),
        settings=replace(rollout_settings(config), prompt=settings),
    )
    return [
        state
        for trajectory in played
        for state in dict.fromkeys(turn.state_shown for turn in trajectory.turns)
    ]


def prompt_around(config: Config, settings: PromptSettings, tokenizer: Any) -> tuple[str, str]:
    """The text that a model reads before and after the state of the first turn."""
    with closing(env_factory(config)()) as env:
        env.reset(seed=0)
        world: Any = env.unwrapped
        messages = build_messages(
            settings,
            instruction=world.instruction,
            action_names=world.action_names,
            state=_MARK,
            turn_index=0,
            actions_left=config.env.max_actions,
            earlier=(),
            max_new_tokens=config.sampling.max_new_tokens,
            has_board=has_board(world),
        )
    (text,) = render_prompts(tokenizer, [messages])
    before, mark, after = text.partition(_MARK)
    assert mark, "the chat template leaves the last message out"
    return before, after


def read_states(tokenizer: Any, before: str, states: Sequence[str], after: str) -> list[ReadState]:
    """Each state between the two texts, tokenised together with them."""
    if not states:
        return []
    encoded = tokenizer(
        [f"{before}{state}{after}" for state in states],
        add_special_tokens=False,
        return_offsets_mapping=True,
    )
    rows = zip(states, encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [_read(state, ids, offsets, len(before)) for state, ids, offsets in rows]


def _read(
    state: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]], start: int
) -> ReadState:
    stop = start + len(state)
    inside = [
        2 * (min(end, stop) - max(first, start)) > end - first and index > 0
        for index, (first, end) in enumerate(offsets)
    ]
    length = max((index + 1 for index, is_in in enumerate(inside) if is_in), default=0)
    return ReadState(tuple(ids[:length]), tuple(inside[:length]), len(state))


@torch.inference_mode()
def scores(model: Any, states: Sequence[ReadState]) -> dict[str, float]:
    """The perplexities of these states, and how many states, tokens and characters they are.

    Raises `DataError` where there is no token to read, or a prompt is too long for the model.
    """
    longest = max((len(state.token_ids) for state in states), default=0)
    limit = within_context(model.config)
    if not longest or longest > limit:
        raise DataError(
            f"the longest prompt has {longest} tokens, the model reads 1 to {limit}: choose "
            "another model, or a shorter prompt (prompt.style=state_only)."
        )
    ordered = sorted(states, key=lambda state: len(state.token_ids))
    nats = torch.tensor(list(_nats(model, ordered)), dtype=torch.float64)
    tokens = torch.tensor([sum(state.is_state) for state in ordered], dtype=torch.float64)
    characters = torch.tensor([state.num_characters for state in ordered], dtype=torch.float64)
    return {
        "perplexity": math.exp(float(nats.sum() / tokens.sum())),
        "perplexity_mean": float((nats / tokens).exp().mean()),
        "character_perplexity": math.exp(float(nats.sum() / characters.sum())),
        "character_perplexity_mean": float((nats / characters).exp().mean()),
        "states": len(ordered),
        "tokens": int(tokens.sum()),
        "characters": int(characters.sum()),
    }


def _nats(model: Any, states: Sequence[ReadState]) -> Iterator[float]:
    """Negative log-likelihood of each state's tokens together."""
    model.eval()
    for part in micro_batches([len(s.token_ids) for s in states], model.config.vocab_size):
        rows = states[part]
        ids_BT = pad_rows(
            [row.token_ids for row in rows], value=0, dtype=torch.long, device=model.device
        )
        inside_BT = pad_rows(
            [row.is_state for row in rows], value=0, dtype=torch.bool, device=model.device
        )
        logits_BTV = model(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT)).logits
        nats_BT = -token_logprobs(logits_BTV, ids_BT).double() * inside_BT
        yield from nats_BT.sum(1).tolist()
