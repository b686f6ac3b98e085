"""The page on all environments is what the generator makes of the data sheets today."""

from __future__ import annotations

import json
import re
import struct
import zlib
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

import envs
from envs import sheets
from envs.solvers import floor_and_ceiling
from envs.tiles import picture

DOCS = Path(envs.__file__).parents[1] / "docs"


def decoded(data: bytes) -> NDArray[np.uint8]:
    """Pixels of a PNG of 8 bits red, green and blue whose rows aren't filtered."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        (check,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        assert check == zlib.crc32(kind + body)
        chunks[kind] = body
        place += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *kind_of = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert kind_of == [8, 2, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_a_png_holds_its_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(decoded(sheets.png(pixels)), pixels)
    board = picture(["#P"], {"#": "wall", "P": "player"}, 16)
    assert np.array_equal(decoded(sheets.png(board)), board)


def test_other_readers_read_it_too(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    board = picture(["#P"], {"#": "wall", "P": "player"}, 16)
    (tmp_path / "board.png").write_bytes(sheets.png(board))
    read = image.imread(tmp_path / "board.png")
    assert np.array_equal((read * 255).round().astype(np.uint8), board)


def test_the_committed_page_is_that_of_the_sheets() -> None:
    made = sheets.page(sheets.read_numbers(DOCS))
    assert (DOCS / "environments.md").read_text("utf-8") == made, (
        "run python -m envs.sheets --write docs"
    )


def test_the_committed_pictures_are_what_the_games_draw() -> None:
    made = sheets.pictures()
    assert {file.stem for file in (DOCS / "images" / "envs").glob("*")} == set(made)
    for env_id, data in made.items():
        kept = (DOCS / "images" / "envs" / f"{env_id}.png").read_bytes()
        assert np.array_equal(decoded(kept), decoded(data)), env_id


@pytest.mark.parametrize("env_id", ["frozenlake", "frozenlake_6x6_upstream", "sokoban", "bandit"])
def test_the_committed_numbers_are_measured_again(env_id: str) -> None:
    kept = sheets.read_numbers(DOCS)[env_id]
    bounds = floor_and_ceiling(env_id, kept["max_actions"], range(kept["puzzles"]))
    assert (bounds["floor_exact"], bounds["ceiling_exact"]) == (True, True)
    assert {key: kept[key] for key in bounds} == pytest.approx(bounds, abs=1e-6)


def test_every_id_has_a_row_and_every_number_is_of_its_arguments() -> None:
    page = (DOCS / "environments.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z0-9_]+)` \|(?:.+\|){5}$", page, re.MULTILINE)
    assert sorted(rows) == sheets.our_ids() and len(rows) > 4
    for env_id, kept in sheets.read_numbers(DOCS).items():
        assert kept["arguments"] == json.loads(json.dumps(envs.spec_of(env_id), default=str))


def test_links_of_the_page_lead_somewhere() -> None:
    page = (DOCS / "environments.md").read_text("utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", page)
    assert len(links) > 5
    assert [link for link in links if not (DOCS / link).exists()] == []


def test_every_registered_class_says_what_sets_its_ids_apart() -> None:
    for env_id in sheets.our_ids():
        sheet = envs.make(env_id).unwrapped.sheet
        assert sheet is not None, env_id
        assert sheet.variants.get(env_id), f"{env_id} is missing in variants"


NUMBERS = {
    "arguments": {"size": 4, "frozen_prob": 0.8, "intended_prob": 0.8, "map": None},
    "max_actions": 12,
    "puzzles": 512,
    "floor": 0.21,
    "floor_low": 0.21,
    "floor_high": 0.21,
    "floor_exact": True,
    "ceiling": 0.95,
    "ceiling_exact": True,
}


@pytest.mark.parametrize(
    ("changes", "cells"),
    [
        ({}, "| 12 | 0.210 | 0.950 |"),
        (
            {"floor_exact": False, "floor_low": 0.2, "floor_high": 0.2222},
            "| 12 | 0.210 [0.200, 0.222] | 0.950 |",
        ),
        ({"ceiling": None, "ceiling_exact": False}, "| 12 | 0.210 | – |"),
        ({"arguments": NUMBERS["arguments"] | {"size": 5}}, "| – | – | – |"),  # type: ignore[operator]
    ],
)
def test_a_row_by_hand(changes: dict[str, object], cells: str) -> None:
    page = sheets.page({"frozenlake": NUMBERS | changes})
    (row,) = re.findall(r"^\| `frozenlake` \|.*$", page, re.MULTILINE)
    assert row == f"| `frozenlake` | 4x4, intended direction with probability 0.8 | – {cells}"
    (row,) = re.findall(r"^\| `frozenlake_6x6_upstream` \|.*$", page, re.MULTILINE)
    assert "| `size=6, intended_prob=0.3333` | – | – | – |" in row


def test_what_is_written_is_what_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    line = ["--write", str(tmp_path), "--puzzles", "3", "--measure", "frozenlake"]
    sheets.main([*line, "--max-actions", "frozenlake=4"])
    kept = sheets.read_numbers(tmp_path)
    assert list(kept) == ["frozenlake"]
    assert (kept["frozenlake"]["max_actions"], kept["frozenlake"]["puzzles"]) == (4, 3)
    (tmp_path / "images" / "envs" / "gone.png").touch()
    sheets.main(line)
    assert sheets.read_numbers(tmp_path) == kept, "a budget stays until another is given"
    assert not (tmp_path / "images" / "envs" / "gone.png").exists()
    assert (tmp_path / "environments.md").read_text("utf-8") == sheets.page(kept)
    assert capsys.readouterr().out == ""


def test_games_of_other_packages_have_no_section(monkeypatch: pytest.MonkeyPatch) -> None:
    envs.register("elsewhere", "examples.sliding_tiles:SlidingTiles")
    try:
        assert "elsewhere" in envs.list_ids() and "elsewhere" not in sheets.our_ids()
    finally:
        gymnasium.registry.pop("spa/elsewhere")


@pytest.mark.parametrize("budget", ["frozenlake", "frozenlake=", "frozenlak=3", "frozenlake=-1"])
def test_a_bad_budget_is_refused(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sheets.main(["--max-actions", budget])
    assert "not of the form id=number" in capsys.readouterr().err


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert sheets._block("a\n```\nb") == "````text\na\n```\nb\n````"
