"""docs/environments.md from the data sheets, so that what is said of a game stands beside it.

    python -m envs.sheets                             # the page, on the terminal
    python -m envs.sheets --write docs                # page and pictures
    python -m envs.sheets --write docs --measure all  # floors and ceilings, too: minutes

Floors and ceilings take long where they are played, so they are kept beside the page in
environments.json, each with the budget and the arguments that it was measured under. One that was
measured under other arguments than the id has now is left out of the page.
"""

from __future__ import annotations

import argparse
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import envs
from envs import bounds_cache
from envs.base import DataSheet, TextEnv
from envs.solvers import floor_and_ceiling, rate_text

Numbers = dict[str, dict[str, Any]]
"""Id -> arguments, max_actions, puzzles, and what `floor_and_ceiling` found."""

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, NUMBERS, PICTURES = "environments.md", "environments.json", "images/envs"
SEED = 0
"""Of the puzzle that is shown."""

_INTRODUCTION = f"""\
# Environments

<!-- Written by `python -m envs.sheets --write docs`: change the data sheets in envs/, not this. -->

A game is made by its id, `envs.make("sokoban")`, and trained on with
`python flows/spa_flow.py run --env sokoban`. An id always means the same world; other arguments are
given as `envs.make("sokoban", size=8)` or in a file of `conf/env/`. A text that is no action
changes nothing and never raises. How to add a game of your own is told in
[custom_environments.md](custom_environments.md).

*Floor* is the share of puzzles that uniformly random play solves, *ceiling* the share that perfect
play does, both with the number of actions that the table names, looking after each, over the seeds
from 0 on (512 of them, unless environments.json says otherwise). They are exact unless an interval
(95%) stands beside them: then the floor was played. A dash is unknown. Other budgets, or several
actions played blind: `python -m envs.solvers ID --max-actions 10 --max-turns 5
--max-actions-per-turn 2`.

The pictures and texts below are those of seed {SEED}.
"""
_FIELDS = ("state", "actions", "reward", "end", "puzzles", "solver", "source")


def our_ids() -> list[str]:
    """Registered ids of this package; games of installed packages have their own pages."""
    return [env_id for env_id in envs.list_ids() if _entry_point(env_id).startswith("envs.")]


def page(numbers: Numbers) -> str:
    """The whole page."""
    groups: dict[str, list[str]] = {}
    for env_id in our_ids():
        groups.setdefault(_entry_point(env_id), []).append(env_id)
    drawn = pictures()
    sections = [_section(env_ids, drawn) for env_ids in groups.values()]
    return "\n".join([_INTRODUCTION, _overview(groups.values(), numbers), *sections])


def pictures() -> dict[str, bytes]:
    """Id -> PNG of its first board, where the game draws pixels."""
    found = {}
    for env_id in our_ids():
        game = _game(env_id)
        if "rgb_array" in game.metadata["render_modes"]:
            frame = _game(env_id, render_mode="rgb_array").render()
            assert isinstance(frame, np.ndarray), type(frame)
            found[env_id] = png(frame)
    return found


def measure(
    env_ids: Iterable[str], numbers: Numbers, max_actions: Mapping[str, int], num_puzzles: int
) -> Numbers:
    """`numbers` with those of `env_ids` computed anew; a budget that isn't given stays."""
    found = dict(numbers)
    for env_id in env_ids:
        budget = max_actions.get(env_id, numbers.get(env_id, {}).get("max_actions", 10))
        bounds = floor_and_ceiling(
            env_id, budget, range(num_puzzles), cache=bounds_cache.cache_directory()
        )
        found[env_id] = {
            "arguments": _plain(envs.spec_of(env_id)),
            "max_actions": budget,
            "puzzles": num_puzzles,
            **{key: _rounded(value) for key, value in bounds.items()},
        }
    return {env_id: found[env_id] for env_id in our_ids() if env_id in found}


