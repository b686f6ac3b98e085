"""Two tiny worlds whose every outcome can be worked out by hand.

`Corridor` is five cells in a row: a pit at 0, the goal at 4, the player between them. A move fails
with probability `slip` and then changes nothing. `Echo` takes any text and shows the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.base import COORDS, GRID, GRID_COORDS, TextEnv, TextSpace

PIT, GOAL = 0, 4


class Corridor(TextEnv):
    instruction = "Walk to the goal (G); the pit (O) ends the game."
    action_names = ("Left", "Right")

    def __init__(self, start: int | None = 2, slip: float = 0.0) -> None:
        self.action_space = TextSpace(self.action_names)
        self.observation_space = TextSpace()
        self.start, self.slip = start, slip
        self.cell = self.first = 0
        self.num_closed = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        drawn = 1 + int(self.np_random.integers(3))
        self.cell = self.first = drawn if self.start is None else self.start
        return self.describe(), {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before = self.cell
        if action in self.action_names and self.np_random.random() >= self.slip:
            self.cell += 1 if action == "Right" else -1
        info = {
            "success": self.cell == GOAL,
            "action_is_valid": action in self.action_names,
            "action_is_effective": self.cell != before,
        }
        reward = 1.0 if self.cell == GOAL else -0.1
        return self.describe(), reward, self.cell in (PIT, GOAL), False, info

    def describe(self, state_format: str = GRID_COORDS) -> str:
        return corridor(self.cell, state_format)

    def state_key(self) -> str:
        return f"corridor {self.first}"

    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        masses = {self.cell: 1.0}
        for action in actions:
            ahead: dict[int, float] = {}
            for cell, mass in masses.items():
                over = cell in (PIT, GOAL)
                target = cell if over else cell + (1 if action == "Right" else -1)
                ahead[target] = ahead.get(target, 0.0) + mass * (1 - self.slip)
                ahead[cell] = ahead.get(cell, 0.0) + mass * self.slip
            masses = ahead
        return {corridor(cell, state_format): mass for cell, mass in masses.items() if mass}

    def oracle(self, actions_left: int | None = None) -> str | None:
        return "Right"

    def close(self) -> None:
        self.num_closed += 1


def corridor(cell: int, state_format: str = GRID) -> str:
    """The corridor in words."""
    cells = ["O", "_", "_", "_", "G"]
    cells[cell] = "P"
    grid, coords = "".join(cells), f"P at {cell}."
    return {GRID: grid, COORDS: coords, GRID_COORDS: f"{grid}\n{coords}"}[state_format]


class Echo(TextEnv):
    """Any text is an action; it becomes the state."""

    action_names = None

    def __init__(self, text: str = "") -> None:
        self.action_space = TextSpace()
        self.observation_space = TextSpace()
        self.first = self.text = text

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.text = self.first
        return self.text, {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        changed, self.text = action != self.text, action
        info = {"success": False, "action_is_valid": True, "action_is_effective": changed}
        return self.text, 0.0, False, False, info

    def describe(self, state_format: str = GRID_COORDS) -> str:
        return self.text

    def state_key(self) -> str:
        return self.first

    def possible_next(
        self, actions: Sequence[str], state_format: str = GRID_COORDS
    ) -> dict[str, float]:
        return {actions[-1] if actions else self.text: 1.0}
