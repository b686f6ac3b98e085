"""Forced answers: whatever a model draws under the grammar is well-formed, and ends in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import gymnasium
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from conf.schema import Config, ModelSection
from steps import settings as from_config
from steps.agent.parsing import parse_response
from steps.agent.prompts import PromptSettings
from steps.agent.records import (
    Completion,
    FinishReason,
    Message,
    ParseStatus,
    PolicyRequest,
    ResponseFormat,
    Sampling,
)
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.agent.splice import write_response
from steps.errors import ConfigError, ModelError
from steps.policies import base
from steps.policies.base import PolicySpec, make_policy
from steps.policies.chat_template import end_of_turn_id
from steps.policies.drawing import draw
from steps.policies.grammar import AnswerForm
from steps.policies.hf import HFPolicy
from steps.training.tiny_model import build_model
from tests.agent.worlds import Echo
from tests.policies.vocabularies import KINDS, make_vocabulary

xgrammar = pytest.importorskip("xgrammar")
constrained = pytest.importorskip("steps.policies.constrained")

NAMES = ("Left", "Down", "Right", "Up")
FORMATS = list(ResponseFormat)
CONTEXT = 256


@cache
def vocabulary(kind: str) -> Any:
    return make_vocabulary(kind)


@cache
def guide(kind: str, separator: str = "||", max_span_chars: int = 0) -> Any:
    tokenizer = vocabulary(kind)
    return constrained.AnswerGuide(
        tokenizer,
        end_id=end_of_turn_id(tokenizer),
        separator=separator,
        max_span_chars=max_span_chars,
    )


@cache
def model(kind: str) -> torch.nn.Module:
    """Random weights."""
    section = ModelSection(hidden_size=32, num_heads=2, ffn_size=32, max_positions=CONTEXT)
    return build_model(section, vocabulary(kind)).eval()


def policy(kind: str = "tiny", *, forced: bool = True, **kwargs: Any) -> HFPolicy:
    return HFPolicy(model(kind), vocabulary(kind), guide=guide(kind) if forced else None, **kwargs)


def request(seed: int = 0, **kwargs: Any) -> PolicyRequest:
    fields: dict[str, Any] = {
        "messages": (Message(role="user", content="P_G"),),
        "seed": seed,
        "response_format": ResponseFormat.WORLD_MODEL,
        "max_actions": 1,
        "action_names": NAMES,
    }
    return PolicyRequest(**fields | kwargs)


def statuses(requests: Sequence[PolicyRequest], answers: Sequence[Completion]) -> Counter[str]:
    return Counter(
        parse_response(
            answer.text,
            asked.response_format,
            action_names=asked.action_names,
            max_actions=asked.max_actions,
            truncated=answer.finish_reason is FinishReason.LENGTH,
        ).status.value
        for asked, answer in zip(requests, answers, strict=True)
    )


# Whole games


def frozenlake() -> gymnasium.Env[str, str]:
    return envs.make("frozenlake")


@pytest.mark.parametrize("response_format", FORMATS)
@pytest.mark.parametrize("max_actions", [1, 5])
@pytest.mark.parametrize("make_env", [frozenlake, partial(Echo, "_")])
def test_an_untrained_model_never_follows_the_format_unless_it_is_forced_to(
    make_env: Any, max_actions: int, response_format: ResponseFormat
) -> None:
    prompt: Any = {"style": "state_only", "history": "single_turn", "state_shown": "grid"}
    game = RolloutSettings(
        prompt=PromptSettings(
            response_format=response_format, max_actions_per_turn=max_actions, **prompt
        ),
        sampling=Sampling(max_new_tokens=80),
        max_turns=3,
        max_actions_per_turn=max_actions,
        # of five actions a turn the second turn has two left
        max_actions=7,
    )
    rates = []
    for forced in (False, True):
        played = run_episodes(
            [EpisodeSpec(env_seed=seed, sampling_seed=seed) for seed in range(8)],
            env_id="game",
            make_env=make_env,
            policy=policy(forced=forced),
            settings=game,
        )
        turns = [turn for episode in played for turn in episode.turns]
        rates.append(sum(turn.parsed.is_well_formed for turn in turns) / len(turns))
        if forced:
            assert {turn.completion.finish_reason for turn in turns} == {FinishReason.STOP}
            assert max(turn.parsed.num_emitted for turn in turns) <= max_actions
    assert rates == [0.0, 1.0]


@pytest.mark.parametrize("max_actions", [1, 5])
@pytest.mark.parametrize("env_id", ["sudoku", "sudoku_9x9"])
def test_forced_actions_are_actions_where_a_game_lists_them(env_id: str, max_actions: int) -> None:
    """Sudoku takes any text, and knows few of them."""
    prompt: Any = {"style": "state_only", "history": "single_turn", "state_shown": "grid"}
    game = RolloutSettings(
        prompt=PromptSettings(response_format="plain", max_actions_per_turn=max_actions, **prompt),
        sampling=Sampling(max_new_tokens=60),
        max_turns=2,
        max_actions_per_turn=max_actions,
    )
    played = run_episodes(
        [EpisodeSpec(env_seed=seed, sampling_seed=seed) for seed in range(4)],
        env_id=env_id,
        make_env=lambda: envs.make(env_id),
        policy=policy(),
        settings=game,
    )
    turns = [turn for episode in played for turn in episode.turns]
    assert all(turn.parsed.is_well_formed and turn.transitions for turn in turns)
    assert all(step.valid for turn in turns for step in turn.transitions)
    assert len({step.action for turn in turns for step in turn.transitions}) > len(turns) / 2


def test_legal_actions_come_before_names_and_few_grammars_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constrained, "MAX_KINDS", 3)
    tokenizer = vocabulary("tiny")
    made = constrained.AnswerGuide(tokenizer, end_id=end_of_turn_id(tokenizer), separator="||")
    for digit in range(1, 10):
        legal = (f"1,1,{digit}", f"1,2,{digit}")
        asked = request(legal_actions=partial(tuple, legal))
        kind = made.kind(asked)
        assert kind.form.action_names == legal
        assert made.kind(asked) is kind
        assert len(made._kinds) <= 3
    assert made.kind(request()).form.action_names == NAMES


# The end of the budget


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [NAMES, ("move left", "move right"), None])
@pytest.mark.parametrize("response_format", FORMATS)
def test_an_answer_ends_in_any_budget_that_may_be_asked_for(
    response_format: ResponseFormat, names: tuple[str, ...] | None, kind: str
) -> None:
    for max_actions in (1, 3):
        asked = [
            request(
                seed, response_format=response_format, action_names=names, max_actions=max_actions
            )
            for seed in range(6)
        ]
        fewest = guide(kind).min_tokens(asked[0], 1000)
        for budget in (fewest, fewest + 7, fewest + 40):
            answers = policy(kind).complete(asked, Sampling(max_new_tokens=budget))
            assert statuses(asked, answers) == {"ok": 6}
            assert max(len(answer.token_ids) for answer in answers) <= budget


def test_the_fewest_tokens_are_counted_and_fewer_are_refused() -> None:
    # Seven tags up to <answer>, each one token; one token that is drawn; at the worst it leaves
    # the eight bytes "/answer>", more than the four of "Right" and a tag; the end of the turn.
    assert guide("tiny").min_tokens(request(), 17) == 17
    with pytest.raises(ConfigError, match=r"max_new_tokens=16 is too few .* which needs 17; raise"):
        policy().complete([request()], Sampling(max_new_tokens=16))


def test_an_untrained_model_may_use_up_its_budget() -> None:
    asked = [request(seed, max_actions=5) for seed in range(32)]
    lengths = [
        len(each.token_ids) for each in policy().complete(asked, Sampling(max_new_tokens=60))
    ]
    assert max(lengths) > 40 and min(lengths) < 50


def test_the_action_is_drawn_even_where_the_thoughts_are_cut_short() -> None:
    asked = [request(seed, response_format=ResponseFormat.PLAIN) for seed in range(64)]
    answers = policy().complete(asked, Sampling(max_new_tokens=30))
    chosen = Counter(answer.text.split("<answer>")[1] for answer in answers)
    assert set(chosen) == {f"{name}</answer>" for name in NAMES}


def test_a_prompt_that_leaves_no_room_for_a_whole_answer_gets_none() -> None:
    # role, text, end and role: three tokens beside the text; an answer needs seventeen
    texts = ["_" * (100 - 3 - 17 + more) for more in (0, 1)]
    asked = [request(messages=(Message(role="user", content=text),)) for text in texts]
    answers = policy(max_model_len=100).complete(asked, Sampling(max_new_tokens=40))
    assert [len(answer.prompt_ids) for answer in answers] == [83, 84]
    assert [answer.finish_reason for answer in answers] == [FinishReason.STOP, FinishReason.CONTEXT]
    assert statuses(asked[:1], answers[:1]) == {"ok": 1}


# What is drawn and stored


def test_log_probabilities_are_the_model_s_own_as_if_nothing_were_forbidden() -> None:
    for temperature in (0.0, 0.7):
        answers = policy().complete(
            [request(seed) for seed in range(4)],
            Sampling(temperature=temperature, max_new_tokens=40),
        )
        for answer in answers:
            ids = torch.tensor([answer.prompt_ids + answer.token_ids])
            with torch.no_grad():
                logits = model("tiny")(input_ids=ids).logits[0] / (temperature or 1.0)
            scores = torch.log_softmax(logits, -1)[len(answer.prompt_ids) - 1 : -1]
            own = scores.gather(1, torch.tensor(answer.token_ids)[:, None]).squeeze(1)
            assert answer.logprobs == pytest.approx(own.tolist(), abs=1e-4)


def test_an_answer_is_the_same_alone_and_among_others() -> None:
    asked = [request(seed, max_actions=1 + seed % 3) for seed in range(12)]
    asked += [request(seed, response_format=ResponseFormat.PLAIN) for seed in range(4)]
    sampling = Sampling(max_new_tokens=50)
    together = policy().complete(asked, sampling)
    alone = [policy().complete([each], sampling)[0] for each in asked]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    small = policy(max_batch=5).complete(asked, sampling)
    assert [each.token_ids for each in small] == [each.token_ids for each in alone]


def test_greedy_forced_answers_take_the_likeliest_legal_token() -> None:
    answers = policy().complete(
        [request(response_format=ResponseFormat.ANSWER_ONLY)],
        Sampling(temperature=0.0, max_new_tokens=40),
    )
    prompt, ids = answers[0].prompt_ids, answers[0].token_ids
    texts = guide("tiny").vocabulary.texts
    with torch.no_grad():
        logits = model("tiny")(input_ids=torch.tensor([prompt])).logits[0, -1]
    legal = [i for i, text in enumerate(texts) if text and b"<answer>".startswith(text)]
    assert ids[0] == max(legal, key=lambda i: float(logits[i]))


LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()


@pytest.mark.parametrize(
    ("allowed", "top_p", "uniform", "token"),
    [
        # of 0.3 and 0.05 the first owns 6/7 = 0.857
        ((0, 1, 0, 1), 1.0, 0.85, 1),
        ((0, 1, 0, 1), 1.0, 0.86, 3),
        ((0, 0, 0, 1), 1.0, 0.0, 3),
        ((1, 0, 0, 0), 1.0, 0.9999, 0),
        # the share of the first among the two reaches 0.8
        ((0, 1, 0, 1), 0.8, 0.9999, 1),
    ],
)
def test_allowed_tokens_share_what_is_forbidden_to_the_others(
    allowed: tuple[int, ...], top_p: float, uniform: float, token: int
) -> None:
    found, logprob = draw(
        LOGITS, torch.tensor([uniform]), Sampling(top_p=top_p), torch.tensor([allowed]).bool()
    )
    assert int(found) == token
    assert float(logprob) == pytest.approx(float(LOGITS[0, token]), abs=1e-6)


def test_an_unlikely_token_is_drawn_where_it_alone_is_allowed() -> None:
    logits = torch.tensor([[200.0, 0.0, -200.0]])
    allowed = torch.tensor([[False, False, True]])
    for temperature in (0.0, 1.0):
        found, logprob = draw(
            logits, torch.tensor([0.5]), Sampling(temperature=temperature), allowed
        )
        assert (int(found), float(logprob)) == (2, -400.0)


def test_scores_that_are_no_numbers_are_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = model("tiny").forward

    def broken(**kwargs: Any) -> Any:
        found = forward(**kwargs)
        found.logits[:] = torch.nan
        return found

    monkeypatch.setattr(model("tiny"), "forward", broken)
    with pytest.raises(ModelError, match="scores are not finite"):
        policy().complete([request()], Sampling(max_new_tokens=40))


# Vocabularies


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [NAMES, None])
def test_every_kind_of_tokenizer_writes_well_formed_answers_without_control_tokens(
    names: tuple[str, ...] | None, kind: str
) -> None:
    asked = [request(seed, action_names=names, max_actions=2) for seed in range(48)]
    answers = policy(kind).complete(asked, Sampling(max_new_tokens=140))
    assert statuses(asked, answers) == {"ok": 48}
    control = {token for token in vocabulary(kind).all_special_tokens if token[0] != "<"}
    assert not any(token in answer.text for token in control for answer in answers)
    assert all(answer.token_ids[-1] == end_of_turn_id(vocabulary(kind)) for answer in answers)


@pytest.mark.parametrize("kind", ["tiny", "qwen", "llama3"])
def test_a_tag_that_is_one_token_may_be_written_as_one(kind: str) -> None:
    tag = vocabulary(kind).convert_tokens_to_ids("<think>")
    writing = guide(kind).start([request()], [200])
    allowed = writing.allowed([0], 0, torch.zeros(1, len(vocabulary(kind))))
    assert bool(allowed[0, tag])


def test_a_model_wider_than_its_tokenizer_never_draws_beyond_it() -> None:
    width = len(vocabulary("tiny")) + 40
    allowed = guide("tiny").start([request()], [200]).allowed([0], 0, torch.zeros(1, width))
    assert allowed.shape == (1, width) and allowed.any()
    assert not allowed[0, len(vocabulary("tiny")) :].any()


def test_spelling_takes_the_longest_token_at_each_place() -> None:
    words = guide("tiny").vocabulary
    assert [words.texts[i] for i in words.spell(b"<think>Upp || Do")] == [
        b"<think>",
        b"Up",
        b"p",
        b" || ",
        b"D",
        b"o",
    ]
    # seven bytes of the tag without its first, eight of the closing one; "ighteous" and the tag
    assert words.worst(b"Right<answer>") == 7
    assert words.worst(b"Right</answer>") == 8
    assert words.worst(b"Righteous<answer>") == 9


# Grammar and parser


SIGNS = "ab|;\"\\]^- '→√<>/"


def accepts(text: str, form: tuple[Any, ...], separator: str) -> bool:
    matcher = xgrammar.GrammarMatcher(
        guide("tiny").compiler.compile_grammar(AnswerForm.of(*form, separator).grammar())
    )
    return bool(matcher.accept_string(text) and matcher.is_completed())


@settings(max_examples=300)
@given(
    response_format=st.sampled_from(FORMATS),
    names=st.lists(st.text(SIGNS, min_size=1, max_size=5), min_size=1, max_size=4).map(tuple),
    separator=st.sampled_from(["||", ";", "→", "| |", '"', "\\", "->", "]"]),
    max_actions=st.integers(1, 4),
    thought=st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=8),
    data=st.data(),
)
def test_the_grammar_accepts_what_the_parser_calls_ok_and_nothing_else(
    response_format: ResponseFormat,
    names: tuple[str, ...],
    separator: str,
    max_actions: int,
    thought: str,
    data: st.DataObject,
) -> None:
    read = partial(
        parse_response,
        response_format=response_format,
        action_names=names,
        max_actions=max_actions,
        separator=separator,
    )
    form = (response_format, names, max_actions)
    try:
        AnswerForm.of(*form, separator)
    except ConfigError:
        lines = [[name] * count for name in names for count in range(1, min(3, max_actions) + 1)]
        found = [
            (len(line), read(write_response(response_format, actions=line, separator=separator)))
            for line in lines
        ]
        assert any(each.status != "ok" or each.num_emitted != count for count, each in found)
        return
    # "zz" is no action; none and too many are drawn, too
    line = data.draw(st.lists(st.sampled_from([*names, "zz"]), max_size=max_actions + 1))
    text = write_response(
        response_format,
        observation=thought,
        thought=thought[::-1],
        prediction=thought,
        actions=line,
        separator=separator,
    )
    assert accepts(text, form, separator) == (read(text).status is ParseStatus.OK)


@pytest.mark.parametrize(
    "broken",
    [
        "<think></think><answer>Up</answer>",
        "<think><observation></observation><prediction></prediction></think><answer>Up</answer> ",
        " <think><observation></observation><prediction></prediction></think><answer>Up</answer>",
        "<think><prediction></prediction><observation></observation></think><answer>Up</answer>",
        "<think><observation></observation><prediction></prediction>x</think><answer>Up</answer>",
        "<think><observation>a<b</observation><prediction></prediction></think><answer>Up</answer>",
        "<think><observation></observation><prediction></prediction></think><answer>up</answer>",
        "<think><observation></observation><prediction></prediction></think><answer></answer>",
    ],
)
def test_what_is_no_canonical_answer_is_refused(broken: str) -> None:
    assert not accepts(broken, (ResponseFormat.WORLD_MODEL, NAMES, 2), "||")


def test_an_action_that_begins_like_another_may_stand_before_a_separator() -> None:
    form = (ResponseFormat.ANSWER_ONLY, ("Up", "Up Left"), 2)
    assert accepts("<answer>Up || Up Left</answer>", form, "||")
    assert accepts("<answer>Up Left || Up</answer>", form, "||")
    assert not accepts("<answer>Up Up</answer>", form, "||")


@settings(max_examples=150)
@given(
    kind=st.sampled_from(KINDS),
    response_format=st.sampled_from(FORMATS),
    names=st.one_of(
        st.none(), st.lists(st.text(SIGNS, min_size=1, max_size=5), min_size=1, max_size=3)
    ),
    separator=st.sampled_from(["||", ";", "→", "| |", "->"]),
    max_actions=st.integers(1, 3),
    span=st.sampled_from([0, 1, 6]),
    spare=st.integers(0, 60),
    seed=st.integers(0, 1 << 30),
)
def test_whatever_is_drawn_under_the_grammar_is_well_formed(
    kind: str,
    response_format: ResponseFormat,
    names: list[str] | None,
    separator: str,
    max_actions: int,
    span: int,
    spare: int,
    seed: int,
) -> None:
    actions = None if names is None else tuple(names)
    asked = request(response_format=response_format, action_names=actions, max_actions=max_actions)
    forced = guide(kind, separator, span)
    try:
        room = forced.min_tokens(asked, 1000) + spare
    except ConfigError:
        return
    ids = uniform_walk(forced, asked, room, seed, width=len(vocabulary(kind)))
    text = vocabulary(kind).decode(ids[:-1])
    assert len(ids) <= room
    assert ids[-1] == forced.vocabulary.end_id
    parsed = parse_response(
        text, response_format, action_names=actions, max_actions=max_actions, separator=separator
    )
    assert parsed.status is ParseStatus.OK, text


def uniform_walk(
    forced: Any, asked: PolicyRequest, room: int, seed: int, *, width: int
) -> list[int]:
    """Every allowed token is as likely as any other: bytes and pieces of tags among them."""
    draws = torch.Generator().manual_seed(seed)
    writing = forced.start([asked], [room])
    ids: list[int] = []
    while not ids or ids[-1] != forced.vocabulary.end_id:
        allowed = writing.allowed([0], len(ids), torch.zeros(1, width))
        ids.append(int(torch.multinomial(allowed[0].float(), 1, generator=draws)))
        writing.take([0], ids[-1:])
    return ids


def test_spans_are_as_long_as_they_may_be_and_no_longer() -> None:
    lengths = Counter[int]()
    for seed in range(40):
        asked = request(response_format=ResponseFormat.PLAIN)
        ids = uniform_walk(guide("tiny", "||", 4), asked, 200, seed, width=len(vocabulary("tiny")))
        thought = parse_response(vocabulary("tiny").decode(ids[:-1]), "plain").thought
        assert thought is not None
        lengths[len(vocabulary("tiny").decode(ids).split("</think>")[0]) - len("<think>")] += 1
    assert max(lengths) == 4


# How it is asked for


def test_only_self_play_forces_answers_and_only_where_it_is_set() -> None:
    config = Config()
    assert not from_config.policy_spec(config, "dir", selfplay=True).constrained
    config.generation.constrained, config.generation.max_batch = True, 7
    config.generation.max_span_chars, config.env.action_separator = 90, ";"
    spec = from_config.policy_spec(config, "dir", selfplay=True)
    assert (spec.constrained, spec.max_span_chars, spec.separator) == (True, 90, ";")
    other = from_config.policy_spec(config, "dir")
    assert (other.constrained, other.max_batch) == (False, 7)
    assert not from_config.policy_spec(config, "random", selfplay=True).constrained


def test_a_missing_library_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    config = Config()
    from_config.policy_spec(config, "dir", selfplay=True)
    config.generation.constrained = True
    from_config.policy_spec(config, "dir")
    with pytest.raises(
        ConfigError, match=r"needs xgrammar.*pip install 'spa-agents\[constrained\]'"
    ):
        from_config.policy_spec(config, "dir", selfplay=True)


def test_a_policy_in_plain_values_makes_forced_answers(tmp_path: Any) -> None:
    model("tiny").save_pretrained(tmp_path)
    vocabulary("tiny").save_pretrained(tmp_path)
    spec = PolicySpec(kind="hf", model_dir=str(tmp_path), constrained=True, separator=";")
    asked = [request(seed, max_actions=3) for seed in range(16)]
    answers = make_policy(spec).complete(asked, Sampling(max_new_tokens=60))
    assert all(answer.text.endswith("</answer>") for answer in answers)
    assert any(" ; " in answer.text for answer in answers)


def test_forms_of_one_kind_are_compiled_once() -> None:
    made = guide("tiny")
    assert made.kind(request(1)) is made.kind(request(2))
    assert made.kind(request(1)) is not made.kind(request(1, max_actions=2))
    assert isinstance(made.kind(request()).form, AnswerForm)
