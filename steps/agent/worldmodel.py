"""How well a model knows its world: what it wrote in the state tags against the simulator.

Every score is a mean over *all* turns of the answers that should hold state tags: a malformed
answer is a wrong one, never a missing one. What the model wrote is scored, not the text that
entered the history (`Turn.parsed` is from before any splice). Besides whole states, the board's
cells and the entities are compared (`steps.agent.states`); a prediction of several states is right
as a whole, and its cells and entities are those of its states, one by one in order, a state too few
or too many being wrong.

In a world of chance the state that happened is one draw of several. A prediction is therefore
scored three times: against the draw (`prediction_exact`), against the set of states that could
have come (`prediction_possible`) and by the chance of the state it names
(`prediction_probability`). An ideal model reaches 1, 1 and `prediction_best`: no more is possible.
No model can expect more than `prediction_best` of `prediction_exact` either. Turns of which only
the path that came is known (`Turn.possible_next`) are left out of these three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from steps.agent.records import ResponseFormat, Trajectory, Turn
from steps.agent.states import right_cells, right_entities, split_states

STATE_SCORES = (
    "observation_exact",
    "observation_cells",
    "observation_entities",
    "prediction_exact",
    "prediction_cells",
    "prediction_entities",
    "prediction_possible",
    "prediction_probability",
    "prediction_best",
)
"""Keys of `state_scores`; `_cells` need states with a board, `_entities` such with entities."""
MAX_CLASSES = 12
"""Classes of `scores_by`; the rarer ones are one class."""
OTHER = "other"
_WHOLE = 1 - 1e-6
"""Probabilities that sum to less are not all that could have come."""


class Tally:
    """Sums of the scores of turns, which several processes can add up exactly."""

    NAMES = ("format_rate", *STATE_SCORES)

    def __init__(self, sums: Sequence[float] = ()) -> None:
        self.sums = list(sums) or [0.0] * (2 * len(self.NAMES))
        """Amount and number of turns of each score in turn."""

    @property
    def num_turns(self) -> int:
        """All turns."""
        return round(self.sums[1])

    def add(self, turn: Turn, *, states: bool, separator: str = "") -> None:
        """Count a turn; `states` says whether its answer should hold state tags."""
        well_formed = turn.parsed.is_well_formed
        self._count("format_rate", float(well_formed))
        if not states:
            return
        observation = turn.parsed.observation if well_formed else None
        prediction = turn.parsed.prediction if well_formed else None
        self._compare("observation", observation, turn.observation_truth, "")
        self._compare("prediction", prediction, turn.prediction_truth, separator)
        # Without an executed action, and in a world that can't tell, only the truth is possible.
        chances = turn.possible_next or {turn.prediction_truth: 1.0}
        if not is_whole(chances):
            return
        chance = 0.0 if prediction is None else chance_of(prediction, chances)
        self._count("prediction_possible", float(chance > 0))
        self._count("prediction_probability", chance)
        self._count("prediction_best", max(chances.values()))

    def merge(self, other: Tally) -> Tally:
        """Both together."""
        return Tally([a + b for a, b in zip(self.sums, other.sums, strict=True)])

    def scores(self) -> dict[str, float | None]:
        """The mean of each score, None without a turn to judge."""
        pairs = zip(self.sums[::2], self.sums[1::2], strict=True)
        return {
            name: amount / num if num else None
            for name, (amount, num) in zip(self.NAMES, pairs, strict=True)
        }

    def _count(self, name: str, amount: float) -> None:
        index = _PLACES[name]
        self.sums[index] += amount
        self.sums[index + 1] += 1

    def _compare(self, name: str, guess: str | None, truth: str, separator: str) -> None:
        is_exact = guess is not None and guess.strip() == truth.strip()
        self._count(f"{name}_exact", float(is_exact))
        for part, share_right in (("cells", right_cells), ("entities", right_entities)):
            share = _mean_share(share_right, truth if is_exact else guess, truth, separator)
            if share is not None:
                self._count(f"{name}_{part}", share)


_PLACES = {name: 2 * index for index, name in enumerate(Tally.NAMES)}


def tally(trajectories: Iterable[Trajectory]) -> Tally:
    """The sums over all turns of the episodes."""
    sums = Tally()
    for trajectory in trajectories:
        states = trajectory.response_format == ResponseFormat.WORLD_MODEL
        for turn in trajectory.turns:
            sums.add(turn, states=states, separator=trajectory.prediction_separator)
    return sums


def scores(trajectories: Iterable[Trajectory]) -> dict[str, float | None]:
    """`turns`, `format_rate` and the `STATE_SCORES` over all turns of the episodes.

    A score without a single turn to judge is None: the state scores of formats without state tags,
    cell scores of states without a board, every score of no turns at all.
    """
    sums = tally(trajectories)
    return {"turns": sums.num_turns, **sums.scores()}


def tallies_by(
    trajectories: Iterable[Trajectory], key: Callable[[Turn], str | None]
) -> dict[str, Tally]:
    """The sums of each class of turns.

    Turns for which `key` is None belong to no class; episodes without state tags are left out.
    """
    classes: dict[str, Tally] = {}
    for trajectory in trajectories:
        if trajectory.response_format != ResponseFormat.WORLD_MODEL:
            continue
        for turn in trajectory.turns:
            name = key(turn)
            if name is not None:
                sums = classes.setdefault(name, Tally())
                sums.add(turn, states=True, separator=trajectory.prediction_separator)
    return classes


def class_scores(classes: Mapping[str, Tally]) -> dict[str, dict[str, float | None]]:
    """`turns` and the `STATE_SCORES` of each class, in order of names, the rarest as `OTHER`."""
    ranked = sorted(classes, key=lambda name: (-classes[name].num_turns, name))
    kept = ranked if len(ranked) <= MAX_CLASSES else ranked[: MAX_CLASSES - 1]
    found = {name: classes[name] for name in sorted(kept)}
    for name in ranked[len(kept) :]:
        found[OTHER] = found.get(OTHER, Tally()).merge(classes[name])
    return {
        name: {"turns": sums.num_turns} | {key: sums.scores()[key] for key in STATE_SCORES}
        for name, sums in found.items()
    }


def scores_by(
    trajectories: Iterable[Trajectory], key: Callable[[Turn], str | None]
) -> dict[str, dict[str, float | None]]:
    """`class_scores` of the episodes' turns."""
    return class_scores(tallies_by(trajectories, key))


