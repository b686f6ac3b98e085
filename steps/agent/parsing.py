"""Takes a model's answer apart. Total: every text gives a `ParsedResponse`, in linear time.

Tags are found once, left to right, exactly as they are written (`<Think>` is plain text); nothing
here backtracks. What counts as well-formed is strict: each block of the format once, in order,
with nothing but white space outside the places for free text. What can be *read* from a malformed
answer is generous: a state is the first pair of its tags with no other tag inside, and the answer
is the first such pair after `</think>` (what a model writes behind its answer is made up, what it
writes inside `<think>` is a draft), or the first anywhere if there is none.

Choices that the list of `ParseStatus` leaves open:

1. A missing `<think>` is WRONG_ORDER, unless state tags are missing, too (NO_STATE_TAGS).
2. In `world_model`, text between `<think>` and `<observation>` or between `</prediction>` and
   `</think>` is EXTRA_TEXT.
3. Actions match the environment's names regardless of case, of full-width letters and of white
   space; anything more (`UP!`) is an UNKNOWN_ACTION. It is skipped, and the others can be played.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from steps.agent.records import ParsedResponse, ParseStatus, ResponseFormat, Span, SpanKind

ORDER: dict[ResponseFormat, tuple[str, ...]] = {
    ResponseFormat.WORLD_MODEL: (
        "think",
        "observation",
        "/observation",
        "prediction",
        "/prediction",
        "/think",
        "answer",
        "/answer",
    ),
    ResponseFormat.PLAIN: ("think", "/think", "answer", "/answer"),
    ResponseFormat.ANSWER_ONLY: ("answer", "/answer"),
}
"""Tags of a well-formed answer, in order; a closing tag has a leading slash."""

_PATTERN = {
    response_format: re.compile(f"<({'|'.join(order)})>")
    for response_format, order in ORDER.items()
}
_FREE_TEXT_AFTER = {
    ResponseFormat.WORLD_MODEL: frozenset({"observation", "/observation", "prediction", "answer"}),
    ResponseFormat.PLAIN: frozenset({"think", "answer"}),
    ResponseFormat.ANSWER_ONLY: frozenset({"answer"}),
}
_KIND_AFTER = {
    "observation": SpanKind.OBSERVATION,
    "prediction": SpanKind.PREDICTION,
    "answer": SpanKind.ANSWER,
}
# Unicode normalisation is quadratic on runs of combining marks, so only texts about as long as an
# action are normalised. Four characters may fold into one.
_FOLDED_CHARS = 4


class Tag(NamedTuple):
    """A tag in a text: `name` as in `ORDER`, the stretch `[start, end)` with its brackets."""

    name: str
    start: int
    end: int


def find_tags(text: str, response_format: ResponseFormat) -> list[Tag]:
    """All tags of the format, in the order of the text; other tags are text."""
    return [Tag(m[1], *m.span()) for m in _PATTERN[response_format].finditer(text)]


def parse_response(
    text: str,
    response_format: ResponseFormat | str,
    *,
    action_names: Sequence[str] | None = None,
    max_actions: int | None = None,
    separator: str = "||",
    truncated: bool = False,
) -> ParsedResponse:
    """The blocks and actions of an answer, and the first reason why it isn't well-formed.

    `action_names` None takes every non-empty piece for an action. `max_actions` None is no limit;
    of a longer answer the first `max_actions` pieces are kept. `truncated` says that the policy
    ran out of tokens.
    """
    names = None if action_names is None else tuple(action_names)
    return _parsed(text, ResponseFormat(response_format), names, max_actions, separator, truncated)


@lru_cache(maxsize=8192)  # short answers come again and again
def _parsed(
    text: str,
    response_format: ResponseFormat,
    action_names: tuple[str, ...] | None,
    max_actions: int | None,
    separator: str,
    truncated: bool,
) -> ParsedResponse:
    tags = find_tags(text, response_format)
    names = [tag.name for tag in tags]
    answer = _answer(text, tags, names)
    pieces = [] if answer is None else _pieces(answer, separator)
    kept = pieces if max_actions is None else pieces[:max_actions]
    actions = kept if action_names is None else _known(kept, action_names)
    status = _tag_status(names, response_format, truncated) or _text_status(
        text, tags, response_format
    )
    if status is None:
        status = _action_status(len(pieces), len(kept), len(actions))
    has_states = response_format is ResponseFormat.WORLD_MODEL
    return ParsedResponse(
        status=status,
        observation=_inside(text, tags, names, "observation") if has_states else None,
        thought=_thought(text, tags, names),
        prediction=_inside(text, tags, names, "prediction") if has_states else None,
        actions=tuple(actions),
        num_emitted=len(pieces),
    )


def spans(text: str, response_format: ResponseFormat | str) -> tuple[Span, ...]:
    """Stretches that cover the text in order, without gap or overlap, none of them empty.

    Text outside every block counts as THOUGHT, white space between blocks included.
    """
    found: list[Span] = []
    kind, position = SpanKind.THOUGHT, 0
    for tag in find_tags(text, ResponseFormat(response_format)):
        if position < tag.start:
            found.append(Span(kind=kind, start=position, end=tag.start))
        found.append(Span(kind=SpanKind.TAG, start=tag.start, end=tag.end))
        kind, position = _KIND_AFTER.get(tag.name, SpanKind.THOUGHT), tag.end
    if position < len(text):
        found.append(Span(kind=kind, start=position, end=len(text)))
    return tuple(found)


def _tag_status(
    names: list[str], response_format: ResponseFormat, truncated: bool
) -> ParseStatus | None:
    """What is wrong with the tags alone, None where they are as they should be."""
    order = ORDER[response_format]
    if truncated:
        return ParseStatus.TRUNCATED
    if tuple(names) == order:
        return None
    if "answer" not in names:
        return ParseStatus.NO_ANSWER
    opening = [name for name in order if name[0] != "/"]
    counts = {name: names.count(name) for name in opening}
    if any(names.count("/" + name) != count for name, count in counts.items()):
        return ParseStatus.UNCLOSED_TAG
    if any(count > 1 for count in counts.values()):
        return ParseStatus.DUPLICATE_TAGS
    if names != [name for name in order if counts[name.lstrip("/")]]:
        return ParseStatus.WRONG_ORDER
    if not all(counts.get(name, 1) for name in ("observation", "prediction")):
        return ParseStatus.NO_STATE_TAGS
    return ParseStatus.WRONG_ORDER


def _text_status(text: str, tags: list[Tag], response_format: ResponseFormat) -> ParseStatus | None:
    """EXTRA_TEXT where anything but white space stands outside the places for free text."""
    free = _FREE_TEXT_AFTER[response_format]
    position, is_free = 0, False
    for tag in tags:
        if not is_free and text[position : tag.start].strip():
            return ParseStatus.EXTRA_TEXT
        position, is_free = tag.end, tag.name in free
    return ParseStatus.EXTRA_TEXT if text[position:].strip() else None


def _action_status(num_emitted: int, num_kept: int, num_known: int) -> ParseStatus:
    if num_emitted == 0:
        return ParseStatus.EMPTY_ANSWER
    if num_emitted > num_kept:
        return ParseStatus.TOO_MANY_ACTIONS
    return ParseStatus.OK if num_known == num_kept else ParseStatus.UNKNOWN_ACTION


def _inside(text: str, tags: list[Tag], names: list[str], name: str, first: int = 0) -> str | None:
    """Stripped text of the first pair of tags with no other tag inside, from tag `first` on."""
    closing = "/" + name
    for i in range(first, len(names) - 1):
        if names[i] == name and names[i + 1] == closing:
            return text[tags[i].end : tags[i + 1].start].strip()
    return None


def _answer(text: str, tags: list[Tag], names: list[str]) -> str | None:
    if "/think" in names:
        after = _inside(text, tags, names, "answer", names.index("/think"))
        if after is not None:
            return after
    return _inside(text, tags, names, "answer")


def _thought(text: str, tags: list[Tag], names: list[str]) -> str | None:
    """Text between `<think>` and `</think>` outside inner blocks, its parts joined."""
    if "think" not in names or "/think" not in names:
        return None
    first, last = names.index("think"), names.index("/think")
    parts = [
        text[tags[i].end : tags[i + 1].start]
        for i in range(first, last)
        if names[i] not in _KIND_AFTER
    ]
    return "".join(parts).strip() if first < last else None


def _pieces(answer: str, separator: str) -> list[str]:
    return [piece for part in answer.split(separator.strip()) if (piece := part.strip())]


def _known(pieces: list[str], action_names: tuple[str, ...]) -> list[str]:
    """The pieces that are actions, in the environment's spelling."""
    by_key, longest = _spellings(action_names)
    known = []
    for piece in pieces:
        name = by_key.get(piece)
        if name is None and len(piece) <= longest:
            name = by_key.get(_key(piece))
        if name is not None:
            known.append(name)
    return known


@lru_cache(maxsize=256)
def _spellings(action_names: tuple[str, ...]) -> tuple[dict[str, str], int]:
    """Exact and folded spellings -> name, and the length above which a text can't be a name."""
    folded = {_key(name): name for name in reversed(action_names)}
    longest = max(map(len, action_names), default=0)
    return folded | {name: name for name in action_names}, _FOLDED_CHARS * longest


def _key(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
