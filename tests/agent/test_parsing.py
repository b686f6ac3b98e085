from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steps.agent.parsing import parse_response, spans
from steps.agent.records import ParsedResponse, ParseStatus, ResponseFormat, SpanKind
from steps.agent.splice import write_response

NAMES = ("Left", "Down", "Right", "Up")
FORMATS = list(ResponseFormat)

TAGS = ("think", "observation", "prediction", "answer")
fragments = st.sampled_from(
    [f"<{tag}>" for tag in TAGS]
    + [f"</{tag}>" for tag in TAGS]
    + ["<", ">", "</", "||", "|", "Up", "left", "ＵＰ", " ", "\n", "<THINK>", "\\1", "√", "\u0301"]
)
texts = st.one_of(st.text(), st.lists(fragments, max_size=40).map("".join))
# No angle brackets and no separator: such a text can stand in any block.
inner = st.text(st.characters(exclude_characters="<>|"), max_size=30).map(str.strip)


def status(text: str, response_format: str = "world_model", **kwargs: object) -> ParseStatus:
    kwargs = {"action_names": NAMES, "max_actions": 3} | kwargs
    return parse_response(text, response_format, **kwargs).status  # type: ignore[arg-type]


def actions(answer: str, **kwargs: object) -> tuple[str, ...]:
    kwargs = {"action_names": NAMES} | kwargs
    text = f"<answer>{answer}</answer>"
    return parse_response(text, "answer_only", **kwargs).actions  # type: ignore[arg-type]


GOOD = (
    "<think><observation>_P</observation>go left<prediction>P_</prediction></think>"
    "<answer>Left</answer>"
)


def test_a_well_formed_answer_gives_all_its_parts() -> None:
    assert parse_response(GOOD, "world_model", action_names=NAMES, max_actions=1) == ParsedResponse(
        status=ParseStatus.OK,
        observation="_P",
        thought="go left",
        prediction="P_",
        actions=("Left",),
        num_emitted=1,
    )


def test_white_space_and_lines_around_blocks_and_parts_do_no_harm() -> None:
    text = (
        "\n <think>\n<observation>\n_P\nat (0,1)\n</observation>\n\n go left \n"
        "<prediction> P_ </prediction> </think>\n\n<answer>\n Left ||\n Down\n</answer>\n"
    )
    parsed = parse_response(text, "world_model", action_names=NAMES, max_actions=2)
    assert parsed.status is ParseStatus.OK
    assert (parsed.observation, parsed.prediction) == ("_P\nat (0,1)", "P_")
    assert parsed.thought == "go left"
    assert parsed.actions == ("Left", "Down")


def test_plain_and_answer_only_have_no_states() -> None:
    plain = parse_response("<think>hm</think><answer>Up</answer>", "plain", action_names=NAMES)
    assert plain.status is ParseStatus.OK
    assert (plain.observation, plain.thought, plain.prediction) == (None, "hm", None)
    bare = parse_response("<answer>Up</answer>", ResponseFormat.ANSWER_ONLY, action_names=NAMES)
    assert bare.status is ParseStatus.OK
    assert (bare.thought, bare.actions) == (None, ("Up",))


def test_state_tags_are_text_where_the_format_has_none() -> None:
    parsed = parse_response(GOOD, "plain", action_names=NAMES)
    assert parsed.status is ParseStatus.OK
    assert parsed.observation is None
    assert parsed.thought == "<observation>_P</observation>go left<prediction>P_</prediction>"


