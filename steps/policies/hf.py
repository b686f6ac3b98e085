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
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from steps.agent.records import Completion, FinishReason, Message, PolicyRequest, Sampling
from steps.errors import ConfigError, ModelError
from steps.policies import graph_decode
from steps.policies.model_directory import check_model

if TYPE_CHECKING:
    from steps.policies.base import PolicySpec
    from steps.policies.constrained import AnswerGuide, Guided

PROBE_ANSWER = "answer"
MIN_NARROW_SHARE = 0.25
"""Share of finished rows at which the batch is narrowed; each narrowing copies the cache."""


def load_tokenizer(
    directory: str, *, revision: str = "", trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory or hub name; one without a chat template is refused."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            directory, revision=revision or "main", trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:  # its own files are wrong, or its hub is out of reach
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"the tokenizer of {directory!r} can't be loaded: {reason}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"the tokenizer of {directory!r} has no chat template: use an instruction-tuned model, "
            "or add a chat_template to its tokenizer_config.json."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(
    directory: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str = "",
    trust_remote_code: bool = False,
) -> torch.nn.Module:
    """The causal language model of a directory or hub name, from safetensors only.

    On a GPU products of float32 are taken in TF32, several times as fast: it rounds factors to ten
    bits, finer than the bfloat16 in which such models are usually played.
    """
    transformers_logging.disable_progress_bar()
    if resolve_device(device) != "cpu":
        torch.set_float32_matmul_precision("high")
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=getattr(torch, dtype),
        use_safetensors=True,
        revision=revision or "main",
        trust_remote_code=trust_remote_code,
    )
    return model.to(resolve_device(device))


def resolve_device(device: str) -> str:
    """`auto` is the GPU where one is seen, else the CPU."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch sees no GPU: set device=auto or device=cpu.")
    return device


def end_of_turn_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends an assistant's turn in this chat template.

    Read off a rendered conversation, since it need not be the tokenizer's `eos_token`; that is the
    fallback where a template rewrites the answer.
    """
    chat = [{"role": "user", "content": "question"}, {"role": "assistant", "content": PROBE_ANSWER}]
    rendered = str(tokenizer.apply_chat_template(chat, tokenize=False))
    suffix = rendered.rpartition(PROBE_ANSWER)[2]
    special = set(tokenizer.all_special_ids)
    for token in tokenizer(suffix, add_special_tokens=False)["input_ids"]:
        if token in special:
            return int(token)
    if tokenizer.eos_token_id is None:
        raise ModelError(
            "neither the chat template nor the tokenizer names an end-of-turn token: set eos_token "
            "in tokenizer_config.json."
        )
    return int(tokenizer.eos_token_id)


