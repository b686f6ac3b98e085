"""Token ids of prompts that grow turn by turn, without encoding the whole history again.

A tokenizer takes a text apart at its special tokens before anything else, and encodes what stands
between two of them by itself. A chat template sets such tokens around every message, so a message
that was encoded in an earlier turn need not be again. What comes out is what the tokenizer gives
for the whole text: where it treats a text's beginning otherwise, or its special tokens swallow
blanks, `Segments` finds out with the first texts and encodes whole ones from there on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

NUM_CHECKED = 32
"""Texts that are encoded both ways."""
MAX_REMEMBERED = 4_000_000
"""Token ids that are kept, some 130 MB; beyond it all are forgotten."""


class Segments:
    """Encodes texts piece by piece, each piece once."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.is_exact = True
        self._ids = _splitting_tokens(tokenizer)
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._known: dict[str, list[int]] = {}
        self._num_remembered = self._num_checked = 0

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, special tokens read as such and none added."""
        if not self._ids or not self.is_exact:
            return self._whole(texts)
        split = [[piece for piece in self._pattern.split(text) if piece] for text in texts]
        self._learn([piece for pieces in split for piece in pieces])
        found = [[i for piece in pieces for i in self._of(piece)] for pieces in split]
        if self._num_checked < NUM_CHECKED:
            self._num_checked += len(texts)
            whole = self._whole(texts)
            self.is_exact = found == whole
            return whole
        return found

    def _of(self, piece: str) -> list[int]:
        token = self._ids.get(piece)
        return self._known[piece] if token is None else [token]

    def _learn(self, pieces: Sequence[str]) -> None:
        if self._num_remembered > MAX_REMEMBERED:
            self._known, self._num_remembered = {}, 0
        fresh = [p for p in dict.fromkeys(pieces) if p not in self._ids and p not in self._known]
        for piece, ids in zip(fresh, self._whole(fresh), strict=True):
            self._known[piece] = ids
            self._num_remembered += len(ids)

    def _whole(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        return [
            list(ids) for ids in self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        ]


def _splitting_tokens(tokenizer: Any) -> dict[str, int]:
    """Text -> id of the special tokens that are found as they stand, wherever they stand."""
    return {
        token.content: index
        for index, token in tokenizer.added_tokens_decoder.items()
        if token.special
        and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
    }
