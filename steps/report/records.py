"""What a card is made of: neutral records that a flow turns into its own components."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Markdown:
    """Text in Markdown."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of text under headers."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """A picture as PNG bytes, and what it says in words."""

    png: bytes
    label: str


Block = Markdown | Table | Image
