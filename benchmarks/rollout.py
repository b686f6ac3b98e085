"""Sampled tokens a second of multi-turn play with vLLM, against vLLM's own `generate`.

    python -m benchmarks.rollout                        # on a GPU, some five minutes
    python -m benchmarks.rollout --model DIRECTORY      # another model than the random one

One engine, one process, three ways to the same answers, by turns:

- `streaming`: our engine; an episode is stepped and asks again as soon as its answer is there;
- `lockstep`: the same episodes turn by turn, each turn one batch that waits for its longest answer;
- `generate`: `vllm.LLM.generate` on the prompts of those episodes, all known from the start, turn
  by turn in their order, with the same seeds and lengths. `generate, bare` is without seeds, and
  decodes its text as vLLM does by default.

The first and the last are played once more with log-probabilities (`generation.logprobs`).

An episode's turns come one after the other, which `generate` need not heed: it ends with one
answer's rest, we end with some episodes'. The engine's steps that each way needs at least are
counted (`engine_steps`) and printed, and what is left is our own cost.

The model has SmolLM2-135M's shape and random weights, so what it writes means nothing: the length
of each answer is drawn from its seed (log-normal), ends of turns are not heeded, and two actions
are drawn and put behind the text. Prompts, histories, games and their ends are real. The prefix
cache is emptied before each.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import product
from pathlib import Path
from string import ascii_letters, ascii_lowercase
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import conf
from benchmarks.models import SHAPES, SPECIAL, build_model, with_chat
from steps.agent.records import Completion, FinishReason, PolicyRequest, Sampling, Trajectory
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.agent.seeds import mix_seed
from steps.agent.splice import write_response
from steps.policies.base import PolicySpec
from steps.policies.vllm_engine import VLLMPolicy
from steps.settings import env_factory, rollout_settings

SHAPE = SHAPES["smollm2-135m"]
VOCABULARY = SHAPE["vocab_size"]
TOLD = ", logprobs"
"""Behind the name of a way that tells log-probabilities."""
SPREAD = 0.7
"""Deviation of the logarithm of an answer's length: the longest of 512 has six times the mean."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE whose pieces are bytes and up to three letters, with or without a blank."""
    vocabulary = {token: index for index, token in enumerate(SPECIAL)}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[symbol] = len(vocabulary)
    merges = []
    for left, right in _merges():
        if len(vocabulary) == VOCABULARY:
            break
        vocabulary[left + right] = len(vocabulary)
        merges.append((left, right))
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return with_chat(inner)


def _merges() -> Iterator[tuple[str, str]]:
    blank = "Ġ"
    yield from product(ascii_letters, ascii_lowercase)
    yield from ((blank, letter) for letter in ascii_letters)
    for first, second, third in product(ascii_lowercase, repeat=3):
        yield first + second, third
    for first, second in product(ascii_letters, ascii_lowercase):
        yield blank + first, second
    for first, second, third in product(ascii_letters, ascii_lowercase, ascii_lowercase):
        yield blank + first + second, third


class Measured(VLLMPolicy):
    """The engine with answers of drawn lengths, which end in drawn actions."""

    mean_tokens = 100.0
    slots = 0
    """Answers that are written at once."""
    requests: dict[int, PolicyRequest]

    def submit(self, key: int, request: PolicyRequest, sampling: Sampling) -> None:
        """Note the request for the actions of its answer."""
        self.__dict__.setdefault("requests", {})[key] = request
        super().submit(key, request, sampling)

    def poll(self) -> list[tuple[int, Completion]]:
        """Put actions behind the answers."""
        return [(key, _acted(self.requests.pop(key), found)) for key, found in super().poll()]

    def _limit(self, request: PolicyRequest, room: int) -> int:
        drawn = random.Random(mix_seed(request.seed, 1)).lognormvariate(0, SPREAD)
        mean = 2.718281828 ** (SPREAD**2 / 2)
        return max(1, min(room, round(self.mean_tokens * drawn / mean)))

    def _params(self, asked: Any, max_tokens: int, grammar: str) -> Any:
        params = super()._params(asked, max_tokens, grammar)
        params.stop_token_ids = []
        return params


