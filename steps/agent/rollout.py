"""Plays episodes: the only place where an environment and a policy meet.

Many episodes run at once, so that a policy has much to answer at a time (`steps.agent.drivers`); a
finished one leaves at once. An answer depends on its own request's seed and on no other request,
so an episode is the same whether it is played alone or among many. A bad answer is data
(`ParseStatus`, `StopReason`), never an exception; an exception of the policy or of the
environment is a defect and goes through.

With `splice` the truth takes the place of the model's own states as soon as the turn is played,
before the next prompt is built: the history that later turns see is the one that SFT teaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import gymnasium
import numpy as np

from envs.base import COORDS, GRID, TextEnv
from steps.agent.drivers import Drive, Policy, StreamingPolicy
from steps.agent.foresight import Foresight, Played
from steps.agent.game_errors import check_step, names_the_game
from steps.agent.parsing import parse_response
from steps.agent.prompts import PromptSettings, PromptStyle, build_messages
from steps.agent.records import (
    Completion,
    FinishReason,
    ParsedResponse,
    PolicyRequest,
    ResponseFormat,
    Sampling,
    StopReason,
    Trajectory,
    Transition,
    Turn,
)
from steps.agent.seeds import mix_seed
from steps.agent.splice import splice_truth
from steps.agent.telling import Teller
from steps.errors import ConfigError

_FAILED = {
    FinishReason.CONTEXT: StopReason.CONTEXT_FULL,
    FinishReason.ERROR: StopReason.POLICY_ERROR,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutSettings:
    """How an episode is played and what it costs to break the rules."""

    prompt: PromptSettings
    sampling: Sampling = field(default_factory=Sampling)
    max_turns: int = 10
    max_actions_per_turn: int = 1
    max_actions: int = 10
    """Action budget of the episode; each executed action counts, effective or not."""
    separator: str = "||"
    lenient: bool = True
    """Play the readable actions of a malformed answer."""
    splice: bool = False
    """Put the true states into the responses that enter the history, where the format has any."""
    splice_likeliest: bool = False
    """In a world of chance, splice the likeliest next state instead of the one that came."""
    foresight: bool = True
    """Note `Turn.possible_next` even where answers hold no prediction to be scored by it."""
    format_penalty: float = 0.0
    """Added to a turn whose answer is malformed; zero or negative."""
    ineffective_penalty: float = 0.0
    """Added once to a turn in which nothing changed; zero or negative."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_actions_per_turn", "max_actions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"env.{name} is {getattr(self, name)}; it must be 1 or more.")
        for name in ("format_penalty", "ineffective_penalty"):
            if getattr(self, name) > 0:
                raise ConfigError(
                    f"ppo.{name} is {getattr(self, name)}; a penalty must be 0 or negative."
                )
        for name in ("max_actions_per_turn", "separator"):
            if getattr(self, name) != getattr(self.prompt, name):
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r} for the rollout and "
                    f"{getattr(self.prompt, name)!r} for its prompt; give both the same value."
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeSpec:
    """Which episode to play."""

    env_seed: int
    group: int = 0
    member: int = 0
    sampling_seed: int = 0
    """With the turn's index it gives the seed of each answer; give every episode its own."""


