"""The trainer's half of a PPO step by verl at the paper's shape: one process, no Ray, no vLLM.

    python -m benchmarks.update                          # one GPU of 80 GB, a minute
    python -m benchmarks.update --max-tokens 24576 --profile 20
    python -m benchmarks.update --all-logits             # verl's own, without `verl_head`
    python -m benchmarks.update --segments false         # PyTorch's allocator as it is by default
    python -m benchmarks.update --shape built-in --sequences 2700 --prompt 60 --turns 1 \\
        --lengths 20 60 --max-tokens 24576 --dtype float32 --queue        # many short sequences
    (the same) --by-row                     # every column, and verl's own `no_padding_2_padding`

verl's own workers, engines and losses with the settings of `benchmarks.ppo_step`: 64 sequences with
a prompt of 420 tokens and five answers of 65 to 175, 110 tokens of the game between; ids are made
up. Before each step the memory that PyTorch keeps is given back, as verl does when weights go to
vLLM (`--keep-memory` doesn't). With `--queue` each part takes its rows from verl's queue, which
needs Ray, and passes without gradients put theirs back; what verl's trainer does in between isn't
in it. `--profile N` prints the N operations of each update that took longest, on the host and on
the card.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import SHAPES, build_model, build_tokenizer
from benchmarks.ppo_step import config_of, prompts
from steps.training import verl_columns, verl_hooks
from steps.training.ppo_verl import prepare
from steps.training.verl_driver import compose

BETWEEN = 110
"""Tokens of the game between two answers."""
FLOATS = (
    *("rm_scores", "rollout_log_probs", "log_probs", "entropy", "old_log_probs", "ref_log_prob"),
    *("values", "advantages", "returns"),
)
"""The other columns of tokens that verl's queue holds at a step's end."""


def engine_of(model_type: str, section: Any, model: Any, loss: Any) -> Any:
    """verl's worker for one model, from its part of the composed configuration."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

    config = omega_conf_to_dataclass(section)
    engine = config.engine
    engine.use_dynamic_bsz = section.use_dynamic_bsz
    engine.max_token_len_per_gpu = section.ppo_max_token_len_per_gpu
    engine.infer_max_token_len_per_gpu = section.ppo_max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = section.ppo_micro_batch_size_per_gpu
    engine.infer_micro_batch_size_per_gpu = section.ppo_micro_batch_size_per_gpu
    made = TrainingWorker(
        TrainingWorkerConfig(
            model_type=model_type,
            model_config=omega_conf_to_dataclass(model),
            engine_config=engine,
            optimizer_config=config.optim,
            checkpoint_config=config.checkpoint,
            profiler_config=None,
        )
    )
    made.reset()
    made.set_loss_fn(partial(loss, config=config))
    return made


def infer(worker: Any, batch: Any, *, entropies: bool) -> Any:
    """One pass without gradients."""
    from verl.utils import tensordict_utils as tu

    tu.assign_non_tensor(batch, compute_loss=False, calculate_entropy=entropies)
    return worker.infer_batch(batch)


def update(worker: Any, batch: Any, section: Any, size: int, *, entropies: bool) -> dict[str, Any]:
    """One update in minibatches of `size` sequences; verl's metrics.

    Empty but in the first of the processes that share sequences (Ulysses).
    """
    from verl.utils import tensordict_utils as tu

    tu.assign_non_tensor(
        batch,
        mini_batch_size=size,
        global_batch_size=size,
        epochs=section.ppo_epochs,
        seed=0,
        dataloader_kwargs={"shuffle": False},
        calculate_entropy=entropies,
    )
    found = worker.train_mini_batch(batch)
    return {} if found is None else dict(found["metrics"])


def nested(rows: list[Any]) -> torch.Tensor:
    """Rows of any length as one jagged tensor."""
    return torch.nested.as_nested_tensor(
        [torch.as_tensor(row) for row in rows], layout=torch.jagged
    )


def batch_of(
    prompt_ids: list[list[int]],
    response_ids: list[list[int]],
    response_mask: list[list[int]],
    **columns: torch.Tensor,
) -> Any:
    """What verl's workers are given of these sequences."""
    from verl.utils import tensordict_utils as tu

    ids = [[*prompt, *response] for prompt, response in zip(prompt_ids, response_ids, strict=True)]
    mask = nested(response_mask)
    return tu.get_tensordict(
        {
            "prompts": nested(prompt_ids),
            "responses": nested(response_ids),
            "input_ids": nested(ids),
            "position_ids": nested([list(range(len(row))) for row in ids]),
            "response_mask": mask,
            "loss_mask": mask,
            **columns,
        },
        {"temperature": 1.0},
    )