def _acted(request: PolicyRequest, found: Completion) -> Completion:
    if found.finish_reason is FinishReason.CONTEXT:
        return found
    rng = random.Random(mix_seed(request.seed, 2))
    names = request.action_names or ()
    actions = [rng.choice(names) for _ in range(min(2, request.max_actions))]
    text = write_response(
        request.response_format, thought=found.text.replace("<", ""), actions=actions
    )
    return replace(found, text=text, finish_reason=FinishReason.STOP)


class Lockstep:
    """The engine as a policy that is asked for whole batches."""

    name = "lockstep"

    def __init__(self, policy: VLLMPolicy) -> None:
        self.complete = policy.complete


@dataclass(frozen=True)
class Asked:
    """One answer of the episodes, to be asked of `generate`."""

    prompt: list[int]
    seed: int
    num_tokens: int


def asked_of(episodes: Sequence[Trajectory], specs: Sequence[EpisodeSpec]) -> list[Asked]:
    """What the episodes asked, first all first turns, then all second ones."""
    found = [
        (turn.index, Asked(
            list(turn.completion.prompt_ids),
            mix_seed(spec.sampling_seed, turn.index),
            len(turn.completion.token_ids),
        ))
        for episode, spec in zip(episodes, specs, strict=True)
        for turn in episode.turns
    ]  # fmt: skip
    return [asked for _, asked in sorted(found, key=lambda pair: pair[0])]


def engine_steps(episodes: Sequence[Sequence[int]], *, slots: int, running: int) -> int:
    """Steps of an engine that writes a token of each of `slots` answers a step, in order of asking.

    An episode is the lengths of its answers, each asked when the one before is written; `running`
    episodes run at once. What is computed for prompts isn't counted.
    """
    waiting = deque((number, 0) for number in range(min(running, len(episodes))))
    entering = iter(range(len(waiting), len(episodes)))
    writing: list[tuple[int, int, int]] = []
    now = 0
    while waiting or writing:
        while waiting and len(writing) < slots:
            number, turn = waiting.popleft()
            heappush(writing, (now + episodes[number][turn], number, turn))
        now, number, turn = heappop(writing)
        if turn + 1 < len(episodes[number]):
            waiting.append((number, turn + 1))
        elif (new := next(entering, None)) is not None:
            waiting.append((new, 0))
    return now


def fewest_steps(
    episodes: Sequence[Trajectory], asked: Sequence[Asked], *, slots: int, running: int
) -> tuple[int, int]:
    """Of `streaming` and of `generate`."""
    played = [[len(turn.completion.token_ids) for turn in each.turns] for each in episodes]
    alone = [[each.num_tokens] for each in asked]
    return (
        engine_steps(played, slots=slots, running=running),
        engine_steps(alone, slots=slots, running=len(alone)),
    )


def generate(
    policy: VLLMPolicy, asked: Sequence[Asked], *, seeds: bool, logprobs: bool, text: bool = False
) -> int:
    """Number of tokens that vLLM's own loop writes for these prompts."""
    library = policy._library
    chosen = {"logprobs": 0, "flat_logprobs": True} if logprobs else {}
    params = [
        library.SamplingParams(
            temperature=1.0,
            max_tokens=each.num_tokens,
            ignore_eos=True,
            detokenize=text,
            **({"seed": each.seed} if seeds else {}),
            **chosen,
        )
        for each in asked
    ]
    prompts = [{"prompt_token_ids": each.prompt} for each in asked]
    outputs = policy.llm.generate(prompts, params, use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in outputs)


