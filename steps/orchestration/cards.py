"""Report blocks (`steps.report.blocks`, known here by their fields alone) as Metaflow cards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from metaflow import current
from metaflow.cards import Image, Markdown, Table

_STYLE = (
    "<style>.mf-card table :is(td, th):first-child {text-align: left; padding-left: 1.25rem} "
    ".mf-card table th {white-space: normal}</style>"
)
"""Metaflow centres every column, and cuts off a table whose head is wider than the page."""

_log = logging.getLogger(__name__)


def show(
    blocks: Callable[[Any], Iterable[Any]],
    result: Any,
    cache_hit: str | None = None,
    *,
    of: str = "",
) -> None:
    """Put a result on the task's card. A card that can't be drawn never fails a stage.

    `cache_hit` names the task whose result it is, where this one computed nothing. `of`, a line
    that says what the card is of, goes under the heading that the first block begins with.
    """
    try:
        if cache_hit is not None:
            said = f"**Reused.** Computed by `{cache_hit}` from the same settings, code and inputs."
            current.card.append(Markdown(said))
        for number, block in enumerate(blocks(result)):
            current.card.append(_component(block) if number else _opening(block, of))
        current.card.append(Markdown(_STYLE))
    except Exception:
        _log.warning("the card of this step is incomplete", exc_info=True)


def say(text: str) -> None:
    """Put a sentence on the task's card."""
    current.card.append(Markdown(text))


def _opening(block: Any, of: str) -> Any:
    if not of or not hasattr(block, "text"):
        return _component(block)
    heading, *rest = block.text.split("\n\n", 1)
    return Markdown("\n\n".join([heading, f"`{of}`", *rest]))


def _component(block: Any) -> Any:
    if hasattr(block, "rows"):
        return Table(data=[list(row) for row in block.rows], headers=list(block.headers))
    if hasattr(block, "png"):
        return Image(block.png, label=block.label)
    return Markdown(block.text)
