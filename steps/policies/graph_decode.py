"""Decoding on a GPU by a replayed CUDA graph, for models so small that launching is all they cost.

A step of a model of a million parameters takes the GPU a tenth of a millisecond and Python a few.
Here one step (forward, draw, bookkeeping) is captured once for each shape of batch and replayed a
token at a time; the host looks at the result every `CHECK_EVERY` steps only. Batch and prompt are
padded to a few sizes, so that few graphs serve all turns. Rows that are done stay and are thrown
away.

Weights are read in place: after an optimizer step the same graphs play the new model.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StaticCache

from steps.agent.records import Sampling
from steps.policies.encoding import left_padded

Draw = Callable[[torch.Tensor, torch.Tensor, Sampling], tuple[torch.Tensor, torch.Tensor]]

MAX_PARAMETERS = 50_000_000
"""Above this the arithmetic outweighs the launches, and narrowing the batch pays."""
MAX_GRAPHS = 16
CHECK_EVERY = 8
MIN_ROWS, PROMPT_STEP = 32, 16
WARM_UP_STEPS = 2
"""Steps before a capture, in which libraries make their handles and work spaces."""


def is_worthwhile(model: Any) -> bool:
    """Whether a model is small enough, and on a GPU."""
    small = sum(parameter.numel() for parameter in model.parameters()) <= MAX_PARAMETERS
    return small and bool(model.device.type == "cuda")


@dataclass(frozen=True)
class Shape:
    """What a graph was captured for."""

    rows: int
    prompt: int
    budget: int
    sampling: Sampling


class GraphDecoder:
    """Draws tokens for batches of prompts; `capture=False` runs the same steps without a graph."""

    def __init__(
        self,
        model: Any,
        *,
        draw: Draw,
        stop_ids: Sequence[int],
        pad_id: int,
        max_positions: int,
        capture: bool = True,
    ) -> None:
        self.model, self.draw, self.pad_id = model, draw, pad_id
        self.max_positions, self.capture = max_positions, capture
        self.stop = torch.tensor(list(stop_ids), device=model.device)
        self._states: OrderedDict[Shape, _State] = OrderedDict()

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        uniforms: torch.Tensor,
        sampling: Sampling,
        *,
        budget: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`budget` tokens a row and their log-probabilities; what follows a stop token is noise.

        Both are copies on the CPU.

        `uniforms` is `[len(prompts), budget]`, token `i` of a row takes number `i` of its row.
        """
        rows = max(MIN_ROWS, 1 << (len(prompts) - 1).bit_length())
        longest = -(-max(map(len, prompts)) // PROMPT_STEP) * PROMPT_STEP
        state = self._state(Shape(rows, longest, budget, sampling))
        padded = [*prompts, *([prompts[0]] * (rows - len(prompts)))]
        state.uniforms[: len(prompts)] = uniforms.to(state.uniforms)
        self._prefill(state, padded)
        for step in range(1, budget):
            if step % CHECK_EVERY == 0 and bool(state.done[: len(prompts)].all()):
                break
            state.advance()
        count = len(prompts)
        tokens, logprobs = state.tokens[:count], state.logprobs[:count]
        return tokens.to("cpu", copy=True), logprobs.to("cpu", copy=True)

    def _state(self, shape: Shape) -> _State:
        """The buffers of a shape; made, and its graph captured, when it first comes."""
        if shape not in self._states:
            state = _State(self, shape)
            self._prefill(state, [[self.pad_id]] * shape.rows)
            state.prepare(self.capture)
            self._states[shape] = state
            if len(self._states) > MAX_GRAPHS:
                self._states.popitem(last=False)
        self._states.move_to_end(shape)
        return self._states[shape]

    def _prefill(self, state: _State, prompts: Sequence[Sequence[int]]) -> None:
        ids_BT, mask_BT = (
            torch.from_numpy(each).to(self.model.device)
            for each in left_padded(prompts, width=state.shape.prompt, pad_id=self.pad_id)
        )
        state.begin(mask_BT)
        logits = self.model(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=(mask_BT.cumsum(-1) - 1).clamp(min=0),
            past_key_values=state.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        state.take(logits)


class _State:
    """Tensors of one shape that every step reads and writes in place. B rows, K keys."""

    def __init__(self, decoder: GraphDecoder, shape: Shape) -> None:
        device = decoder.model.device
        self.decoder, self.shape = decoder, shape
        keys = shape.prompt + shape.budget
        self.cache = StaticCache(config=decoder.model.config, max_cache_len=keys)
        self.ids = torch.zeros(shape.rows, 1, dtype=torch.long, device=device)
        self.positions = torch.zeros_like(self.ids)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.seen_B11K = torch.zeros(shape.rows, 1, 1, keys, dtype=torch.bool, device=device)
        self.done = torch.zeros(shape.rows, dtype=torch.bool, device=device)
        self.uniforms = torch.zeros(shape.rows, shape.budget, dtype=torch.float64, device=device)
        self.tokens = torch.zeros(shape.rows, shape.budget, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(shape.rows, shape.budget, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def begin(self, mask_BT: torch.Tensor) -> None:
        """Forget the last batch."""
        self.cache.reset()
        self.seen_B11K.zero_()
        self.seen_B11K[:, 0, 0, : self.shape.prompt] = mask_BT.bool()
        self.positions.copy_(mask_BT.sum(-1, keepdim=True))
        self.step.zero_()
        self.done.zero_()
        self.tokens.fill_(self.decoder.pad_id)
        self.logprobs.zero_()

    def take(self, logits_BV: torch.Tensor) -> None:
        """Draw the next token of each row from its logits."""
        uniforms = self.uniforms.index_select(1, self.step).squeeze(1)
        drawn, logprobs = self.decoder.draw(logits_BV.float(), uniforms, self.shape.sampling)
        self.tokens.index_copy_(1, self.step, drawn[:, None])
        self.logprobs.index_copy_(1, self.step, logprobs[:, None])
        self.done |= (drawn[:, None] == self.decoder.stop).any(1)
        self.ids.copy_(drawn[:, None])
        self.seen_B11K.index_fill_(3, self.step + self.shape.prompt, True)
        self.step += 1

    def forward(self) -> None:
        """One token further; position ids stay inside the model's table."""
        logits = self.decoder.model(
            input_ids=self.ids,
            attention_mask=self.seen_B11K,
            position_ids=self.positions.clamp(max=self.decoder.max_positions - 1),
            past_key_values=self.cache,
            use_cache=True,
        ).logits[:, -1]
        self.positions += 1
        self.take(logits)

    def prepare(self, capture: bool) -> None:
        """Capture a step; what the buffers hold afterwards means nothing."""
        if not capture:
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                self.forward()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.forward()

    def advance(self) -> None:
        """One step, replayed where a graph was captured."""
        if self._graph is None:
            self.forward()
        else:
            self._graph.replay()
