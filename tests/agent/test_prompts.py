"""Prompts against golden files. After a change that is meant: `python -m tests.agent.test_prompts`
writes them anew; read the difference."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

import envs
from steps.agent.prompts import History, PromptSettings, PromptStyle, build_messages
from steps.agent.records import (
    Completion,
    Message,
    ParsedResponse,
    ParseStatus,
    ResponseFormat,
    Turn,
)
from steps.agent.rollout import Episode, EpisodeSpec, RolloutSettings
from steps.agent.splice import write_response
from steps.errors import ConfigError

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "prompts"
STATES = ("OP__G", "O_P_G", "O__PG")


def settings_of(name: str) -> PromptSettings:
    response_format, style, history = name.split("-")
    return PromptSettings(
        response_format=ResponseFormat(response_format),
        style=PromptStyle(style),
        history=History(history),
        last_k=1,
        state_shown="grid",
        observation="grid_coords",
        prediction="coords",
        max_actions_per_turn=2,
    )


def earlier_turns(settings: PromptSettings, count: int) -> list[Turn]:
    """Turns that each went one cell to the right."""
    turns: list[Turn] = []
    for index in range(count):
        response = write_response(
            settings.response_format,
            observation=f"{STATES[index]}\nP at {index + 1}.",
            thought="Right.",
            prediction=f"P at {index + 2}.",
            actions=("Right",),
        )
        turns.append(
            Turn(
                index=index,
                prompt=(),
                state_shown=STATES[index],
                observation_truth="",
                prediction_truth="",
                completion=Completion(text="not this one"),
                response=response,
                parsed=ParsedResponse(status=ParseStatus.OK),
                reward=-0.1 - 0.2 * index,
                actions_left=4 - index,
            )
        )
    return turns


def prompt(
    settings: PromptSettings, turn_index: int = 2, *, has_board: bool = True
) -> tuple[Message, ...]:
    return build_messages(
        settings,
        instruction="\nWalk to the goal (G); the pit (O) ends the game.\n",
        action_names=("Left", "Right"),
        state=STATES[turn_index],
        turn_index=turn_index,
        actions_left=4 - turn_index,
        earlier=earlier_turns(settings, turn_index),
        max_new_tokens=100,
        has_board=has_board,
    )


def rendered(messages: tuple[Message, ...]) -> str:
    return "".join(f"[{message.role}]\n{message.content}\n" for message in messages)


NAMES = ["-".join(parts) for parts in product(ResponseFormat, PromptStyle, History)]


@pytest.mark.parametrize("name", NAMES)
def test_the_third_turn_reads_as_on_file(name: str) -> None:
    golden = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert rendered(prompt(settings_of(name))) == golden


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(NAMES)


@pytest.mark.parametrize("history", list(History))
def test_the_bare_state_is_shown_alone(history: History) -> None:
    settings = PromptSettings(style=PromptStyle.STATE_ONLY, history=history)
    assert prompt(settings, turn_index=0) == (Message(role="user", content="OP__G"),)


@pytest.mark.parametrize("style", list(PromptStyle))
def test_full_history_only_ever_grows(style: PromptStyle) -> None:
    settings = PromptSettings(style=style, history=History.FULL, max_actions_per_turn=2)
    for index in (0, 1):
        before, after = prompt(settings, index), prompt(settings, index + 1)
        response = earlier_turns(settings, index + 1)[index].response
        assert after[:-1] == (*before, Message(role="assistant", content=response))
        assert after[-1].role == "user"


@pytest.mark.parametrize(("last_k", "shown"), [(0, 0), (1, 1), (2, 2), (5, 2)])
def test_last_k_shows_so_many_earlier_turns(last_k: int, shown: int) -> None:
    settings = PromptSettings(style="state_only", history="last_k", last_k=last_k)  # type: ignore[arg-type]
    messages = prompt(settings)
    users = [message.content for message in messages if message.role == "user"]
    assert users == list(STATES[2 - shown :])
    assert len(messages) == 2 * shown + 1


def test_without_an_action_list_or_instruction_the_prompt_is_silent_about_them() -> None:
    messages = build_messages(
        PromptSettings(),
        instruction="",
        action_names=None,
        state="S",
        turn_index=0,
        actions_left=1,
        earlier=(),
        max_new_tokens=9,
    )
    text = messages[1].content
    assert text.startswith("Give one action in each answer.")
    assert "Actions:" not in text
    assert "You have 1 action left." in text


def test_a_state_after_each_action_is_asked_for_where_there_may_be_several() -> None:
    each = PromptSettings(prediction_steps="each", max_actions_per_turn=3, separator=";")  # type: ignore[arg-type]
    text = prompt(each, turn_index=0)[1].content
    assert (
        "Write the state after each action of your answer inside <prediction>, in order, with ; on "
        "a line of its own between two states; where an action ends the game, its state again for "
        "each action after it: the grid, then the coordinates on a line of their own.\n" in text
    )
    assert text.count("<prediction>[state after each action]</prediction>") == 2
    single = PromptSettings(prediction_steps="each")  # type: ignore[arg-type]
    assert prompt(single) == prompt(PromptSettings())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"prediction_steps": "eahc"}, "unknown prompt.prediction_steps 'eahc'; did you mean"),
        ({"history": "single"}, "unknown prompt.history 'single'; did you mean 'single_turn'"),
        ({"style": "fulll"}, "did you mean 'full'"),
        ({"response_format": "worldmodel"}, "did you mean 'world_model'"),
        ({"prediction": "coord"}, "unknown prompt.prediction 'coord'; did you mean 'coords'"),
        ({"last_k": -1}, "last_k is -1"),
        ({"max_actions_per_turn": 0}, "max_actions_per_turn is 0"),
        ({"separator": " "}, "action_separator is ' '"),
    ],
)
def test_settings_that_mean_nothing_are_refused(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PromptSettings(**kwargs)  # type: ignore[arg-type]


if __name__ == "__main__":
    for golden_name in NAMES:
        path = GOLDEN / f"{golden_name}.txt"
        path.write_text(rendered(prompt(settings_of(golden_name))), encoding="utf-8")


def test_a_world_with_one_text_for_all_formats_is_told_of_no_grid() -> None:
    user, other = (prompt(PromptSettings(), 0, has_board=told)[-1] for told in (True, False))
    assert "inside <observation>: the grid, then the coordinates" in user.content
    assert "grid" not in other.content and "coordinates" not in other.content
    assert "inside <observation>: as it is shown to you." in other.content
    assert "inside <prediction>: in the same way." in other.content


@pytest.mark.parametrize(("env_id", "has_board"), [("frozenlake", True), ("bandit", False)])
def test_play_tells_of_a_grid_where_there_is_one(env_id: str, has_board: bool) -> None:
    episode = Episode(
        0, EpisodeSpec(env_seed=1), envs.make(env_id), RolloutSettings(prompt=PromptSettings())
    )
    (message,) = [each for each in episode.ask().messages if each.role == "user"]
    assert ("the grid" in message.content) == has_board
