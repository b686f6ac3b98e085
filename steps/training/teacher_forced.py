"""How likely the true answer is to a model that is fed it, token by token: nothing is sampled.

Random play on held-out puzzles gives the turns, and the truth is written into them by the function
that does so in self-play. So these scores don't depend on the model's own choices, which take PPO's
probes to other states as it learns. Of each kind of span: the mean negative log-likelihood of a
token (`_nll`, nats), the share of tokens that are the model's first choice (`_tokens`) and the
share of answers in which all tokens of that kind are (`_exact`).

A prediction stands before the action it follows from, so its uncertainty holds the choice of the
action, too: a model that knows its world perfectly has one of several predictions right as a first
choice, and only an even spread of its probability over the moves to show for it. What separates
knowing the world from guessing the move is the answer: its tokens are read after the true
prediction, and `answer_exact` says how often the model knows which action leads there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import torch

from conf.schema import Config
from steps.agent.parsing import spans
from steps.agent.records import SFTExample, SpanKind, Trajectory
from steps.agent.rollout import EpisodeSpec, run_episodes
from steps.agent.seeds import Stream, mix_seed
from steps.policies.base import make_policy
from steps.policies.context import within_context
from steps.policies.loading import load_model, load_tokenizer
from steps.settings import env_factory, policy_spec, rollout_settings
from steps.training.losses import token_logprobs
from steps.training.tokenization import (
    SPAN_KINDS,
    SFTRow,
    micro_batches,
    pad_rows,
    tokenize_examples,
)
from steps.workers import Peers, limit_threads

KINDS = tuple(kind for kind in SPAN_KINDS if kind is not SpanKind.TAG)
"""Tags are the format's, not the world's."""
_SUMS = 5
"""Numbers summed of each kind: nats, tokens, right tokens, answers, right answers."""


def measure(
    config: Config, model_dir: str, seeds: Sequence[int], *, cores: int
) -> dict[str, float]:
    """The scores of a model directory or hub name on the puzzles of these seeds."""
    limit_threads(1, cores)
    origin: Any = {
        "revision": config.model.revision,
        "trust_remote_code": config.model.trust_remote_code,
    }
    tokenizer = load_tokenizer(model_dir, **origin)
    model = load_model(model_dir, device=config.device, dtype=config.model.dtype, **origin)
    examples = true_answers(config, env_factory(config), seeds)
    rows = tokenized(examples, tokenizer, longest=within_context(model.config))
    found: dict[str, float] = scores(Peers(), model, rows)
    return found


def true_answers(
    config: Config, make_env: Callable[[], gymnasium.Env[str, str]], seeds: Sequence[int]
) -> list[SFTExample]:
    """A random episode of each puzzle, a turn an example, the truth in its state tags.

    The true prediction is the likeliest next state, whichever one self-play teaches: a measure must
    not depend on the data.
    """
    specs = [
        EpisodeSpec(
            env_seed=seed,
            group=group,
            sampling_seed=mix_seed(config.seed, Stream.TEACHER_FORCED, group),
        )
        for group, seed in enumerate(seeds)
    ]
    played = run_episodes(
        specs,
        env_id=config.env.id,
        make_env=make_env,
        policy=make_policy(policy_spec(config, "random")),
        settings=replace(rollout_settings(config, splice=True), splice_likeliest=True),
    )
    return [row for trajectory in played for row in _examples(trajectory)]


def tokenized(examples: Sequence[SFTExample], tokenizer: Any, *, longest: int) -> list[SFTRow]:
    """Token rows, the shortest first; those of more than `longest` tokens are left out."""
    fitting = tokenize_examples(examples, tokenizer, max_length=longest)
    return sorted(fitting, key=lambda row: len(row.token_ids))


@torch.inference_mode()
def scores(peers: Peers, model: Any, rows: Sequence[SFTRow]) -> dict[str, float]:
    """`observation_nll`, `observation_tokens`, `observation_exact`, and so on, of all ranks' rows.

    Every rank gives all rows and reads its share. A kind of span that no answer has is left out.
    """
    model.eval()
    sums = torch.zeros(len(KINDS), _SUMS, dtype=torch.float64)
    mine = rows[peers.rank :: peers.size]
    for part in micro_batches([len(row.token_ids) for row in mine], model.config.vocab_size):
        sums += _batch_sums(model, mine[part])
    return named(torch.tensor(peers.sum(sums.flatten().tolist())).view_as(sums))


def named(sums: torch.Tensor) -> dict[str, float]:
    """The scores of `span_sums` that were added up."""
    found: dict[str, float] = {}
    for kind, (nats, tokens, right, answers, exact) in zip(KINDS, sums.tolist(), strict=True):
        if tokens:
            found[f"{kind}_nll"] = nats / tokens
            found[f"{kind}_tokens"] = right / tokens
            found[f"{kind}_exact"] = exact / answers
    return found


def span_sums(
    rows: Sequence[SFTRow], nats_BT: torch.Tensor, right_BT: torch.Tensor
) -> torch.Tensor:
    """What the scores are made of, `[kinds, numbers]`, of rows of tokens.

    `nats_BT` is each token's negative log-likelihood, `right_BT` whether it is the first choice.
    """
    kinds_BT = pad_rows(
        [row.kinds for row in rows], value=-1, dtype=torch.long, device=nats_BT.device
    )
    sums = []
    for kind in KINDS:
        inside_BT = kinds_BT == SPAN_KINDS.index(kind)
        has_B = inside_BT.any(1)
        exact_B = (right_BT | ~inside_BT).all(1) & has_B
        values = (nats_BT * inside_BT, inside_BT, right_BT & inside_BT, has_B, exact_B)
        sums.append([float(value.double().sum()) for value in values])
    return torch.tensor(sums, dtype=torch.float64)


def _batch_sums(model: Any, rows: Sequence[SFTRow]) -> torch.Tensor:
    ids_BT = pad_rows(
        [row.token_ids for row in rows], value=0, dtype=torch.long, device=model.device
    )
    logits_BTV = model(input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT)).logits
    right_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    right_BT[:, 1:] = logits_BTV[:, :-1].argmax(-1) == ids_BT[:, 1:]
    return span_sums(rows, -token_logprobs(logits_BTV, ids_BT), right_BT)


def _examples(trajectory: Trajectory) -> list[SFTExample]:
    return [
        SFTExample(
            prompt=turn.prompt,
            response=turn.response,
            spans=spans(turn.response, trajectory.response_format),
            trajectory_id=trajectory.trajectory_id,
            turn_index=turn.index,
            puzzle_hash=trajectory.puzzle_hash,
            split="probe",
            env_id=trajectory.env_id,
        )
        for turn in trajectory.turns
    ]
