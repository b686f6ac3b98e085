"""Supervised finetuning in plain torch: one or several processes, CPU or one GPU.

The paper's equations 1 and 2: cross-entropy over every token of the response, the states in it
included, averaged over the learned tokens of the batch. The readable reference for the verl
backend.

What differs from the published code, and why:
1. States are trained; there they are replaced by one token and masked out (`state_loss: mask`).
2. The loss is divided by the batch's learned tokens once, not per micro-batch; by the sum of their
   weights where `sft.*_weight` gives kinds of text different ones.
3. Examples are padded to the longest of the batch; one that is too long is left out. There it is
   cut on the left, its instruction first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from conf.schema import Config, SFTSection
from steps.agent.records import SFTExample
from steps.policies.context import within_context
from steps.policies.hf import HFPolicy
from steps.policies.loading import load_model, load_tokenizer
from steps.tracking import Tracker
from steps.training.batch_order import batch_rows, epoch_steps, num_steps
from steps.training.best import sft_best
from steps.training.checkpoints import (
    CheckpointStore,
    load_trainer_state,
    save_model,
    save_trainer_state,
)
from steps.training.keeping import Keeping
from steps.training.losses import token_logprobs
from steps.training.optimizers import Optimizers, build_optimizers, clip_gradient
from steps.training.schedules import lr_scale, sft_warmup
from steps.training.tokenization import (
    SPAN_KINDS,
    SFTRow,
    micro_batches,
    pad_rows,
    tokenize_sets,
)
from steps.workers import Peers

LOGGED_EVERY = 20
"""Steps between points of the curve, besides those with a validation loss."""
_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SFTRun:
    """What a finetuning leaves: the model in memory and its curves."""

    model: Any
    tokenizer: Any
    steps: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    kept_step: int = 0
    """Step whose weights the model holds: the last, or the best (`sft.keep`)."""
    too_long: int = 0
    """Rows, of training and validation, that were left out for their length."""

    def policy(self, config: Config) -> HFPolicy:
        """The finetuned model as a player."""
        return HFPolicy(
            self.model.eval(),
            self.tokenizer,
            max_model_len=config.sampling.max_model_len,
            max_batch=config.generation.max_batch,
        )


def train_sft(
    peers: Peers,
    config: Config,
    train: Sequence[SFTExample],
    validation: Sequence[SFTExample],
    model_dir: str,
    fingerprint: str,
    work_dir: Path,
    tracker: Tracker | None,
    checkpoints: CheckpointStore | None,
) -> SFTRun:
    """Finetune the model of `model_dir`; every rank calls this with the same arguments."""
    section = config.sft
    keeping = Keeping(
        store=checkpoints,
        fingerprint=fingerprint,
        scratch=work_dir / "checkpoint",
        judge=sft_best(section.keep),
        save_every=section.save_every,
    )
    start, resumed = keeping.newest(peers)
    run, optimizer = _load(config, resumed or model_dir)
    if resumed:
        _restore(Path(resumed), run, optimizer)
    limit = within_context(run.model.config, section.max_length)
    rows, held_out, run.too_long = tokenize_sets(
        train, validation, run.tokenizer, section, limit=limit
    )
    run.steps = num_steps(section, len(rows))
    if run.too_long and peers.is_main:
        _warn_of_length(run.too_long, len(train) + len(validation), limit)
    began = time.perf_counter() - run.seconds
    for step in range(start, run.steps):
        batch = _batch(peers, config, rows, step)
        metrics = _update(peers, run, optimizer, batch, section, step)
        last = step + 1 == run.steps
        is_evaluated = last or _is_evaluated(section, step + 1, len(rows))
        if held_out and is_evaluated:
            metrics |= evaluate_loss(peers, run.model, held_out, pad=run.tokenizer.pad_token_id)
        run.seconds = time.perf_counter() - began
        if peers.is_main:
            metrics["sft/seconds"] = run.seconds
            if is_evaluated or step % LOGGED_EVERY == 0:
                run.curve.append({"step": step + 1, **metrics})
                if tracker is not None:
                    tracker.log(metrics, step + 1)
            if not last:
                keeping.keep(step + 1, run.curve, partial(_save, run, optimizer))
    run.kept_step = keeping.take_best(peers, run.model, run.curve, last=run.steps)
    return run


def _load(config: Config, source: str) -> tuple[SFTRun, Optimizers]:
    """The model of a directory or hub name, and its optimizers."""
    section = config.sft
    origin: Any = {
        "revision": config.model.revision,
        "trust_remote_code": config.model.trust_remote_code,
    }
    tokenizer = load_tokenizer(source, **origin)
    # Weights in float32, see `model.dtype`.
    model = load_model(source, device=config.device, dtype="float32", **origin)
    optimizer = build_optimizers(
        model,
        kind=section.optimizer,
        lr=section.lr,
        muon_lr=section.muon_lr,
        betas=(section.beta1, section.beta2),
        weight_decay=section.weight_decay,
    )
    return SFTRun(model=model, tokenizer=tokenizer), optimizer


def _is_evaluated(section: SFTSection, step: int, num_rows: int) -> bool:
    """Whether validation losses are taken after `step` steps, the last one apart."""
    if section.max_steps == 0 and step % epoch_steps(section, num_rows) == 0:
        return True
    return section.eval_every > 0 and step % section.eval_every == 0


def _warn_of_length(too_long: int, total: int, limit: int) -> None:
    _log.warning(
        "%d of %d finetuning rows have more than %d tokens and are left out: raise sft.max_length "
        "or the model's context, or shorten the history (prompt.history=last_k)",
        too_long,
        total,
        limit,
    )


def _batch(peers: Peers, config: Config, rows: Sequence[SFTRow], step: int) -> list[SFTRow]:
    """This rank's share of a step's rows."""
    numbers = batch_rows(config.seed, step, config.sft.batch_size, len(rows))
    return [rows[number] for number in numbers[peers.rank :: peers.size]]


def _update(
    peers: Peers,
    run: SFTRun,
    optimizer: Optimizers,
    rows: Sequence[SFTRow],
    section: SFTSection,
    step: int,
) -> dict[str, float]:
    model = run.model
    scale = lr_scale(
        step,
        total_steps=run.steps,
        warmup_steps=sft_warmup(section, run.steps),
        schedule=section.schedule,
        min_ratio=section.min_lr_ratio,
    )
    optimizer.scale_lr(scale)
    model.train()
    optimizer.zero_grad()
    loss_sum, weight_sum = 0.0, 0.0
    for part in _parts(model, rows):
        logprobs, weights, _ = _forward(model, rows[part], pad=0)
        loss = -(logprobs * weights).sum()
        loss.backward()
        loss_sum += float(loss.detach())
        weight_sum += float(weights.sum())
    loss_sum, weight_sum = peers.sum([loss_sum, weight_sum])
    peers.sum_gradients(model.parameters(), scale=1.0 / max(weight_sum, 1.0))
    norm = clip_gradient(model, section.max_grad_norm)
    if torch.isfinite(norm):
        optimizer.step()
    return {
        "sft/loss": loss_sum / max(weight_sum, 1.0),
        "sft/grad_norm": float(norm),
        "sft/lr": section.lr * scale,
    }


def _parts(model: Any, rows: Sequence[SFTRow]) -> Iterator[slice]:
    return micro_batches([len(row.token_ids) for row in rows], model.config.vocab_size)


def _forward(
    model: Any, rows: Sequence[SFTRow], *, pad: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities, weights and span kinds, each `[B, T]`; padding is on the right."""
    device = model.device
    ids = pad_rows([row.token_ids for row in rows], value=pad, dtype=torch.long, device=device)
    weights = pad_rows([row.weights for row in rows], value=0, dtype=torch.float32, device=device)
    kinds = pad_rows([row.kinds for row in rows], value=-1, dtype=torch.long, device=device)
    # Padding on the right is never looked at; a mask of ones keeps attention on its causal path.
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return token_logprobs(logits, ids), weights, kinds


