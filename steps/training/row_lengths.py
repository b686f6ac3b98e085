"""Whether what is to be learned fits into a model's context: of rows, and of a world before work.

A model that is built here has a short context. Its rows were found too long only when self-play and
filter were done, so a few random episodes are looked at first. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from conf.schema import Config
from steps.agent.records import Message
from steps.agent.rollout import EpisodeSpec, run_episodes
from steps.errors import ConfigError
from steps.policies.base import make_policy
from steps.settings import env_factory, policy_spec, rollout_settings

MIN_SHARE = 0.5
"""Of the training rows, that must fit: below it the training would be of another task."""
EPISODES = 4
"""Looked at before work."""


def check_fit(lengths: Sequence[tuple[int, int]], limit: int, what: str) -> None:
    """Raise `ConfigError` where most rows of `lengths`, (all tokens, those learned), are longer."""
    too_long = sum(length > limit for length, _ in lengths)
    if not lengths or len(lengths) - too_long >= MIN_SHARE * len(lengths):
        return
    length, learned = max(lengths, key=lambda each: each[0])
    room = _round_up(length)
    raise ConfigError(
        f"{too_long} of {len(lengths)} {what} have more than {limit} "
        f"tokens (the longest {length}, of which {learned} are learned). A model that is built "
        f'here takes them with --override "model.max_positions={room} '
        f'sampling.max_model_len={room} sampling.max_new_tokens={_round_up(learned)}"; a '
        "pretrained one with a larger sft.max_length, up to its context, or a shorter history "
        "(prompt.history=last_k)."
    )


def check_world(config: Config) -> None:
    """The same for random play in a world, where the model is built here."""
    if config.model.path or not config.model.from_scratch:
        return
    from steps.training.tiny_tokenizer import bare_tokenizer, prompt_text  # brings tokenizers

    tokenizer = bare_tokenizer()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    lengths = []
    for prompt, response in _turns(config):
        learned = count(response) + 1  # the end of the turn
        lengths.append((count(prompt_text(prompt)) + learned, learned))
    limit = min(config.sft.max_length or config.model.max_positions, config.model.max_positions)
    check_fit(lengths, limit, f"turns of random play on {config.env.id}")


def _turns(config: Config) -> list[tuple[Sequence[Message], str]]:
    """Prompts and answers of a few episodes as self-play writes them; none where nobody can."""
    settings = rollout_settings(config, splice=True, selfplay=True)
    with suppress(NotImplementedError):  # a game that draws no action
        played = run_episodes(
            [EpisodeSpec(env_seed=seed, sampling_seed=seed) for seed in range(EPISODES)],
            env_id=config.env.id,
            make_env=env_factory(config),
            policy=make_policy(policy_spec(config, "random", selfplay=True)),
            settings=replace(settings, foresight=False),
        )
        return [(turn.prompt, turn.response) for each in played for turn in each.turns]
    return []


def _round_up(tokens: int) -> int:
    return -(-(tokens + 1) // 64) * 64