def num_actions(turn: Turn) -> str | None:
    """Key of `scores_by`: how many actions the prediction looks ahead; None where none ran."""
    return str(len(turn.parsed.actions)) if turn.transitions else None


def only_action(turn: Turn) -> str | None:
    """Key of `scores_by`: the action of a turn that was to run exactly one, and did."""
    return turn.transitions[0].action if num_actions(turn) == "1" else None


def effect(turn: Turn) -> str | None:
    """Key of `scores_by`: whether any executed action changed the state; None where none ran."""
    if not turn.transitions:
        return None
    return "effective" if any(step.effective for step in turn.transitions) else "ineffective"


BREAKDOWNS: dict[str, Callable[[Turn], str | None]] = {
    "by_action": only_action,
    "by_num_actions": num_actions,
    "by_effect": effect,
}
"""Tables of the reports."""


def status_counts(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """`ParseStatus` value -> number of turns, the commonest first."""
    counts = Counter(
        str(turn.parsed.status) for trajectory in trajectories for turn in trajectory.turns
    )
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _mean_share(
    share_right: Callable[[str, str], float | None],
    guess: str | None,
    truth: str,
    separator: str,
) -> float | None:
    """Mean over the states of the share that the guess has right; None without such a part.

    Over those of the longer list: a state too many is as wrong as one that is missing.
    """
    if not separator:
        return share_right(guess or "", truth)
    guesses, states = split_states(guess or "", separator), split_states(truth, separator)
    shares = [
        share_right(guesses[index] if index < len(guesses) else "", state)
        for index, state in enumerate(states)
    ]
    known = [share for share in shares if share is not None]
    surplus = max(len(guesses) - len(states), 0)
    return sum(known) / (len(known) + surplus) if known else None


def is_whole(chances: Mapping[str, float]) -> bool:
    """Whether these are all states that could have come: else no state's chance is known."""
    return sum(chances.values()) >= _WHOLE


def chance_of(state: str, chances: Mapping[str, float]) -> float:
    """Probability of a state; outer white space doesn't count, as the parser strips it."""
    known = chances.get(state)
    if known is not None:
        return known
    return sum(chance for name, chance in chances.items() if name.strip() == state.strip())
