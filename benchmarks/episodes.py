"""What playing costs in Python: the agent loop, and the policy around its model.

    python -m benchmarks.episodes
    python -m benchmarks.episodes --model DIR --device cuda

Without `--model` a tiny tokenizer and answers that are written beforehand, well-formed random play,
stand for a model that takes no time. With it that model answers, and its own time (the decoding of
each batch) stands beside. Episodes are those of a PPO step of the laptop profile: groups of four,
ten turns of one action, the state alone as prompt. The fastest of several plays, each with fresh
memories of texts, in seconds: of this process on a CPU, which other work on the machine lengthens
little, and of the clock with a GPU.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import conf
from conf.schema import Config
from envs import splits
from steps.agent import parsing
from steps.agent.records import Completion, PolicyRequest, Sampling
from steps.agent.rollout import EpisodeSpec, run_episodes
from steps.agent.seeds import mix_seed
from steps.policies.encoding import Ids
from steps.policies.hf import HFPolicy
from steps.policies.loading import load_model, load_tokenizer
from steps.policies.random_policy import RandomPolicy
from steps.settings import env_factory, rollout_settings
from steps.training.tiny_model import build_tiny

WORLDS = ("frozenlake", "sokoban")
ARMS = ("spa", "vanilla_rl")
GROUP = 4


class Clock:
    """Seconds by what they were spent on."""

    def __init__(self, device: str) -> None:
        self.read = time.process_time if device == "cpu" else time.perf_counter
        self.spent: dict[str, float] = {}

    @contextmanager
    def on(self, what: str) -> Any:
        """Count a stretch of time."""
        start = self.read()
        yield
        self.spent[what] = self.spent.get(what, 0.0) + self.read() - start


class TimedPolicy(HFPolicy):
    """Times a whole answer and the decoding inside it."""

    clock: Clock

    def complete(self, requests: Sequence[PolicyRequest], sampling: Sampling) -> list[Completion]:
        """As the policy does."""
        with self.clock.on("policy"):
            return super().complete(requests, sampling)

    def _decode(self, *arguments: Any) -> Any:
        with self.clock.on("model"):
            return super()._decode(*arguments)


class WrittenPolicy(TimedPolicy):
    """Random play, tokenised outside the measured time, in place of what a model would draw."""

    def complete(self, requests: Sequence[PolicyRequest], sampling: Sampling) -> list[Completion]:
        """Write all answers, then do what is done around a model."""
        with self.clock.on("writing"):
            texts = [each.text for each in RandomPolicy().complete(requests, sampling)]
            ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
            self.rows = {
                request.seed: [*row, self.stop_ids[0]]
                for request, row in zip(requests, ids, strict=True)
            }
        return super().complete(requests, sampling)

    def _sample(
        self, prompts: list[Ids], requests: list[PolicyRequest], sampling: Sampling
    ) -> list[Completion]:
        self.asked = requests
        return super()._sample(prompts, requests, sampling)

    def _decode(self, *arguments: Any) -> Any:
        with self.clock.on("model"):
            budget = arguments[3]
            rows = [self.rows[request.seed] for request in self.asked]
            tokens = torch.tensor([row + [0] * (budget - len(row)) for row in rows])
            return tokens, torch.full(tokens.shape, -0.5)


def specs_of(config: Config, episodes: int) -> list[EpisodeSpec]:
    """The episodes of a PPO step."""
    seeds = splits.draw_seeds(env_factory(config), "train", episodes // GROUP, config.ppo.base_seed)
    return [
        EpisodeSpec(
            env_seed=seed,
            group=group,
            member=member,
            sampling_seed=mix_seed(config.seed, group, member),
        )
        for group, seed in enumerate(seeds)
        for member in range(GROUP)
    ]


def play(config: Config, specs: list[EpisodeSpec], policy: TimedPolicy) -> tuple[Clock, int]:
    """Play once; the time of each part, and the number of turns."""
    policy.clock = clock = Clock(policy.model.device.type)
    if policy._graphs is not None:
        policy._graphs.decode = _timed(policy._graphs.decode, clock)  # type: ignore[method-assign]
    parsing._parsed.cache_clear()
    with clock.on("all"):
        played = run_episodes(
            specs,
            env_id=config.env.id,
            make_env=env_factory(config),
            policy=policy,
            settings=rollout_settings(config, for_ppo=True),
        )
    return clock, sum(len(each.turns) for each in played)


def _timed(decode: Any, clock: Clock) -> Any:
    def timed(*arguments: Any, **options: Any) -> Any:
        with clock.on("model"):
            return decode(*arguments, **options)

    return timed


def measure(config: Config, directory: str, device: str, options: argparse.Namespace) -> str:
    """A row of the table."""
    model, tokenizer = load_model(directory, device=device), load_tokenizer(directory)
    kind = TimedPolicy if options.model else WrittenPolicy
    specs, found = specs_of(config, options.episodes), []
    for _ in range(options.repeats):
        policy = kind(model.eval(), tokenizer, max_model_len=config.sampling.max_model_len)
        clock, turns = play(config, specs, policy)
        spent = clock.spent
        whole = spent["all"] - spent.get("writing", 0.0)
        found.append((whole - spent["model"], whole - spent["policy"], spent["model"], turns))
    python, loop, model_s, turns = min(found)
    return (
        f"{turns:>8}{python:>10.3f}{loop:>10.3f}{python - loop:>10.3f}{model_s:>10.3f}"
        f"{python / turns * 1e6:>12.1f}"
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="What playing costs in Python, in seconds.")
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default="", help="a directory; empty: answers written before")
    parser.add_argument("--device", default="cpu", help="of the model")
    parser.add_argument("--worlds", nargs="+", default=WORLDS)
    parser.add_argument("--arms", nargs="+", default=ARMS, help="files of conf/experiment")
    options = parser.parse_args()
    heads = ("turns", "Python", "loop", "policy", "model", "us a turn")
    print(f"{'':<24}" + "".join(f"{head:>{8 if head == 'turns' else 10}}" for head in heads[:-1])
          + f"{heads[-1]:>12}")  # fmt: skip
    for world in options.worlds:
        for arm in options.arms:
            config = conf.compose(env=world, experiment=arm)
            with tempfile.TemporaryDirectory() as directory:
                source = options.model or str(build_tiny(config.model, Path(directory)))
                row = measure(config, source, options.device, options)
            print(f"{world + ' ' + arm:<24}{row}", flush=True)


if __name__ == "__main__":
    main()
