"""Blocks of a report on the card of a real task, as `card get` hands it out."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.fake_runs import ROOT

FLOW = """
from metaflow import FlowSpec, card, step
from steps.orchestration.cards import say, show
from steps.report.records import Image, Markdown, Table


def blocks(result):
    yield Markdown(text=f"## Rates\\n\\n{result} was measured")
    yield Table(headers=("play", "rate"), rows=(("random play", "0.25"),))
    yield Image(png=bytes.fromhex("89504e470d0a1a0a"), label="two lakes")
    raise ValueError("what comes next is missing")


class Cards(FlowSpec):
    @card(type="blank")
    @step
    def start(self):
        say("failed in sft_train")
        show(blocks, "the rate", "SPAFlow/7/evaluate/6", of="a lake · seed 0 · run 7")
        show(lambda result: [], "nothing more")
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    Cards()
"""


def call(tmp_path: Path, *words: str) -> str:
    line = [sys.executable, "cards.py", "--no-pylint", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "METAFLOW_USER": "tester"}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_card_holds_what_was_said_and_shown_up_to_what_could_not_be(tmp_path: Path) -> None:
    (tmp_path / "cards.py").write_text(FLOW)
    printed = call(tmp_path, "run")
    assert "the card of this step is incomplete" in printed
    assert "ValueError: what comes next is missing" in printed
    call(tmp_path, "card", "get", "start", "card.html")
    page = (tmp_path / "card.html").read_text()
    held = [base64.b64decode(each).decode() for each in re.findall(r'\] = "([\w+/=]+)"', page)]
    for text in ("failed in sft_train", "Computed by `SPAFlow/7/evaluate/6`",
                 "## Rates\n\n`a lake · seed 0 · run 7`\n\nthe rate was measured",
                 "random play", "0.25", "two lakes", "first-child {text-align: left"):  # fmt: skip
        assert any(json.dumps(text)[1:-1] in each for each in held), text
