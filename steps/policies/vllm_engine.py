"""The `vllm` policy: episodes answered by vLLM's offline engine, each in its own time.

The one file that imports vllm. Token ids go in, those of `encode_prompts` as for every engine,
and token ids come out; the text is decoded here, as in the `hf` policy. The engine computes in a
process of its own, so the games are stepped, and the next prompts made, while it writes other
answers. It keeps the KV cache of what it has read: the history of a conversation is not computed
twice.

1. An answer has its request's seed. vLLM draws other numbers from it than the `hf` policy, so the
   two agree in distribution, and token for token only when greedy. Rounding depends on the batch,
   as everywhere: a draw on the boundary between two tokens may go either way.
2. Log-probabilities, where they are asked for, are of the distribution at the sampling temperature.
   vLLM can't tell them where part of it was cut away, by top-p or a grammar: there they are None.
3. Constrained answers follow the same grammar as in `hf`; `steps.policies.endings` brings those
   that are broken off to their end.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.agent.records import Completion, FinishReason, PolicyRequest, Sampling
from steps.agent.seeds import mix_seed
from steps.errors import ConfigError, ModelError
from steps.policies.chat_template import render_prompts, stop_token_ids
from steps.policies.constrained import answer_guide
from steps.policies.context import context_length
from steps.policies.encoding import decode_rows
from steps.policies.endings import Answer, Part
from steps.policies.engines import check_vllm, is_cpu_build
from steps.policies.loading import load_tokenizer
from steps.policies.model_directory import check_model, form
from steps.policies.segments import Segments
from steps.policies.vllm_arguments import engine_arguments

if TYPE_CHECKING:
    from steps.policies.base import PolicySpec
    from steps.policies.constrained import AnswerGuide

ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # nothing is reported to anyone
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process may have touched the GPU already
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it has no seeds for single requests
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""What vLLM takes from the environment alone, where it isn't set already."""
FORBID = -100.0
"""The bias at which vLLM leaves a token out; it takes no lower one."""
EPISODES_PER_ANSWER = 3
"""Most episodes that run for each answer that is written at once."""

_log = logging.getLogger(__name__)


@dataclass
class Asked:
    """A request that the engine works on."""

    key: int
    prompt: list[int]
    seed: int
    sampling: Sampling
    room: int
    """Most tokens of the answer."""
    answer: Answer | None = None
    """How a constrained answer goes on."""