@dataclass
class Bench:
    """One game, its episodes, and how they are played."""

    name: str
    settings: RolloutSettings
    make_env: Callable[[], Any]
    specs: list[EpisodeSpec]

    @classmethod
    def of(cls, name: str, options: argparse.Namespace) -> Bench:
        """The game with the published prompts: states, full history, two actions of ten a turn."""
        config = conf.compose(profile="paper", env=name)
        config.env.max_turns = options.turns
        config.sampling.max_new_tokens = options.max_tokens
        specs = [
            EpisodeSpec(
                env_seed=index // 8, group=index // 8, member=index % 8, sampling_seed=index
            )
            for index in range(options.episodes)
        ]
        return cls(name, rollout_settings(config), env_factory(config), specs)

    def play(self, policy: Any, num: int | None = None) -> list[Trajectory]:
        """Some or all episodes."""
        return run_episodes(
            self.specs[:num],
            env_id=self.name,
            make_env=self.make_env,
            policy=policy,
            settings=self.settings,
        )

    def measure(self, policy: Measured, repeats: int) -> dict[str, list[float]]:
        """Way -> tokens a second of each repeat."""
        for policy.logprobs in (True, False):  # each has kernels to compile
            self.play(policy, 64)
        speeds: dict[str, list[float]] = {}

        def timed(name: str, work: Callable[[], Any], count: Callable[[Any], int]) -> Any:
            policy.llm.llm_engine.reset_prefix_cache()
            start = time.perf_counter()
            done = work()
            seconds = time.perf_counter() - start
            speeds.setdefault(name, []).append(count(done) / seconds)
            print(f"  {name:<20} {count(done):>9,} tokens in {seconds:7.2f} s", flush=True)
            return done

        for _ in range(repeats):
            episodes = timed("streaming", partial(self.play, policy), _num_tokens)
            asked = asked_of(episodes, self.specs)
            alone = partial(generate, policy, asked)
            timed("generate", partial(alone, seeds=True, logprobs=False), int)
            policy.logprobs = True
            timed("streaming" + TOLD, partial(self.play, policy), _num_tokens)
            policy.logprobs = False
            timed("generate" + TOLD, partial(alone, seeds=True, logprobs=True), int)
            timed("generate, bare", partial(alone, seeds=False, logprobs=False, text=True), int)
            again = timed("lockstep", partial(self.play, Lockstep(policy)), _num_tokens)
            turns = [sum(len(each.turns) for each in found) for found in (episodes, again)]
            mean = sum(len(each.prompt) for each in asked) / len(asked)
            print(f"  {turns[0]:,} turns ({turns[1]:,} in lockstep), {mean:.0f} tokens a prompt")
            slots, running = policy.slots, policy.max_running
            ours, theirs = fewest_steps(episodes, asked, slots=slots, running=running)
            print(
                f"  {running} episodes run; steps of the engine: streaming {ours:,}, "
                f"generate {theirs:,}, which allows a ratio of {theirs / ours:.2f}",
                flush=True,
            )
        return speeds


def _num_tokens(episodes: Sequence[Trajectory]) -> int:
    return sum(len(turn.completion.token_ids) for each in episodes for turn in each.turns)


def start(options: argparse.Namespace, directory: str) -> Measured:
    """The engine."""
    if not options.model:
        build_model(Path(directory), SHAPE, build_tokenizer(), layers=options.layers)
    spec = PolicySpec(
        kind="vllm",
        model_dir=options.model or directory,
        device=options.device,
        dtype="bfloat16",
        max_model_len=options.max_model_len,
        max_batch=options.at_once,
        enforce_eager=options.eager,
        gpu_memory_utilization=0.8,
    )
    policy = Measured.from_spec(spec)
    assert isinstance(policy, Measured)
    policy.mean_tokens = options.mean_tokens
    policy.slots = options.at_once
    return policy


def report(name: str, speeds: dict[str, list[float]]) -> None:
    """Tokens a second, median of the repeats, and what part of each our engine's like it is."""
    median = {way: statistics.median(found) for way, found in speeds.items()}
    for way, speed in median.items():
        ratio = median["streaming" + TOLD * way.endswith(TOLD)] / speed
        print(f"{name:<12} {way:<20} {speed:>9,.0f} tokens/s   streaming is {ratio:.2f} of it")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout", description=__doc__)
    parser.add_argument("--env", nargs="+", default=["frozenlake", "sokoban"])
    parser.add_argument("--model", default="", help="a Hugging Face directory (default: random)")
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"])
    parser.add_argument("--episodes", type=int, default=1536)
    parser.add_argument(
        "--at-once", type=int, default=512, help="answers that are written at a time"
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--mean-tokens", type=float, default=100.0, help="of an answer")
    parser.add_argument("--max-tokens", type=int, default=400, help="of an answer")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        policy = start(options, directory)
        card = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor()
        print(f"{card}, {os.cpu_count()} cores; {options.episodes} episodes, "
              f"{options.at_once} at once, {options.turns} turns", flush=True)  # fmt: skip
        try:
            measured = {}
            for name in options.env:
                print(name, flush=True)
                measured[name] = Bench.of(name, options).measure(policy, options.repeats)
        finally:
            policy.close()
    for name, speeds in measured.items():
        report(name, speeds)


if __name__ == "__main__":
    main()