def made_up(options: argparse.Namespace, vocabulary: int) -> Any:
    """The sequences, with all columns that verl's queue holds; numbers are 0."""
    from verl.utils import tensordict_utils as tu

    draw = random.Random(0)
    masks = []
    for _ in range(options.sequences):
        row: list[int] = []
        for turn in range(options.turns):
            row += [0] * (BETWEEN if turn else 0) + [1] * draw.randint(*options.lengths)
        masks.append(row)

    def words(count: int) -> list[int]:
        return [draw.randrange(3, vocabulary) for _ in range(count)]

    zeros = nested([torch.zeros(len(mask)) for mask in masks])
    rows = batch_of(
        [words(options.prompt) for _ in masks],
        [words(len(mask)) for mask in masks],
        masks,
        **dict.fromkeys(FLOATS, zeros),
    )
    count = range(len(masks))
    return tu.assign_non_tensor(
        rows,
        uid=[f"{row}" for row in count],
        session_id=[0 for _ in count],
        global_steps=[1 for _ in count],
        num_turns=[options.turns for _ in count],
        multi_modal_inputs=[{} for _ in count],
        metrics=[{"generate_sequences": 1.0} for _ in count],
        extra_fields=[{"episode": bytes(5000)} for _ in count],
    )


class Held:
    """The sequences in this process."""

    def __init__(self, rows: Any, every: bool) -> None:
        self.rows, self.every = rows, every

    def take(self, columns: Sequence[str]) -> Any:
        """These columns, or every one."""
        wanted = list(self.rows.keys()) if self.every else columns
        return self.with_temperature(self.rows.select(*wanted, strict=False))

    def put(self, found: Any) -> None:
        """What a pass without gradients gave, which here nothing reads."""

    @staticmethod
    def with_temperature(rows: Any) -> Any:
        """As the trainer tells it to each stage."""
        from verl.utils import tensordict_utils as tu

        return tu.assign_non_tensor(rows, temperature=1.0)


class Queued(Held):
    """The sequences in verl's queue."""

    def __enter__(self) -> Queued:
        import ray
        import transfer_queue

        ray.init(address="local", num_cpus=max(os.cpu_count() or 1, 4), include_dashboard=False)
        transfer_queue.init({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}})
        self.named = {"keys": [f"{row}" for row in range(len(self.rows))], "partition_id": "train"}
        transfer_queue.kv_batch_put(**self.named, fields=self.rows.exclude("temperature"))
        return self

    def __exit__(self, *_: Any) -> None:
        import ray
        import transfer_queue

        transfer_queue.close()
        ray.shutdown()

    def take(self, columns: Sequence[str]) -> Any:
        import transfer_queue

        wanted = None if self.every else list(columns)
        return self.with_temperature(
            transfer_queue.kv_batch_get(**self.named, select_fields=wanted)
        )

    def put(self, found: Any) -> None:
        import transfer_queue

        # Apart from the columns of these names, which are of answers alone.
        named = self.named | {"partition_id": "found"}
        transfer_queue.kv_batch_put(**named, fields=found.exclude("metrics"))


@contextmanager
def one_process(device: str) -> Iterator[None]:
    """torch's process group of this process alone."""
    told = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(told | {"MASTER_PORT": "0"})
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as directory:
        meeting = f"file://{directory}/rendezvous"
        torch.distributed.init_process_group(backend, init_method=meeting, rank=0, world_size=1)
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


def parts_of(
    options: argparse.Namespace, config: Any, sequences: Held
) -> dict[str, Callable[[], Any]]:
    """What a step does on the trainer's side, by name and in order."""
    from verl.workers.utils.losses import ppo_loss, value_loss

    section = config.actor_rollout_ref
    actor = engine_of("language_model", section.actor, section.model, ppo_loss)
    critic = engine_of("value_model", config.critic, config.critic.model, value_loss)
    take, put, size = sequences.take, sequences.put, options.sequences
    return {
        "old log-probs": lambda: put(infer(actor, take(verl_columns.MODEL), entropies=True)),
        "values": lambda: put(infer(critic, take(verl_columns.MODEL), entropies=False)),
        "critic": lambda: update(
            critic, take(verl_columns.CRITIC), config.critic, size, entropies=False
        ),
        "actor": lambda: update(
            actor, take(verl_columns.ACTOR), section.actor, size, entropies=True
        ),
    }


