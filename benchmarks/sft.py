"""Times finetuning by the local backend and by verl, on the same rows, in one call.

    python -m benchmarks.sft                                   # SmolLM2-135M's shape, one GPU
    python -m benchmarks.sft --shape qwen2.5-1.5b --steps 60 --backends verl --gpus 4
    python -m benchmarks.sft --shape tiny --device cpu --backends local --warmup 1 --steps 20

Rows are random self-play with the prompts and the history of the profile `paper`, filtered as
there; the model has a real one's configuration and random weights. Trained is by the functions
that the stage calls, on the same batches. What is counted:

- Tokens of prompts and answers, without padding; beside them those that have a loss weight.
- Time from row to row of the metrics that the stage logs (steps 1, 21, 41 and so on, and the last),
  so data and logging are in it. What lies before the row of step `--warmup` isn't. verl's rows
  are seen up to half a second late: steps should be many.
- Utilisation (MFU) as in PaLM (`benchmarks.throughput`), over the card's peak in bfloat16 for both;
  TF32, in which the local backend multiplies, has half of it. verl's own MFU differs: it counts an
  embedding that is the output matrix twice, and half of attention.

Memory is the most that torch allocated in a trainer, and the most in use on any card, by whomever.
The start ends with the first step. The local backend trains on one GPU whatever `--gpus` says, and
after verl, which looks at the card's free memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import conf
from benchmarks.cards import CardMemory, peak_flops
from benchmarks.models import SHAPES, VOCABULARY, build_model, build_tokenizer
from benchmarks.throughput import Stretch, Work, flops, flops_parameters, stretch, work_of
from conf.schema import Config
from steps import filter_format, selfplay_generate
from steps.agent.records import SFTExample
from steps.errors import SPAError
from steps.policies.context import context_length
from steps.policies.loading import load_tokenizer
from steps.storage import TRAIN_FILE, read_examples
from steps.tracking import NullTracker
from steps.training.checkpoints import DirectoryCheckpoints
from steps.training.machine import Machine, installed, read_machine
from steps.training.model_size import ModelSize, size_of
from steps.training.sft_local import LOGGED_EVERY, train_sft
from steps.training.sft_verl import train_sft_verl
from steps.training.tokenization import SFTRow, tokenize_sets
from steps.training.verl_common import kernels
from steps.workers import Peers

GIB = 1 << 30
LATE_S = 0.5
"""After verl has written a row, until it is seen at the latest (`verl_launch.TICK_S`)."""
MEMORY = "perf/max_memory_allocated_gb"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What each backend is to train."""

    config: Config
    model_dir: Path
    examples: Sequence[SFTExample]
    rows: Sequence[SFTRow]
    """The examples as both backends tokenise them."""
    size: ModelSize
    flops_parameters: int
    """Parameters that are multiplied with."""
    card: str
    """Its name; empty on the CPU."""
    warmup: int
    machine: Machine

    @property
    def peak(self) -> float | None:
        """Of one card, in operations a second; None where it isn't known."""
        return peak_flops(self.card)

    def work(self, after: int, last: int) -> Work:
        """Of the steps `after + 1` to `last`."""
        return work_of(
            self.rows,
            seed=self.config.seed,
            batch_size=self.config.sft.batch_size,
            after=after,
            last=last,
        )


class Clock(NullTracker):
    """Notes when each row of metrics came, in seconds since this was made."""

    def __init__(self) -> None:
        super().__init__()
        self.began = time.perf_counter()
        self.rows: list[tuple[int, float]] = []
        self.allocated_gib = 0.0

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """A row of the stage."""
        super().log(metrics, step)
        self.rows.append((step, time.perf_counter() - self.began))
        self.allocated_gib = max(self.allocated_gib, metrics.get(MEMORY, 0.0))

    def plain(self) -> list[dict[str, float]]:
        """Each row with its step and second."""
        return [
            {"step": step, "second": second, **metrics}
            for (step, second), (_, metrics) in zip(self.rows, self.logged, strict=True)
        ]


def config_of(options: argparse.Namespace, model_dir: str = "") -> Config:
    """The profile of the paper but for the number of steps, without checkpoints and probe."""
    config = conf.compose(
        env=options.env,
        profile="paper",
        model=model_dir or None,
        overrides=[
            f"device={options.device}",
            "selfplay.policy=random",
            f"selfplay.env_groups={options.groups}",
            "selfplay.batches=1",
            "filter.validation_share=0",
            f"sft.max_steps={options.warmup + options.steps}",
            f"sft.batch_size={options.batch_size}",
            "sft.eval_every=0",
            "sft.save_every=0",
            "sft.probe_puzzles=0",
            f"verl.n_gpus_per_node={options.gpus}",
            f"verl.max_tokens_per_gpu={options.max_tokens}",
            *options.set,
        ],
    )
    return replace(config, verl=replace(config.verl, sft_overrides=[*options.override]))


