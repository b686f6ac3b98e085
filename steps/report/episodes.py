"""Sample episodes on a card: boards where states have them, and what the model wrote."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from steps.report.boards import boards, has_boards
from steps.report.records import Block, Image, Markdown
from steps.report.tables import Result, number, words

STOPS = {
    "terminated": "the game ended",
    "time_limit": "the game's time limit",
    "max_turns": "out of turns",
    "action_budget": "out of actions",
    "context_full": "the model's context was full",
    "policy_error": "the policy failed",
}
BOARD_WORDS = (
    "A column is a turn, headed by what was played. Rows: the board the player was *shown*, what "
    "it says it *observed*, what it *predicted* its action would lead to, and what *happened*. A "
    "cell in a red frame is wrong; one in amber was possible, only chance fell otherwise."
)
_TEXT_WIDTH = 96
"""Characters of a line of a transcript: a card doesn't break lines."""
_MAX_ANSWERS = 2
"""Answers printed in full under an episode's boards."""


def episode_blocks(result: Result, *, env_kwargs: Mapping[str, Any] | None = None) -> list[Block]:
    """Sample episodes as pictures of their boards; as text where states have none.

    `env_kwargs` are the arguments of their environment, as far as they are known.
    """
    episodes = result.get("sample") or ()
    if not episodes:
        return []
    are_drawn = [has_boards(episode, env_kwargs=env_kwargs) for episode in episodes]
    intro = f"\n\n{BOARD_WORDS}" if any(are_drawn) else ""
    blocks: list[Block] = [Markdown(text=f"### Some episodes{intro}")]
    for episode, is_drawn in zip(episodes, are_drawn, strict=True):
        title = _title(episode)
        if is_drawn:
            told, caption = _told(episode), f"Reward {number(episode.get('reward'))}"
            picture = boards(episode, env_kwargs=env_kwargs, title=title)
            blocks.append(Image(png=picture, label=caption))
        else:
            told = episode
            blocks.append(Markdown(text=f"**{title}**"))
        blocks.append(Markdown(text=fenced(episode_text(told))))
    return blocks


def _title(episode: Result) -> str:
    stop = STOPS.get(episode["stop_reason"], words(episode["stop_reason"]))
    ending = "solved" if episode["success"] else f"not solved, {stop}"
    return f"{episode['env_id']}, seed {episode['env_seed']}: {ending}"


def _told(episode: Result) -> dict[str, Any]:
    """An episode with the turns whose words are worth a look where the boards show the rest.

    That is the first turn, and those whose answer isn't well-formed.
    """
    odd = [turn for turn in episode["turns"][1:] if turn["status"] != "ok"]
    return {**episode, "turns": [*episode["turns"][:1], *odd][:_MAX_ANSWERS]}


def episode_text(episode: Result, *, max_turns: int = 10) -> str:
    """A transcript to read, an answer as the model wrote it under each state."""
    lines: list[str] = []
    for turn in episode["turns"][:max_turns]:
        actions = ", ".join(turn["actions"]) or "none"
        chance = turn.get("chance")
        predicted = "" if chance is None else f"; chance of the predicted state {chance:.2f}"
        status = "" if turn["status"] == "ok" else f" (malformed: {words(turn['status'])})"
        lines += [
            f"--- turn {turn['index'] + 1}, the model sees",
            turn["state"],
            f"--- it answers{status}",
            turn["response"],
            f"--- played: {actions}; reward {turn['reward']:g}{predicted}",
            "",
        ]
    left = len(episode["turns"]) - max_turns
    return "\n".join([*lines, f"and {left} more turns"] if left > 0 else lines).rstrip()


def fenced(text: str) -> str:
    """A code block that no text inside can end."""
    wrapped = (
        textwrap.wrap(line, _TEXT_WIDTH, replace_whitespace=False, drop_whitespace=False, tabsize=2)
        for line in text.split("\n")
    )
    text = "\n".join("\n".join(lines) for lines in wrapped)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
