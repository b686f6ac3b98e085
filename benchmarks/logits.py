"""Times what an actor's update does with its logits: label log-probabilities, and entropies.

    python -m benchmarks.logits                       # one GPU of 40 GB, half a minute

The rows are those of a micro-batch of eight sequences of 1,600 tokens, the output matrix is
Qwen2.5-1.5B's. Each way computes logits, both numbers of each row, and the gradient of hidden
states and matrix; `matrix products alone` is what all but one of them share:

- `kernels`: `steps.training.logits_kernels`, what verl is given on a GPU;
- `in chunks`: PyTorch's functions on some rows at a time, what it is given elsewhere;
- `compiled`: the plain formula by `torch.compile`;
- `verl's`: its kernel that never writes the logits, with verl installed on a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from unittest.mock import patch

import torch

from steps.training import label_logprobs as module
from steps.training.label_logprobs import label_logprobs, token_entropies

Numbers = tuple[torch.Tensor, torch.Tensor]
Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Numbers]
"""(hidden states [rows, hidden], matrix [vocabulary, hidden], labels [rows]) -> numbers [rows]."""


def in_chunks(hidden: torch.Tensor, matrix: torch.Tensor, labels: torch.Tensor) -> Numbers:
    """Both by `label_logprobs`, without its kernels."""
    with patch.object(module, "_has_kernels", lambda logits: False):
        return by_kernels(hidden, matrix, labels)


def by_kernels(hidden: torch.Tensor, matrix: torch.Tensor, labels: torch.Tensor) -> Numbers:
    """Both by `label_logprobs`, as it is."""
    logits = hidden @ matrix.T
    return label_logprobs(logits, labels), token_entropies(logits)


def _plain(logits: torch.Tensor, labels: torch.Tensor) -> Numbers:
    precise = logits.float()
    sums = precise.logsumexp(-1)
    chances = (precise - sums[:, None]).exp()
    chosen = precise.gather(1, labels[:, None])[:, 0]
    return chosen - sums, sums - (chances * precise).sum(-1)


_compiled = torch.compile(_plain, dynamic=True)


def compiled(hidden: torch.Tensor, matrix: torch.Tensor, labels: torch.Tensor) -> Numbers:
    """The plain formula, compiled."""
    return _compiled(hidden @ matrix.T, labels)


def verls(hidden: torch.Tensor, matrix: torch.Tensor, labels: torch.Tensor) -> Numbers:
    """Matrix product and numbers in one kernel of verl's."""
    from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

    logprobs, entropies = linear_cross_entropy(hidden[None], matrix, labels[None], 1.0, "none")
    return logprobs.view(-1), entropies.view(-1)


def ways(device: str) -> Mapping[str, Way]:
    """Name -> way, of those that run here."""
    found = {"in chunks": in_chunks, "compiled": compiled}
    if device == "cuda":
        found["kernels"] = by_kernels
        if find_spec("verl"):
            found["verl's"] = verls
    return found


def timed(work: Callable[[], object], repeats: int, device: str) -> float:
    """Milliseconds of one call, the mean; two calls before aren't counted."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    for _ in range(2):
        work()
    wait()
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    wait()
    return (time.perf_counter() - began) / repeats * 1000


def measure(way: Way | None, options: argparse.Namespace, *, trains: bool) -> float:
    """Milliseconds of forward, and backward if it trains; None is the matrix products alone."""
    torch.manual_seed(0)
    where = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    hidden = torch.randn(options.rows, options.hidden, **where).requires_grad_()
    matrix = (torch.randn(options.vocabulary, options.hidden, **where) / 40).requires_grad_()
    labels = torch.randint(options.vocabulary, (options.rows,), device=options.device)

    def work() -> None:
        with nullcontext() if trains else torch.no_grad():
            logits = hidden @ matrix.T if way is None else None
            numbers = way(hidden, matrix, labels) if way else None
        if trains and logits is not None:
            logits.backward(logits.detach())
        if trains and numbers is not None:
            logprobs, entropies = numbers
            (logprobs.mean() - 0.001 * entropies.mean()).backward()
        hidden.grad = matrix.grad = None

    return timed(work, options.repeats, options.device)


def main() -> None:
    """Read the command line, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=12_800)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=1_536)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    print(f"{options.rows} rows of {options.vocabulary} logits, {options.dtype}; milliseconds")
    print(f"{'':24}{'forward':>10}{'and backward':>14}{'peak GiB':>10}")
    for name, way in {"matrix products alone": None, **ways(options.device)}.items():
        forward = measure(way, options, trains=False)
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        both = measure(way, options, trains=True)
        peak = torch.cuda.max_memory_allocated() / 2**30 if options.device == "cuda" else 0.0
        print(f"{name:24}{forward:10.1f}{both:14.1f}{peak:10.1f}", flush=True)


if __name__ == "__main__":
    main()
