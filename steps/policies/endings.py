"""Constrained answers of an engine that knows the grammar but not how many tokens are left.

Such an engine breaks an answer off where its tokens run out. So it is given fewer, by as many as
any beginning needs to come to its end (`steps.policies.constrained.Budget`). What is broken off
there is taken up again: the fixed parts that lack are written for the model, with its free text as
it stands, and where no action is chosen yet, the model is asked once more, for that alone. As in
the `hf` policy the action is always the model's own choice; there the free text may be a little
longer, since it is watched token by token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from steps.agent.records import PolicyRequest
from steps.policies.constrained import AnswerGuide


class Part(NamedTuple):
    """What the engine writes next, after the prompt and `Answer.tokens`."""

    grammar: str
    max_tokens: int


@dataclass
class Answer:
    """A constrained answer that is written in parts: `first`, then `rest` until it is None."""

    guide: AnswerGuide
    request: PolicyRequest
    room: int
    """Most tokens of the whole answer; `AnswerGuide.min_tokens` at the least."""
    tokens: list[int] = field(default_factory=list)

    def first(self) -> Part | None:
        """The whole answer, with tokens to spare; where none are to spare, what `rest` says."""
        kind = self.guide.kind(self.request)
        count = self.room - kind.budget.most
        if count < 1:
            return self.rest([], is_whole=False)
        return Part(kind.form.grammar(self.guide.max_span_chars), count)

    def rest(self, drawn: list[int], *, is_whole: bool) -> Part | None:
        """What comes after the drawn tokens; None where the answer is whole, with its end.

        `is_whole` says that the engine came to the end of its grammar; its own sign for that is
        not among the tokens.
        """
        vocabulary, form = self.guide.vocabulary, self.guide.kind(self.request).form
        self.tokens += drawn
        if not is_whole:
            written = b"".join(vocabulary.texts[token] for token in self.tokens)
            if not written.endswith(form.closing):
                lacking = form.ending(written).text
                self.tokens += vocabulary.spell(lacking)
                if not (written + lacking).endswith(form.closing):
                    return self._choice()
        self.tokens.append(vocabulary.end_id)
        return None

    def _choice(self) -> Part:
        """An action and the end; it may be broken off once more, but not before it is chosen."""
        kind = self.guide.kind(self.request)
        count = self.room - len(self.tokens) - (kind.budget.choice - 1)
        assert count > 0, (self.room, len(self.tokens), kind.budget.choice)
        return Part(kind.form.last_action_grammar(self.guide.max_span_chars), count)
