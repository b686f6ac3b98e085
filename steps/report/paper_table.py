"""Our rows beside the paper's, as Markdown, CSV and pictures.

    python -m steps.report.paper_table RUN [RUN ...] [--out DIR] [--at-equal episodes|seconds]

RUN is a JSON file of `steps.orchestration.export` or `benchmarks.side_by_side`, a directory of such
files, or a run's id or pathspec in this directory's datastore. Prints the table, in a terminal a
short one without the paper's; `--out` writes table.md, table.csv, table.png, and curves.png (a file
an environment where there are several).
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from steps import storage
from steps.errors import SPAError
from steps.report import exports
from steps.report.differences import differences
from steps.report.equal import (
    UNITS,
    WINDOW,
    AtEqual,
    at_equal,
    curve_of,
    own_budget,
    without_curve,
)
from steps.report.exports import Played
from steps.report.paper_pictures import arm_name, curves, picture
from steps.report.paper_rows import Estimate, Row, estimate_text, rows_of, value_of
from steps.report.published import pair_text, text_of
from steps.report.tables import NONE, SHARED_STARTS, UNSOLVED, duration, number, plain_table

WORLD_MODEL = (
    "format_rate",
    "observation_exact",
    "prediction_exact",
    "prediction_possible",
    "prediction_probability",
    "prediction_best",
)
MANY = 100
"""From here on the fraction of a mean count says nothing."""
CAPTION = (
    "Pass@k over test puzzles that no stage has seen{but}, mean over seeds; without training: "
    "*random* and *optimal* play (unknown where the game has no exact solver) of the same puzzles, "
    "turns and action budget; *share* is how much of the way between the two Pass@1 has come. In "
    "brackets, by the number of seeds: one, the bootstrap interval over puzzles; two (marked r), "
    "the range of the two; three or more (marked t), Student's 95% interval over the seeds, cut to "
    "0..1. The puzzles are the same for every seed: r and t don't hold the luck of the puzzles. "
    "Before → after: the model that PPO started from, and the final one; *state right* and *next "
    "possible* are shares of all turns. The paper's: Pass@1 / Pass@8, without intervals. Differs: "
    "our setting (the paper's)."
)
SHORT_CAPTION = (
    "In brackets, by the number of seeds: one, the interval over puzzles; two (r),\n"
    "their range; three or more (t), Student's. attainable: of the way from random\n"
    "to optimal play."
)
LayOut = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
"""Headers and rows to text."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; a user's mistake is one line and exit status 2."""
    parser = argparse.ArgumentParser(
        prog="python -m steps.report.paper_table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="file, directory, id or pathspec")
    parser.add_argument("--out", type=Path, help="directory to write to")
    parser.add_argument("--at-equal", choices=UNITS, help="compare arms at their common point")
    options = parser.parse_args(arguments)
    try:
        storage.check_out(options.out)
        found = exports.read(options.runs)
        rows, lines = rows_of(found.played)
        lines += found.left_out
        unit = options.at_equal or ""
        text = markdown(rows, lines, unit)
        if sys.stdout.isatty():
            out = options.out
            where = out / "table.md" if out else "--out DIR writes it, a pipe gets it"
            sys.stdout.write(short(rows, lines, unit))
            sys.stdout.write(f"The whole table, beside the paper's: {where}\n")
        else:
            sys.stdout.write(text)
        sys.stdout.flush()
        storage.write_out(options.out, lambda out: write(out, rows, text))
    except SPAError as error:
        parser.exit(2, f"{error}\n")


def write(out: Path, rows: Sequence[Row], text: str) -> Iterator[Path]:
    """The table and its pictures as files, each named once it is written."""
    out.mkdir(parents=True, exist_ok=True)
    contents: dict[str, Callable[[], bytes]] = {
        "table.md": text.encode,
        "table.csv": lambda: as_csv(rows).encode(),
    }
    if rows:
        contents["table.png"] = lambda: picture(rows)
    env_ids = list(dict.fromkeys(row.env_id for row in rows if any(map(curve_of, row.runs))))
    for env_id in env_ids:
        name = "" if len(env_ids) == 1 else "_" + re.sub(r"[^\w.-]", "_", env_id)
        own = [row for row in rows if row.env_id == env_id]
        contents[f"curves{name}.png"] = partial(curves, own)
    for name, content in contents.items():
        (out / name).write_bytes(content())
        yield out / name


def markdown(rows: Sequence[Row], lines: Sequence[str], unit: str = "") -> str:
    """The whole text: table, caption, what is missing, and the arms at their common point.

    `unit` is that of the point (`equal.UNITS`); empty compares none.
    """
    parts = []
    if rows:
        parts += [_table(*_cells(rows)), _caption(rows)]
    return _text([*parts, *_below(rows, lines, unit, _table)])


def short(rows: Sequence[Row], lines: Sequence[str], unit: str = "") -> str:
    """The same for a terminal: of the table success alone, an environment after the other."""
    parts = []
    for env_id in dict.fromkeys(row.env_id for row in rows):
        of_env = [row for row in rows if row.env_id == env_id]
        measured = f", {SHARED_STARTS}" if env_id in _shared(rows) else ""
        parts.append(f"{env_id}{measured}\n{plain_table(*_short_cells(of_env))}")
    if rows:
        parts.append(SHORT_CAPTION)
    return _text([*parts, *_below(rows, lines, unit, plain_table)])


def _text(parts: Sequence[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _below(rows: Sequence[Row], lines: Sequence[str], unit: str, lay_out: LayOut) -> list[str]:
    """What stands below the table: what isn't in it, and the arms at their common point."""
    parts = [] if rows else ["No run was evaluated."]
    if lines:
        parts.append("Not in the table, or not as one row:\n\n" + _bullets(lines))
    return parts + (_equal_parts(rows, unit, lay_out) if unit else [])


def _short_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    ks = sorted({k for row in rows for k in row.ks} - {1})
    many = [8] if 8 in ks else ks[-1:]
    headers = ["arm", "Pass@1", *(f"Pass@{k}" for k in many), "attainable", "random", "optimal"]
    return headers, [
        [
            arm_name(row, rows),
            estimate_text(row.score("pass@1")),
            *(number(value_of(row.score(f"pass@{k}"))) for k in many),
            _percent(row.attainable),
            *_bounds(row),
        ]
        for row in rows
    ]


def _caption(rows: Sequence[Row]) -> str:
    shared = ", ".join(_shared(rows))
    return CAPTION.format(but=f" (but {shared}: {SHARED_STARTS})" if shared else "")


def _shared(rows: Sequence[Row]) -> list[str]:
    """Environments whose test starts may be those of training."""
    runs = (run for row in rows for run in row.runs)
    return list(dict.fromkeys(run.env_id for run in runs if run.summary.get("few_puzzles")))


def as_csv(rows: Sequence[Row]) -> str:
    """One line a row, every number in a column of its own, empty where it wasn't measured."""
    records = [record(row) for row in rows]
    columns = list(dict.fromkeys(key for each in records for key in each))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def record(row: Row) -> dict[str, Any]:
    """Everything the table knows of a row, by column."""
    found: dict[str, Any] = {
        "environment": row.env_id,
        "experiment": row.experiment,
        "model": row.model,
        "variant": row.variant,
        "seeds": " ".join(str(run.seed) for run in row.runs),
        "runs": " ".join(run.run for run in row.runs),
    }
    for k in row.ks:
        found |= _ends(f"pass@{k}", row.score(f"pass@{k}"))
        found |= _ends(f"before_pass@{k}", row.score(f"pass@{k}", before=True))
    for key in ("greedy_success", "floor", "ceiling"):
        found[key] = value_of(row.score(key))
    found |= _ends("attainable", row.attainable)
    for key in WORLD_MODEL:
        found[key] = value_of(row.score(key))
        found[f"before_{key}"] = value_of(row.score(key, before=True))
    found |= {name: row.mean(of) for name, of in FACTS.items()}
    return found | _paper_record(row)


FACTS: dict[str, Callable[[Played], float | None]] = {
    "ppo_steps": lambda run: run.ppo.get("steps"),
    "ppo_episodes": lambda run: (
        None if run.ppo.get("steps") is None else run.ppo["steps"] * run.episodes_a_step
    ),
    "ppo_seconds": lambda run: run.ppo.get("seconds"),
    "sft_seconds": lambda run: run.computed("sft_train").get("seconds"),
    "run_seconds": lambda run: run.seconds,
    "parameters": lambda run: (
        run.stages.get("sft_train", {}).get("parameters")
        or run.stages.get("ppo_train", {}).get("parameters")
    ),
}
"""Column -> fact of a run, of what it computed itself."""


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    ks = sorted({k for row in rows for k in row.ks})
    headers = [
        *("environment", "experiment", "model", "seeds"),
        *(f"Pass@{k}" for k in ks),
        *("random", "optimal", "share", "Pass@1 before", "state right", "next possible"),
        *("PPO steps (episodes)", "PPO time", "paper", "paper, before PPO", "differs"),
    ]
    return headers, [_row_cells(row, ks) for row in rows]


def _row_cells(row: Row, ks: Sequence[int]) -> list[str]:
    paper, facts = row.published, {name: row.mean(of) for name, of in FACTS.items()}
    size = facts["parameters"]
    return [
        row.env_id,
        row.arm,
        row.model + (f" ({_short(size)})" if size else ""),
        str(len(row.runs)),
        *(estimate_text(row.score(f"pass@{k}")) for k in ks),
        *_bounds(row),
        _percent(row.attainable),
        estimate_text(row.score("pass@1", before=True)),
        *(_before_after(row, key) for key in ("observation_exact", "prediction_possible")),
        f"{_count(facts['ppo_steps'])} ({_count(facts['ppo_episodes'])})",
        duration(facts["ppo_seconds"]) or NONE,
        text_of(paper),
        NONE if paper is None or paper.before is None else pair_text(paper.before),
        "; ".join([*_own_notes(row), *differences(row, paper)]) or NONE,
    ]


def _bounds(row: Row) -> tuple[str, str]:
    """Random and optimal play."""
    floor, ceiling = (value_of(row.score(key)) for key in ("floor", "ceiling"))
    is_unsolved = floor is not None and ceiling is None
    return number(floor), UNSOLVED if is_unsolved else number(ceiling)


def _equal_parts(rows: Sequence[Row], unit: str, lay_out: LayOut) -> list[str]:
    equal, missing = at_equal(rows, unit), without_curve(rows)
    parts = [f"### At equal {unit}"]
    if equal:
        parts += [lay_out(*_equal_cells(equal)), _words(equal)]
    if missing:
        parts.append("Not compared:\n\n" + _bullets(missing))
    return parts


def _equal_cells(equal: Sequence[AtEqual]) -> tuple[list[str], list[list[str]]]:
    ks = sorted({int(key[5:]) for each in equal for key in each.probe if key[5:].isdigit()} - {1})
    headers = [
        *("environment", "experiment", "model", "seeds", f"at {equal[0].unit}", "success"),
        *("probe's success", *(f"probe's Pass@{k}" for k in ks), "probe at"),
    ]
    return headers, [
        [
            each.row.env_id,
            each.row.arm,
            each.row.model,
            str(len(each.row.runs)),
            number(round(each.at)),
            estimate_text(each.success),
            number(each.probe.get("success")),
            *(number(each.probe.get(f"pass@{k}")) for k in ks),
            number(None if each.probe_at is None else round(each.probe_at)),
        ]
        for each in equal
    ]


def _words(equal: Sequence[AtEqual]) -> str:
    budget = own_budget(each.row for each in equal)
    return (
        f"Each environment's arms after as many {equal[0].unit} of PPO as the shortest run has. "
        f"Success: PPO's own play on fresh puzzles{f' with {budget}' if budget else ''}, running "
        f"mean over {WINDOW} steps; in brackets as above, but nothing for one seed. Probe: "
        "validation puzzles, the nearest that was taken."
    )


def _own_notes(row: Row) -> list[str]:
    """What a reader must know of the runs themselves."""
    taken = [run.stages[stage]["taken_from"] for run in row.runs for stage in run.stages
             if "taken_from" in run.stages[stage] and "directory" in run.stages[stage]]  # fmt: skip
    origins = dict.fromkeys(
        f"{each['stage']} of {each['run']} on {each['env']}"
        if "run" in each
        else f"a model directory (digest {each['digest'][:12]})"
        for each in taken
    )
    notes = [f"starts from {', '.join(origins)}"] if origins else []
    errors = sum(run.summary.get("errors") or 0 for run in row.runs)
    return notes + ([f"{errors} episodes broke and aren't counted"] if errors else [])


def _paper_record(row: Row) -> dict[str, Any]:
    paper = row.published
    notes = "; ".join([*_own_notes(row), *differences(row, paper)])
    if paper is None:
        return {"notes": notes}
    before = paper.before or (None, None)
    return {
        "paper_pass@1": paper.after[0],
        "paper_pass@8": paper.after[1],
        "paper_before_pass@1": before[0],
        "paper_before_pass@8": before[1],
        "paper_model": paper.model,
        "paper_where": paper.where,
        "paper_is_read_off": paper.is_read_off,
        "paper_note": paper.note,
        "notes": notes,
    }


def _percent(found: Estimate | None) -> str:
    return NONE if found is None else f"{found.value:.0%}"


def _before_after(row: Row, key: str) -> str:
    before, after = row.score(key, before=True), row.score(key)
    if after is None:
        return NONE
    return f"{number(value_of(before))} → {number(after.value)}"


def _ends(name: str, found: Estimate | None) -> dict[str, Any]:
    if found is None:
        return {name: None}
    return {
        name: found.value,
        f"{name}_low": found.low,
        f"{name}_high": found.high,
        f"{name}_interval": found.kind,
    }


def _count(value: float | None) -> str:
    """A mean of counts: whole where it is, and from `MANY` on rounded."""
    if value is None or (value != int(value) and value < MANY):
        return number(value)
    return number(round(value))


def _short(size: float) -> str:
    """A number of parameters as it is said."""
    return f"{size / 1e6:.2g}M" if size < 1e9 else f"{size / 1e9:.2g}B"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "¦") for cell in each) + " |" for each in lines
    )


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


if __name__ == "__main__":
    main()
