"""Words and the search engine: BM25 over titles, descriptions, first features and options.

The published shop asks Lucene through Java. Here bm25s (the extra `webshop`) computes Lucene's
formula with Pyserini's constants; of Lucene's English analysis the stop words, the possessive and
the plural endings are kept, other endings are not cut.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from envs.errors import EnvironmentConfigError
from envs.webshop.catalogue import Product

MAX_RESULTS = 50
"""As published; ten of them make a page."""
_K1, _B = 0.9, 0.4  # Pyserini's defaults
_WORD = re.compile(r"\w+(?:[.'’]\w+)*")


def words(text: str) -> list[str]:
    """The words of a text in lower case; a decimal point or an apostrophe inside one stays."""
    return _WORD.findall(text.lower())


STOP_WORDS = frozenset(
    words(
        "a an and are as at be but by for if in into is it no not of on or such that the their "
        "then there these they this to was will with"
    )
)
"""Lucene's English stop words."""


class SearchEngine:
    """Ranks the products of a catalogue; among equal scores the earlier product comes first."""

    def __init__(self, products: Sequence[Product]) -> None:
        """Raises `EnvironmentConfigError` where bm25s isn't installed."""
        self._asins = [product.asin for product in products]
        self._bm25 = _bm25s().BM25(method="lucene", k1=_K1, b=_B)
        documents = [_terms(_document(product)) for product in products]
        self._bm25.index(documents, show_progress=False)
        self.ranking = lru_cache(maxsize=4096)(self._ranking)
        """Query -> ids of at most 50 products that share a word with it, the best first."""

    def _ranking(self, query: str) -> tuple[str, ...]:
        terms = _terms(query)
        if not terms:
            return ()
        scores = self._bm25.get_scores(terms)
        found = np.flatnonzero(scores > 0.0)
        if len(found) > MAX_RESULTS:
            threshold = np.partition(scores[found], -MAX_RESULTS)[-MAX_RESULTS]
            found = found[scores[found] >= threshold]
        order = np.argsort(-scores[found], kind="stable")[:MAX_RESULTS]
        return tuple(self._asins[index] for index in found[order].tolist())


def _bm25s() -> Any:
    try:
        bm25s = importlib.import_module("bm25s")
    except ImportError as error:
        raise EnvironmentConfigError(
            "webshop: its search engine, the package bm25s, isn't installed; "
            "install it with: pip install 'spa-agents[webshop]'"
        ) from error
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import sets DEBUG
    return bm25s


def _document(product: Product) -> str:
    """What is searched, as published: of the features only the first."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    return " ".join((product.title, product.description, *product.features[:1], options))


def _terms(text: str) -> list[str]:
    return [_stem(word) for word in words(text) if word not in STOP_WORDS]


def _stem(word: str) -> str:
    """Without possessive and plural endings: `women's` is `women`, `dresses` is `dress`."""
    word = word.removesuffix("'s").removesuffix("’s")
    if len(word) <= 3:
        return word
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    if word.endswith(("ies", "ie")):
        return word.removesuffix("s")[:-2] + "y"
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
