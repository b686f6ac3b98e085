"""Answers of an engine that may break off anywhere: brought to their end, and within their room."""

from __future__ import annotations

import random
from functools import cache, partial
from typing import Any

import pytest

from steps.agent.parsing import parse_response
from steps.agent.records import Message, PolicyRequest, ResponseFormat
from steps.policies.chat_template import end_of_turn_id
from tests.policies.vocabularies import KINDS, make_vocabulary

xgrammar = pytest.importorskip("xgrammar")
constrained = pytest.importorskip("steps.policies.constrained")
endings = pytest.importorskip("steps.policies.endings")

NAMES = ("Left", "Up", "Up Left")
"""One begins like another."""


@cache
def guide(kind: str) -> Any:
    tokenizer = make_vocabulary(kind)
    return constrained.AnswerGuide(
        tokenizer, end_id=end_of_turn_id(tokenizer), separator="||", max_span_chars=0
    )


def request(
    response_format: ResponseFormat = ResponseFormat.WORLD_MODEL,
    names: tuple[str, ...] | None = NAMES,
    max_actions: int = 3,
) -> PolicyRequest:
    return PolicyRequest(
        messages=(Message(role="user", content="P_G"),),
        seed=0,
        response_format=response_format,
        max_actions=max_actions,
        action_names=names,
    )


def draw(guide: Any, part: Any, rng: random.Random) -> tuple[list[int], bool]:
    """An engine that draws any token that the grammar takes, and whether it came to the end."""
    vocabulary = guide.vocabulary
    compiled = guide.compiler.compile_grammar(part.grammar)
    matcher = xgrammar.GrammarMatcher(compiled)
    bits = xgrammar.allocate_token_bitmask(1, vocabulary.info.vocab_size)
    tokens: list[int] = []
    while len(tokens) < part.max_tokens:
        matcher.fill_next_token_bitmask(bits)
        words = [int(word) & 0xFFFFFFFF for word in bits[0].tolist()]
        legal = [i for i in range(vocabulary.info.vocab_size) if words[i // 32] >> (i % 32) & 1]
        token = rng.choice([i for i in legal if i not in vocabulary.banned])
        assert matcher.accept_token(token)
        if token == vocabulary.end_id:
            return tokens, True
        tokens.append(token)
    return tokens, False


def write(guide: Any, asked: PolicyRequest, room: int, rng: random.Random) -> tuple[Any, int]:
    answer = endings.Answer(guide, asked, room)
    part, num_parts = answer.first(), 0
    while part is not None:
        num_parts += 1
        tokens, is_whole = draw(guide, part, rng)
        part = answer.rest(tokens, is_whole=is_whole)
    return answer, num_parts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("response_format", list(ResponseFormat))
@pytest.mark.parametrize("names", [NAMES, None])
def test_every_answer_is_whole_and_keeps_to_its_room(
    kind: str, response_format: ResponseFormat, names: tuple[str, ...] | None
) -> None:
    asked, rng = request(response_format, names), random.Random(0)
    least = guide(kind).min_tokens(asked, 10_000)
    for room in [least, least + 1, least + 7, least + 30, least + 90]:
        answer, _ = write(guide(kind), asked, room, rng)
        *tokens, end = answer.tokens
        text = b"".join(guide(kind).vocabulary.texts[token] for token in tokens).decode()
        parsed = parse_response(text, response_format, action_names=names, max_actions=3)
        assert parsed.is_well_formed, (text, parsed.status)
        assert len(answer.tokens) <= room and end == guide(kind).vocabulary.end_id


def test_where_nothing_is_to_spare_only_the_action_is_asked_for() -> None:
    asked = request()
    answer = endings.Answer(guide("tiny"), asked, guide("tiny").min_tokens(asked, 1000))
    part = answer.first()
    opening = b"".join(guide("tiny").vocabulary.texts[token] for token in answer.tokens)
    assert opening.decode() == (
        "<think><observation></observation><prediction></prediction></think><answer>"
    )
    assert part.grammar == ('root ::= action "</answer>"\naction ::= "Left" | "Up" | "Up Left"\n')


spell = partial(lambda text: guide("tiny").vocabulary.spell(text.encode()))


@pytest.mark.parametrize(
    ("written", "completed", "is_asked"),
    [
        ("<think>I s", "<think>I s</think><answer>", True),
        ("<think>I see</th", "<think>I see</think><answer>", True),
        ("<think></think><answer>U", "<think></think><answer>Up</answer>", False),
        ("<think></think><answer>Up", "<think></think><answer>Up</answer>", False),
        ("<think></think><answer>Up |", "<think></think><answer>Up || ", True),
        ("<think></think><answer>Left</answer>", "<think></think><answer>Left</answer>", False),
    ],
)
def test_what_is_broken_off_goes_on_where_it_stands(
    written: str, completed: str, is_asked: bool
) -> None:
    answer = endings.Answer(guide("tiny"), request(ResponseFormat.PLAIN), 400)
    part = answer.rest(spell(written), is_whole=False)
    end = [] if is_asked else [guide("tiny").vocabulary.end_id]
    texts = guide("tiny").vocabulary.texts
    assert b"".join(texts[i] for i in answer.tokens[: len(answer.tokens) - len(end)]) == (
        completed.encode()
    )
    assert (part is not None) == is_asked and answer.tokens[len(answer.tokens) - len(end) :] == end
