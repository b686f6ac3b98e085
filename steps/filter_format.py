"""From trajectories to finetuning rows: one turn a row, the malformed ones dropped and counted.

A row's prompt and response are the rollout's own, byte for byte. Rows are split into training and
validation by puzzle, so that no puzzle is in both; the published code splits single turns. What a
row is dropped for is the turn's `ParseStatus`, or one of `Reason`; the first that applies counts.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import conf
from conf.schema import Config
from envs.splits import fraction
from steps.agent.lending import lend_states
from steps.agent.parsing import parse_response, spans
from steps.agent.records import (
    Message,
    ParseStatus,
    ResponseFormat,
    SFTExample,
    SpanKind,
    Trajectory,
    Turn,
)
from steps.errors import StageError
from steps.settings import check_settings, teaches_looks_alone
from steps.storage import TRAIN_FILE, VALIDATION_FILE, iter_trajectories, write_examples
from steps.tracking import Tracker

TRAIN, VALIDATION = "train", "validation"
SALT = "finetuning validation"
"""Makes the split here independent of the one that gave self-play its puzzles."""
IDLE_SALT = "ineffective turns"
MAX_EXAMPLE_CHARS = 2000
"""A dropped text is shown up to here."""
_STATE_TAGS = ("<observation>", "</observation>", "<prediction>", "</prediction>")
_STATES = (SpanKind.OBSERVATION, SpanKind.PREDICTION)

_log = logging.getLogger(__name__)


class Reason(StrEnum):
    """Why a row is dropped, besides its `ParseStatus`."""

    NO_RESPONSE = "no_response"
    """The policy failed or its context was full: there is no answer to learn."""
    INVALID_ACTION = "invalid_action"
    """An executed action is none of the game's, where any text might have been one: the answer is
    well-formed, and what it says means nothing. A move that the rules forbid is an action."""
    OVER_BUDGET = "over_budget"
    """More actions than the episode had left: of `too_many_actions` those that contradict the
    budget that the prompt tells, not the limit of a single answer."""
    STATE_HOLDS_TAGS = "state_holds_tags"
    """A true state that was put into the answer holds tags of the format itself: as it is taught
    the answer is malformed."""
    TOO_LONG = "too_long"
    DUPLICATE = "duplicate"
    """Same prompt and response as an earlier row."""
    INEFFECTIVE = "ineffective"
    """The turn changed nothing, and there are more of these than `filter.max_ineffective`."""


def filter_format(
    config: Config, *, trajectories: Sequence[Path], out_dir: Path, tracker: Tracker
) -> dict[str, Any]:
    """Write `sft_train.parquet` and `sft_validation.parquet`; returns counts and examples.

    Raises `StageError`, with the table of reasons, where fewer than `filter.min_yield` of the rows
    survive.
    """
    check_settings(config, "filter", "sft.state_loss")
    started = time.monotonic()
    sieve = Sieve(config)
    kept = [row for path in trajectories for row in sieve.rows(iter_trajectories(path))]
    sieve.check_yield()
    kept = sieve.thinned(kept)
    kept = lend_states(kept, seed=config.seed) if teaches_looks_alone(config) else kept
    rows = split_by_puzzle(kept, config.filter.validation_share)
    train = [row for row in rows if row.split == TRAIN]
    validation = [row for row in rows if row.split == VALIDATION]
    digest = conf.digest(config)
    write_examples(out_dir / TRAIN_FILE, train, config_digest=digest)
    write_examples(out_dir / VALIDATION_FILE, validation, config_digest=digest)
    tracker.log(sieve.metrics(), step=0)
    _log.info(
        "filter: %d of %d turns kept, %d of them for validation",
        len(rows),
        sieve.num_rows,
        len(validation),
    )
    return {
        **sieve.result(),
        "files": {TRAIN: TRAIN_FILE, VALIDATION: VALIDATION_FILE},
        "train_rows": len(train),
        "validation_rows": len(validation),
        "puzzles": len({row.puzzle_hash for row in rows}),
        "validation_puzzles": len({row.puzzle_hash for row in validation}),
        "distinct": len({_text_digest(row) for row in rows}),
        "seconds": time.monotonic() - started,
    }


class Sieve:
    """Turns trajectories into rows, and counts what it drops."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.num_rows = 0
        self.num_kept = 0
        self.dropped: dict[str, int] = {}
        self.examples: dict[str, list[str]] = {}
        self._seen: set[bytes] = set()
        self._idle: set[tuple[str, int]] = set()

    def rows(self, trajectories: Iterable[Trajectory]) -> Iterator[SFTExample]:
        """The rows that are kept, in order."""
        for trajectory in trajectories:
            for turn in trajectory.turns:
                self.num_rows += 1
                row = to_row(trajectory, turn, strip=self.config.sft.state_loss == "strip")
                reason = self._reason(trajectory, turn, row)
                if reason:
                    self._drop(reason, turn.completion.text)
                    continue
                if not any(transition.effective for transition in turn.transitions):
                    self._idle.add(_place(row))
                self.num_kept += 1
                yield row

    def thinned(self, rows: Sequence[SFTExample]) -> list[SFTExample]:
        """All rows of `rows` that changed something, and as many others as may be.

        Their order of going is that of a hash of episode and turn. `filter.min_yield` is asked for
        before. A model that sees little but moves without effect learns that nothing changes.
        """
        share = self.config.filter.max_ineffective if self.config.filter.enabled else 1
        idle = [row for row in rows if _place(row) in self._idle]
        others = len(rows) - len(idle)
        if share == 1 or not others:
            return list(rows)
        idle.sort(key=lambda row: fraction("{}/{}".format(*_place(row)), IDLE_SALT))
        gone = idle[int(share / (1 - share) * others + 1e-9) :]
        for row in gone:
            self._drop(Reason.INEFFECTIVE, row.response)
        self.num_kept -= len(gone)
        dropped = {_place(row) for row in gone}
        return [row for row in rows if _place(row) not in dropped]

    def check_yield(self) -> None:
        """Refuse to go on where too little is left."""
        share = self.num_kept / max(1, self.num_rows)
        if self.num_kept and share >= self.config.filter.min_yield:
            return
        raise StageError(
            f"the filter kept {self.num_kept} of {self.num_rows} rows ({share:.1%}) of "
            f"{self.config.env.id}; filter.min_yield asks for {self.config.filter.min_yield:.1%}.\n"
            f"{self.table()}\n"
            "Look at the examples in the filter's card; then let a policy play that follows the "
            "format (selfplay.policy=random), mend the prompt, or lower filter.min_yield."
        )

    def table(self) -> str:
        """Kept and dropped rows, a line each."""
        lines = [("kept", self.num_kept), *sorted(self.dropped.items(), key=lambda item: -item[1])]
        return "\n".join(f"  {name:<18}{count:>8}" for name, count in lines)

    def metrics(self) -> dict[str, float]:
        """Numbers for the tracker."""
        counts = {f"filter/dropped_{reason}": count for reason, count in self.dropped.items()}
        share = self.num_kept / max(1, self.num_rows)
        return {
            "filter/rows": self.num_rows,
            "filter/kept": self.num_kept,
            "filter/yield": share,
            **counts,
        }

    def result(self) -> dict[str, Any]:
        """Plain values for the flow."""
        return {
            "rows": self.num_rows,
            "kept": self.num_kept,
            "dropped": dict(sorted(self.dropped.items(), key=lambda item: -item[1])),
            "examples": self.examples,
            "settings": {
                "enabled": self.config.filter.enabled,
                "deduplicate": self.config.filter.deduplicate,
                "max_ineffective": self.config.filter.max_ineffective,
            },
        }

    def _reason(self, trajectory: Trajectory, turn: Turn, row: SFTExample) -> str:
        """Why a row is dropped, or nothing. Unfiltered data lose only turns without an answer."""
        section = self.config.filter
        if not row.response:
            return Reason.NO_RESPONSE
        if not section.enabled:
            return ""
        if _is_over_budget(turn):
            return Reason.OVER_BUDGET
        if not turn.parsed.is_well_formed:
            return turn.parsed.status
        if not all(transition.valid for transition in turn.transitions):
            return Reason.INVALID_ACTION
        if not _is_well_formed_as_taught(turn, trajectory.response_format):
            return Reason.STATE_HOLDS_TAGS
        if 0 < section.max_response_chars < len(row.response):
            return Reason.TOO_LONG
        if section.deduplicate and self._is_repeated(row):
            return Reason.DUPLICATE
        return ""

    def _is_repeated(self, row: SFTExample) -> bool:
        key = _text_digest(row)
        is_repeated = key in self._seen
        self._seen.add(key)
        return is_repeated

    def _drop(self, reason: str, text: str) -> None:
        name = str(reason)
        self.dropped[name] = self.dropped.get(name, 0) + 1
        texts = self.examples.setdefault(name, [])
        if len(texts) < self.config.filter.num_examples:
            texts.append(_shortened(text))


