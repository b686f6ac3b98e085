"""The grammar's text, written out, and the way a begun answer is brought to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from steps.agent.parsing import parse_response
from steps.agent.records import ParseStatus, ResponseFormat
from steps.agent.splice import write_response
from steps.errors import ConfigError
from steps.policies.grammar import AnswerForm, Ending

NAMES = ("Left", "Down", "Right", "Up")
FORMATS = list(ResponseFormat)
HIGH = r"\ud000-\ud7ff\ue000-\uffff\U00010000-\U0010ffff]"
WIDE = r"\u007f\u0080-\u07ff\u0800-\ucfff" + HIGH
"""The end of a class, in ranges of characters of one length and one way to begin."""
ANY = r"[\u0000-\u003b\u003d-" + WIDE
"""Any character but `<`, which is U+003C."""
NO_BAR = r"[\u0000-\u003b\u003d-\u007b\u007d-" + WIDE
"""Nor the bar, U+007C."""
VISIBLE = (
    r"[\u0000-\u0008\u000e-\u001b\u0021-\u003b\u003d-\u007b\u007d-\u007f\u0080-\u0084\u0086-\u009f"
    r"\u00a1-\u07ff\u0800-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff"
    r"\u3001-\ucfff" + HIGH
)
"""Nor any blank: 9-D, 1C-20, 85, A0, 1680, 2000-200A, 2028, 2029, 202F, 205F, 3000."""


@pytest.mark.parametrize(
    ("response_format", "names", "max_actions", "span", "expected"),
    [
        (
            "world_model",
            NAMES,
            1,
            0,
            'root ::= "<think><observation>" free "</observation>" free "<prediction>" free '
            '"</prediction></think><answer>" action "</answer>"\n'
            f"free ::= {ANY}*\n"
            'action ::= "Left" | "Down" | "Right" | "Up"\n',
        ),
        (
            "plain",
            ("a", "b"),
            5,
            40,
            'root ::= "<think>" free "</think><answer>" action (" || " action){0,4} "</answer>"\n'
            f"free ::= {ANY}{{0,40}}\n"
            'action ::= "a" | "b"\n',
        ),
        (
            "answer_only",
            ("a",),
            2,
            40,
            'root ::= "<answer>" action (" || " action){0,1} "</answer>"\naction ::= "a"\n',
        ),
        (
            "answer_only",
            None,
            3,
            0,
            'root ::= "<answer>" action ("|| " action){0,2} "</answer>"\n'
            f"action ::= {VISIBLE} {NO_BAR}*\n",
        ),
        (
            "answer_only",
            None,
            1,
            8,
            f'root ::= "<answer>" action "</answer>"\naction ::= {VISIBLE} {NO_BAR}{{0,7}}\n',
        ),
        (
            "answer_only",
            None,
            1,
            1,
            f'root ::= "<answer>" action "</answer>"\naction ::= {VISIBLE}\n',
        ),
    ],
)
def test_the_grammar_of_each_format(
    response_format: str, names: tuple[str, ...] | None, max_actions: int, span: int, expected: str
) -> None:
    found = AnswerForm.of(response_format, names, max_actions, "||").grammar(span)
    assert found == expected


def test_signs_of_the_grammar_itself_are_escaped_in_actions_and_separators() -> None:
    names = ('say "no"', "two\nlines", "→", "\u200b", "\U000e0001")
    assert AnswerForm.of("answer_only", names, 2, "\\").grammar() == (
        'root ::= "<answer>" action (" \\\\ " action){0,1} "</answer>"\n'
        'action ::= "say \\"no\\"" | "two\\u000alines" | "→" | "\\u200b" | "\\U000e0001"\n'
    )


def test_the_separator_s_first_character_is_left_out_of_free_actions() -> None:
    found = AnswerForm.of("answer_only", None, 1, "→").grammar()
    without = r"[\u0000-\u003b\u003d-\u007f\u0080-\u07ff\u0800-\u2191\u2193-\ucfff" + HIGH
    assert found.endswith(without + "*\n")


def test_an_action_named_twice_stands_once_in_the_grammar() -> None:
    assert 'action ::= "a" | "b"\n' in AnswerForm.of("plain", ("a", "b", "a"), 1, "||").grammar()


@pytest.mark.parametrize(
    ("names", "separator", "max_actions", "message"),
    [
        (("a",), "<sep>", 1, "holds a '<'"),
        ((), "||", 1, "list of actions is empty"),
        (("a", "b||c"), "||", 2, r"'b\|\|c' can't be read out of an answer \(unknown_action\)"),
        # the two pieces of the third name are actions, too: it would be read as them
        (("b", "c", "b||c"), "||", 2, r"action 'b\|\|c' can't be read"),
        ((" ",), "||", 1, r"\(empty_answer\)"),
        (("</answer>",), "||", 1, "can't be read out"),
        (("<think>",), "||", 1, "can't be read out"),
        # "a | | | a" is split after the first bar: the separator begins inside the name
        (("a |",), "| |", 2, "can't be read out"),
    ],
)
def test_actions_that_no_answer_can_hold_are_refused(
    names: tuple[str, ...], separator: str, max_actions: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        AnswerForm.of("plain", names, max_actions, separator)


def test_a_name_that_ends_like_the_separator_is_no_harm_where_there_is_one_action() -> None:
    assert '"a |"' in AnswerForm.of("plain", ("a |",), 1, "| |").grammar()


# Endings


OPENED = "<think><observation>_P</observation>hm<prediction>P_</prediction></think><answer>"


@pytest.mark.parametrize(
    ("written", "text", "is_answer"),
    [
        (
            "",
            "<think><observation></observation><prediction></prediction></think><answer>",
            False,
        ),
        (
            "<think><obs",
            "ervation></observation><prediction></prediction></think><answer>",
            False,
        ),
        (
            "<think><observation>_P",
            "</observation><prediction></prediction></think><answer>",
            False,
        ),
        (
            "<think><observation>_P</",
            "observation><prediction></prediction></think><answer>",
            False,
        ),
        (
            "<think><observation>_P</observation>a",
            "<prediction></prediction></think><answer>",
            False,
        ),
        (
            "<think><observation>_P</observation>a<p",
            "rediction></prediction></think><answer>",
            False,
        ),
        (OPENED.removesuffix("<answer>"), "<answer>", False),
        (OPENED, "", True),
        (OPENED + "U", "p</answer>", True),
        (OPENED + "Up", "</answer>", True),
        (OPENED + "Up L", "eft</answer>", True),
        (OPENED + "Up |", "| ", True),
        (OPENED + "Up || ", "", True),
        (OPENED + "Up || R", "ight</answer>", True),
        (OPENED + "Up || Up Left</a", "nswer>", True),
        (OPENED + "Up || Up</answer>", "", True),
    ],
)
def test_an_ending_leads_to_the_next_choice_of_an_action_or_to_the_end(
    written: str, text: str, is_answer: bool
) -> None:
    form = AnswerForm.of("world_model", (*NAMES, "Up Left"), 2, "||")
    assert form.ending(written.encode()) == Ending(text.encode(), is_answer)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (b"<answer>", b""),
        (b"<answer>1,2", b"</answer>"),
        (b"<answer>1 ", b"</answer>"),
        (b"<answer>1 |", b"| "),
        (b"<answer>1 ||", b" "),
        (b"<answer>1 || ", b""),
        (b"<answer>1 || 2 |", b"| "),
        (b"<answer>1 || 2</ans", b"wer>"),
        # E2 80 80 would be a blank, U+2000; the second byte counts up first: U+2040
        (b"<answer>\xe2", b"\x81\x80</answer>"),
        (b"<answer>1\xe2\x88", b"\x80</answer>"),
        # U+2000 to U+200A are blanks, and an action can't start with one: U+200B
        (b"<answer>\xe2\x80", b"\x8b</answer>"),
        # below A0 and 90 there would be shorter forms
        (b"<answer>\xe0", b"\xa0\x80</answer>"),
        (b"<answer>\xf0\x90", b"\x80\x80</answer>"),
    ],
)
def test_an_ending_where_any_text_is_an_action(written: bytes, text: bytes) -> None:
    assert AnswerForm.of("answer_only", None, 3, "||").ending(written) == Ending(text, True)


def test_a_cut_separator_is_completed_where_another_action_may_follow() -> None:
    # the arrow is E2 86 92
    cut = "<answer>a→ b".encode() + b"\xe2\x86"
    assert AnswerForm.of("answer_only", None, 3, "→").ending(cut).text == b"\x92 "
    assert AnswerForm.of("answer_only", None, 2, "→").ending(cut).text == b"\x80</answer>"


def test_a_cut_character_of_free_text_is_completed() -> None:
    form = AnswerForm.of("plain", NAMES, 1, "||")
    assert form.ending(b"<think>\xe2\x88").text == b"\x80</think><answer>"
    assert form.ending("<think>√".encode()).text == b"</think><answer>"
    assert form.ending(b"<think>\xf0\x9f\x98").text == b"\x80</think><answer>"


def test_the_last_action_is_the_one_that_comes_next() -> None:
    form = AnswerForm.of("plain", NAMES, 5, "||")
    assert form.last(b"<think>a || b</think><answer>").max_actions == 1
    assert form.last(b"<think></think><answer>").max_actions == 1
    assert form.last(b"<think></think><answer>Up || Left || ").max_actions == 3


# Properties


SIGNS = "ab|;\"\\]^- '→√<>/"
words = st.text(SIGNS, min_size=1, max_size=5)
thoughts = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=8)


def end(form: AnswerForm, written: bytes, choices: st.DataObject) -> bytes:
    """The endings one after the other, with a drawn action where one is to be chosen."""
    while not written.endswith(form.closing):
        ending = form.ending(written)
        if not ending.text:
            options = form.names or tuple(sign.encode() for sign in "ab√")
            ending = Ending(choices.draw(st.sampled_from(options)), True)
        written += ending.text
    return written


@given(
    response_format=st.sampled_from(FORMATS),
    names=st.one_of(st.none(), st.lists(words, min_size=1, max_size=4).map(tuple)),
    separator=st.sampled_from(["||", ";", "→", "| |", '"', "\\", "->"]),
    max_actions=st.integers(1, 4),
    texts=st.tuples(thoughts, thoughts, thoughts),
    data=st.data(),
)
def test_every_beginning_of_a_well_formed_answer_has_a_well_formed_end(
    response_format: ResponseFormat,
    names: tuple[str, ...] | None,
    separator: str,
    max_actions: int,
    texts: tuple[str, str, str],
    data: st.DataObject,
) -> None:
    try:
        form = AnswerForm.of(response_format, names, max_actions, separator)
    except ConfigError:
        assume(False)
    free = st.text("abc√", min_size=1, max_size=3)
    action = free if names is None else st.sampled_from(names)
    whole = write_response(
        response_format,
        observation=texts[0],
        thought=texts[1],
        prediction=texts[2],
        actions=data.draw(st.lists(action, min_size=1, max_size=max_actions)),
        separator=separator,
    ).encode()
    begun = whole[: data.draw(st.integers(0, len(whole)))]
    ended = end(form, begun, data)
    assert ended.startswith(begun)
    parsed = parse_response(
        ended.decode(),
        response_format,
        action_names=names,
        max_actions=max_actions,
        separator=separator,
    )
    assert parsed.status is ParseStatus.OK, ended


def test_the_grammar_needs_no_large_library(root: Path) -> None:
    code = (
        "import sys, steps.policies.grammar\n"
        "sys.exit(bool({'torch', 'xgrammar', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0
