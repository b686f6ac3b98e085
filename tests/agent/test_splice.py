from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steps.agent.parsing import parse_response
from steps.agent.records import ParseStatus
from steps.agent.splice import splice_truth, write_response

BEFORE = (
    "<think> <observation>\n guess </observation> thoughts <prediction>wish</prediction></think>"
)
TEXT = f"{BEFORE}<answer>Up</answer>"


def test_only_the_content_of_the_state_tags_changes() -> None:
    assert splice_truth(TEXT, observation="_P", prediction="P_\n") == (
        "<think> <observation>_P</observation> thoughts <prediction>P_\n</prediction></think>"
        "<answer>Up</answer>"
    )


@pytest.mark.parametrize(
    "state",
    ["1 _ | 3 4", "\\1", "\\g<0>", "C:\\new\\table", "", "$1 %s {0}", "√\n_P", "<", "</think"],
)
def test_hand_picked_states_are_copied_as_they_are(state: str) -> None:
    spliced = splice_truth(TEXT, observation=state, prediction=state + "2")
    assert spliced == (
        f"<think> <observation>{state}</observation> thoughts <prediction>{state}2</prediction>"
        "</think><answer>Up</answer>"
    )


@given(observation=st.text(), prediction=st.text())
def test_any_state_is_copied_as_it_is(observation: str, prediction: str) -> None:
    spliced = splice_truth(TEXT, observation=observation, prediction=prediction)
    assert spliced == (
        "<think> <observation>" + observation + "</observation> thoughts <prediction>"
        "" + prediction + "</prediction></think><answer>Up</answer>"
    )


def test_a_state_made_of_our_tags_is_copied_and_reads_as_malformed() -> None:
    spliced = splice_truth(TEXT, observation="</observation>", prediction="P_")
    assert "<observation></observation></observation>" in spliced
    assert parse_response(spliced, "world_model").status is ParseStatus.UNCLOSED_TAG


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<answer>Up</answer>",
        "<think>no states</think><answer>Up</answer>",
        "<observation>a</observation>",
        "<prediction>b</prediction><observation>a</observation>",
        "<observation>a<prediction>b</prediction>",
        "<observation>a</think></observation><prediction>b</prediction>",
        "<observation>a</observation><observation>a</observation><prediction>b</prediction>",
        "<observation>a</observation><prediction>b</prediction><prediction>",
        "</observation><observation><prediction>b</prediction>",
        "<observation>a</observation></prediction><prediction>",
        "<prediction>b</prediction></observation><observation>",
    ],
)
def test_where_it_is_unclear_what_to_replace_nothing_changes(text: str) -> None:
    assert splice_truth(text, observation="A", prediction="B") == text


def test_the_states_of_an_otherwise_malformed_answer_are_replaced() -> None:
    text = "<observation>a</observation><prediction>b</prediction> and now?"
    spliced = splice_truth(text, observation="A", prediction="B")
    assert spliced == "<observation>A</observation><prediction>B</prediction> and now?"


@given(text=st.text() | st.lists(st.sampled_from(
    ["<think>", "</think>", "<observation>", "</observation>", "<prediction>", "</prediction>", "x"]
)).map("".join))  # fmt: skip
def test_splicing_twice_is_splicing_once(text: str) -> None:
    once = splice_truth(text, observation="A", prediction="B")
    assert splice_truth(once, observation="A", prediction="B") == once


@pytest.mark.parametrize(
    ("response_format", "expected"),
    [
        (
            "world_model",
            "<think><observation>o</observation>t<prediction>p</prediction></think>"
            "<answer>Up || Left</answer>",
        ),
        ("plain", "<think>t</think><answer>Up || Left</answer>"),
        ("answer_only", "<answer>Up || Left</answer>"),
    ],
)
def test_canonical_answers(response_format: str, expected: str) -> None:
    written = write_response(
        response_format,
        observation="o",
        thought="t",
        prediction="p",
        actions=("Up", "Left"),
        separator="||",
    )
    assert written == expected