def play(config: Config, directory: Path) -> list[SFTExample]:
    """Finetuning rows, by the two stages before."""
    to: Any = {"out_dir": directory, "tracker": NullTracker()}
    selfplay_generate.selfplay_generate(config, model_dir="", **to)
    filter_format.filter_format(config, trajectories=[directory / selfplay_generate.FILE], **to)
    return read_examples(directory / TRAIN_FILE)


def texts(examples: Sequence[SFTExample]) -> list[str]:
    """What a tokenizer is made of; a message of many histories comes once."""
    return list(
        dict.fromkeys(
            text
            for example in examples
            for text in (*(message.content for message in example.prompt), example.response)
        )
    )


def prepare(options: argparse.Namespace, directory: Path, machine: Machine) -> Job:
    """Play, and build tokenizer and model."""
    examples = play(config_of(options), directory)
    shape, model_dir = SHAPES[options.shape], directory / "model"
    tokenizer = build_tokenizer(texts(examples), vocab_size=min(VOCABULARY, shape["vocab_size"]))
    build_model(model_dir, shape, tokenizer, layers=options.layers)
    config = config_of(options, str(model_dir))
    limit = context_length(str(model_dir), config.sft.max_length)
    loaded = load_tokenizer(str(model_dir))
    rows, _, _ = tokenize_sets(examples, [], loaded, config.sft, limit=limit)
    if len(rows) < options.batch_size:
        raise SystemExit(f"{len(rows)} rows fill no batch of {options.batch_size}: raise --groups.")
    size = size_of(model_dir)
    return Job(
        config=config,
        model_dir=model_dir,
        examples=examples,
        rows=rows,
        size=size,
        flops_parameters=flops_parameters(size, is_tied=shape["tie_word_embeddings"]),
        card=machine.gpus[0].name if machine.gpus and config.device != "cpu" else "",
        warmup=options.warmup,
        machine=machine,
    )


def by_local(job: Job, directory: Path, clock: Clock) -> None:
    """The local backend, in this process."""
    gc.collect()
    if job.card:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    source, work = str(job.model_dir), directory / "work"
    train_sft(Peers(), job.config, job.examples, [], source, "benchmark", work, clock, None)
    if job.card:
        clock.allocated_gib = torch.cuda.max_memory_allocated() / GIB


def by_verl(job: Job, directory: Path, clock: Clock) -> None:
    """verl, in its own processes."""
    train_sft_verl(
        job.config,
        job.examples,
        [],
        source=str(job.model_dir),
        fingerprint="benchmark",
        out_dir=directory,
        tracker=clock,
        checkpoints=DirectoryCheckpoints(directory / "store"),
        machine=job.machine,
    )


TRAINERS: Mapping[str, Callable[[Job, Path, Clock], None]] = {"verl": by_verl, "local": by_local}
"""In the order in which they train."""


def precision(job: Job, backend: str) -> str:
    """What is computed in, and how attention is."""
    if backend == "verl":
        chosen = kernels(job.config.verl, has_flash_attn=find_spec("flash_attn") is not None)
        rows = "packed" if chosen.remove_padding else "padded"
        return f"bfloat16, {chosen.attention}, {rows}"
    return f"float32{' by TF32' if job.card else ''}, sdpa, padded"


def measure(backend: str, job: Job, directory: Path) -> dict[str, Any]:
    """Train, and say how fast that was."""
    directory.mkdir()
    clock = Clock()
    with CardMemory() as card:
        TRAINERS[backend](job, directory, clock)
    shutil.rmtree(directory)
    gpus = job.config.verl.n_gpus_per_node if backend == "verl" else 1
    return {
        "precision": precision(job, backend),
        "gpus": gpus,
        **speed(job, stretch(clock.rows, job.warmup), gpus=gpus),
        "startup_s": clock.rows[0][1],
        "allocated_gib": clock.allocated_gib,
        "card_gib": card.peak,
        "rows": clock.plain(),
    }


def speed(job: Job, counted: Stretch, *, gpus: int) -> dict[str, Any]:
    """Tokens and operations a second, on all GPUs; the utilisation is of each."""
    steps, seconds = counted.last - counted.after, counted.seconds
    work, size = job.work(counted.after, counted.last), job.size
    done = flops(work, parameters=job.flops_parameters, layers=size.layers, hidden=size.hidden)
    return {
        "steps": steps,
        "step_s": seconds / steps,
        "tokens": work.tokens,
        "trained_tokens": work.trained,
        "mean_length": work.mean_length,
        "tokens_s": work.tokens / seconds,
        "trained_tokens_s": work.trained / seconds,
        "flops_s": done / seconds,
        "mfu": None if job.peak is None else done / seconds / job.peak / gpus,
        "late_share": LATE_S / seconds,
    }