class VLLMPolicy:
    """A vLLM engine as a policy, for whole batches or request by request."""

    name = "vllm"

    def __init__(
        self,
        llm: Any,
        tokenizer: Any,
        *,
        max_model_len: int,
        max_running: int = 1024,
        guide: AnswerGuide | None = None,
        adapter_dir: str = "",
        logprobs: bool = False,
        spec: PolicySpec | None = None,
    ) -> None:
        """`llm` is a `vllm.LLM`; it is shut down by `close`. `spec` says what it was started as."""
        self.llm = llm
        self._spec = spec
        self._model_dir = spec.model_dir if spec is not None else ""
        self._form = form(self._model_dir)
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self.max_running = max_running
        self.guide = guide
        self.logprobs = logprobs
        self.stop_ids = stop_token_ids(tokenizer)
        self._library = _library()
        self._adapter = _adapter(self._library, adapter_dir)
        self._segments = Segments(tokenizer)
        self._asked: dict[str, Asked] = {}
        self._done: list[tuple[int, Completion]] = []
        self._count = 0
        self._never = _never_written(guide, tokenizer)

    @classmethod
    def from_spec(cls, spec: PolicySpec) -> VLLMPolicy:
        """Start an engine for what `spec.model_dir` holds; half a minute and more."""
        check_vllm(spec.device)
        check_adapter_dtype(spec)
        check_model(spec.model_dir)
        source: Any = {"revision": spec.revision, "trust_remote_code": spec.trust_remote_code}
        tokenizer = load_tokenizer(spec.model_dir, **source)
        length = context_length(spec.model_dir, spec.max_model_len, **source)
        guide = answer_guide(tokenizer, spec) if spec.constrained else None
        try:
            llm = _library().LLM(**engine_arguments(spec, length))
        except (ValueError, RuntimeError) as error:
            raise ModelError(
                f"vLLM can't start with {spec.model_dir!r} ({_last_line(error)}); what it says "
                "above tells why. Lower generation.gpu_memory_utilization where another process "
                "holds the GPU's memory, or set generation.engine=hf."
            ) from error
        return cls(
            llm,
            tokenizer,
            max_model_len=length,
            max_running=episodes_at_once(llm, spec.max_batch, length),
            guide=guide,
            adapter_dir=spec.adapter_dir,
            logprobs=spec.logprobs,
            spec=spec,
        )

    def take_weights(self, spec: PolicySpec) -> bool:
        """Load the weights in `spec.model_dir` over those of the running engine, a second or so.

        False where `spec` needs an engine of its own: its settings differ, it has an adapter, its
        model has another form (`steps.policies.model_directory.form`), or the engine keeps what it
        read with the weights before, after which this policy must answer no more.
        """
        if spec.adapter_dir or self._spec != replace(spec, model_dir=self._model_dir):
            return False
        if is_cpu_build():  # it computes with copies of tied weights, and renews the original alone
            return False
        check_model(spec.model_dir)
        other = form(spec.model_dir)
        apart = [name for name in {*other, *self._form} if other.get(name) != self._form.get(name)]
        if apart or not other:
            named = ", ".join(sorted(apart)) or "files can't be compared"
            _log.info("vLLM starts anew for %s: %s", spec.model_dir, named)
            return False
        self.abort()
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": spec.model_dir})
        is_empty: bool = self.llm.reset_prefix_cache()  # keys and values of the weights before
        if not is_empty:
            _log.info("vLLM starts anew for %s: its cache is in use", spec.model_dir)
        return is_empty

    def complete(self, requests: Sequence[PolicyRequest], sampling: Sampling) -> list[Completion]:
        """One completion a request, in order; a request with an answer leaves the batch at once."""
        assert not self._asked and not self._done, "answers of another call are not taken yet"
        done: dict[int, Completion] = {}
        try:
            for key, request in enumerate(requests):
                self.submit(key, request, sampling)
            while len(done) < len(requests):
                done.update(self.poll())
        finally:
            self.abort()
        return [done[key] for key in range(len(requests))]

    def submit(self, key: int, request: PolicyRequest, sampling: Sampling) -> None:
        """Hand the request to the engine; a prompt that leaves no room is answered as CONTEXT.

        With a guide, room is what a well-formed answer needs. Raises `ConfigError` where
        `max_new_tokens` are too few for one.
        """
        (prompt,) = self._segments.encode(render_prompts(self.tokenizer, [request.messages]))
        needed = 1
        if self.guide is not None:
            needed = self.guide.min_tokens(request, sampling.max_new_tokens)
        if len(prompt) + needed > self.max_model_len:
            full = FinishReason.CONTEXT
            self._done.append(
                (key, Completion(text="", prompt_ids=tuple(prompt), finish_reason=full))
            )
            return
        room = min(sampling.max_new_tokens, self.max_model_len - len(prompt))
        asked = Asked(key, prompt, request.seed, sampling, self._limit(request, room))
        if self.guide is None:
            self._add(asked, prompt, asked.room, grammar="")
        else:
            asked.answer = Answer(self.guide, request, asked.room)
            self._go_on(asked, asked.answer.first())

    def poll(self) -> list[tuple[int, Completion]]:
        """The answers that are finished, once there is one; none where nothing is asked."""
        while not self._done and self._asked:
            for output in self.llm.llm_engine.step():
                if output.finished:
                    self._take(self._asked.pop(output.request_id), output.outputs[0])
        done, self._done = self._done, []
        return done

    def abort(self) -> None:
        """Forget what is asked and what is answered."""
        if self._asked:
            self.llm.llm_engine.abort_request(list(self._asked))
        self._asked.clear()
        self._done.clear()

    def close(self) -> None:
        """End the engine's processes and give back its memory; the policy answers no more."""
        self.abort()
        self.llm.llm_engine.engine_core.shutdown()

    def _limit(self, request: PolicyRequest, room: int) -> int:
        """Most tokens of this answer; benchmarks ask for less."""
        del request
        return room

    def _params(self, asked: Asked, max_tokens: int, grammar: str) -> Any:
        """vLLM's `SamplingParams`; the ends of a turn are ours, never a generation config's."""
        sampling = asked.sampling
        tells = self.logprobs and not grammar and (sampling.top_p == 1 or sampling.temperature == 0)
        structured = self._library.StructuredOutputsParams(grammar=grammar) if grammar else None
        return self._library.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=asked.seed if sampling.temperature > 0 else None,
            max_tokens=max_tokens,
            stop_token_ids=self.stop_ids,
            ignore_eos=not grammar,
            logprobs=0 if tells else None,
            flat_logprobs=True,
            detokenize=False,
            output_kind=self._library.RequestOutputKind.FINAL_ONLY,
            structured_outputs=structured,
            logit_bias=dict.fromkeys(self._never, FORBID) if grammar and self._never else None,
            skip_clone=True,
        )

    def _add(self, asked: Asked, prompt: Sequence[int], max_tokens: int, *, grammar: str) -> None:
        self._count += 1
        name = str(self._count)
        self._asked[name] = asked
        self.llm.llm_engine.add_request(
            name,
            self._library.tokens_input(list(prompt)),
            self._params(asked, max_tokens, grammar),
            lora_request=self._adapter,
        )

    def _go_on(self, asked: Asked, part: Part | None) -> None:
        """Have the next part of a constrained answer written, or hand the whole out."""
        assert asked.answer is not None
        tokens = asked.answer.tokens
        if part is None:
            self._finish(asked, tokens, None, is_whole=True)
        else:
            if tokens:  # the numbers of the first part would be drawn once more
                asked.seed = mix_seed(asked.seed, len(tokens))
            self._add(asked, [*asked.prompt, *tokens], part.max_tokens, grammar=part.grammar)

    def _take(self, asked: Asked, output: Any) -> None:
        if output.finish_reason not in ("stop", "length"):
            error = f"vLLM ended the answer with {output.finish_reason!r}"
            failed = Completion(text="", finish_reason=FinishReason.ERROR, error=error)
            self._done.append((asked.key, failed))
            return
        tokens, is_whole = list(output.token_ids), output.finish_reason == "stop"
        if asked.answer is None:
            logprobs = _sampled_logprobs(output.logprobs)
            self._finish(asked, tokens, logprobs, is_whole=is_whole)
        else:
            drawn = tokens[:-1] if is_whole else tokens
            self._go_on(asked, asked.answer.rest(drawn, is_whole=is_whole))

    def _finish(
        self, asked: Asked, tokens: list[int], logprobs: tuple[float, ...] | None, *, is_whole: bool
    ) -> None:
        """`is_whole` says that the last token ends the answer; it is no part of the text."""
        (text,) = decode_rows(self.tokenizer, [tuple(tokens[:-1] if is_whole else tokens)])
        completion = Completion(
            text=text,
            prompt_ids=tuple(asked.prompt),
            token_ids=tuple(tokens),
            logprobs=logprobs,
            finish_reason=FinishReason.STOP if is_whole else FinishReason.LENGTH,
        )
        self._done.append((asked.key, completion))


