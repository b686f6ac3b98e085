from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import pytest

from steps.agent import worldmodel
from steps.agent.prompts import PromptSettings
from steps.agent.records import (
    Completion,
    FinishReason,
    Message,
    ParseStatus,
    PolicyRequest,
    ResponseFormat,
    Sampling,
    StopReason,
    Trajectory,
)
from steps.agent.rollout import EpisodeSpec, RolloutSettings, run_episodes
from steps.agent.splice import write_response
from steps.errors import ConfigError
from steps.policies.oracle import OraclePolicy
from steps.policies.random_policy import RandomPolicy
from tests.agent.worlds import Corridor, Echo, corridor
from tests.policies.scripted import ScriptedPolicy


def rules(**kwargs: Any) -> RolloutSettings:
    """Settings of a test: prompt fields are told from rollout fields by their names."""
    names = set(PromptSettings.__dataclass_fields__)
    shared = ("max_actions_per_turn", "separator")
    prompt = {"style": "state_only", "state_shown": "grid", "prediction": "grid"}
    prompt |= {key: value for key, value in kwargs.items() if key in names}
    rest = {key: value for key, value in kwargs.items() if key not in names or key in shared}
    return RolloutSettings(prompt=PromptSettings(**prompt), **rest)  # type: ignore[arg-type]


def play(
    script: Any,
    settings: RolloutSettings,
    *,
    make_env: Callable[[], gymnasium.Env[str, str]] = Corridor,
    specs: Sequence[EpisodeSpec] = (EpisodeSpec(env_seed=0),),
) -> list[Trajectory]:
    policy = script if hasattr(script, "complete") else ScriptedPolicy(script)
    return run_episodes(
        specs, env_id="corridor", make_env=make_env, policy=policy, settings=settings
    )


def answer(*actions: str, observation: str = "guess", prediction: str = "wish") -> str:
    return write_response(
        "world_model", observation=observation, prediction=prediction, actions=actions
    )


def test_an_episode_step_by_step() -> None:
    (episode,) = play([answer("Left"), answer("Right")], rules(format_penalty=-1.0))
    assert [turn.state_shown for turn in episode.turns] == ["O_P_G", "OP__G", "O_P_G", "O__PG"]
    assert [turn.observation_truth for turn in episode.turns] == [
        "O_P_G\nP at 2.",
        "OP__G\nP at 1.",
        "O_P_G\nP at 2.",
        "O__PG\nP at 3.",
    ]
    assert [turn.prediction_truth for turn in episode.turns] == ["OP__G", "O_P_G", "O__PG", "O___P"]
    assert [turn.index for turn in episode.turns] == [0, 1, 2, 3]
    assert [turn.actions_left for turn in episode.turns] == [10, 9, 8, 7]
    assert [turn.reward for turn in episode.turns] == [-0.1, -0.1, -0.1, 1.0]
    assert [turn.penalty for turn in episode.turns] == [0.0, 0.0, 0.0, 0.0]
    first = episode.turns[0].transitions[0]
    assert (first.action, first.state_before, first.state_after) == ("Left", "O_P_G", "OP__G")
    assert (first.valid, first.effective, first.terminated, first.truncated) == (
        True,
        True,
        False,
        False,
    )
    assert episode.turns[-1].transitions[0].terminated
    assert (episode.stop_reason, episode.success) == (StopReason.TERMINATED, True)
    assert episode.reward == pytest.approx(0.7)


def test_the_trajectory_says_where_it_comes_from() -> None:
    spec = EpisodeSpec(env_seed=7, group=3, member=1, sampling_seed=99)
    (episode,) = play([answer("Right")], rules(), specs=[spec])
    assert (episode.env_id, episode.env_seed, episode.group, episode.member) == (
        "corridor",
        7,
        3,
        1,
    )
    assert episode.policy == "scripted"
    assert episode.response_format is ResponseFormat.WORLD_MODEL
    # SHA-256 of "corridor 2", as `sha256sum` prints it.
    assert episode.puzzle_hash == "1503f5483fe6bb6f"


def test_episodes_have_ids_of_their_own() -> None:
    specs = [
        EpisodeSpec(env_seed=seed, group=seed, member=member, sampling_seed=sampling)
        for seed in (1, 11)
        for member in (1, 11)
        for sampling in (1, 11)
    ]
    ids = {e.trajectory_id for e in play([answer("Right")], rules(), specs=specs)}
    assert len(ids) == 8


