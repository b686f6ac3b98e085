"""Times a PPO step by verl at the paper's shape: 32 groups of 8, at most 5 turns of 400 tokens.

    python -m benchmarks.ppo_step                          # one GPU of 80 GB, some five minutes
    python -m benchmarks.ppo_step --override actor_rollout_ref.model.use_fused_kernels=True

The model has Qwen2.5-1.5B's configuration and random weights, and a tokenizer made on the spot from
the prompts themselves (3.5 characters a token). Such a model never ends an answer: the length of
each is drawn from the paper's 65 to 175 tokens, the limit stays 400, and the last steps write all
400. Games, prompts, histories and rewards are real; as published the best quarter of the groups is
trained on. The first step warms up and isn't counted.

Beside verl's own times stands the time from row to row of its metrics, which has what is outside
its step, too. Peaks of memory are torch's in the trainer, and the whole card's by `nvidia-smi`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import conf
from benchmarks.cards import CardMemory
from benchmarks.models import SHAPES, build_model, build_tokenizer
from conf.schema import Config
from steps.agent.rollout import EpisodeSpec, run_episodes
from steps.policies.random_policy import RandomPolicy
from steps.settings import env_factory, rollout_settings
from steps.training.ppo_verl import VerlRun, execute, prepare

PARTS = {
    "generation": "timing_s/gen",
    "old log-probs": "timing_s/old_log_prob",
    "values": "timing_s/values",
    "advantages": "timing_s/adv",
    "critic": "timing_s/update_critic",
    "actor": "timing_s/update_actor",
    "weight sync": "timing_s/update_weights",
}
STEP = "timing_s/step"
CORRELATION = "training/rollout_actor_probs_pearson_corr"
"""Of the probabilities that vLLM sampled with and the trainer's, in the steps that compare them."""
PAPER_S = 43.0
"""A step of the published run."""


def prompts(config: Config) -> Iterator[str]:
    """What the model is shown in random play."""
    played = run_episodes(
        [EpisodeSpec(env_seed=seed, sampling_seed=seed) for seed in range(64)],
        env_id=config.env.id,
        make_env=env_factory(config),
        policy=RandomPolicy(separator=config.env.action_separator),
        settings=rollout_settings(config),
    )
    for trajectory in played:
        for message in trajectory.turns[-1].prompt:
            yield message.content


def config_of(options: argparse.Namespace, model_dir: str) -> Config:
    """The profile of the paper but for the number of steps, without probes and checkpoints."""
    config = conf.compose(
        env=options.env,
        profile="paper",
        model=model_dir or None,
        overrides=[
            f"ppo.total_steps={options.steps + options.full_steps + 1}",
            f"ppo.env_groups={options.groups}",
            "ppo.probe_every=0",
            "ppo.save_every=0",
            "sampling.max_new_tokens=400",
        ],
    )
    section = replace(
        config.verl,
        n_gpus_per_node=options.gpus,
        dtype=options.dtype,
        tensor_parallel_size=options.tensor_parallel,
        max_tokens_per_gpu=options.max_tokens,
        logprobs_every=options.logprobs_every,
        gpu_memory_utilization=options.memory_share,
        overrides=["trainer.save_freq=-1", *options.override],
    )
    return replace(config, verl=section)


@dataclass(kw_only=True)
class Recorder(VerlRun):
    """Keeps verl's own rows, and when each was seen."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)

    def on_row(self, step: int, data: dict[str, Any]) -> None:
        super().on_row(step, data)
        self.rows.append(data)
        self.seen.append(time.monotonic())


def mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Of the rows that have it; 0 for none."""
    found = [float(row[name]) for row in rows if row.get(name) is not None]
    return sum(found) / len(found) if found else 0.0