@torch.no_grad()
def evaluate_loss(
    peers: Peers, model: Any, rows: Sequence[SFTRow], *, pad: int
) -> dict[str, float]:
    """Mean loss a token on held-out rows: over all, and over each kind of span."""
    model.eval()
    sums = torch.zeros(len(SPAN_KINDS) + 1, 2, dtype=torch.float64)
    mine = rows[peers.rank :: peers.size]
    for part in _parts(model, mine):
        logprobs, weights, kinds = _forward(model, mine[part], pad=pad)
        sums[-1, 0] += float(-(logprobs * weights).sum())
        sums[-1, 1] += float(weights.sum())
        for index in range(len(SPAN_KINDS)):
            inside = kinds == index
            sums[index, 0] += float(-(logprobs * inside).sum())
            sums[index, 1] += float(inside.sum())
    totals = torch.tensor(peers.sum(sums.flatten().tolist()), dtype=torch.float64).view_as(sums)
    losses = {"sft/validation_loss": float(totals[-1, 0] / totals[-1, 1].clamp(min=1))}
    for index, kind in enumerate(SPAN_KINDS):
        if totals[index, 1] > 0:
            losses[f"sft/validation_loss_{kind}"] = float(totals[index, 0] / totals[index, 1])
    return losses


def _restore(directory: Path, run: SFTRun, optimizer: Optimizers) -> None:
    state = load_trainer_state(directory)
    optimizer.load_state_dict(state["optimizer"])
    run.seconds, run.curve = state["seconds"], list(state["curve"])


def _save(run: SFTRun, optimizer: Optimizers, directory: Path) -> None:
    save_model(directory, run.model, run.tokenizer)
    save_trainer_state(
        directory,
        {"optimizer": optimizer.state_dict(), "seconds": run.seconds, "curve": run.curve},
    )
