"""Writes well-formed answers, and puts true states into the state tags of a model's answer.

Both work by position, so that a state may hold any text: digits, backslashes, `\\1`. A state that
holds a tag of the format itself is copied as it is, too; the text then parses as malformed, and
the filter counts it (a game whose states are made of our tags can't be told apart from them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steps.agent.parsing import find_tags
from steps.agent.records import ResponseFormat


def likeliest(possible: Mapping[str, float]) -> str:
    """The most probable text; of equals the first: games list what was meant before what slips."""
    return max(possible, key=lambda text: round(possible[text], 9))


def splice_truth(text: str, *, observation: str, prediction: str) -> str:
    """The text with the content of both state tags replaced, and nothing else changed.

    Unchanged where it isn't clear what to replace: each state tag must occur exactly once, closed,
    with no other tag inside, the observation first. The rest of the answer may be malformed.
    """
    tags = find_tags(text, ResponseFormat.WORLD_MODEL)
    names = [tag.name for tag in tags]
    if any(names.count(name) != 1 for name in ("observation", "prediction")):
        return text
    if any(names.count(name) != 1 for name in ("/observation", "/prediction")):
        return text
    i, j = names.index("observation"), names.index("prediction")
    if i > j or names[i + 1] != "/observation" or names[j + 1 : j + 2] != ["/prediction"]:
        return text
    return "".join(
        (
            text[: tags[i].end],
            observation,
            text[tags[i + 1].start : tags[j].end],
            prediction,
            text[tags[j + 1].start :],
        )
    )


def write_response(
    response_format: ResponseFormat | str,
    *,
    observation: str = "",
    thought: str = "",
    prediction: str = "",
    actions: Sequence[str] = (),
    separator: str = "||",
) -> str:
    """A well-formed answer, compact; what the format has no place for is left out."""
    answer = f"<answer>{f' {separator.strip()} '.join(actions)}</answer>"
    response_format = ResponseFormat(response_format)
    if response_format is ResponseFormat.ANSWER_ONLY:
        return answer
    if response_format is ResponseFormat.PLAIN:
        return f"<think>{thought}</think>{answer}"
    return (
        f"<think><observation>{observation}</observation>{thought}"
        f"<prediction>{prediction}</prediction></think>{answer}"
    )