STATES = "<observation>a</observation>b<prediction>c</prediction>"
SWAPPED = "<prediction>c</prediction>b<observation>a</observation>"


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (ParseStatus.NO_ANSWER, ""),
        (ParseStatus.NO_ANSWER, "Up"),
        (ParseStatus.NO_ANSWER, f"<think>{STATES}</think>Up</answer>"),
        (ParseStatus.NO_ANSWER, GOOD.replace("answer>", "Answer>")),
        (ParseStatus.UNCLOSED_TAG, f"<think>{STATES}</think><answer>Up"),
        (ParseStatus.UNCLOSED_TAG, f"<think>{STATES}<answer>Up</answer>"),
        (ParseStatus.UNCLOSED_TAG, f"{STATES}</think><answer>Up</answer>"),
        (ParseStatus.UNCLOSED_TAG, GOOD.replace("</observation>", "")),
        (ParseStatus.DUPLICATE_TAGS, GOOD + "<answer>Up</answer>"),
        (ParseStatus.DUPLICATE_TAGS, GOOD + GOOD),
        (ParseStatus.DUPLICATE_TAGS, GOOD.replace("<think>", "<think></think><think>")),
        (ParseStatus.WRONG_ORDER, f"<answer>Up</answer><think>{STATES}</think>"),
        (ParseStatus.WRONG_ORDER, f"{STATES}<think></think><answer>Up</answer>"),
        (ParseStatus.WRONG_ORDER, f"<think>{STATES}<answer>Up</answer></think>"),
        (ParseStatus.WRONG_ORDER, f"{STATES}<answer>Up</answer>"),
        (ParseStatus.WRONG_ORDER, f"<think>{SWAPPED}</think><answer>Up</answer>"),
        (ParseStatus.NO_STATE_TAGS, "<answer>Up</answer>"),
        (ParseStatus.NO_STATE_TAGS, "<think>b</think><answer>Up</answer>"),
        (ParseStatus.NO_STATE_TAGS, GOOD.replace("prediction", "p")),
        (ParseStatus.NO_STATE_TAGS, "<think><prediction>a</prediction></think><answer>Up</answer>"),
        (ParseStatus.EXTRA_TEXT, "Well: " + GOOD),
        (ParseStatus.EXTRA_TEXT, GOOD + " Reward: 1"),
        (ParseStatus.EXTRA_TEXT, GOOD.replace("<answer>", "so <answer>")),
        (ParseStatus.EXTRA_TEXT, GOOD.replace("<observation>", "I see <observation>")),
        (ParseStatus.EXTRA_TEXT, GOOD.replace("</think>", "I guess</think>")),
        (ParseStatus.EMPTY_ANSWER, GOOD.replace("Left", "")),
        (ParseStatus.EMPTY_ANSWER, GOOD.replace("Left", " || || ")),
        (ParseStatus.TOO_MANY_ACTIONS, GOOD.replace("Left", "Up || Up || Up || Up")),
        (ParseStatus.UNKNOWN_ACTION, GOOD.replace("Left", "Jump")),
        (ParseStatus.UNKNOWN_ACTION, GOOD.replace("Left", "Up || UP!")),
        (ParseStatus.OK, GOOD),
        (ParseStatus.OK, GOOD.replace("Left", "Up || Up || Up")),
        (ParseStatus.OK, GOOD.replace("Left", "Up || ")),
    ],
)  # fmt: skip
def test_each_fault_has_its_status(expected: ParseStatus, text: str) -> None:
    assert status(text) is expected


@pytest.mark.parametrize(
    ("expected", "response_format", "text"),
    [
        (ParseStatus.WRONG_ORDER, "plain", "<answer>Up</answer>"),
        (ParseStatus.WRONG_ORDER, "plain", "<answer>Up</answer><think>a</think>"),
        (ParseStatus.EXTRA_TEXT, "plain", "<think>a</think>b<answer>Up</answer>"),
        (ParseStatus.EXTRA_TEXT, "answer_only", "<think>a</think><answer>Up</answer>"),
        (ParseStatus.DUPLICATE_TAGS, "answer_only", "<answer>Up</answer><answer>Up</answer>"),
        (ParseStatus.NO_ANSWER, "answer_only", "Up"),
    ],
)
def test_faults_of_the_shorter_formats(
    expected: ParseStatus, response_format: str, text: str
) -> None:
    assert status(text, response_format) is expected


