"""Where vLLM's worker lives: tokens a second of many conversations, as verl's server runs them.

    python -m benchmarks.generation                             # one GPU, some three minutes
    VLLM_USE_V2_MODEL_RUNNER=1 python -m benchmarks.generation  # vLLM's second runner

An asynchronous engine answers 256 conversations of five turns at once; each goes on as soon as its
answer is there, with 90 tokens of the game between. Lengths of answers are drawn from the paper's
65 to 175 tokens, a prompt begins with 420. The model has Qwen2.5-1.5B's configuration and random
weights. Settings are those that `verl_ppo_overrides` asks for.

- `uni`: the worker computes in the engine's process, between the engine's own work;
- `mp`: in a process of its own, and the engine plans a step while the one before is computed.

The longest conversation's tokens are the steps that the engine needs at least.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.models import SHAPES, build_model, build_tokenizer
from steps.policies.base import PolicySpec
from steps.policies.graph_sizes import graph_mode
from steps.policies.vllm_arguments import engine_arguments

LENGTHS = (65, 175)
MAX_MODEL_LEN = 4096
TURNS, FIRST, BETWEEN = 5, 420, 90
"""Turns of a conversation, tokens of its first prompt, and of the game's words between answers."""
WORDS = "the quick brown fox jumps over the lazy dog " * 50


def engine_of(options: argparse.Namespace, model_dir: str, executor: str) -> Any:
    """A running engine, with the `vllm` policy's settings but for attention in all graphs."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    shape = SHAPES[options.shape]
    spec = PolicySpec(
        kind="vllm",
        model_dir=model_dir,
        device=options.device,
        dtype="bfloat16",
        max_batch=options.conversations,
        gpu_memory_utilization=options.memory_share,
    )
    arguments = engine_arguments(spec, MAX_MODEL_LEN)
    arguments |= {"distributed_executor_backend": executor, "disable_log_stats": True}
    if options.device == "cuda":
        head_size = shape["hidden_size"] // shape["num_attention_heads"]
        mode = graph_mode(head_size=head_size, max_model_len=MAX_MODEL_LEN)
        arguments["compilation_config"]["cudagraph_mode"] = mode
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


async def converse(engine: Any, name: str, seed: int, vocabulary: int) -> int:
    """Sampled tokens of one conversation, turn by turn."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    draw = random.Random(seed)

    def words(count: int) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(count)]

    tokens, sampled = words(FIRST), 0
    for turn in range(TURNS):
        length = draw.randint(*LENGTHS)
        params = SamplingParams(
            max_tokens=length,
            min_tokens=length,
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        asked = {"prompt_token_ids": tokens}
        async for output in engine.generate(asked, params, request_id=f"{name}-{turn}"):
            answer = list(output.outputs[0].token_ids)
        tokens, sampled = [*tokens, *answer, *words(BETWEEN)], sampled + len(answer)
    return sampled


async def play(options: argparse.Namespace, model_dir: str, executor: str, vocabulary: int) -> None:
    """Print a line for each repeat; the first also warms up."""
    began = time.perf_counter()
    engine = engine_of(options, model_dir, executor)
    print(f"{executor}: stands after {time.perf_counter() - began:.1f} s", flush=True)
    for repeat in range(options.repeats):
        await engine.reset_prefix_cache()
        began = time.perf_counter()
        sampled = await asyncio.gather(
            *(
                converse(engine, f"{repeat}-{i}", repeat * options.conversations + i, vocabulary)
                for i in range(options.conversations)
            )
        )
        seconds = time.perf_counter() - began
        print(
            f"{executor}: {sum(sampled):,} tokens in {seconds:.2f} s, "
            f"{sum(sampled) / seconds:,.0f} a second; longest {max(sampled)}, "
            f"{seconds / max(sampled) * 1000:.1f} ms a token of it",
            flush=True,
        )
    engine.shutdown()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--executors", nargs="+", default=["uni", "mp"])
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen2.5-1.5b")
    parser.add_argument("--conversations", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--memory-share", type=float, default=0.4)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        tokenizer = build_tokenizer([WORDS])
        build_model(Path(directory), SHAPES[options.shape], tokenizer)
        for executor in options.executors:
            asyncio.run(play(options, directory, executor, len(tokenizer)))


if __name__ == "__main__":
    main()
