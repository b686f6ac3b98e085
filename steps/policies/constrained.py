"""Forces the structure of an answer while the local model writes it (`generation.constrained`).

By xgrammar: it reads the same grammar text as vLLM, is exact where one action begins like another,
and takes added tokens such as `<think>` for the text they are. llguidance, though smaller and free
of triton, takes those for control tokens and loses `Up || Down` where `Up Left` is an action, too;
outlines-core reads no grammars.

Tokens run out, so an answer is brought to its end in time: `Budget` knows how many tokens each
beginning needs at the most, and once no more are left than that, the fixed parts are written for
the model, with its free text as it stands. The action is always the model's own choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from steps.agent.records import PolicyRequest, ResponseFormat
from steps.errors import ConfigError, ModelError
from steps.policies.base import PolicySpec, check_library
from steps.policies.chat_template import end_of_turn_id
from steps.policies.grammar import AnswerForm

CUT_TOKENS = 3
"""A character of four bytes may be cut after its first."""
SPARE_TOKENS = 16
"""Left for choosing actions where free text is broken off, beyond what one action needs."""

MAX_KINDS = 1024
"""Grammars that are kept, each up to 0.2 MB: a game may have other actions in each puzzle."""


class Vocabulary:
    """What each token writes, and which tokens write a text."""

    def __init__(self, tokenizer: Any, end_id: int) -> None:
        """`end_id` ends an answer; other special tokens never appear in one."""
        self.library = _library()
        self.end_id = end_id
        try:
            self.info = self.library.TokenizerInfo.from_huggingface(
                tokenizer, stop_token_ids=[end_id]
            )
        except ValueError as error:
            raise ModelError(
                f"generation.constrained can't use this tokenizer ({error}); set it to false."
            ) from error
        self.texts: list[bytes] = self.info.decoded_vocab
        marked = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        special = (marked | set(tokenizer.all_special_ids)) - {end_id}
        # A tag may be a special token; any other text that begins like one is refused anyway.
        self.banned = sorted(i for i in special if not self.texts[i].startswith(b"<"))
        control = {end_id, *self.banned}
        self.ids = {text: i for i, text in enumerate(self.texts) if text and i not in control}
        self.longest = max(map(len, self.ids))
        self.worst = lru_cache(maxsize=4096)(self._worst)

    def spell(self, text: bytes) -> list[int]:
        """Tokens that write the text, the longest at each place; not always the usual ones."""
        ids = []
        while text:
            ids.append(self._first(text))
            text = text[len(self.texts[ids[-1]]) :]
        return ids

    def _worst(self, text: bytes) -> int:
        """Most tokens that the text or an end of it needs."""
        counts = [0] * (len(text) + 1)
        for start in range(len(text) - 1, -1, -1):
            first = self._first(text[start:])
            counts[start] = 1 + counts[start + len(self.texts[first])]
        return max(counts)

    def _first(self, text: bytes) -> int:
        for size in range(min(self.longest, len(text)), 0, -1):
            found = self.ids.get(text[:size])
            if found is not None:
                return found
        raise ModelError(
            f"generation.constrained needs a token for each byte, and this tokenizer has none for "
            f"{text[:1]!r}; set it to false."
        )


class Budget:
    """How many tokens are needed to bring an answer to its end, the end of the turn included."""

    def __init__(self, form: AnswerForm, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        opening, closing = b"".join(form.opening), form.closing
        begun = max(vocabulary.worst(name + closing) for name in form.names or (b"",))
        cut = 0 if form.names else CUT_TOKENS
        self.choice = 1 + cut + begun + 1
        """To draw the first token of a last action, and to finish what it began."""
        self.answer = self.choice + (vocabulary.worst(form.joiner) if form.max_actions > 1 else 0)
        """Wherever in the answer's own tags."""
        self.minimum = len(vocabulary.spell(opening)) + self.choice
        """For a whole answer without free text."""
        self.most = self.before(opening)

    def before(self, ending: bytes) -> int:
        """Before the answer's own tag, of which `ending` is what lacks, one token from now."""
        lacking = self._vocabulary.worst(ending) + CUT_TOKENS + self.choice
        return max(lacking, self.answer) + SPARE_TOKENS


@dataclass(frozen=True)
class Kind:
    """What the requests of one format with the same actions have in common."""

    form: AnswerForm
    budget: Budget
    compiled: Any


@dataclass
class Writing:
    """An answer being written."""

    kind: Kind
    matcher: Any
    room: int
    """Tokens it may have."""
    written: bytes = b""
    ahead: list[int] = field(default_factory=list)
    """Tokens that come next without a choice."""
    is_done: bool = False


