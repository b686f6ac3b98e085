"""The language of well-formed answers: as a grammar, and as the shortest end of a begun answer.

Pure text: no tokenizer, no torch. `AnswerForm.grammar` writes GBNF, the dialect that xgrammar reads
here and that vLLM takes in `StructuredOutputsParams(grammar=...)`. What it allows is what
`steps.agent.splice.write_response` writes, hence a part of what `parse_response` calls OK:

1. There is no white space around the tags.
2. Free text holds no `<`, so that the first one closes it: no tag can stand where it breaks a form.
3. Actions are joined by the separator with one blank on each side. Where a game has no list of
   actions, an action is text that starts with a visible character and doesn't hold the separator's
   first one; the blank before the separator is then the text's own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from steps.agent.parsing import parse_response
from steps.agent.records import ResponseFormat
from steps.agent.splice import write_response
from steps.errors import ConfigError

_HOLE = "\0"
_SPACES = tuple(chr(code) for code in range(0x3001) if chr(code).isspace())
"""What `str.strip` takes away; none lies beyond U+3000."""
_SURROGATES = (0xD800, 0xDFFF)
"""Numbers of no characters."""
_CUTS = (0x80, 0x800, 0xD000, 0x10000)
"""Where characters take another byte in UTF-8, and those before the surrogates' first byte, ED."""
_ENOUGH = 3
"""So many equal actions in a row show a name before, between and after separators."""


class Ending(NamedTuple):
    """How a begun answer goes on at the least."""

    text: bytes
    """Up to the next choice of an action, or to the end; empty where there is a choice now."""
    is_answer: bool
    """Whether the answer's own tag is complete, so that the choice was there already."""


@dataclass(frozen=True)
class AnswerForm:
    """One format with its actions. Made by `of`, which checks what it is given."""

    fixed: tuple[str, ...]
    """What stands between the places for text, in order; the last one follows the actions."""
    action_names: tuple[str, ...] | None
    max_actions: int
    separator: str

    @classmethod
    def of(
        cls,
        response_format: ResponseFormat | str,
        action_names: Sequence[str] | None,
        max_actions: int,
        separator: str,
    ) -> AnswerForm:
        """`action_names` None takes any text for an action.

        Raises `ConfigError` where an action couldn't be read back out of its answer.
        """
        if "<" in separator:
            raise ConfigError(
                f"env.action_separator={separator!r} holds a '<', which opens the tags of an "
                "answer; choose another one for generation.constrained=true."
            )
        if action_names is not None and not action_names:
            raise ConfigError("the game's list of actions is empty: no answer can be forced.")
        for name in action_names or ():
            _check_action(name, response_format, action_names, max_actions, separator)
        holes = write_response(
            response_format,
            observation=_HOLE,
            thought=_HOLE,
            prediction=_HOLE,
            actions=(_HOLE,),
        )
        names = None if action_names is None else tuple(dict.fromkeys(action_names))
        return cls(tuple(holes.split(_HOLE)), names, max_actions, separator.strip())

    def grammar(self, max_span_chars: int = 0) -> str:
        """The rules, `root` first.

        `max_span_chars` limits each free span and each free action; 0 is no limit.
        """
        texts = [*["free"] * (len(self.fixed) - 2), self._actions_rule()]
        parts = [_quoted(self.fixed[0])]
        for text, after in zip(texts, self.fixed[1:], strict=True):
            parts += [text, _quoted(after)]
        lines = [f"root ::= {' '.join(parts)}"]
        if len(texts) > 1:
            lines.append(f"free ::= {_any_but('<')}{_up_to(max_span_chars)}")
        return "\n".join([*lines, *self._action_lines(max_span_chars)]) + "\n"

    def last_action_grammar(self, max_span_chars: int = 0) -> str:
        """The rules for one action and the end of the answer, where all before is written."""
        root = f"root ::= action {_quoted(self.fixed[-1])}"
        return "\n".join([root, *self._action_lines(max_span_chars)]) + "\n"

    def _action_lines(self, max_span_chars: int) -> list[str]:
        if self.action_names is not None:
            return [f"action ::= {' | '.join(map(_quoted, self.action_names))}"]
        never = {"<", self.separator[0]}
        rest = f" {_any_but(never)}{_up_to(max_span_chars - 1)}"
        return [f"action ::= {_any_but(never.union(_SPACES))}{'' if max_span_chars == 1 else rest}"]

    def ending(self, written: bytes) -> Ending:
        """What a beginning that the grammar allows needs yet; a cut character is completed."""
        rest, opening = written, self.opening
        for i, tag in enumerate(opening):
            ahead = b"".join(opening[i + 1 :])
            if len(rest) < len(tag):
                return Ending(tag[len(rest) :] + ahead, False)
            rest = rest[len(tag) :]
            if ahead:
                span, sign, _ = rest.partition(b"<")
                if not sign:
                    return Ending(_completion(span) + ahead, False)
                rest = rest[len(span) :]
        if self.action_names is None:
            return Ending(self._free_ending(rest), True)
        return Ending(min(self._named_endings(rest, self.max_actions), key=len), True)

    def last(self, written: bytes) -> AnswerForm:
        """The form of answers with one action more than `written`, which is inside its answer."""
        answer = written.rpartition(self.opening[-1])[2]
        return replace(self, max_actions=answer.count(self.separator.encode()) + 1)

    @cached_property
    def opening(self) -> tuple[bytes, ...]:
        """The fixed parts before the actions; free text stands between them."""
        return tuple(part.encode() for part in self.fixed[:-1])

    @cached_property
    def closing(self) -> bytes:
        """The fixed part after the actions."""
        return self.fixed[-1].encode()

    @cached_property
    def joiner(self) -> bytes:
        """What stands between two actions."""
        return f"{'' if self.action_names is None else ' '}{self.separator} ".encode()

    @cached_property
    def names(self) -> tuple[bytes, ...]:
        """The actions, encoded; none for a game without a list."""
        return tuple(name.encode() for name in self.action_names or ())

    def _actions_rule(self) -> str:
        if self.max_actions == 1:
            return "action"
        return f"action ({_quoted(self.joiner.decode())} action){{0,{self.max_actions - 1}}}"

    def _named_endings(self, rest: bytes, num_left: int) -> Iterator[bytes]:
        """All ways on from inside the answer; names may begin alike."""
        if not rest:
            yield b""
        for name in self.names:
            if name.startswith(rest) and rest:
                yield name[len(rest) :] + self.closing
            elif rest.startswith(name):
                after = rest[len(name) :]
                if self.closing.startswith(after):
                    yield self.closing[len(after) :]
                elif num_left > 1 and self.joiner.startswith(after):
                    yield self.joiner[len(after) :]
                elif num_left > 1 and after.startswith(self.joiner):
                    yield from self._named_endings(after[len(self.joiner) :], num_left - 1)

    def _free_ending(self, rest: bytes) -> bytes:
        """Actions hold neither `<` nor the separator's first character, so each has one meaning."""
        mark, separator = self.separator[0], self.separator.encode()
        *before, action = rest.split(separator)
        if before and not action:
            return b" "
        for sign, text in ((b"<", self.closing), (mark.encode(), self.joiner)):
            if sign in action:
                return text[len(action) - action.index(sign) :]
        action = action[bool(before) :]
        if not action:
            return b""
        cut = _cut_character(action)
        if cut and mark.encode().startswith(cut) and len(before) + 1 < self.max_actions:
            return self.joiner[len(cut) :]
        return _completion(action, not_in=(mark, *_SPACES)) + self.closing


