"""The chat that a model is shown: one function for self-play, training and evaluation.

Nothing here knows a chat template or a tokenizer; the policy applies those. In `history: full`
the chat of a turn is the chat of the turn before, that turn's response and one message more, so
that an episode is one growing text. Deviations from the published prompts (own wording apart):

1. The chat asks for the same blocks in every stage; the published PPO asks for plain thoughts.
2. It says in which format a state is to be written, since what is shown may be another.
3. `style: state_only` shows the bare state: a model from scratch has no use for instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from steps.agent.records import Message, ResponseFormat, StateFormat, Turn
from steps.errors import ConfigError, unknown_name

SYSTEM = "You play a text game. You answer in exactly the format that is asked for."
_STATE_WORDS = {
    StateFormat.GRID: "the grid alone, without coordinates",
    StateFormat.COORDS: "the coordinates alone, without the grid",
    StateFormat.GRID_COORDS: "the grid, then the coordinates on a line of their own",
}
_E = TypeVar("_E", bound=StrEnum)


class PredictionSteps(StrEnum):
    """Which states `<prediction>` holds."""

    LAST = "last"
    """The one after all the answer's actions."""
    EACH = "each"
    """One after each action, a line that holds the separator between each two.

    After the end of play nothing changes: its state stands for the actions that are left, too.
    """


class PromptStyle(StrEnum):
    """How much the prompt says."""

    FULL = "full"
    """Rules, format, actions and budget around the state."""
    STATE_ONLY = "state_only"
    """The state and nothing else."""


class History(StrEnum):
    """Which earlier turns the prompt replays."""

    FULL = "full"
    LAST_K = "last_k"
    SINGLE_TURN = "single_turn"


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptSettings:
    """What the model is shown and asked to write. Plain strings are taken for the enums."""

    response_format: ResponseFormat = ResponseFormat.WORLD_MODEL
    style: PromptStyle = PromptStyle.FULL
    history: History = History.FULL
    last_k: int = 3
    """Earlier turns shown with `History.LAST_K`."""
    state_shown: StateFormat = StateFormat.GRID_COORDS
    observation: StateFormat = StateFormat.GRID_COORDS
    """Format that `<observation>` must hold."""
    prediction: StateFormat = StateFormat.GRID_COORDS
    """Format that `<prediction>` must hold."""
    prediction_steps: PredictionSteps = PredictionSteps.LAST
    random_coords: bool = False
    """Coordinates are drawn at random at each step (`steps.agent.telling`)."""
    max_actions_per_turn: int = 1
    separator: str = "||"

    def __post_init__(self) -> None:
        for name, kind in (
            ("response_format", ResponseFormat),
            ("style", PromptStyle),
            ("history", History),
            ("state_shown", StateFormat),
            ("observation", StateFormat),
            ("prediction", StateFormat),
            ("prediction_steps", PredictionSteps),
        ):
            object.__setattr__(self, name, _member(kind, getattr(self, name), f"prompt.{name}"))
        if self.last_k < 0:
            raise ConfigError(f"prompt.last_k is {self.last_k}; it must be 0 or more.")
        if self.max_actions_per_turn < 1:
            raise ConfigError(
                f"env.max_actions_per_turn is {self.max_actions_per_turn}; it must be 1 or more."
            )
        if not self.separator.strip():
            raise ConfigError(
                f"env.action_separator is {self.separator!r}; give it a visible character, "
                "such as '||'."
            )

    @property
    def predicts_each(self) -> bool:
        """Whether a prediction may hold more than one state."""
        return (
            self.prediction_steps is PredictionSteps.EACH
            and self.max_actions_per_turn > 1
            and self.response_format is ResponseFormat.WORLD_MODEL
        )


def build_messages(
    settings: PromptSettings,
    *,
    instruction: str,
    action_names: Sequence[str] | None,
    state: str,
    turn_index: int,
    actions_left: int,
    earlier: Sequence[Turn],
    max_new_tokens: int,
    has_board: bool = True,
) -> tuple[Message, ...]:
    """The chat of one turn, ending with the user message that shows `state`.

    `has_board`: whether the world's formats differ, so that the one that is asked for has a name.
    """
    shown = _replayed(settings, earlier)
    if settings.style is PromptStyle.STATE_ONLY:
        return _chat(shown, [turn.state_shown for turn in shown], state)
    blocks = []
    for i, turn in enumerate(shown):
        before = shown[i - 1] if i else None
        blocks.append(
            _turn_block(settings, turn.state_shown, turn.index, turn.actions_left, before)
        )
    last = shown[-1] if shown else None
    blocks.append(_turn_block(settings, state, turn_index, actions_left, last))
    blocks[0] = (
        f"{_rules(settings, instruction, action_names, max_new_tokens, has_board)}\n\n{blocks[0]}"
    )
    return (Message(role="system", content=SYSTEM), *_chat(shown, blocks[:-1], blocks[-1]))


def _replayed(settings: PromptSettings, earlier: Sequence[Turn]) -> Sequence[Turn]:
    if settings.history is History.FULL:
        return earlier
    first = len(earlier) - settings.last_k if settings.history is History.LAST_K else len(earlier)
    return earlier[max(first, 0) :]


def _chat(shown: Sequence[Turn], blocks: Sequence[str], last: str) -> tuple[Message, ...]:
    """User blocks and the responses to them, in turn, and the last block."""
    messages: list[Message] = []
    for block, turn in zip(blocks, shown, strict=True):
        messages.append(Message(role="user", content=block))
        messages.append(Message(role="assistant", content=turn.response))
    messages.append(Message(role="user", content=last))
    return tuple(messages)


def _rules(
    settings: PromptSettings,
    instruction: str,
    action_names: Sequence[str] | None,
    max_new_tokens: int,
    has_board: bool,
) -> str:
    """What stays the same in every turn; it opens the first message."""
    lines = [instruction.strip(), ""] if instruction.strip() else []
    if action_names is not None:
        lines.append(f"Actions: {', '.join(action_names)}.")
    if settings.max_actions_per_turn == 1:
        lines.append("Give one action in each answer.")
    else:
        lines.append(
            f"Give 1 to {settings.max_actions_per_turn} actions in each answer, separated by "
            f"{settings.separator.strip()}; they are played in order."
        )
    lines += ["Your answer must have this form, with nothing before or after it:", _form(settings)]
    if settings.response_format is ResponseFormat.WORLD_MODEL:
        seen, foreseen = "as it is shown to you", "in the same way"
        if has_board:
            seen = _STATE_WORDS[settings.observation]
            foreseen = _STATE_WORDS[settings.prediction]
        lines += [
            f"Write the current state inside <observation>: {seen}.",
            f"{_prediction_rule(settings)}: {foreseen}.",
        ]
    lines.append(f"An answer may be {max_new_tokens} tokens long at most.")
    return "\n".join(lines)


def _prediction_rule(settings: PromptSettings) -> str:
    if not settings.predicts_each:
        return "Write the state that your answer leads to inside <prediction>"
    return (
        "Write the state after each action of your answer inside <prediction>, in order, with "
        f"{settings.separator.strip()} on a line of its own between two states; where an action "
        "ends the game, its state again for each action after it"
    )


def _form(settings: PromptSettings) -> str:
    """The answer with a description in each place."""
    separator = settings.separator.strip()
    example = "action" if settings.max_actions_per_turn == 1 else f"action {separator} action"
    answer = f"<answer>[{example}]</answer>"
    if settings.response_format is ResponseFormat.ANSWER_ONLY:
        return answer
    if settings.response_format is ResponseFormat.PLAIN:
        return f"<think>[your thoughts]</think>{answer}"
    ahead = "state after each action" if settings.predicts_each else "next state"
    return (
        "<think><observation>[current state]</observation>[your thoughts]"
        f"<prediction>[{ahead}]</prediction></think>{answer}"
    )


def _turn_block(
    settings: PromptSettings, state: str, index: int, actions_left: int, before: Turn | None
) -> str:
    """What changes from turn to turn; `before` is the turn replayed just before, if any."""
    reward = f"Reward: {before.reward:.6g}\n\n" if before is not None else ""
    noun = "action" if actions_left == 1 else "actions"
    return (
        f"{reward}Turn {index + 1}\nState:\n{state}\n"
        f"You have {actions_left} {noun} left. Answer in this form: {_form(settings)}"
    )


def _member(kind: type[_E], value: str, where: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(unknown_name(where, str(value), [str(m) for m in kind])) from None