class AnswerGuide:
    """Makes `Guided` batches for one tokenizer."""

    def __init__(
        self, tokenizer: Any, *, end_id: int, separator: str, max_span_chars: int = 0
    ) -> None:
        self.vocabulary = Vocabulary(tokenizer, end_id)
        self.separator = separator
        self.max_span_chars = max_span_chars
        threads = torch.get_num_threads()
        library = self.vocabulary.library
        self.compiler = library.GrammarCompiler(self.vocabulary.info, max_threads=threads)
        self.filler = library.BatchGrammarMatcher(max_threads=threads)
        self._kinds: dict[AnswerForm, Kind] = {}
        self._forms: dict[tuple[Any, ...], AnswerForm] = {}

    def min_tokens(self, request: PolicyRequest, max_new_tokens: int) -> int:
        """Fewest tokens that every answer fits in; `ConfigError` where they aren't allowed."""
        needed = self.kind(request).budget.minimum
        if max_new_tokens < needed:
            raise ConfigError(
                f"sampling.max_new_tokens={max_new_tokens} is too few for a well-formed "
                f"{request.response_format} answer of this tokenizer, which needs {needed}; raise "
                "it, or set generation.constrained=false."
            )
        return needed

    def start(self, requests: Sequence[PolicyRequest], rooms: Sequence[int]) -> Guided:
        """A batch of answers; `rooms` are the tokens that each may have."""
        writings = []
        for request, room in zip(requests, rooms, strict=True):
            kind = self.kind(request)
            matcher = self.vocabulary.library.GrammarMatcher(kind.compiled)
            writings.append(Writing(kind=kind, matcher=matcher, room=room))
        return Guided(self, writings)

    def kind(self, request: PolicyRequest) -> Kind:
        """The form of the request's answers, compiled once."""
        legal = None if request.legal_actions is None else request.legal_actions()
        names = legal or request.action_names
        key = (ResponseFormat(request.response_format), names, request.max_actions)
        if key not in self._forms:
            self._forms[key] = AnswerForm.of(*key, self.separator)
        return self.compile(self._forms[key])

    def compile(self, form: AnswerForm) -> Kind:
        """The form's grammar for this vocabulary."""
        if form not in self._kinds:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds, self._forms = {}, {}
            compiled = self.compiler.compile_grammar(form.grammar(self.max_span_chars))
            self._kinds[form] = Kind(form, Budget(form, self.vocabulary), compiled)
        return self._kinds[form]


class Guided:
    """A batch that is written token by token; rows are numbered as in `AnswerGuide.start`."""

    def __init__(self, guide: AnswerGuide, writings: list[Writing]) -> None:
        self.guide = guide
        self.writings = writings

    def allowed(self, rows: Sequence[int], step: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Which token may come as number `step` of each answer, in the shape of the logits."""
        free, forced = [], {}
        for place, row in enumerate(rows):
            writing = self.writings[row]
            if writing.is_done:
                continue
            self._watch(writing, writing.room - step)
            if writing.ahead:
                forced[place] = writing.ahead[0]
            else:
                free.append((writing.matcher, place))
        allowed_BV = self._unpack(self._bits(len(rows), free), logits_BV)
        if forced:
            places = torch.tensor(list(forced), device=logits_BV.device)
            allowed_BV[places] = False
            allowed_BV[places, torch.tensor(list(forced.values()), device=logits_BV.device)] = True
        return allowed_BV

    def take(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """The tokens that were drawn."""
        for row, token in zip(rows, tokens, strict=True):
            writing = self.writings[row]
            if writing.is_done:
                continue
            if not writing.matcher.accept_token(token):
                raise ModelError(
                    f"token {token} was drawn where the grammar has no place for it: the model's "
                    "scores are not finite; its weights are damaged, or model.dtype is too narrow."
                )
            writing.is_done = token == self.guide.vocabulary.end_id
            writing.written += b"" if writing.is_done else self.guide.vocabulary.texts[token]
            writing.ahead = writing.ahead[1:]

    def _watch(self, writing: Writing, num_left: int) -> None:
        """Lets the answer come to its end where the tokens would run out otherwise."""
        budget, form = writing.kind.budget, writing.kind.form
        if writing.ahead or num_left > budget.most:
            return
        ending = form.ending(writing.written)
        if num_left > (budget.answer if ending.is_answer else budget.before(ending.text)):
            return
        if ending.text:
            writing.ahead = self.guide.vocabulary.spell(ending.text)
        elif form != (last := form.last(writing.written)):
            # One token could write this action and begin another one, which has no room.
            writing.kind = self.guide.compile(last)
            writing.matcher = self.guide.vocabulary.library.GrammarMatcher(writing.kind.compiled)
            is_legal = writing.matcher.accept_string(writing.written)
            assert is_legal, writing.written

    def _bits(self, count: int, free: list[tuple[Any, int]]) -> torch.Tensor:
        """`[count, words]`, a bit a token; all are set in rows that aren't in `free`."""
        vocabulary = self.guide.vocabulary
        bits = vocabulary.library.allocate_token_bitmask(count, vocabulary.info.vocab_size)
        if free:
            matchers, places = map(list, zip(*free, strict=True))
            self.guide.filler.batch_fill_next_token_bitmask(matchers, bits, places)
        return bits

    def _unpack(self, bits: torch.Tensor, logits_BV: torch.Tensor) -> torch.Tensor:
        # A byte holds eight tokens, the lowest bit first; a model's output may be wider.
        vocabulary = self.guide.vocabulary
        shifts = torch.arange(8, dtype=torch.uint8, device=logits_BV.device)
        octets = bits.to(logits_BV.device).view(torch.uint8)
        flags = ((octets[:, :, None] >> shifts) & 1).flatten(1).bool()
        allowed_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
        width = min(logits_BV.shape[1], vocabulary.info.vocab_size)
        allowed_BV[:, :width] = flags[:, :width]
        allowed_BV[:, vocabulary.banned] = False
        return allowed_BV


def answer_guide(tokenizer: Any, spec: PolicySpec) -> AnswerGuide:
    """The guide of a policy (`generation.constrained`); brings xgrammar."""
    return AnswerGuide(
        tokenizer,
        end_id=end_of_turn_id(tokenizer),
        separator=spec.separator,
        max_span_chars=spec.max_span_chars,
    )


def _library() -> Any:
    check_library()
    import xgrammar

    return xgrammar