def _check_action(
    name: str,
    response_format: ResponseFormat | str,
    action_names: Sequence[str] | None,
    max_actions: int,
    separator: str,
) -> None:
    for count in {1, min(_ENOUGH, max_actions)}:
        parsed = parse_response(
            write_response(response_format, actions=[name] * count, separator=separator),
            response_format,
            action_names=action_names,
            max_actions=max_actions,
            separator=separator,
        )
        if not parsed.is_well_formed or parsed.num_emitted != count:
            raise ConfigError(
                f"action {name!r} can't be read out of an answer ({parsed.status}) with "
                f"env.action_separator={separator!r}; change the separator, or the game's name "
                "for the action."
            )


def _cut_character(text: bytes) -> bytes:
    """The first bytes of a character that the text breaks off in, if it does."""
    for size in range(1, min(3, len(text)) + 1):
        lead = text[-size]
        if lead >= 0xC0:
            return text[-size:] if size < 2 + (lead >= 0xE0) + (lead >= 0xF0) else b""
    return b""


def _completion(text: bytes, not_in: Sequence[str] = ()) -> bytes:
    """The bytes that the last character lacks, chosen so that it is none of `not_in`."""
    cut = _cut_character(text)
    if not cut:
        return b""
    length = 2 + (cut[0] >= 0xE0) + (cut[0] >= 0xF0) - len(cut)
    fitting = (tail for tail in _tails(length) if _is_character(cut + tail, not_in))
    return next(fitting, bytes([0x80] * length))


def _tails(length: int) -> Iterator[bytes]:
    """Continuation bytes, counted up from the first place: a valid character comes early."""
    for number in range(64**length):
        yield bytes(0x80 + (number // 64**place) % 64 for place in range(length))


def _is_character(text: bytes, not_in: Sequence[str]) -> bool:
    try:
        return text.decode() not in not_in
    except UnicodeDecodeError:
        return False


def _up_to(count: int) -> str:
    return "*" if count <= 0 else f"{{0,{count}}}"


def _quoted(text: str) -> str:
    return '"' + "".join("\\" + c if c in '"\\' else _printable(c) for c in text) + '"'


def _any_but(characters: Iterable[str]) -> str:
    """A class of ranges: an inverted one also takes bytes that are no characters.

    None goes across one of `_CUTS`: of such a one xgrammar before 0.2.8 (vLLM 0.24 has 0.2.3)
    allows first bytes, ED among them, and nothing after them.
    """
    gaps = [(ord(character), ord(character)) for character in characters]
    ranges, start = "", 0
    cuts = [(cut, cut - 1) for cut in _CUTS]  # gaps of no width
    for first, last in sorted([*gaps, *cuts, _SURROGATES, (sys.maxunicode + 1, 0)]):
        if start < first:
            ranges += f"{_code(start)}-{_code(first - 1)}"
        start = max(start, last + 1)
    return f"[{ranges}]"


def _printable(character: str) -> str:
    return character if character.isprintable() else _code(ord(character))


def _code(number: int) -> str:
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