def _rounded(value: float | None) -> float | None:
    return round(value, 6) if isinstance(value, float) else value


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An image file of red, green and blue `(height, width, 3)`."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    unfiltered = np.zeros((height, 1 + width * 3), dtype=np.uint8)
    unfiltered[:, 1:] = pixels.reshape(height, -1)
    data = zlib.compress(unfiltered.tobytes(), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def _overview(groups: Iterable[list[str]], numbers: Numbers) -> str:
    rows = ["| id | what sets it apart | arguments | actions | floor | ceiling |"]
    rows.append("|---|---|---|---|---|---|")
    for env_ids in groups:
        variants = _sheet(env_ids).variants
        for env_id in env_ids:
            apart = variants.get(env_id, "").rstrip(".") or "–"
            cells = (f"`{env_id}`", apart, _arguments(env_id), *_bounds(env_id, numbers))
            rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _arguments(env_id: str) -> str:
    given = gymnasium.registry[envs.NAMESPACE + env_id].kwargs
    shown = ", ".join(f"{name}={_value(value)}" for name, value in given.items())
    return f"`{shown}`" if shown else "–"


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _bounds(env_id: str, numbers: Numbers) -> tuple[str, str, str]:
    """Actions, floor and ceiling."""
    kept = numbers.get(env_id)
    if kept is None or kept["arguments"] != _plain(envs.spec_of(env_id)):
        return "–", "–", "–"
    floor, ceiling = rate_text(kept["floor"]), rate_text(kept["ceiling"])
    if kept["floor"] is not None and not kept["floor_exact"]:
        floor += f" [{rate_text(kept['floor_low'])}, {rate_text(kept['floor_high'])}]"
    return str(kept["max_actions"]), floor, ceiling


def _section(env_ids: Sequence[str], drawn: Mapping[str, bytes]) -> str:
    sheet, game = _sheet(env_ids), _game(env_ids[0])
    lines = [f"## {sheet.title}", "", sheet.summary, ""]
    lines += [f"- **{name.capitalize()}.** {getattr(sheet, name)}" for name in _FIELDS]
    lines += [f"- **Constructor.** {_constructor(env_ids[0])}", ""]
    if sheet.deviations:
        lines += ["Where it differs from what was published:", ""]
        lines += [f"{number}. {text}" for number, text in enumerate(sheet.deviations, start=1)]
        lines.append("")
    lines += _boards(env_ids, drawn)
    lines += ["The rules, as the model reads them:", "", _block(game.instruction), ""]
    lines += [f"The first state of `{env_ids[0]}`:", "", _block(game.describe()), ""]
    return "\n".join(lines)


def _boards(env_ids: Sequence[str], drawn: Mapping[str, bytes]) -> list[str]:
    """A table of the pictures; ids that look alike share one."""
    same: dict[bytes, list[str]] = {}
    for env_id in env_ids:
        if env_id in drawn:
            same.setdefault(drawn[env_id], []).append(env_id)
    if not same:
        return []
    names = [", ".join(f"`{each}`" for each in group) for group in same.values()]
    images = [f"![{group[0]}]({PICTURES}/{group[0]}.png)" for group in same.values()]
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), images)] + [""]


def _constructor(env_id: str) -> str:
    """The arguments and defaults of the class itself."""
    arguments = envs.spec_of(_entry_point(env_id))
    return f"`{', '.join(f'{name}={_value(value)}' for name, value in arguments.items())}`"


def _block(text: str) -> str:
    """Fenced, whatever stands in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def _sheet(env_ids: Sequence[str]) -> DataSheet:
    sheet = _game(env_ids[0]).sheet
    assert sheet is not None, f"{env_ids[0]} has no data sheet"
    return sheet


def _game(env_id: str, **arguments: Any) -> TextEnv:
    """A game at the start of the puzzle that is shown."""
    game = envs.make(env_id, **arguments).unwrapped
    assert isinstance(game, TextEnv)
    game.reset(seed=SEED)
    return game


def _entry_point(env_id: str) -> str:
    return str(gymnasium.registry[envs.NAMESPACE + env_id].entry_point)


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives them back."""
    plain: dict[str, Any] = json.loads(json.dumps(arguments, default=str))
    return plain


def read_numbers(docs: Path = DOCS) -> Numbers:
    """What was measured and kept beside the page; nothing where nothing is."""
    file = docs / NUMBERS
    numbers: Numbers = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return numbers


def write(docs: Path, numbers: Numbers) -> None:
    """Page, numbers and pictures; pictures of ids that are gone are removed."""
    folder = docs / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    (docs / PAGE).write_text(page(numbers), "utf-8")
    (docs / NUMBERS).write_text(json.dumps(numbers, indent=1) + "\n", "utf-8")
    drawn = pictures()
    for file in folder.glob("*.png"):
        if file.stem not in drawn:
            file.unlink()
    for env_id, data in drawn.items():
        (folder / f"{env_id}.png").write_bytes(data)


def _budget(text: str) -> tuple[str, int]:
    """`sudoku=25` -> ("sudoku", 25)."""
    env_id, _, number = text.partition("=")
    if env_id not in our_ids() or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form id=number")
    return env_id, int(number)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print or write the page on all environments."""
    parser = argparse.ArgumentParser(prog="python -m envs.sheets", description=main.__doc__)
    parser.add_argument("--write", type=Path, metavar="DOCS", help="folder of page and pictures")
    parser.add_argument("--measure", nargs="+", default=[], metavar="ID", help="ids, or all")
    parser.add_argument("--max-actions", type=_budget, nargs="+", default=[], metavar="ID=NUMBER")
    parser.add_argument("--puzzles", type=int, default=512, help="to measure (default 512)")
    options = parser.parse_args(arguments)
    chosen = our_ids() if options.measure == ["all"] else options.measure
    numbers = read_numbers(options.write or DOCS)
    numbers = measure(chosen, numbers, dict(options.max_actions), options.puzzles)
    if options.write is None:
        print(page(numbers))  # noqa: T201
    else:
        write(options.write, numbers)


if __name__ == "__main__":
    main()
