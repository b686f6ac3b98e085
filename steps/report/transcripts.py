"""An episode as a plain dictionary: what was shown, said, true and done, turn by turn.

Plain so that it can be a flow's artifact and be read years later without this package. The keys of
a turn are `state`, `response`, `status`, `observation`, `observation_truth`, `prediction`,
`prediction_truth`, `chance` (of the predicted state, None without a prediction), `actions`,
`effective`, `reward`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from steps.agent.records import Trajectory, Turn
from steps.agent.worldmodel import chance_of, is_whole


def transcript(trajectory: Trajectory) -> dict[str, Any]:
    """One episode, its prompts left out (they repeat the states)."""
    return {
        "trajectory_id": trajectory.trajectory_id,
        "env_id": trajectory.env_id,
        "env_seed": trajectory.env_seed,
        "puzzle_hash": trajectory.puzzle_hash,
        "policy": trajectory.policy,
        "success": trajectory.success,
        "stop_reason": str(trajectory.stop_reason),
        "reward": trajectory.reward,
        "error": trajectory.error,
        "prediction_separator": trajectory.prediction_separator,
        "turns": [_turn(turn) for turn in trajectory.turns],
    }


def sample(trajectories: Sequence[Trajectory], count: int = 3) -> list[dict[str, Any]]:
    """Transcripts worth reading first, in order of play and of different puzzles where possible.

    A success, a failure and an episode with a malformed answer, then whatever comes first.
    """
    wanted: list[Callable[[Trajectory], bool]] = [
        lambda each: each.success,
        lambda each: not each.success,
        lambda each: not all(turn.parsed.is_well_formed for turn in each.turns),
        *[lambda each: True] * count,
    ]
    chosen: list[Trajectory] = []
    for is_wanted in wanted:
        fresh = (each for each in trajectories if is_wanted(each) and each.turns)
        found = _first_new(fresh, chosen)
        if found is not None and len(chosen) < count:
            chosen.append(found)
    return [transcript(each) for each in chosen]


def _first_new(candidates: Iterable[Trajectory], chosen: list[Trajectory]) -> Trajectory | None:
    """The first candidate of a puzzle not chosen yet, else the first that isn't chosen itself."""
    puzzles = {each.puzzle_hash for each in chosen}
    spare = None
    for each in candidates:
        if each.puzzle_hash not in puzzles:
            return each
        if spare is None and not any(each is other for other in chosen):
            spare = each
    return spare


def _turn(turn: Turn) -> dict[str, Any]:
    prediction = turn.parsed.prediction
    chance = None
    if prediction is not None and is_whole(turn.possible_next):
        chance = chance_of(prediction, turn.possible_next)
    return {
        "index": turn.index,
        "state": turn.state_shown,
        "response": turn.completion.text,
        "status": str(turn.parsed.status),
        "observation": turn.parsed.observation,
        "observation_truth": turn.observation_truth,
        "prediction": prediction,
        "prediction_truth": turn.prediction_truth,
        "chance": chance,
        "actions": [step.action for step in turn.transitions],
        "effective": any(step.effective for step in turn.transitions),
        "reward": turn.reward + turn.penalty,
    }