def _text_digest(row: SFTExample) -> bytes:
    """The same for rows of the same prompt and response."""
    text = "\0".join([*(f"{m.role}\0{m.content}" for m in row.prompt), row.response])
    return hashlib.sha256(text.encode()).digest()


def _place(row: SFTExample) -> tuple[str, int]:
    return row.trajectory_id, row.turn_index


def _is_over_budget(turn: Turn) -> bool:
    is_long = turn.parsed.status is ParseStatus.TOO_MANY_ACTIONS
    return is_long and 0 < turn.actions_left < turn.parsed.num_emitted


def _is_well_formed_as_taught(turn: Turn, response_format: ResponseFormat) -> bool:
    """Whether the answer is still so with the true states in it; its actions are as they were."""
    if turn.response == turn.completion.text:
        return True
    return parse_response(turn.response, response_format).is_well_formed


def to_row(trajectory: Trajectory, turn: Turn, *, strip: bool = False) -> SFTExample:
    """A turn as a finetuning row, of the training split; `strip` takes the states out of it."""
    response, prompt = turn.response, turn.prompt
    response_format = trajectory.response_format
    if strip and response_format is ResponseFormat.WORLD_MODEL:
        response, prompt = strip_states(response), tuple(_stripped(each) for each in prompt)
        response_format = ResponseFormat.PLAIN
    return SFTExample(
        prompt=prompt,
        response=response,
        spans=spans(response, response_format),
        trajectory_id=trajectory.trajectory_id,
        turn_index=turn.index,
        puzzle_hash=trajectory.puzzle_hash,
        split=TRAIN,
        env_id=trajectory.env_id,
        status=turn.parsed.status,
        model_observation=turn.parsed.observation,
        model_prediction=turn.parsed.prediction,
        true_observation=turn.observation_truth,
        true_prediction=turn.prediction_truth,
    )