def _guide(tokenizer: PreTrainedTokenizerBase, spec: PolicySpec) -> AnswerGuide:
    from steps.policies.constrained import AnswerGuide

    return AnswerGuide(
        tokenizer,
        end_id=end_of_turn_id(tokenizer),
        separator=spec.separator,
        max_span_chars=spec.max_span_chars,
    )


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Sequence[Message]]
) -> list[list[int]]:
    """Token ids of each chat with the generation prompt: what a model is given, in every stage."""
    texts = [
        str(
            tokenizer.apply_chat_template(
                [message.as_dict() for message in chat], add_generation_prompt=True, tokenize=False
            )
        )
        for chat in chats
    ]
    if not texts:
        return []
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


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
        positions = getattr(self.model.config, "max_position_embeddings", 0) or 1 << 30
        self.max_model_len = min(max_model_len or positions, positions)
        self.max_batch = max_batch
        self.guide = guide
        self.stop_ids = sorted({end_of_turn_id(tokenizer), tokenizer.eos_token_id} - {None})
        self._graphs = None
        if guide is None and graph_decode.is_worthwhile(model):
            self._graphs = graph_decode.GraphDecoder(
                model,
                draw=draw,
                stop_ids=self.stop_ids,
                pad_id=self.tokenizer.pad_token_id,
                max_positions=positions,
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
        guide = _guide(tokenizer, spec) if spec.constrained else None
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
        prompts = encode_prompts(self.tokenizer, [request.messages for request in requests])
        done: list[Completion | None] = [None] * len(requests)
        playable = []
        for index, prompt in enumerate(prompts):
            if len(prompt) + self._needed(requests[index], sampling) > self.max_model_len:
                done[index] = Completion(
                    text="", prompt_ids=tuple(prompt), finish_reason=FinishReason.CONTEXT
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
        self, prompts: list[list[int]], requests: list[PolicyRequest], sampling: Sampling
    ) -> list[Completion]:
        rooms = [min(sampling.max_new_tokens, self.max_model_len - len(p)) for p in prompts]
        guided = None if self.guide is None else self.guide.start(requests, rooms)
        seeds = [request.seed for request in requests]
        if self._graphs is None:
            tokens, logprobs = self._decode(prompts, seeds, sampling, max(rooms), guided)
        else:
            numbers = _uniforms(seeds, max(rooms))
            tokens, logprobs = self._graphs.decode(prompts, numbers, sampling, budget=max(rooms))
        answers = []
        for prompt, row, row_logprobs, room in zip(prompts, tokens, logprobs, rooms, strict=True):
            answers.append(self._completion(prompt, row[:room], row_logprobs[:room]))
        return answers

    def _completion(self, prompt: list[int], row: list[int], logprobs: list[float]) -> Completion:
        end = next((i for i, token in enumerate(row) if token in self.stop_ids), None)
        sampled = row if end is None else row[: end + 1]
        written = row if end is None else row[:end]
        return Completion(
            text=self.tokenizer.decode(written, skip_special_tokens=False),
            prompt_ids=tuple(prompt),
            token_ids=tuple(sampled),
            logprobs=tuple(logprobs[: len(sampled)]),
            finish_reason=FinishReason.LENGTH if end is None else FinishReason.STOP,
        )

    def _decode(
        self,
        prompts: list[list[int]],
        seeds: list[int],
        sampling: Sampling,
        budget: int,
        guided: Guided | None,
    ) -> tuple[list[list[int]], list[list[float]]]:
        device = self.model.device
        longest = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id
        input_ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=device)
        # Always a mask: without one transformers searches for padding and warns; ones cost nothing.
        mask = torch.tensor(
            [[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device
        )
        is_padded = any(len(prompt) != longest for prompt in prompts)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        uniforms = _uniforms(seeds, budget).to(device)
        stop = torch.tensor(self.stop_ids, device=device)
        cache = DynamicCache()
        rows = torch.arange(len(prompts), device=device)
        active = torch.ones(len(prompts), dtype=torch.bool, device=device)
        tokens = torch.full((len(prompts), budget), pad, device=device)
        logprobs = torch.zeros(len(prompts), budget, device=device)
        step_ids = input_ids
        for step in range(budget):
            positions = self._positions(mask, step_ids.shape[1]) if is_padded else None
            logits = self.model(
                input_ids=step_ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            if guided is None:
                drawn, drawn_logprobs = draw(logits.float(), uniforms[rows, step], sampling)
            else:
                numbers = rows.tolist()
                allowed = guided.allowed(numbers, step, logits)
                drawn, drawn_logprobs = draw(
                    logits.float(), uniforms[rows, step], sampling, allowed
                )
                guided.take(numbers, drawn.tolist())
            tokens[rows, step] = drawn
            logprobs[rows, step] = drawn_logprobs
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
        return tokens.tolist(), logprobs.tolist()

    def _positions(self, mask: torch.Tensor, count: int) -> torch.Tensor:
        """Position of the last `count` tokens, padding not counted.

        A row without room left may stay in the batch for a while; it keeps the last position.
        """
        return (mask.cumsum(-1) - 1).clamp(min=0, max=self.max_model_len - 1)[:, -count:]


def draw(
    logits_BV: torch.Tensor,
    uniforms_B: torch.Tensor,
    sampling: Sampling,
    allowed_BV: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row by inverse transform, and its log-probability.

    The log-probability is that of the distribution drawn from (after temperature, before top-p,
    as vLLM and verl report it); greedy reports the model's own. `allowed_BV` leaves a choice of
    tokens, at least one a row, and doesn't change any token's log-probability.
    """
    if sampling.temperature == 0:
        chosen = _only(logits_BV, allowed_BV).argmax(-1)
        return chosen, torch.log_softmax(logits_BV, -1).gather(1, chosen[:, None]).squeeze(1)
    log_probs = torch.log_softmax(logits_BV / sampling.temperature, -1)
    if allowed_BV is None:
        probs = log_probs.exp()
    else:
        probs = torch.softmax(_only(log_probs, allowed_BV), -1)
    if sampling.top_p < 1:
        probs = _nucleus(probs, sampling.top_p)
    cumulative = probs.double().cumsum(-1)
    target = uniforms_B.double()[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    chosen = chosen.clamp(max=logits_BV.shape[1] - 1)
    return chosen, log_probs.gather(1, chosen[:, None]).squeeze(1)


def _only(scores_BV: torch.Tensor, allowed_BV: torch.Tensor | None) -> torch.Tensor:
    return scores_BV if allowed_BV is None else scores_BV.masked_fill(~allowed_BV, -torch.inf)


def _nucleus(probs_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero the tail beyond the smallest set of tokens whose probability reaches `top_p`."""
    ordered, index = probs_BV.sort(-1, descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return probs_BV.masked_fill(torch.zeros_like(outside).scatter(1, index, outside), 0.0)


def _uniforms(seeds: Sequence[int], count: int) -> torch.Tensor:
    """`[len(seeds), count]` numbers in [0, 1): row `i` is the start of seed `i`'s own stream."""
    return torch.from_numpy(
        np.stack([np.random.Generator(np.random.Philox(seed)).random(count) for seed in seeds])
    )