def run_episodes(
    specs: Sequence[EpisodeSpec],
    *,
    env_id: str,
    make_env: Callable[[], gymnasium.Env[str, str]],
    policy: Policy,
    settings: RolloutSettings,
    on_done: Callable[[int, Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Plays the episodes to their ends and returns them in the order of `specs`.

    `on_done(position in specs, trajectory)` is called as each episode ends, in any order.
    `make_env` is called once an episode; the environments are closed here.
    """
    done: dict[int, Trajectory] = {}

    def end(episode: Episode) -> None:
        trajectory = done[episode.position] = episode.trajectory(env_id, policy.name)
        if on_done is not None:
            on_done(episode.position, trajectory)

    episodes = (
        Episode(position, spec, make_env(), settings) for position, spec in enumerate(specs)
    )
    drive = Drive(settings.sampling, end)
    if isinstance(policy, StreamingPolicy):
        drive.streaming(episodes, policy)
    else:
        drive.together(episodes, policy)
    return [done[position] for position in range(len(specs))]


def has_board(world: TextEnv) -> bool:
    """Whether the world's state formats differ: some worlds have one text for all of them."""
    return world.describe(GRID) != world.describe(COORDS)


class Episode:
    """One running episode. `ask` and `take` alternate until `stop_reason` is set.

    `run_episodes` plays many at once; the verl backend plays each by itself, since its inference
    server makes up batches of its own.
    """

    @names_the_game
    def __init__(
        self,
        position: int,
        spec: EpisodeSpec,
        env: gymnasium.Env[str, str],
        settings: RolloutSettings,
    ) -> None:
        self.position = position
        self.spec = spec
        self.env = env
        self.settings = settings
        self.world = cast(TextEnv, env.unwrapped)
        self.env.reset(seed=spec.env_seed)
        self.puzzle_hash = self.world.puzzle_hash()
        # The seed made the board; from here each episode has its own luck, or the members of a
        # group would all slip at the same steps and count as one.
        self.world.np_random = np.random.default_rng(mix_seed(spec.env_seed, spec.sampling_seed))
        self.teller = Teller(
            self.world, settings.prompt, mix_seed(spec.env_seed, spec.sampling_seed)
        )
        self.predicts_each = settings.prompt.predicts_each
        has_states = settings.prompt.response_format is ResponseFormat.WORLD_MODEL
        self.foresees = settings.foresight or has_states
        self.splices = settings.splice and has_states
        self.turns: list[Turn] = []
        self.actions_left = settings.max_actions
        self.state = self.teller.state(settings.prompt.state_shown.value)
        self.success = False
        self.stop_reason: StopReason | None = None
        self.error = ""
        self.request: PolicyRequest | None = None
        # What isn't told needs no look.
        is_bare = settings.prompt.style is PromptStyle.STATE_ONLY
        self.has_board = is_bare or has_board(self.world)

    @names_the_game
    def ask(self) -> PolicyRequest:
        """The request of the turn that comes now."""
        settings, prompt = self.settings, self.settings.prompt
        index = len(self.turns)
        messages = build_messages(
            prompt,
            instruction=self.world.instruction,
            action_names=self.world.action_names,
            state=self.state,
            turn_index=index,
            actions_left=self.actions_left,
            earlier=self.turns,
            max_new_tokens=settings.sampling.max_new_tokens,
            has_board=self.has_board,
        )
        per_turn = settings.max_actions_per_turn
        self.request = PolicyRequest(
            messages=messages,
            seed=mix_seed(self.spec.sampling_seed, index),
            response_format=prompt.response_format,
            max_actions=min(per_turn, self.actions_left),
            observation_truth=self._describe(prompt.observation.value),
            action_names=self.world.action_names,
            legal_actions=self._legal_actions,
            oracle=self._oracle,
            sample_action=self._sample_action,
            predict=self._predict,
        )
        return self.request

    @names_the_game
    def take(self, completion: Completion) -> None:
        """Plays the answer and decides whether the episode ends."""
        stop = _FAILED.get(completion.finish_reason)
        if stop is not None:
            self._end(stop, completion.error)
            return
        assert self.request is not None
        settings, request = self.settings, self.request
        parsed = parse_response(
            completion.text,
            request.response_format,
            action_names=request.action_names,
            max_actions=request.max_actions,
            separator=settings.separator,
            truncated=completion.finish_reason is FinishReason.LENGTH,
        )
        planned = parsed.actions if settings.lenient or parsed.is_well_formed else ()
        foresight = Foresight(self.teller, planned, is_wanted=self.foresees)
        played = self._play(planned)
        transitions, prediction = played.transitions, settings.prompt.prediction.value
        present = played.states[-1] if played.states else self._describe(prediction)
        prediction_truth, possible_next = foresight.outcome(played, present)
        response = completion.text
        if self.splices:
            likely = foresight.likeliest(possible_next, played)
            response = splice_truth(
                response,
                observation=request.observation_truth,
                prediction=likely if settings.splice_likeliest else prediction_truth,
            )
        self.turns.append(
            Turn(
                index=len(self.turns),
                prompt=request.messages,
                state_shown=transitions[0].state_before if transitions else self.state,
                observation_truth=request.observation_truth,
                prediction_truth=prediction_truth,
                completion=completion,
                response=response,
                parsed=parsed,
                transitions=transitions,
                possible_next=possible_next,
                reward=sum(transition.reward for transition in transitions),
                penalty=self._penalty(parsed, transitions),
                actions_left=self.actions_left + len(transitions),
            )
        )
        self._stop_if_over(transitions)

    def close(self) -> None:
        """The environment is needed no more."""
        self.env.close()

    def trajectory(self, env_id: str, policy_name: str) -> Trajectory:
        """The finished episode."""
        assert self.stop_reason is not None
        spec = self.spec
        return Trajectory(
            trajectory_id=(
                f"{env_id}-s{spec.env_seed}-g{spec.group}-m{spec.member}-{spec.sampling_seed}"
            ),
            env_id=env_id,
            env_seed=spec.env_seed,
            puzzle_hash=self.puzzle_hash,
            group=spec.group,
            member=spec.member,
            policy=policy_name,
            turns=tuple(self.turns),
            stop_reason=self.stop_reason,
            success=self.success,
            response_format=self.settings.prompt.response_format,
            error=self.error,
            prediction_separator=self.settings.separator.strip() if self.predicts_each else "",
        )

    def _play(self, actions: Sequence[str]) -> Played:
        """Executes the actions until the game ends; `actions` fit into the budget."""
        prompt = self.settings.prompt
        played, states, chance = [], [], 1.0
        for action in actions:
            before = self.state
            ahead = self.teller.reached((action,)) if self.predicts_each else {}
            result = self.env.step(action)
            check_step(result, self.world)
            _, reward, terminated, truncated, info = result
            self.teller.num_played += 1
            self.state = self.teller.state(prompt.state_shown.value)
            self.actions_left -= 1
            if self.predicts_each:
                states.append(self._describe(prompt.prediction.value))
                chance *= ahead.get(self.world.describe(prompt.prediction.value), 0.0)
            self.success = info["success"]
            played.append(
                Transition(
                    action=action,
                    state_before=before,
                    state_after=self.state,
                    reward=float(reward),
                    valid=info["action_is_valid"],
                    effective=info["action_is_effective"],
                    terminated=terminated,
                    truncated=truncated,
                )
            )
            if terminated or truncated:
                break
        return Played(tuple(played), tuple(states), chance)

    def _describe(self, state_format: str) -> str:
        """The present state; the format of the prompt is at hand already."""
        if state_format == self.settings.prompt.state_shown:
            return self.state
        return self.teller.state(state_format)

    def _penalty(self, parsed: ParsedResponse, transitions: Sequence[Transition]) -> float:
        penalty = 0.0 if parsed.is_well_formed else self.settings.format_penalty
        if not any(transition.effective for transition in transitions):
            penalty += self.settings.ineffective_penalty
        return penalty

    def _stop_if_over(self, transitions: Sequence[Transition]) -> None:
        if transitions and transitions[-1].terminated:
            self._end(StopReason.TERMINATED)
        elif transitions and transitions[-1].truncated:
            self._end(StopReason.TIME_LIMIT)
        elif self.actions_left == 0:
            self._end(StopReason.ACTION_BUDGET)
        elif len(self.turns) == self.settings.max_turns:
            self._end(StopReason.MAX_TURNS)

    def _end(self, reason: StopReason, error: str = "") -> None:
        self.stop_reason, self.error = reason, error
        self.close()

    @names_the_game
    def _predict(self, actions: Sequence[str]) -> dict[str, float]:
        return self.teller.predict(actions)

    @names_the_game
    def _oracle(self) -> tuple[str, ...]:
        settings = self.settings
        turns_left = settings.max_turns - len(self.turns)
        return self.world.oracle_plan(self.actions_left, turns_left, settings.max_actions_per_turn)

    @names_the_game
    def _legal_actions(self) -> tuple[str, ...] | None:
        return self.world.legal_actions()

    @names_the_game
    def _sample_action(self, seed: int) -> str:
        return self.world.sample_action(np.random.default_rng(seed))