def test_the_game_can_be_lost() -> None:
    (episode,) = play([answer("Left")], rules())
    assert (len(episode.turns), episode.stop_reason) == (2, StopReason.TERMINATED)
    assert episode.success is False


@pytest.mark.parametrize(
    ("script", "kwargs", "turns", "reason"),
    [
        (["nothing"], {"max_turns": 3}, 3, StopReason.MAX_TURNS),
        ([answer("Left"), answer("Right")], {"max_actions": 2}, 2, StopReason.ACTION_BUDGET),
        ([answer("Left"), "?"], {"max_actions": 1}, 1, StopReason.ACTION_BUDGET),
        ([answer("Right")], {"max_turns": 2, "max_actions": 2}, 2, StopReason.TERMINATED),
        ([answer("Left"), answer("Right")], {"max_turns": 2, "max_actions": 2}, 2,
         StopReason.ACTION_BUDGET),
    ],
)  # fmt: skip
def test_why_an_episode_ends(
    script: list[str], kwargs: dict[str, int], turns: int, reason: StopReason
) -> None:
    (episode,) = play(script, rules(**kwargs))
    assert (len(episode.turns), episode.stop_reason) == (turns, reason)


def test_the_environments_own_time_limit_ends_an_episode() -> None:
    def limited() -> gymnasium.Env[str, str]:
        return gymnasium.wrappers.TimeLimit(Corridor(), max_episode_steps=2)

    (episode,) = play([answer("Left"), answer("Right")], rules(), make_env=limited)
    assert (len(episode.turns), episode.stop_reason) == (2, StopReason.TIME_LIMIT)
    assert episode.turns[-1].transitions[-1].truncated
    assert not episode.success


def test_several_actions_are_played_in_order_until_the_game_ends() -> None:
    script = [answer("Left", "Right", "Right"), answer("Right", "Right", "Left")]
    (episode,) = play(script, rules(max_actions_per_turn=3))
    first, second = episode.turns
    assert [t.state_after for t in first.transitions] == ["OP__G", "O_P_G", "O__PG"]
    assert [t.state_before for t in first.transitions] == ["O_P_G", "OP__G", "O_P_G"]
    assert first.reward == pytest.approx(-0.3)
    assert first.state_shown == "O_P_G"
    assert [t.action for t in second.transitions] == ["Right"]
    assert second.parsed.actions == ("Right", "Right", "Left")
    assert (second.state_shown, second.prediction_truth) == ("O__PG", "O___P")
    assert (first.actions_left, second.actions_left) == (10, 7)


def test_an_answer_may_hold_no_more_actions_than_the_budget() -> None:
    policy = ScriptedPolicy([answer("Left", "Right"), answer("Left", "Right")])
    (episode,) = play(policy, rules(max_actions_per_turn=2, max_actions=3))
    assert [batch[0].max_actions for batch in policy.batches] == [2, 1]
    second = episode.turns[1]
    assert second.parsed.status is ParseStatus.TOO_MANY_ACTIONS
    assert [t.action for t in second.transitions] == ["Left"]
    assert episode.stop_reason is StopReason.ACTION_BUDGET


def test_the_oracle_counts_no_more_actions_than_the_turns_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int | None] = []
    monkeypatch.setattr(Corridor, "oracle", lambda _, left: asked.append(left) or "?")
    play(OraclePolicy(), rules(max_turns=3, max_actions=100))
    assert asked == [3, 2, 1]


@pytest.mark.parametrize(("lenient", "played"), [(True, ["Right"]), (False, [])])
def test_readable_actions_of_a_malformed_answer(lenient: bool, played: list[str]) -> None:
    settings = rules(lenient=lenient, max_turns=1, format_penalty=-0.1)
    (episode,) = play(["Hm. " + answer("Right")], settings)
    (turn,) = episode.turns
    assert turn.parsed.status is ParseStatus.EXTRA_TEXT
    assert [t.action for t in turn.transitions] == played
    assert turn.penalty == -0.1


def test_a_turn_without_action_costs_no_budget_and_shows_the_state_again() -> None:
    (episode,) = play(["?", answer("Right")], rules())
    first, second = episode.turns[:2]
    assert first.transitions == ()
    assert (first.prediction_truth, second.state_shown) == ("O_P_G", "O_P_G")
    assert first.possible_next == {"O_P_G": 1.0}
    assert (first.reward, second.actions_left) == (0, 10)


