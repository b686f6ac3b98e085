"""The benchmark of the trainer's half of a step, by verl's own engines on a CPU process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

FSDP2 = (
    "actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.actor.fsdp_config.strategy",
    "critic.strategy",
    "critic.fsdp.strategy",
)
PROGRAM = """
from tests.training import verl_ppo_cpu

verl_ppo_cpu.register_engines()
from benchmarks import update

update.main()
"""


@pytest.mark.parametrize("rows", [[], ["--queue"], ["--by-row", "--prompt=30", "--turns=1"]])
def test_each_part_of_a_step_is_timed_and_both_updates_profiled(rows: list[str]) -> None:
    overrides = [f"--override={name}=fsdp2" for name in FSDP2] + ["--override=trainer.device=cpu"]
    small = ["--device=cpu", "--shape=tiny", "--sequences=8", "--lengths", "3", "9", "--steps=2"]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *small, *rows, "--profile=5", *overrides],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    steps = re.findall(
        r"step (\d): old log-probs [\d.]+  values [\d.]+  critic [\d.]+  actor [\d.]+", ran.stdout
    )
    assert steps == ["1", "2"]
    critic, actor = ran.stdout.split("the critic's update:")[1].split("the actor's update:")
    for table in (critic, actor):
        assert "Self CPU time total" in table and "aten::" in table