def test_running_out_of_tokens_is_a_fault_even_of_a_whole_answer() -> None:
    parsed = parse_response(GOOD, "world_model", action_names=NAMES, truncated=True)
    assert parsed.status is ParseStatus.TRUNCATED
    assert parsed.actions == ("Left",)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("no_answer", "unclosed_tag", "<think>"),
        ("unclosed_tag", "duplicate_tags", GOOD + GOOD + "<think>"),
        ("duplicate_tags", "wrong_order", "<answer>Up</answer>" + GOOD),
        ("wrong_order", "no_state_tags", "<answer>Up</answer><think></think>"),
        ("no_state_tags", "extra_text", "So: <think></think><answer>Up</answer>"),
        ("extra_text", "empty_answer", GOOD.replace("Left", "") + "!"),
        ("too_many_actions", "unknown_action", GOOD.replace("Left", "a||b||c||d")),
    ],
)
def test_of_two_faults_the_earlier_one_is_named(first: str, second: str, text: str) -> None:
    order = list(ParseStatus)
    assert order.index(ParseStatus(first)) < order.index(ParseStatus(second))
    assert status(text) is ParseStatus(first)
    assert status(text, truncated=True) is ParseStatus.TRUNCATED


def test_the_first_answer_after_the_thoughts_is_played() -> None:
    draft = "<think>maybe <answer>Up</answer> no</think><answer>Left</answer>"
    assert parse_response(draft, "plain", action_names=NAMES).actions == ("Left",)
    invented = GOOD + "\nReward: 1\n" + GOOD.replace("Left", "Up")
    parsed = parse_response(invented, "world_model", action_names=NAMES)
    assert parsed.status is ParseStatus.DUPLICATE_TAGS
    assert (parsed.actions, parsed.observation) == (("Left",), "_P")
    early = "<answer>Down</answer><think>done</think>"
    assert parse_response(early, "plain", action_names=NAMES).actions == ("Down",)


def test_an_unclosed_answer_is_not_played_and_a_reopened_one_is() -> None:
    assert parse_response("<answer>Up", "answer_only", action_names=NAMES).actions == ()
    reopened = parse_response("<answer>Up<answer>Left</answer>", "answer_only", action_names=NAMES)
    assert reopened.status is ParseStatus.UNCLOSED_TAG
    assert reopened.actions == ("Left",)


def test_an_answer_without_thoughts_is_read_all_the_same() -> None:
    parsed = parse_response("<answer>Up || Left</answer>", "world_model", action_names=NAMES)
    assert parsed.status is ParseStatus.NO_STATE_TAGS
    assert parsed.actions == ("Up", "Left")
    assert (parsed.observation, parsed.thought, parsed.prediction) == (None, None, None)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Up", ("Up",)),
        ("up||LEFT", ("Up", "Left")),
        ("  uP  ", ("Up",)),
        ("\nUp\n||\nLeft\n", ("Up", "Left")),
        ("|| Up ||", ("Up",)),
        ("Ｕｐ || ＬＥＦＴ", ("Up", "Left")),
        ("UP!", ()),
        ("Up.", ()),
        ("move up", ()),
        ("Up, Left", ()),
        ("Up | Left", ()),
        ("Up\nLeft", ()),
        ("Jump || Left", ("Left",)),
        ("U p", ()),
        ("", ()),
    ],
)
def test_which_texts_are_actions(answer: str, expected: tuple[str, ...]) -> None:
    assert actions(answer) == expected


def test_inner_white_space_of_an_action_is_one_space() -> None:
    assert actions("go \t north", action_names=("Go North",)) == ("Go North",)


def test_of_two_names_that_differ_by_case_each_is_reached_exactly() -> None:
    assert actions("A || a", action_names=("a", "A")) == ("A", "a")


def test_without_an_action_list_every_piece_is_kept_as_it_is() -> None:
    assert actions("1,2,3 || ｘ |  || place  v", action_names=None) == ("1,2,3", "ｘ |", "place  v")


def test_the_first_pieces_are_kept_when_there_are_too_many() -> None:
    text = "<answer>Jump || Up || Left</answer>"
    parsed = parse_response(text, "answer_only", action_names=NAMES, max_actions=2)
    assert parsed.status is ParseStatus.TOO_MANY_ACTIONS
    assert (parsed.actions, parsed.num_emitted) == (("Up",), 3)


def test_another_separator() -> None:
    assert actions("Up; Left", separator=";") == ("Up", "Left")
    assert actions("Up || Left", separator=" || ") == ("Up", "Left")


