"""How often a policy succeeds: Pass@1 and the unbiased Pass@k, with intervals over puzzles.

Episodes of one puzzle are no independent draws (a puzzle is easy or hard for all of them), so the
puzzle is the unit: each gives one value, and the interval is a bootstrap over puzzles.

An episode that broke by the policy's own failure (`POLICY_ERROR`: an engine died, a server
refused) says nothing of the model. It is left out of the rates and counted as `errors`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

import numpy as np
from numpy.typing import NDArray

from steps.agent.records import StopReason, Trajectory

Floats = NDArray[np.float64]

QUARTERS = ("hardest", "harder", "easier", "easiest")
"""Of the puzzles, by how often random play solves them."""
MIN_PUZZLES = 16
"""Fewest that are told apart so."""
_ALIKE = 1e-12
"""Rates that differ by less are one rate, worked out in two ways."""
_MAX_DRAWS = 1 << 22
"""Resampled values held at once: 32 MB, however many puzzles there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bootstrap:
    """How intervals are drawn."""

    resamples: int = 2000
    confidence: float = 0.95
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tries:
    """Episodes of one puzzle."""

    num: int
    successes: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of n tries, drawn without putting back, hold one of the c successes.

    The unbiased estimate 1 - C(n-c, k) / C(n, k) of Chen et al. 2021 (arXiv 2107.03374, eq. 1),
    in whole numbers until the last division.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(
            f"pass@{k} of {n} tries with {c} successes: needs 0 <= c <= n, 1 <= k <= n"
        )
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def tries_by_puzzle(trajectories: Iterable[Trajectory]) -> dict[str, Tries]:
    """Puzzle hash -> its tries, in order of first appearance, failures of the policy left out."""
    counts: dict[str, list[int]] = {}
    for trajectory in trajectories:
        if trajectory.stop_reason != StopReason.POLICY_ERROR:
            count = counts.setdefault(trajectory.puzzle_hash, [0, 0])
            count[0] += 1
            count[1] += trajectory.success
    return {puzzle: Tries(num=num, successes=won) for puzzle, (num, won) in counts.items()}


def puzzle_values(tries: Mapping[str, Tries], k: int) -> dict[str, float]:
    """Pass@k of each puzzle that was tried at least k times."""
    return {
        puzzle: pass_at_k(each.num, each.successes, k)
        for puzzle, each in tries.items()
        if each.num >= k
    }


def success_scores(
    trajectories: Sequence[Trajectory],
    *,
    pass_k: Iterable[int] = (1,),
    bootstrap: Bootstrap | None = None,
) -> dict[str, float | None]:
    """`pass@k`, `pass@k_low` and `pass@k_high` for each k, `n` episodes, `puzzles`, `errors`.

    None stands where no puzzle was tried k times.
    """
    tries = tries_by_puzzle(trajectories)
    num = sum(each.num for each in tries.values())
    counts = {"n": num, "puzzles": len(tries), "errors": len(trajectories) - num}
    return pass_scores(tries, pass_k=pass_k, bootstrap=bootstrap) | counts


def pass_scores(
    tries: Mapping[str, Tries],
    *,
    pass_k: Iterable[int] = (1,),
    bootstrap: Bootstrap | None = None,
) -> dict[str, float | None]:
    """`pass@k`, `pass@k_low`, `pass@k_high` for each k; None where no puzzle was tried so often."""
    scores: dict[str, float | None] = {}
    for k in sorted(set(pass_k)):
        values = list(puzzle_values(tries, k).values())
        low, high = interval(values, bootstrap)
        scores[f"pass@{k}"] = sum(values) / len(values) if values else None
        scores[f"pass@{k}_low"], scores[f"pass@{k}_high"] = low, high
    return scores