@pytest.mark.parametrize(
    ("text", "slip", "penalty"),
    [
        (answer("Right"), 0.0, 0.0),
        (answer("Right"), 1.0, -0.5),
        (answer("Right", "Right"), 1.0, -0.5),
        ("?", 0.0, -2.5),
        ("Well " + answer("Right"), 0.0, -2.0),
        ("Well " + answer("Right"), 1.0, -2.5),
    ],
)
def test_penalties_add_up_once_a_turn(text: str, slip: float, penalty: float) -> None:
    settings = rules(
        max_turns=1, max_actions_per_turn=2, format_penalty=-2.0, ineffective_penalty=-0.5
    )
    (episode,) = play([text], settings, make_env=lambda: Corridor(slip=slip))
    assert episode.turns[0].penalty == penalty


def test_penalties_enter_the_return_and_not_the_reward() -> None:
    settings = rules(format_penalty=-2.0, max_turns=1)
    (episode,) = play(["Well " + answer("Right")], settings)
    assert episode.turns[0].reward == -0.1
    assert episode.reward == pytest.approx(-2.1)


def test_what_could_have_happened_follows_the_executed_actions() -> None:
    settings = rules(max_actions_per_turn=3, max_turns=1)
    (episode,) = play([answer("Right")], settings, make_env=lambda: Corridor(slip=0.25))
    assert episode.turns[0].possible_next == {"O_P_G": 0.25, "O__PG": 0.75}

    (episode,) = play([answer("Right", "Left")], settings, make_env=lambda: Corridor(slip=0.25))
    # Two failures 1/16, or there and back 9/16; one failure each way 3/16.
    assert episode.turns[0].possible_next == {"O_P_G": 0.625, "O__PG": 0.1875, "OP__G": 0.1875}


@pytest.mark.parametrize("response_format", ["plain", "world_model"])
def test_without_foresight_only_what_nobody_predicts_is_left_out(response_format: str) -> None:
    def played(foresight: bool) -> Trajectory:
        settings = rules(response_format=response_format, foresight=foresight, max_turns=3)
        script = [write_response(response_format, actions=["Right"]), "no answer"]
        return play(script, settings, make_env=lambda: Corridor(slip=0.25))[0]

    told, silent = played(True), played(False)
    assert [turn.possible_next for turn in told.turns[:2]] == [
        {"O_P_G": 0.25, "O__PG": 0.75},
        {told.turns[1].state_shown: 1.0},
    ]
    if response_format == "world_model":
        assert silent == told
    else:
        assert all(turn.possible_next == {} for turn in silent.turns)
        assert silent == replace(
            told, turns=tuple(replace(turn, possible_next={}) for turn in told.turns)
        )


def test_an_early_end_by_chance_leaves_the_whole_plan_in_what_could_have_happened() -> None:
    settings = rules(max_actions_per_turn=2, max_turns=1)
    specs = [EpisodeSpec(env_seed=0, sampling_seed=seed) for seed in range(16)]
    episodes = play(
        [answer("Right", "Left")],
        settings,
        make_env=lambda: Corridor(start=3, slip=0.5),
        specs=specs,
    )
    lengths = {len(episode.turns[0].transitions) for episode in episodes}
    assert lengths == {1, 2}  # some reach the goal at once, others fail to and turn back
    # Goal at once 1/2; no move at all 1/4; only the way back 1/4: whatever came of it.
    possible = {"O___P": 0.5, "O__PG": 0.25, "O_P_G": 0.25}
    assert [episode.turns[0].possible_next for episode in episodes] == [possible] * 16


def test_a_time_limit_cuts_the_plan_in_what_could_have_happened() -> None:
    def make_env() -> gymnasium.Env[str, str]:
        return gymnasium.wrappers.TimeLimit(Corridor(), max_episode_steps=1)

    settings = rules(max_actions_per_turn=2)
    (episode,) = play([answer("Left", "Right")], settings, make_env=make_env)
    assert episode.stop_reason is StopReason.TIME_LIMIT
    assert episode.turns[0].possible_next == {"OP__G": 1.0}


def test_actions_that_were_not_executed_are_left_out_of_what_could_have_happened() -> None:
    script = [answer("Left", "Left", "Right")]
    (episode,) = play(script, rules(max_actions_per_turn=3))
    (turn,) = episode.turns
    assert [t.action for t in turn.transitions] == ["Left", "Left"]
    assert turn.possible_next == {"P___G": 1.0}

    unknown = [answer("Left", "Jump", "Right")]
    (episode,) = play(unknown, rules(max_actions_per_turn=3, max_turns=1))
    (turn,) = episode.turns
    assert turn.possible_next == {"O_P_G": 1.0}


