"""The paper's success rates (arXiv 2510.15047) as data, each with the table or figure it stands in.

Rates are fractions; the paper prints per cent, without intervals or seeds. `is_read_off` marks what
was read off a plot by eye. "Before" is the model that PPO starts from: the instruct model as it is
(vanilla RL), the same with coordinates in its prompt (state estimation), or the finetuned one.
Which slip its lakes have isn't stated; at the published code's 1/3 no policy reaches its 0.709.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

FAMILIES = ("frozenlake", "sokoban", "sudoku")
MAIN_MODEL = "Qwen2.5-1.5B-Instruct"
LARGE_LAKE, LARGE_LAKE_MODEL = "6x6", "Qwen2.5-3B"
"""Its lakes are larger than those of the other models."""
SAME_ARM = {"spa_coords": "spa"}
"""Our arm -> the paper's that it is, for the models whose other arms have no coordinates."""

Rates = tuple[float, float]
"""Pass@1 and Pass@8."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What the paper says of one experiment on one game with one model."""

    experiment: str
    family: str
    model: str
    after: Rates
    before: Rates | None = None
    """Of the model that PPO starts from; None where the paper doesn't say."""
    where: str
    is_read_off: bool = False
    note: str = ""


# Tables 2 and 7: model -> by arm, before and after PPO, Sokoban, FrozenLake, Sudoku, in per cent.
# VAGEN starts from the instruct model; the paper prints no value of its own before PPO.
_TABLES_2_AND_7 = {
    "Qwen2.5-0.5B-Instruct": {
        "vanilla_rl": ("5.5/25.8 8.1/32.8 0.0/0.0", "16.9/35.9 22.8/30.1 0.0/0.0"),
        "state_estimation_rl": ("5.2/25.4 6.7/28.5 0.1/0.8", "20.4/38.7 24.2/26.6 4.5/14.1"),
        "vagen_reward": ("", "33.3/44.9 25.8/40.6 0.1/0.8"),
        "spa": ("1.8/11.7 3.1/15.6 0.1/0.8", "36.7/45.3 46.9/65.6 18.2/43.8"),
    },
    "Qwen2.5-1.5B-Instruct": {
        "vanilla_rl": ("16.3/47.3 17.2/49.2 1.6/11.3", "25.6/34.0 22.1/30.7 0.0/0.0"),
        "state_estimation_rl": ("15.7/43.8 18.6/51.2 0.3/2.3", "52.7/53.9 27.6/34.8 39.1/72.3"),
        "vagen_reward": ("", "44.5/50.0 37.7/43.0 0.0/0.0"),
        "spa": ("8.3/36.7 9.8/43.8 3.5/24.2", "59.8/69.5 70.9/75.0 59.6/94.9"),
    },
    "Qwen2.5-3B": {
        "vanilla_rl": ("12.5/35.9 6.9/26.9 0.0/0.0", "31.4/35.5 7.6/16.0 0.0/0.0"),
        "state_estimation_rl": ("9.9/39.3 6.9/26.6 0.1/0.8", "26.2/27.7 24.7/35.5 24.1/26.2"),
        "vagen_reward": ("", "31.9/43.0 30.7/34.0 0.0/0.0"),
        "spa": ("6.0/29.7 1.6/10.5 0.3/2.7", "49.7/58.2 41.3/46.1 69.9/89.8"),
    },
    "LLaMA3.2-1B-Instruct": {
        "vanilla_rl": ("8.3/33.2 10.2/41.0 0.0/0.0", "21.2/39.8 10.8/24.6 0.1/1.2"),
        "state_estimation_rl": ("9.6/33.6 10.9/43.0 0.1/0.8", "31.6/44.1 19.3/29.7 45.0/71.1"),
        "vagen_reward": ("", "47.4/50.8 24.5/29.3 0.1/0.8"),
        "spa": ("6.3/27.7 11.4/38.3 1.3/9.8", "53.0/68.0 64.8/71.1 81.3/100"),
    },
}


def _main_rows() -> Iterator[Published]:
    families = ("sokoban", "frozenlake", "sudoku")
    for model, arms in _TABLES_2_AND_7.items():
        for arm, (before, after) in arms.items():
            starts = before.split() or [""] * len(families)
            for family, start, end in zip(families, starts, after.split(), strict=True):
                is_large = (model, family) == (LARGE_LAKE_MODEL, "frozenlake")
                yield Published(
                    experiment=arm,
                    family=family,
                    model=model,
                    before=_rates(start) if start else None,
                    after=_rates(end),
                    where="tables 2 and 7",
                    note="on 6x6 lakes" if is_large else "",
                )