def strip_states(text: str) -> str:
    """A response without its state tags and what stands in them."""
    kept = []
    for span in spans(text, ResponseFormat.WORLD_MODEL):
        piece = text[span.start : span.end]
        is_tag = span.kind is SpanKind.TAG and piece.lower() in _STATE_TAGS
        if not is_tag and span.kind not in _STATES:
            kept.append(piece)
    return "".join(kept)


def split_by_puzzle(rows: Sequence[SFTExample], validation_share: float) -> list[SFTExample]:
    """The rows with their split set; a puzzle's side depends on its hash, not on the others.

    Of two puzzles or more, each side gets at least one (validation only if a share is asked).
    """
    places = {row.puzzle_hash: fraction(row.puzzle_hash, SALT) for row in rows}
    held_out = {puzzle for puzzle, place in places.items() if place < validation_share}
    ordered = sorted(places, key=lambda puzzle: places[puzzle])
    if validation_share > 0 and len(ordered) > 1:
        held_out = (held_out | {ordered[0]}) - {ordered[-1]}
    elif len(ordered) == 1:
        held_out = set()
    return [
        replace(row, split=VALIDATION if row.puzzle_hash in held_out else TRAIN) for row in rows
    ]


def _stripped(message: Message) -> Message:
    if message.role != "assistant":
        return message
    return Message(role=message.role, content=strip_states(message.content))


def _shortened(text: str) -> str:
    if len(text) <= MAX_EXAMPLE_CHARS:
        return text
    return f"{text[:MAX_EXAMPLE_CHARS]} [{len(text) - MAX_EXAMPLE_CHARS} characters more]"