def test_the_truth_is_in_the_history_that_later_turns_see() -> None:
    policy = ScriptedPolicy([answer("Left"), answer("Right")])
    (episode,) = play(policy, rules(splice=True, history="full", max_turns=3))
    true = answer("Left", observation="O_P_G\nP at 2.", prediction="OP__G")
    also = answer("Right", observation="OP__G\nP at 1.", prediction="O_P_G")
    assert policy.batches[2][0].messages == (
        Message(role="user", content="O_P_G"),
        Message(role="assistant", content=true),
        Message(role="user", content="OP__G"),
        Message(role="assistant", content=also),
        Message(role="user", content="O_P_G"),
    )
    assert [turn.response for turn in episode.turns[:2]] == [true, also]
    assert episode.turns[0].completion.text == answer("Left")
    assert episode.turns[0].parsed.prediction == "wish"


def test_without_splicing_the_history_is_what_the_model_wrote() -> None:
    policy = ScriptedPolicy([answer("Left"), answer("Right")])
    play(policy, rules(history="full", max_turns=2))
    assert policy.batches[1][0].messages[1].content == answer("Left")


@pytest.mark.parametrize("response_format", ["plain", "answer_only"])
def test_a_format_without_states_gets_none_even_where_a_model_writes_their_tags(
    response_format: str,
) -> None:
    settings = rules(splice=True, response_format=response_format, max_turns=1)
    (episode,) = play([answer("Left")], settings)
    assert episode.turns[0].response == answer("Left")


@pytest.mark.parametrize("style", ["full", "state_only"])
@pytest.mark.parametrize("history", ["full", "last_k", "single_turn"])
def test_the_record_is_what_the_policy_was_shown(style: str, history: str) -> None:
    policy = ScriptedPolicy([answer("Left"), answer("Right")])
    settings = rules(style=style, history=history, last_k=2, splice=True)
    (episode,) = play(policy, settings)
    assert len(episode.turns) == 4
    for turn, batch in zip(episode.turns, policy.batches, strict=True):
        assert turn.prompt == batch[0].messages
        assert turn.state_shown in turn.prompt[-1].content
    # What SFT learns from turn t is what the prompts after it replay, to the letter.
    if history != "single_turn":
        for turn, after in zip(episode.turns, episode.turns[1:], strict=False):
            assert after.prompt[-2] == Message(role="assistant", content=turn.response)
    if history == "full":
        for turn, after in zip(episode.turns, episode.turns[1:], strict=False):
            reply = Message(role="assistant", content=turn.response)
            assert after.prompt[:-1] == (*turn.prompt, reply)


@pytest.mark.parametrize("state", ["1 _ | 3 4", "\\1", "\\g<0>", "a\\nb", "{x} %s √"])
def test_any_state_can_be_spliced(state: str) -> None:
    settings = rules(splice=True, max_turns=2, history="full")
    (episode,) = play([answer("2 3 | \\2")], settings, make_env=lambda: Echo(state))
    spliced = answer("2 3 | \\2", observation=state, prediction="2 3 | \\2")
    assert episode.turns[0].response == spliced
    assert episode.turns[1].prompt[1].content == spliced


def test_a_game_without_action_list_takes_any_text() -> None:
    (episode,) = play(
        [answer("a b", "c")], rules(max_actions_per_turn=2, max_turns=1), make_env=Echo
    )
    assert [t.action for t in episode.turns[0].transitions] == ["a b", "c"]
    assert episode.turns[0].possible_next == {"c": 1.0}


def test_actions_reach_the_game_in_its_own_spelling() -> None:
    (episode,) = play([answer("RIGHT")], rules(max_turns=1))
    assert episode.turns[0].transitions[0].action == "Right"
    assert episode.turns[0].transitions[0].effective