def run(options: argparse.Namespace) -> None:
    """Print the seconds of each part of each step, then the profile."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(one_process(options.device))
        settings = config_of(options, "")
        tokenizer = build_tokenizer(prompts(settings))
        model_dir = Path(directory) / "model"
        build_model(
            model_dir,
            SHAPES[options.shape],
            tokenizer,
            layers=options.layers,
            device=options.device,
        )
        settings = config_of(options, str(model_dir))
        told = json.loads(
            prepare(settings, model_dir=str(model_dir), work=Path(directory)).read_text()
        )
        verl_hooks.install()
        if options.all_logits:
            from steps.training import verl_head

            verl_head.is_cut = lambda micro_batch: False
        if options.by_row:
            verl_hooks.padded_answers = lambda tensor, data, others: others(tensor, data)
        rows = made_up(options, len(tokenizer))
        sequences = (
            stack.enter_context(Queued(rows, options.by_row))
            if options.queue
            else Held(rows, options.by_row)
        )
        if options.device == "cuda":
            from verl.utils.device import set_expandable_segments

            set_expandable_segments(options.segments == "true")
        parts = parts_of(options, compose(told["overrides"]), sequences)
        for step in range(options.steps):
            if options.device == "cuda" and not options.keep_memory:
                torch.cuda.empty_cache()
            found = {name: timed(part, options.device) for name, part in parts.items()}
            line = "  ".join(f"{name} {seconds:.2f}" for name, seconds in found.items())
            print(f"step {step + 1}: {line}  together {sum(found.values()):.2f} s", flush=True)
        if options.device == "cuda":
            statistics = torch.cuda.memory_stats()
            print(
                f"{torch.cuda.get_device_name()}: "
                f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB allocated, "
                f"{torch.cuda.max_memory_reserved() / 2**30:.1f} reserved, "
                f"{statistics['num_alloc_retries']} retries, "
                f"{statistics['num_device_alloc']} calls for memory"
            )
        for name in ("critic", "actor") if options.profile else ():
            print(f"\nthe {name}'s update:")
            profile(parts[name], options)


def timed(part: Callable[[], Any], device: str) -> float:
    """Seconds to the end of its work on the card."""
    began = time.perf_counter()
    part()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def profile(part: Callable[[], Any], options: argparse.Namespace) -> None:
    """Print PyTorch's own tables of one more call."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    orders = ["self_cpu_time_total"]
    if options.device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
        orders.append("self_device_time_total")
    with torch.profiler.profile(activities=kinds) as found:
        timed(part, options.device)
    for order in orders:
        table = found.key_averages().table(
            sort_by=order, row_limit=options.profile, max_name_column_width=60
        )
        print(table)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--env", default="sokoban")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen2.5-1.5b")
    parser.add_argument("--layers", type=int, default=0, help="fewer for a trial of the program")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=420, help="tokens of it")
    parser.add_argument("--turns", type=int, default=5, help="answers in a sequence")
    parser.add_argument("--steps", type=int, default=4, help="the first warms up")
    parser.add_argument("--lengths", type=int, nargs=2, default=(65, 175))
    parser.add_argument("--max-tokens", type=int, default=16384, help="of a micro-batch")
    parser.add_argument("--dtype", default="bfloat16", help="of the trainer")
    parser.add_argument(
        "--segments", choices=["true", "false"], default="true", help="expandable ones, as verl's"
    )
    parser.add_argument("--keep-memory", action="store_true")
    parser.add_argument(
        "--all-logits", action="store_true", help="verl's own, of all tokens (without verl_head)"
    )
    parser.add_argument(
        "--by-row", action="store_true", help="every column, and verl's own cutting of answers"
    )
    parser.add_argument("--queue", action="store_true", help="rows come from verl's queue")
    parser.add_argument("--profile", type=int, default=0, help="rows of its tables")
    parser.add_argument("--override", action="append", default=[], help="of verl, verbatim")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    # What `benchmarks.ppo_step` asks for besides.
    parser.set_defaults(
        full_steps=0, groups=32, gpus=1, tensor_parallel=1, memory_share=0.4, logprobs_every=1
    )
    run(parser.parse_args())


if __name__ == "__main__":
    main()