def _rates(text: str) -> Rates:
    """`16.3/47.3` in per cent as two fractions."""
    one, eight = text.split("/")
    return round(float(one) / 100, 4), round(float(eight) / 100, 4)


def _ablation(experiment: str, rates: str, where: str, **more: object) -> Published:
    """A row on Sokoban with the main model, where nothing else is said."""
    values: dict[str, object] = {"family": "sokoban", "model": MAIN_MODEL, **more}
    return Published(experiment=experiment, after=_rates(rates), where=where, **values)  # type: ignore[arg-type]


_EPOCHS = ("29.15/52.73", "19.09/53.12", "42.04/61.33", "47.12/64.45", "59.81/69.53")
PUBLISHED: tuple[Published, ...] = (
    *_main_rows(),
    _ablation("spa_self_belief", "39.2/44.2", "table 3"),
    _ablation("spa_no_coords", "36.3/40.6", "table 4"),
    _ablation(
        "spa_random_policy",
        "20.2/50.0",
        "table 5",
        note="five epochs; one epoch 0.14/0.39, printed so, which may be fractions",
    ),
    *(
        _ablation(f"spa_epochs_{epochs}", rates, "figure 6")
        for epochs, rates in enumerate(_EPOCHS, start=1)
    ),
    _ablation("spa_masked_states", "40/48", "figure 4", is_read_off=True, note="600 PPO steps"),
    _ablation("spa_random_coords", "20/28", "figure 5", is_read_off=True),
    _ablation(
        "spa_raw_unfiltered",
        "30/48",
        "figure 8",
        model="LLaMA3.2-1B-Instruct",
        note="the same figure gives filtered data 0.53/0.68",
    ),
    _ablation(
        "easy_to_hard",
        "32.6/35.9",
        "figure 9",
        family="frozenlake",
        model="Qwen2.5-3B",
        note="finetuned on 4x4 lakes, then 6x6; SPA finetuned on 6x6 0.413/0.461",
    ),
    _ablation(
        "cross_complexity",
        "0.9/3.1",
        "table 6",
        note="one box, then 10x10 with two; trained there alone 0.001/0.008",
    ),
    _ablation(
        "cross_game",
        "15.9/49.2",
        "table 6",
        family="frozenlake",
        note="finetuned on Sokoban; untouched model 0.172/0.492",
    ),
)


def family_of(env_id: str) -> str:
    """The game that an id is a variant of; empty where the paper doesn't play it."""
    return next((family for family in FAMILIES if env_id.startswith(family)), "")


def is_same_model(ours: str, theirs: str) -> bool:
    """Whether two names are of one model: neither owner, case, hyphens nor `Instruct` matter."""
    return _plain_name(ours) == _plain_name(theirs)


def _plain_name(model: str) -> str:
    return re.sub(r"[-_ ]|instruct", "", model.rpartition("/")[2].lower())


def published_row(experiment: str, env_id: str, model: str) -> Published | None:
    """The paper's row for an experiment with a model; None where it has none.

    An empty name is one of ours from scratch, which the paper hasn't: it stands beside the model
    that played on our size, else the main one.
    """
    arm = SAME_ARM.get(experiment, experiment)
    rows = [row for row in PUBLISHED if row.experiment == arm and row.family == family_of(env_id)]
    if model:
        return next((row for row in rows if is_same_model(model, row.model)), None)
    wanted = (LARGE_LAKE_MODEL if LARGE_LAKE in env_id else "", MAIN_MODEL)
    rows.sort(key=lambda row: wanted.index(row.model) if row.model in wanted else len(wanted))
    return rows[0] if rows else None


def text_of(row: Published | None, *, is_short: bool = False) -> str:
    """A row as a cell: rates, where they stand, the model; `~` or words for what was read off."""
    if row is None:
        return "–"
    if is_short:
        return f"{pair_text(row.after)}{' ~' if row.is_read_off else ''}, {row.where}"
    mark = " (read off a plot)" if row.is_read_off else ""
    note = f": {row.note}" if row.note else ""
    return f"{pair_text(row.after)}, {row.where}{mark}, {row.model}{note}"


def pair_text(rates: Rates) -> str:
    """Pass@1 / Pass@8."""
    return f"{rates[0]:.3f} / {rates[1]:.3f}"