def introduce(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Print what is trained, on what."""
    lengths, size = [len(row.token_ids) for row in job.rows], job.size
    last = options.warmup + options.steps
    work = job.work(options.warmup, last)
    libraries = installed()
    versions = ", ".join(f"{name} {version}" for name, version in libraries.items())
    lines = (
        f"{job.card or 'no GPU'}; {versions}",
        f"{options.shape}: {size.layers} layers, {size.parameters:,} parameters, "
        f"{job.flops_parameters:,} of them multiplied",
        f"{options.env}: {len(lengths):,} rows of {sum(lengths) / len(lengths):,.0f} tokens in the "
        f"mean, {max(lengths):,} at most; {len(job.examples) - len(lengths)} more are too long",
        f"steps {options.warmup + 1} to {last}, {options.batch_size} rows each: {work.tokens:,} "
        f"tokens, {work.trained:,} trained on; a token's row has {work.mean_length:,.0f}",
    )
    print("\n".join(lines), flush=True)
    if job.card and job.peak is None:
        print(f"no MFU: the peak of {job.card!r} isn't in benchmarks/cards.py")
    return {
        "card": job.card,
        "peak_flops": job.peak,
        "libraries": libraries,
        "size": asdict(size),
        "flops_parameters": job.flops_parameters,
        "num_rows": len(lengths),
    }


def report(found: Mapping[str, Mapping[str, Any]]) -> None:
    """A line for each backend."""
    columns = "GPUs", "s/step", "tokens/s", "trained/s", "MFU", "torch GiB", "card GiB", "start s"
    print(f"\n{'':8}{'precision, attention, rows':34}{''.join(f'{name:>11}' for name in columns)}")
    for backend, row in found.items():
        if "error" in row:
            print(f"{backend:8}{row['error']}")
            continue
        cells = (
            f"{row['gpus']}",
            f"{row['step_s']:.3f}",
            f"{row['tokens_s']:,.0f}",
            f"{row['trained_tokens_s']:,.0f}",
            "-" if row["mfu"] is None else f"{row['mfu']:.1%}",
            *(f"{row[key]:.1f}" for key in ("allocated_gib", "card_gib", "startup_s")),
        )
        print(f"{backend:8}{row['precision']:34}{''.join(f'{cell:>11}' for cell in cells)}")
    late = found.get("verl", {}).get("late_share")
    if late is not None:
        print(f"verl's rows are seen up to {LATE_S} s late: its times hold within {late:.1%}")


def run(
    options: argparse.Namespace, directory: Path, machine: Machine | None = None
) -> dict[str, Any]:
    """All backends; one that can't train here has its reason in place of numbers."""
    job = prepare(options, directory, machine or read_machine())
    facts = introduce(job, options)
    seen: dict[str, dict[str, Any]] = {}
    for backend in (each for each in TRAINERS if each in options.backends):
        try:
            seen[backend] = measure(backend, job, directory / backend)
        except (SPAError, torch.OutOfMemoryError) as error:
            seen[backend] = {"error": str(error)}
    found = {backend: seen[backend] for backend in options.backends}
    report(found)
    return {**facts, "backends": found, "options": vars(options)}


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; None is this process's."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sft", description=__doc__.split("\n", 1)[0]
    )
    add = parser.add_argument
    add("--env", default="sokoban")
    add("--backends", default="local,verl", help="local, verl, or both with a comma")
    add("--shape", choices=SHAPES, default="smollm2-135m")
    add("--layers", type=int, default=0, help="fewer for a trial of the program")
    add("--groups", type=int, default=32, help="puzzles that are played, eight times each")
    add("--steps", type=int, default=200, help="that are counted")
    add("--warmup", type=int, default=1 + LOGGED_EVERY, help="steps before: 1, 21, 41 ...")
    add("--batch-size", type=int, default=16)
    add("--gpus", type=int, default=1, help="of verl")
    add("--max-tokens", type=int, default=16384, help="of a micro-batch of verl")
    add("--device", default="auto", help="auto, cuda or cpu")
    add("--override", action="append", default=[], help="of verl, verbatim")
    add("--set", action="append", default=[], help="a setting of ours, as key=value")
    add("--out", type=Path, help="write all numbers to this JSON file")
    options = parser.parse_args(words)
    options.backends = options.backends.split(",")
    if unknown := sorted({*options.backends} - {*TRAINERS}):
        parser.error(f"--backends has {', '.join(unknown)}; known: {', '.join(TRAINERS)}")
    if options.warmup % LOGGED_EVERY != 1 or options.steps < 1:
        parser.error(
            f"--warmup is {options.warmup} and --steps {options.steps}: stages log the steps 1, "
            f"{1 + LOGGED_EVERY}, {1 + 2 * LOGGED_EVERY} and so on, and one or more are counted"
        )
    if options.device == "cpu" and "verl" in options.backends:
        parser.error("verl trains on GPUs alone: give --backends local with --device cpu")
    if options.batch_size % options.gpus:
        parser.error(f"{options.gpus} GPUs can't share --batch-size {options.batch_size} evenly")
    return options


def main() -> None:
    """Measure, print and write."""
    options = read_options()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("steps").setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as directory:
        found = run(options, Path(directory))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1, default=str), "utf-8")
    if any("error" in each for each in found["backends"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