def check_adapter_dtype(spec: PolicySpec) -> None:
    """Raise `ConfigError` for an adapter in float32, for which vLLM has no kernels on a GPU."""
    if spec.adapter_dir and spec.dtype == "float32" and not is_cpu_build():
        raise ConfigError(
            f"vLLM can't play the LoRA adapter {spec.adapter_dir!r} with model.dtype=float32, its "
            "kernels for adapters know half precision alone: set model.dtype=bfloat16, or merge "
            "the adapter into its model."
        )


def episodes_at_once(llm: Any, max_batch: int, max_model_len: int) -> int:
    """How many episodes run: more than answers are written at once, where the KV cache holds them.

    The engine answers in the order of asking, so that all games advance together. With as many as
    it writes answers at once, those that entered last would be left to end alone, one turn after
    the other. Only as many as fit at full length: else a history is computed anew each turn.
    """
    cache = llm.llm_engine.vllm_config.cache_config
    fitting: int = (cache.num_gpu_blocks or 0) * cache.block_size // max_model_len
    return min(EPISODES_PER_ANSWER * max_batch, max(max_batch, fitting))


def _adapter(library: Library, adapter_dir: str) -> Any:
    if not adapter_dir:
        return None
    return library.LoRARequest("adapter", 1, str(Path(adapter_dir).resolve()))


def _never_written(guide: AnswerGuide | None, tokenizer: Any) -> list[int]:
    """Tokens that the grammar would take for text: special ones, and an end that isn't `eos`."""
    if guide is None:
        return []
    end = guide.vocabulary.end_id
    return [*guide.vocabulary.banned, *([end] if end != tokenizer.eos_token_id else [])]


def _sampled_logprobs(found: Any) -> tuple[float, ...] | None:
    """Of the sampled tokens: the first entry of each place in vLLM's flat form."""
    if found is None:
        return None
    return tuple(found.logprobs[start] for start in found.start_indices)


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


@dataclass(frozen=True)
class Library:
    """The names that are used of vllm."""

    LLM: Any
    LoRARequest: Any
    RequestOutputKind: Any
    SamplingParams: Any
    StructuredOutputsParams: Any
    tokens_input: Any


def _library() -> Library:
    """Import vllm, some ten seconds; the environment counts at the first import alone."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import vllm
    from vllm.inputs import tokens_input
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    return Library(
        vllm.LLM,
        LoRARequest,
        RequestOutputKind,
        vllm.SamplingParams,
        StructuredOutputsParams,
        tokens_input,
    )
