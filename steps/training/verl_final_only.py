"""vLLM's word for "only the whole answer", for processes that haven't vLLM.

verl reads nothing before an answer's end, but has every token of every answer sent; hundreds at a
time keep the server's process busy. Whatever module this stands in is imported by the server: this
one brings nothing else along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class FinalOnly:
    """In sampling parameters, arrives at the server as `RequestOutputKind.FINAL_ONLY`."""

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _final_only, ()


def _final_only() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY
