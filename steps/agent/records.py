"""The records that travel between the stages: frozen, keyword-only, plain values inside.

Made by the rollout (`Trajectory` and what it holds), by the filter (`SFTExample`) and by the
tokenisation (`TokenSample`). They know nothing of torch, Parquet or Metaflow; how they are
written to disk stands in `steps.storage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ResponseFormat(StrEnum):
    """What a well-formed answer looks like."""

    WORLD_MODEL = "world_model"
    """`<think><observation>..</observation>..<prediction>..</prediction></think><answer>..</answer>`"""
    PLAIN = "plain"
    """`<think>..</think><answer>..</answer>`"""
    ANSWER_ONLY = "answer_only"
    """`<answer>..</answer>`"""


class StateFormat(StrEnum):
    """How a state is put into words."""

    GRID = "grid"
    COORDS = "coords"
    GRID_COORDS = "grid_coords"


class ParseStatus(StrEnum):
    """Why a response is or isn't well-formed; the first that applies, in this order."""

    TRUNCATED = "truncated"
    NO_ANSWER = "no_answer"
    UNCLOSED_TAG = "unclosed_tag"
    DUPLICATE_TAGS = "duplicate_tags"
    WRONG_ORDER = "wrong_order"
    NO_STATE_TAGS = "no_state_tags"
    EXTRA_TEXT = "extra_text"
    EMPTY_ANSWER = "empty_answer"
    TOO_MANY_ACTIONS = "too_many_actions"
    UNKNOWN_ACTION = "unknown_action"
    OK = "ok"


class StopReason(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"
    TIME_LIMIT = "time_limit"
    MAX_TURNS = "max_turns"
    ACTION_BUDGET = "action_budget"
    CONTEXT_FULL = "context_full"
    POLICY_ERROR = "policy_error"


class FinishReason(StrEnum):
    """Why a policy stopped writing."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    """The prompt left no room for an answer; text and token ids are empty."""
    ERROR = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message of a chat, in the OpenAI shape."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str

    def as_dict(self) -> dict[str, str]:
        """The shape that chat templates take."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a policy draws its tokens."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    max_new_tokens: int = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What a policy wrote for one request."""

    text: str
    """Decoded text without the end-of-turn token."""
    prompt_ids: tuple[int, ...] = ()
    """Tokens of the prompt as the model saw it; empty when the policy has no tokens."""
    token_ids: tuple[int, ...] = ()
    """Sampled tokens, the end-of-turn token included when it was sampled."""
    logprobs: tuple[float, ...] | None = None
    """Natural log-probability of each sampled token at the sampling temperature, or None."""
    finish_reason: FinishReason = FinishReason.STOP
    error: str = ""
    """Text of the failure when `finish_reason` is ERROR."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedResponse:
    """A response taken apart; every text gives one."""

    status: ParseStatus
    observation: str | None = None
    """Text inside `<observation>`, stripped; None where the tag is missing."""
    thought: str | None = None
    """Free text of `<think>` outside the state tags, stripped."""
    prediction: str | None = None
    """Text inside `<prediction>`, stripped."""
    actions: tuple[str, ...] = ()
    """Actions that can be played, in the environment's own spelling, at most `max_actions`."""
    num_emitted: int = 0
    """Number of non-empty pieces in the answer, playable or not."""

    @property
    def is_well_formed(self) -> bool:
        """Whether the response follows its format in every respect."""
        return self.status is ParseStatus.OK


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """One executed action and what it did, states in the format shown to the model."""

    action: str
    state_before: str
    state_after: str
    reward: float
    valid: bool
    effective: bool
    terminated: bool
    truncated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyRequest:
    """What a policy is asked: a chat, a seed, and for the baselines a view of the world."""

    messages: tuple[Message, ...]
    seed: int
    """Seed of this answer's sampling: the answer depends on it alone, not on the batch."""
    response_format: ResponseFormat
    max_actions: int
    """Most actions that this answer may hold."""
    observation_truth: str = ""
    """True state in the format of `<observation>`; for policies that aren't language models."""
    action_names: tuple[str, ...] | None = None
    """The environment's action list, None where any string may be an action."""
    legal_actions: Callable[[], tuple[str, ...] | None] | None = None
    """What a constrained answer chooses from, asked only for one; None takes `action_names`."""
    oracle: Callable[[], tuple[str, ...]] | None = None
    """The actions of an optimal answer; none where no solver exists."""
    sample_action: Callable[[int], str] | None = None
    """`sample_action(seed)`: a random action of the environment's own action space."""
    predict: Callable[[tuple[str, ...]], Mapping[str, float]] | None = None
    """Predictions that could come true after these actions -> probability."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One question and answer, and what came of it."""

    index: int
    prompt: tuple[Message, ...]
    """The chat exactly as the policy saw it."""
    state_shown: str
    """State as the prompt shows it."""
    observation_truth: str
    """True state of this turn in the observation's format."""
    prediction_truth: str
    """True state after all executed actions of the turn, in the prediction's format.

    Where each step is predicted: the state after each action of the answer, the last one again for
    those that the end of play left over (`Trajectory.prediction_separator`).
    """
    completion: Completion
    response: str
    """The text that enters the history: the completion's, with the truth spliced in if asked."""
    parsed: ParsedResponse
    """The completion as the model wrote it, before any splice."""
    transitions: tuple[Transition, ...] = ()
    possible_next: Mapping[str, float] = field(default_factory=dict)
    """Every state that the turn's actions could have led to -> its probability.

    Also the actions that weren't executed because the game ended before: it might not have. Where
    each step of several is predicted in a world of chance, only the path that came is known, with
    its probability: the sum is below 1.
    """
    reward: float = 0.0
    """Sum of the environment's rewards in this turn."""
    penalty: float = 0.0
    """Sum of our own penalties (format, ineffective actions), zero or negative."""
    actions_left: int = 0
    """Action budget before this turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """One episode."""

    trajectory_id: str
    env_id: str
    env_seed: int
    puzzle_hash: str
    """SHA-256 (16 hex digits) of the environment id's family and canonical initial state."""
    group: int
    """Episodes of one group share the puzzle."""
    member: int
    policy: str
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    success: bool
    response_format: ResponseFormat
    error: str = ""
    prediction_separator: str = ""
    """Line between the states of a prediction of each step; empty where it is one state."""

    @property
    def reward(self) -> float:
        """Return of the episode, penalties included, undiscounted."""
        return sum(turn.reward + turn.penalty for turn in self.turns)


class SpanKind(StrEnum):
    """What a stretch of a response is."""

    TAG = "tag"
    OBSERVATION = "observation"
    PREDICTION = "prediction"
    THOUGHT = "thought"
    ANSWER = "answer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A stretch `[start, end)` of a response, in characters."""

    kind: SpanKind
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SFTExample:
    """One turn to imitate: the prompt as the rollout showed it, the response to learn."""

    prompt: tuple[Message, ...]
    response: str
    spans: tuple[Span, ...]
    """Cover the response without gap or overlap, in order."""
    trajectory_id: str
    turn_index: int
    puzzle_hash: str
    split: str
    """`train` or `validation`, by puzzle."""
    env_id: str = ""
    status: ParseStatus = ParseStatus.OK
    model_observation: str | None = None
    """The model's own guess, beside the truth; which of them is in `response` is a setting."""
    model_prediction: str | None = None
    true_observation: str = ""
    true_prediction: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSample:
    """One token sequence to learn from, with one number a token and no prompt/response split."""

    trajectory_id: str
    token_ids: tuple[int, ...]
    loss_mask: tuple[float, ...]
    """1 where the token is learned (for PPO: was sampled), 0 elsewhere; SFT may weight spans."""
    turn_of_token: tuple[int, ...] = ()
    """Turn index of each learned token, -1 elsewhere."""
    logprobs: tuple[float, ...] = ()
    """Log-probability at sampling of each learned token, 0 elsewhere; empty where none was told."""
