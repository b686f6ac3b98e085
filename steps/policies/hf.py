"""The `hf` policy: any Hugging Face causal language model, sampled in batches with a KV cache.

Every request brings its own seed, and token `i` of an answer uses number `i` of that seed's
stream: an answer depends on its prompt and seed, not on what else is in the batch, in which order
it is answered or by how many processes. (Rounding still differs between batch shapes in the last
bits, so a draw that falls on the boundary between two tokens may go either way.)

Finished sequences leave the batch: the cache is narrowed once a quarter of the rows is done. A
small model on a GPU is decoded by `graph_decode` instead.

Self-play may force well-formed answers (`steps.policies.constrained`): a token is then drawn from
those that the grammar allows, with the same random number. What is stored is its log-probability
under the model's own distribution, as if nothing had been forbidden. Such answers are data for
finetuning; no ratio may be taken of them, and PPO and evaluation never ask for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, PreTrainedTokenizerBase

from steps.agent.records import Completion, FinishReason, PolicyRequest, Sampling
from steps.policies import graph_decode
from steps.policies.chat_template import encode_prompts, stop_token_ids
from steps.policies.constrained import AnswerGuide, Guided, answer_guide
from steps.policies.context import within_context
from steps.policies.drawing import draw, uniforms
from steps.policies.encoding import Ids, PromptCache, completions, left_padded
from steps.policies.loading import load_model, load_tokenizer
from steps.policies.model_directory import check_model

if TYPE_CHECKING:
    from steps.policies.base import PolicySpec

MIN_NARROW_SHARE = 0.25
"""Share of finished rows at which the batch is narrowed; each narrowing copies the cache."""


class HFPolicy:
    """Batched sampling from a causal language model (see the module's docstring)."""

    name = "hf"

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_model_len: int = 0,
        max_batch: int = 1024,
        guide: AnswerGuide | None = None,
    ) -> None:
        self.model: Any = model
        self.tokenizer: Any = tokenizer
        self.max_model_len = within_context(self.model.config, max_model_len)
        self.max_batch = max_batch
        self.guide = guide
        self._prompts = PromptCache(partial(encode_prompts, tokenizer))
        self.stop_ids = stop_token_ids(tokenizer)
        self._graphs = None
        if guide is None and graph_decode.is_worthwhile(model):
            self._graphs = graph_decode.GraphDecoder(
                model,
                draw=draw,
                stop_ids=self.stop_ids,
                pad_id=self.tokenizer.pad_token_id,
                max_positions=within_context(self.model.config),
            )

    @classmethod
    def from_spec(cls, spec: PolicySpec) -> HFPolicy:
        """Load what `spec.model_dir` holds."""
        check_model(spec.model_dir)
        source: Any = {
            "directory": spec.model_dir,
            "revision": spec.revision,
            "trust_remote_code": spec.trust_remote_code,
        }
        tokenizer = load_tokenizer(**source)
        guide = answer_guide(tokenizer, spec) if spec.constrained else None
        model = load_model(**source, device=spec.device, dtype=spec.dtype)
        return cls(
            model.eval(),
            tokenizer,
            max_model_len=spec.max_model_len,
            max_batch=spec.max_batch,
            guide=guide,
        )

    def complete(self, requests: Sequence[PolicyRequest], sampling: Sampling) -> list[Completion]:
        """One completion a request, in order, with token ids and log-probabilities.

        A prompt that leaves no room ends as CONTEXT; with a guide, room is what a well-formed
        answer needs. Raises `ConfigError` where `max_new_tokens` are too few for one.
        """
        prompts = self._prompts.encode([request.messages for request in requests])
        done: list[Completion | None] = [None] * len(requests)
        playable = []
        for index, prompt in enumerate(prompts):
            if len(prompt) + self._needed(requests[index], sampling) > self.max_model_len:
                done[index] = Completion(
                    text="", prompt_ids=prompt, finish_reason=FinishReason.CONTEXT
                )
            else:
                playable.append(index)
        playable.sort(key=lambda index: len(prompts[index]))
        for start in range(0, len(playable), self.max_batch):
            chunk = playable[start : start + self.max_batch]
            answers = self._sample(
                [prompts[index] for index in chunk],
                [requests[index] for index in chunk],
                sampling,
            )
            for index, answer in zip(chunk, answers, strict=True):
                done[index] = answer
        return [completion for completion in done if completion is not None]

    def _needed(self, request: PolicyRequest, sampling: Sampling) -> int:
        """Fewest tokens that an answer may be given."""
        if self.guide is None:
            return 1
        return self.guide.min_tokens(request, sampling.max_new_tokens)

    @torch.inference_mode()
    def _sample(
        self, prompts: list[Ids], requests: list[PolicyRequest], sampling: Sampling
    ) -> list[Completion]:
        rooms = [min(sampling.max_new_tokens, self.max_model_len - len(p)) for p in prompts]
        guided = None if self.guide is None else self.guide.start(requests, rooms)
        numbers = uniforms([request.seed for request in requests], max(rooms))
        if self._graphs is None:
            tokens, logprobs = self._decode(prompts, numbers, sampling, max(rooms), guided)
        else:
            tokens, logprobs = self._graphs.decode(prompts, numbers, sampling, budget=max(rooms))
        return completions(
            self.tokenizer,
            prompts,
            tokens.numpy(),
            logprobs.numpy(),
            stop_ids=self.stop_ids,
            rooms=rooms,
        )

    def _decode(
        self,
        prompts: list[Ids],
        numbers_BT: torch.Tensor,
        sampling: Sampling,
        budget: int,
        guided: Guided | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`[B, budget]` token ids and log-probabilities, on the CPU."""
        device = self.model.device
        longest = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id
        # Always a mask: without one transformers searches for padding and warns; ones cost nothing.
        step_ids, mask = (
            torch.from_numpy(each).to(device)
            for each in left_padded(prompts, width=longest, pad_id=pad)
        )
        is_padded = any(len(prompt) != longest for prompt in prompts)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        numbers_BT = numbers_BT.to(device)
        stop = torch.tensor(self.stop_ids, device=device)
        cache = DynamicCache()
        rows = torch.arange(len(prompts), device=device)
        active = torch.ones(len(prompts), dtype=torch.bool, device=device)
        tokens = torch.full((len(prompts), budget), pad, device=device)
        logprobs = torch.zeros(len(prompts), budget, device=device)
        for step in range(budget):
            logits = self._logits(step_ids, mask, cache, is_padded=is_padded)
            numbers = numbers_BT[rows, step]
            if guided is None:
                drawn, drawn_logprobs = draw(logits.float(), numbers, sampling)
            else:
                playing = rows.tolist()
                allowed = guided.allowed(playing, step, logits)
                drawn, drawn_logprobs = draw(logits.float(), numbers, sampling, allowed)
                guided.take(playing, drawn.tolist())
            tokens[rows, step], logprobs[rows, step] = drawn, drawn_logprobs
            full = lengths + step + 1 >= self.max_model_len
            active &= ~(torch.isin(drawn, stop) | full)
            if not active.any():
                break
            if (~active).sum() >= max(1, MIN_NARROW_SHARE * len(active)):
                keep = active.nonzero().squeeze(1)
                cache.batch_select_indices(keep)
                rows, lengths, drawn, active = rows[keep], lengths[keep], drawn[keep], active[keep]
                mask = mask[keep]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            step_ids = drawn.unsqueeze(1)
        return tokens.cpu(), logprobs.cpu()

    def _logits(
        self, step_ids: torch.Tensor, mask: torch.Tensor, cache: DynamicCache, *, is_padded: bool
    ) -> torch.Tensor:
        """`[B, V]`: the next token's, after `step_ids`, which join the cache."""
        logits: torch.Tensor = self.model(
            input_ids=step_ids,
            attention_mask=mask,
            position_ids=self._positions(mask, step_ids.shape[1]) if is_padded else None,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits[:, -1]

    def _positions(self, mask: torch.Tensor, count: int) -> torch.Tensor:
        """Position of the last `count` tokens, padding not counted.

        A row without room left may stay in the batch for a while; it keeps the last position.
        """
        return (mask.cumsum(-1) - 1).clamp(min=0, max=self.max_model_len - 1)[:, -count:]