def test_results_keep_the_order_of_the_specs_and_the_finished_leave() -> None:
    def script(request: PolicyRequest) -> str:
        # From cell 1 into the pit, from cells 2 and 3 to the goal: one, two and one turns.
        return answer("Left") if request.observation_truth.startswith("OP") else answer("Right")

    starts = iter([3, 2, 1])
    policy = ScriptedPolicy(script)
    ended: list[tuple[int, str]] = []
    episodes = run_episodes(
        [EpisodeSpec(env_seed=seed) for seed in (30, 20, 10)],
        env_id="corridor",
        make_env=lambda: Corridor(start=next(starts)),
        policy=policy,
        settings=rules(),
        on_done=lambda position, episode: ended.append((position, episode.trajectory_id)),
    )
    assert [episode.env_seed for episode in episodes] == [30, 20, 10]
    assert [len(episode.turns) for episode in episodes] == [1, 2, 1]
    assert [len(batch) for batch in policy.batches] == [3, 1]
    assert [position for position, _ in ended] == [0, 2, 1]
    assert dict(ended) == {
        position: episode.trajectory_id for position, episode in enumerate(episodes)
    }


def test_an_episode_is_the_same_alone_and_in_a_batch() -> None:
    specs = [
        EpisodeSpec(env_seed=i // 2, group=i // 2, member=i % 2, sampling_seed=i) for i in range(8)
    ]
    settings = rules(max_actions_per_turn=2, splice=True, history="full")

    def world() -> Corridor:
        return Corridor(start=None, slip=0.5)

    together = play(RandomPolicy(), settings, make_env=world, specs=specs)
    alone = [play(RandomPolicy(), settings, make_env=world, specs=[spec])[0] for spec in specs]
    reverse = play(RandomPolicy(), settings, make_env=world, specs=specs[::-1])[::-1]
    assert together == alone == reverse
    assert len({tuple(t.completion.text for t in episode.turns) for episode in together}) > 4


def test_each_turn_has_a_seed_of_its_own() -> None:
    policy = ScriptedPolicy(["?"])
    specs = [EpisodeSpec(env_seed=0, sampling_seed=seed) for seed in range(20)]
    play(policy, rules(max_turns=10), specs=specs)
    seeds = [request.seed for batch in policy.batches for request in batch]
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_prompt_without_room_for_an_answer_ends_the_episode() -> None:
    full = Completion(text="", finish_reason=FinishReason.CONTEXT)
    (episode,) = play([answer("Left"), full], rules())
    assert (episode.stop_reason, len(episode.turns)) == (StopReason.CONTEXT_FULL, 1)
    assert (episode.success, episode.error) == (False, "")


def test_a_failed_answer_ends_its_own_episode_only() -> None:
    def script(request: PolicyRequest) -> str | Completion:
        if request.observation_truth.startswith("O_P"):
            return Completion(text="", finish_reason=FinishReason.ERROR, error="status 500")
        return answer("Right")

    starts = iter([2, 3])
    episodes = play(
        script,
        rules(),
        make_env=lambda: Corridor(start=next(starts)),
        specs=[EpisodeSpec(env_seed=0), EpisodeSpec(env_seed=1)],
    )
    assert [episode.stop_reason for episode in episodes] == [
        StopReason.POLICY_ERROR,
        StopReason.TERMINATED,
    ]
    assert [episode.error for episode in episodes] == ["status 500", ""]
    assert [len(episode.turns) for episode in episodes] == [0, 1]


def test_an_answer_cut_by_the_token_limit_is_truncated() -> None:
    cut = Completion(text=answer("Right"), finish_reason=FinishReason.LENGTH)
    (episode,) = play([cut], rules(max_turns=1))
    assert episode.turns[0].parsed.status is ParseStatus.TRUNCATED


class Broken:
    name = "broken"

    def complete(self, requests: Sequence[PolicyRequest], sampling: Sampling) -> list[Completion]:
        raise RuntimeError("no device")


class Forgetful:
    name = "forgetful"

    def complete(self, requests: Sequence[PolicyRequest], sampling: Sampling) -> list[Completion]:
        return []


@pytest.mark.parametrize(
    ("policy", "error"), [(Broken(), RuntimeError), (Forgetful(), AssertionError)]
)
def test_a_defect_of_the_policy_goes_through_and_environments_are_closed(
    policy: Any, error: type[Exception]
) -> None:
    worlds = [Corridor(), Corridor()]
    unused = iter(worlds)
    with pytest.raises(error):
        play(
            policy,
            rules(),
            make_env=lambda: next(unused),
            specs=[EpisodeSpec(env_seed=0), EpisodeSpec(env_seed=1)],
        )
    assert [world.num_closed for world in worlds] == [1, 1]


def test_no_episodes_ask_nothing() -> None:
    policy = ScriptedPolicy([answer("Right")])
    assert play(policy, rules(), specs=[]) == []
    assert policy.batches == []


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_turns": 0}, "env.max_turns is 0"),
        ({"max_actions": -1}, "env.max_actions is -1"),
        ({"format_penalty": 0.1}, "ppo.format_penalty is 0.1; a penalty must be 0 or negative"),
        ({"ineffective_penalty": 1.0}, "ppo.ineffective_penalty is 1.0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rules(**kwargs)


def test_prompt_and_rollout_must_agree() -> None:
    with pytest.raises(ConfigError, match=r"separator is ';' for the rollout and '\|\|'"):
        RolloutSettings(prompt=PromptSettings(), separator=";")


def test_the_fake_world_is_what_these_tests_take_it_for() -> None:
    assert [corridor(cell) for cell in (0, 2, 4)] == ["P___G", "O_P_G", "O___P"]


# A state after each action


def each(**kwargs: Any) -> RolloutSettings:
    return rules(**{"prediction_steps": "each", "max_actions_per_turn": 3, "max_turns": 1} | kwargs)


def test_each_executed_action_has_its_state_in_the_prediction() -> None:
    (episode,) = play([answer("Left", "Right", "Right")], each(splice=True))
    (turn,) = episode.turns
    assert turn.prediction_truth == "OP__G\n||\nO_P_G\n||\nO__PG"
    assert turn.possible_next == {turn.prediction_truth: 1.0}
    assert f"<prediction>{turn.prediction_truth}</prediction>" in turn.response
    assert episode.prediction_separator == "||"


@pytest.mark.parametrize("likeliest", [False, True])
def test_actions_after_the_end_of_the_game_have_its_last_state(likeliest: bool) -> None:
    settings = each(splice=True, splice_likeliest=likeliest)
    (episode,) = play([answer("Left", "Left", "Right")], settings)
    (turn,) = episode.turns
    assert len(turn.transitions) == 2
    assert turn.prediction_truth == "OP__G\n||\nP___G\n||\nP___G"
    assert turn.possible_next == {turn.prediction_truth: 1.0}
    assert f"<prediction>{turn.prediction_truth}</prediction>" in turn.response


def test_a_turn_without_an_action_has_the_present_state() -> None:
    (episode,) = play(["?"], each())
    assert episode.turns[0].prediction_truth == "O_P_G"
    assert episode.turns[0].possible_next == {"O_P_G": 1.0}


def test_of_several_steps_of_chance_only_the_path_that_came_is_known() -> None:
    chances = set()
    for seed in range(24):
        spec = EpisodeSpec(env_seed=0, sampling_seed=seed)
        settings = each(splice=True, splice_likeliest=True)
        (episode,) = play(
            [answer("Right", "Left")], settings, make_env=lambda: Corridor(slip=0.25), specs=[spec]
        )
        (turn,) = episode.turns
        (path, chance), = turn.possible_next.items()  # fmt: skip
        assert path == turn.prediction_truth
        # Each step goes right with 3/4 and fails with 1/4, whatever the other does.
        steps = [step.effective for step in turn.transitions]
        assert chance == pytest.approx(0.75 ** sum(steps) * 0.25 ** (2 - sum(steps)))
        chances.add(chance)
        # The likeliest state after one action and after two: there, and back again.
        assert "<prediction>O__PG\n||\nO_P_G</prediction>" in turn.response
    assert len(chances) == 3


def test_one_action_of_chance_has_all_its_outcomes() -> None:
    make_env = lambda: Corridor(slip=0.25)  # noqa: E731
    (episode,) = play([answer("Right")], each(), make_env=make_env)
    assert episode.turns[0].possible_next == {"O_P_G": 0.25, "O__PG": 0.75}


def test_with_one_action_a_turn_each_is_the_same_as_last() -> None:
    one = play([answer("Right")], rules())
    other = play([answer("Right")], rules(prediction_steps="each"))
    assert one == other
    assert one[0].prediction_separator == ""


def test_random_play_predicts_each_step_of_a_world_without_chance() -> None:
    specs = [EpisodeSpec(env_seed=0, sampling_seed=seed) for seed in range(24)]
    episodes = play(RandomPolicy(), each(max_turns=4), specs=specs)
    turns = [turn for episode in episodes for turn in episode.turns]
    assert any(len(turn.transitions) < len(turn.parsed.actions) for turn in turns)
    assert all(turn.parsed.prediction == turn.prediction_truth for turn in turns)
    scores = worldmodel.scores(episodes)
    exact = ("prediction_exact", "prediction_possible", "prediction_best")
    assert [scores[name] for name in exact] == [1.0, 1.0, 1.0]
