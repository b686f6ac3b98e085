"""Several processes of one stage on one machine, sharing gradients: data parallel on CPU cores.

A small model gains nothing from several threads inside an operation, but twice the speed from two
processes that play and learn half of each batch. Rank 0 is the calling process, which keeps the
tracker and the checkpoint store; the others are spawned, and end with it. Collectives go over
loopback by gloo. A rank that fails ends the stage with its own error: what the user can mend stays
a `SPAError`, and anything else is a `WorkerError`.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Semaphore
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from steps.errors import SPAError, StageError

TIMEOUT_S = 1800

Report = tuple[bool, str]
"""Of a rank that failed: whether its error is a `SPAError`, and its traceback."""


class WorkerError(RuntimeError):
    """Another rank crashed, or its process ended without a word. Trying again may help."""


class Peers:
    """The ranks of a stage and what they exchange. One rank alone exchanges nothing."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def sum(self, values: Iterable[float]) -> list[float]:
        """Sum of each number over the ranks."""
        tensor = torch.tensor(list(values), dtype=torch.float64)
        if self.size > 1:
            dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """The plain value of every rank, by rank."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value)
        return gathered

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter], *, scale: float) -> None:
        """Add up gradients over the ranks in one transfer and multiply them by `scale`."""
        with_gradient = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in with_gradient:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in with_gradient]
        if self.size > 1:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat)
            offset = 0
            for gradient in gradients:
                gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
                offset += gradient.numel()
        torch._foreach_mul_(gradients, scale)


def limit_threads(size: int, cores: int) -> None:
    """Give this process its share of `cores`: threads inside an operation, at least one."""
    torch.set_num_threads(max(1, cores // max(1, size)))


def run_ranks(
    function: Callable[..., Any], *arguments: Any, size: int, main_only: tuple[Any, ...] = ()
) -> Any:
    """Run `function(peers, *arguments, *main_only)` on `size` ranks; returns what rank 0 returns.

    Raises `StageError` with its report where another rank met a `SPAError`, and `WorkerError` where
    it crashed or ended without one.

    The spawned ranks get `None` in place of each of `main_only` (tracker, checkpoint store), which
    need not be picklable. `function` must be importable (a module's own function).
    """
    if size <= 1:
        return function(Peers(), *arguments, *main_only)
    context = multiprocessing.get_context("spawn")
    port, errors, started = _free_port(), context.Queue(), context.Semaphore(0)
    blanks = (None,) * len(main_only)
    children = [
        context.Process(
            target=_child,
            args=(function, rank, size, port, errors, started, arguments + blanks),
            daemon=True,
        )
        for rank in range(1, size)
    ]
    for child in children:
        child.start()
    try:
        _await_start(children, errors, started)
        _join_group(0, size, port)
        result = function(Peers(0, size), *arguments, *main_only)
        for child in children:
            child.join()
    except (SPAError, WorkerError):
        raise
    except RuntimeError as error:
        _raise_child_error(errors, error)
        raise
    finally:
        for child in children:
            if child.is_alive():
                child.terminate()
                child.join()
        if dist.is_initialized():
            dist.destroy_process_group()
    _check_exits(children, errors)
    return result


def _await_start(
    children: Sequence[BaseProcess], errors: Queue[Report], started: Semaphore
) -> None:
    """Return when every child is up; one that died on the way would be waited for in vain."""
    for _ in children:
        while not started.acquire(timeout=1):
            _check_exits(children, errors)


def _check_exits(children: Sequence[BaseProcess], errors: Queue[Report]) -> None:
    """A rank may also fail where the others no longer wait for it."""
    codes = [child.exitcode for child in children if child.exitcode]
    if codes:
        _raise_child_error(errors, None)
        raise WorkerError(
            f"a worker process ended with exit code {codes[0]} and reported nothing: see what it "
            "wrote above and whether the machine ran out of memory, or set workers=1."
        )


def _raise_child_error(errors: Queue[Report], cause: RuntimeError | None) -> None:
    """A broken collective usually means that another rank failed: raise that rank's own error."""
    try:
        is_mistake, report = errors.get(timeout=2)
    except queue.Empty:
        return
    kind = StageError if is_mistake else WorkerError
    raise kind(f"a worker process failed:\n{report}") from cause


def _child(
    function: Callable[..., Any],
    rank: int,
    size: int,
    port: int,
    errors: Queue[Report],
    started: Semaphore,
    arguments: tuple[Any, ...],
) -> None:
    started.release()
    try:
        torch.set_num_threads(1)
        _join_group(rank, size, port)
        function(Peers(rank, size), *arguments)
    except Exception as error:
        errors.put((isinstance(error, SPAError), traceback.format_exc()))
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _join_group(rank: int, size: int, port: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