def scores_by_difficulty(
    tries: Mapping[str, Tries],
    bounds: Mapping[str, tuple[float | None, float | None]],
    *,
    pass_k: Iterable[int] = (1,),
    bootstrap: Bootstrap | None = None,
) -> dict[str, dict[str, float | None]]:
    """`pass_scores` of each quarter of the puzzles, the hardest first; with `puzzles`, and with
    `floor` and `ceiling`, the means of `bounds`: how often random and optimal play solve a puzzle.

    The hardest are those that random play solves least often. Empty where that isn't known of each
    puzzle, or where there are fewer than `MIN_PUZZLES`.
    """
    pass_k = list(pass_k)
    known = {puzzle: bounds[puzzle][0] for puzzle in tries}
    floors = {puzzle: floor for puzzle, floor in known.items() if floor is not None}
    if len(floors) < max(len(tries), MIN_PUZZLES):
        return {}
    found: dict[str, dict[str, float | None]] = {}
    ordered = sorted(floors, key=lambda puzzle: floors[puzzle])
    for number, name in enumerate(QUARTERS):
        part = ordered[number * len(ordered) // 4 : (number + 1) * len(ordered) // 4]
        tops = [top for puzzle in part if (top := bounds[puzzle][1]) is not None]
        found[name] = {
            "puzzles": len(part),
            "floor": math.fsum(floors[puzzle] for puzzle in part) / len(part),
            "ceiling": math.fsum(tops) / len(part) if len(tops) == len(part) else None,
        } | pass_scores(
            {puzzle: tries[puzzle] for puzzle in part}, pass_k=pass_k, bootstrap=bootstrap
        )
    return found


def attainable(
    scores: Mapping[str, float | None], *, name: str = "pass@1"
) -> dict[str, float | None]:
    """`attainable`: which share of the way from random to optimal play a success rate has come.

    (score - floor) / (ceiling - floor), and the same of the ends of the score's interval: what
    floor and ceiling themselves may be off by isn't in it. All None without both bounds, or where
    they are equal.
    """
    floor, ceiling = scores.get("floor"), scores.get("ceiling")
    found: dict[str, float | None] = {}
    for end in ("", "_low", "_high"):
        rate = scores.get(f"{name}{end}")
        if rate is None or floor is None or ceiling is None or ceiling <= floor:
            found[f"attainable{end}"] = None
        else:
            found[f"attainable{end}"] = (rate - floor) / (ceiling - floor)
    return found


def interval(
    values: Sequence[float], bootstrap: Bootstrap | None = None
) -> tuple[float | None, float | None]:
    """Interval of the mean of rates in [0, 1], one of each puzzle: percentile bootstrap.

    Where the sample can't show its own spread, the bootstrap would claim certainty. Puzzles that
    all failed or all succeeded give the exact binomial bound instead (of n puzzles: (alpha/2) to
    the power 1/n), puzzles of one rate between Wilson's for as many tries as puzzles, which is
    wider than theirs would be; a single puzzle says nothing of the others: 0 to 1; no puzzle: None.
    """
    settings = bootstrap or Bootstrap()
    tail = (1 - settings.confidence) / 2
    if not values:
        return None, None
    if len(values) == 1:
        return 0.0, 1.0
    if all(value == 0 for value in values):
        return 0.0, 1 - tail ** (1 / len(values))
    if all(value == 1 for value in values):
        return tail ** (1 / len(values)), 1.0
    if _are_alike(values):
        return _wilson(values[0], len(values), tail)
    return _quantiles(_resampled_means(np.asarray(values, float), settings), tail)


def paired_gain(
    before: Mapping[str, Tries], after: Mapping[str, Tries], bootstrap: Bootstrap | None = None
) -> dict[str, float] | None:
    """Mean of `after - before` in Pass@1 over their common puzzles, with its interval.

    None where fewer than two puzzles are common. Where all gain the same, the interval is put
    together from those of both rates (Newcombe 1998, method 10).
    """
    first, second = puzzle_values(before, 1), puzzle_values(after, 1)
    pairs = [(first[puzzle], second[puzzle]) for puzzle in first if puzzle in second]
    if len(pairs) < 2:
        return None
    settings = bootstrap or Bootstrap()
    gains = [late - early for early, late in pairs]
    gain = sum(gains) / len(gains)
    if _are_alike(gains):
        low, high = _newcombe([early for early, _ in pairs], [late for _, late in pairs], settings)
    else:
        means = _resampled_means(np.asarray(gains, float), settings)
        low, high = _quantiles(means, (1 - settings.confidence) / 2)
    return {"gain": gain, "low": low, "high": high, "puzzles": len(gains)}


def _are_alike(values: Sequence[float]) -> bool:
    return max(values) - min(values) < _ALIKE


def _wilson(rate: float, num: int, tail: float) -> tuple[float, float]:
    """Wilson's interval of a rate in `num` tries."""
    z = NormalDist().inv_cdf(1 - tail)
    middle = (rate + z * z / (2 * num)) / (1 + z * z / num)
    reach = z * math.sqrt(rate * (1 - rate) / num + (z / (2 * num)) ** 2) / (1 + z * z / num)
    return middle - reach, middle + reach


def _newcombe(
    before: Sequence[float], after: Sequence[float], settings: Bootstrap
) -> tuple[float, float]:
    early, late = fmean(before), fmean(after)
    (low_0, high_0), (low_1, high_1) = interval(before, settings), interval(after, settings)
    assert low_0 is not None and high_0 is not None and low_1 is not None and high_1 is not None
    gain = late - early
    low = gain - math.hypot(late - low_1, high_0 - early)
    return low, gain + math.hypot(high_1 - late, early - low_0)


def _resampled_means(values: Floats, settings: Bootstrap) -> Floats:
    rng = np.random.default_rng(settings.seed)
    block = max(1, _MAX_DRAWS // len(values))
    means = [
        values[
            rng.integers(len(values), size=(min(block, settings.resamples - start), len(values)))
        ].mean(axis=1)
        for start in range(0, settings.resamples, block)
    ]
    return np.concatenate(means)


def _quantiles(means: Floats, tail: float) -> tuple[float, float]:
    low, high = np.quantile(means, (tail, 1 - tail))
    return float(low), float(high)