def report(title: str, recorder: Recorder, places: Sequence[int]) -> dict[str, float]:
    """One kind of step: its parts and where the rest goes. Nothing for no steps."""
    if not places:
        return {}
    rows = [recorder.rows[place] for place in places]
    walls = [recorder.seen[place] - recorder.seen[place - 1] for place in places]
    step = mean(rows, STEP)
    found = {name: mean(rows, key) for name, key in PARTS.items()}
    found["rest of verl's step"] = step - sum(found.values())
    found["step"] = step
    found["row to row"] = sum(walls) / len(walls)
    found["sampled tokens an answer"] = mean(rows, "rollout/response_length")
    found["turns an episode"] = mean(rows, "rollout/num_turns")
    found["tokens trained on, a sequence"] = mean(rows, "prompt_length/mean") + mean(
        rows, "response_length/mean"
    )
    print(f"\n{title} ({len(rows)} steps; paper: {PAPER_S:g} s)")
    for name, value in found.items():
        print(f"  {name:32}{value:10.3f}")
    return found


def run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Build the model, train, and print what was seen."""
    config = config_of(options, "")
    model_dir = directory / "model"
    build_model(
        model_dir,
        SHAPES["qwen2.5-1.5b"],
        build_tokenizer(prompts(config)),
        layers=options.layers,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    config = config_of(options, str(model_dir))
    drawn = [tuple(options.lengths)] * (options.steps + 1)
    run_file = prepare(
        config, model_dir=str(model_dir), work=directory, answer_lengths=[*drawn, (400, 400)]
    )
    recorder = Recorder(config=config, directory=directory / "checkpoints")
    log = directory / "verl_ppo.log"
    began = time.monotonic()
    try:
        with CardMemory() as card:
            execute(recorder, run_file, log=log)
    except KeyboardInterrupt:
        print(f"interrupted after {len(recorder.rows)} steps")
    finally:
        if log.exists():
            lines = log.read_text("utf-8", "replace").splitlines()
            print("\n".join(line for line in lines if "[spa]" in line))
    if not recorder.rows:
        raise SystemExit("no step was done")
    places = range(1, len(recorder.rows))
    drawn_places, full = places[: options.steps], places[options.steps :]
    told = [place for place in drawn_places if CORRELATION in recorder.rows[place]]
    untold = [place for place in drawn_places if place not in told]
    kinds = {
        "drawn": report("Answers of drawn lengths", recorder, untold),
        "told": report("The same, vLLM tells log-probabilities", recorder, told),
        "full": report("Answers of 400 tokens", recorder, full),
    }
    memory = {
        "trainer_allocated_gb": max(
            mean([row], f"{name}/perf/max_memory_allocated_gb")
            for row in recorder.rows
            for name in ("actor", "critic")
        ),
        "card_gb": card.peak,
    }
    correlations = [row[CORRELATION] for row in recorder.rows if CORRELATION in row]
    print(f"\npeak memory {memory}\nprobability correlations {correlations}")
    print(f"first step ended after {recorder.seen[0] - began:.1f} s")
    return {
        "kinds": kinds,
        "memory": memory,
        "probability_correlations": correlations,
        "startup_s": recorder.seen[0] - began,
        "first_step": recorder.rows[0],
        "rows": recorder.rows,
        "options": vars(options),
    }


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--env", default="sokoban")
    parser.add_argument("--layers", type=int, default=28, help="fewer for a trial of the program")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3, help="with drawn lengths, after the first")
    parser.add_argument("--full-steps", type=int, default=1, help="with 400 tokens an answer")
    parser.add_argument("--logprobs-every", type=int, default=10, help="vLLM tells them")
    parser.add_argument("--lengths", type=int, nargs=2, default=(65, 175))
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=16384, help="of a micro-batch")
    parser.add_argument("--dtype", default="bfloat16", help="of the trainer and vLLM")
    parser.add_argument("--memory-share", type=float, default=0.4, help="of vLLM")
    parser.add_argument("--override", action="append", default=[], help="of verl, verbatim")
    parser.add_argument("--out", type=Path, help="write all numbers to this JSON file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = run(options, Path(directory))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1, default=str), "utf-8")


if __name__ == "__main__":
    main()