@given(text=texts, response_format=st.sampled_from(FORMATS), truncated=st.booleans())
def test_every_text_gives_a_result(
    text: str, response_format: ResponseFormat, truncated: bool
) -> None:
    parsed = parse_response(
        text, response_format, action_names=NAMES, max_actions=2, truncated=truncated
    )
    assert len(parsed.actions) <= 2
    assert set(parsed.actions) <= set(NAMES)
    assert len(parsed.actions) <= parsed.num_emitted
    if parsed.is_well_formed:
        assert len(parsed.actions) == parsed.num_emitted > 0


@given(text=texts, response_format=st.sampled_from(FORMATS))
def test_spans_cover_every_text_without_gap(text: str, response_format: ResponseFormat) -> None:
    found = spans(text, response_format)
    assert "".join(text[span.start : span.end] for span in found) == text
    assert all(span.start < span.end for span in found)


@given(
    observation=inner,
    thought=inner,
    prediction=inner,
    played=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4),
    response_format=st.sampled_from(FORMATS),
)
def test_what_is_written_well_formed_reads_back(
    observation: str,
    thought: str,
    prediction: str,
    played: list[str],
    response_format: ResponseFormat,
) -> None:
    text = write_response(
        response_format,
        observation=observation,
        thought=thought,
        prediction=prediction,
        actions=played,
    )
    parsed = parse_response(text, response_format, action_names=NAMES, max_actions=4)
    assert parsed.status is ParseStatus.OK
    assert parsed.actions == tuple(played)
    if response_format is ResponseFormat.WORLD_MODEL:
        assert (parsed.observation, parsed.prediction) == (observation, prediction)
    if response_format is not ResponseFormat.ANSWER_ONLY:
        assert parsed.thought == thought


LONG = 100_000
QUADRATIC = 10.0
"""CPU seconds that reading such a text may take on a busy machine; a reader that goes over it again
for each character takes minutes."""


@pytest.mark.parametrize(
    "text",
    [
        "x" * LONG,
        "<" * LONG,
        "<think>" * (LONG // 7),
        "<answer>" * (LONG // 8),
        "<answer></answer>" * (LONG // 17),
        "<answer>" + "||" * (LONG // 2) + "</answer>",
        "<answer>" + "Up||" * (LONG // 4) + "</answer>",
        "<answer>" + "\u0301\u0323" * (LONG // 2) + "</answer>",
        "<answer>" + " " * LONG + "</answer>",
        "<think>" + "<observation>" * (LONG // 13),
        GOOD * (LONG // len(GOOD)),
        "<think>" + " \n" * (LONG // 2) + "</think",
    ],
    ids=lambda text: text[:20],
)
def test_long_texts_are_read_quickly(text: str) -> None:
    start = time.process_time()
    for response_format in FORMATS:
        parse_response(text, response_format, action_names=NAMES, max_actions=5)
        spans(text, response_format)
    assert time.process_time() - start < QUADRATIC


@settings(max_examples=40)
@given(
    unit=st.lists(fragments, min_size=1, max_size=12).map("".join),
    head=texts,
    tail=texts,
    response_format=st.sampled_from(FORMATS),
)
def test_any_text_repeated_to_great_length_is_read_quickly(
    unit: str, head: str, tail: str, response_format: ResponseFormat
) -> None:
    text = head + unit * (LONG // len(unit)) + tail
    start = time.process_time()
    parsed = parse_response(text, response_format, action_names=NAMES, max_actions=5)
    assert time.process_time() - start < QUADRATIC
    assert len(parsed.actions) <= 5


def test_spans_of_a_well_formed_answer() -> None:
    found = [(span.kind.value, GOOD[span.start : span.end]) for span in spans(GOOD, "world_model")]
    assert found == [
        ("tag", "<think>"),
        ("tag", "<observation>"),
        ("observation", "_P"),
        ("tag", "</observation>"),
        ("thought", "go left"),
        ("tag", "<prediction>"),
        ("prediction", "P_"),
        ("tag", "</prediction>"),
        ("tag", "</think>"),
        ("tag", "<answer>"),
        ("answer", "Left"),
        ("tag", "</answer>"),
    ]


def test_spans_follow_the_format() -> None:
    kinds = [span.kind for span in spans("<observation>a</observation>", "plain")]
    assert kinds == [SpanKind.THOUGHT]
    assert spans("", "plain") == ()
