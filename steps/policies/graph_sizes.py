"""What vLLM captures CUDA graphs of: every step that it can make.

vLLM 0.24 captures graphs of up to 512 tokens, and launches kernel by kernel whatever is larger.
Episodes ask for their turns one by one: nearly every step reads some new prompt beside the answers
it goes on with, and with 256 answers most steps were larger (LAB_NOTES.md). It also leaves
attention out of the graphs of such mixed steps, and launches it layer by layer.
"""

from __future__ import annotations

STEP_TOKENS = 2048
"""Most tokens of one step; longer prompts are read in pieces."""
_STRIDES = ((8, 256), (32, 512), (64, 1024), (128, STEP_TOKENS))
"""Distance of two sizes, up to a size: at most an eighth of a step is padding, or seven tokens."""


def step_tokens(max_answers: int) -> int:
    """Most tokens of a step: one of each answer at least. Above `STEP_TOKENS` there is no graph."""
    return max(STEP_TOKENS, max_answers)


def graph_sizes() -> list[int]:
    """Tokens for which graphs are captured, ascending."""
    sizes = [1, 2, 4]
    for stride, end in _STRIDES:
        first = (sizes[-1] // stride + 1) * stride
        sizes.extend(range(first, end + 1, stride))
    return sizes


def graph_mode(*, head_size: int, max_model_len: int) -> str:
    """`FULL`, attention in the graphs of mixed steps, where it was seen right; else the default.

    FlashAttention 3 lays out its work differently for heads of 64 and single-token queries, so that
    a graph captured from one kind of step may be replayed on another; and a step longer than any
    sequence is captured beyond the table of its blocks. Kernels that can't be captured: vLLM falls
    back by itself.
    """
    is_known = head_size > 64 and max_model_len >= STEP_TOKENS
    return "FULL" if is_known else "FULL_AND_PIECEWISE"
