"""Evaluation played through: baselines against the exact bounds, pairing, what is written."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest

import conf
from envs import splits
from steps import evaluate as evaluation
from steps import storage
from steps.agent.records import (
    Completion,
    ParsedResponse,
    ParseStatus,
    ResponseFormat,
    StopReason,
    Trajectory,
    Transition,
    Turn,
)
from steps.errors import ConfigError, StageError
from steps.policies import base, parallel
from steps.settings import env_factory
from steps.tracking import NullTracker
from tests.training.toys import finetuned, toy_config

HANDLES = {
    "pass@1", "pass@1_low", "pass@1_high", "pass@8", "n", "floor", "ceiling", "puzzles",
    "format_rate", "observation_exact", "prediction_exact", "prediction_possible",
    "prediction_probability",
}  # fmt: skip
WORLD_MODEL = [key for key in HANDLES if key.startswith(("observation_", "prediction_"))]


def make_config(env="frozenlake", *, overrides=(), **changes):
    config = conf.compose(profile="laptop", env=env, overrides=list(overrides))
    config.evaluation.puzzles = changes.pop("puzzles", 40)
    config.evaluation.samples = changes.pop("samples", 8)
    for key, value in changes.items():
        setattr(config.evaluation, key, value)
    return config


def run(config, out_dir, **models):
    return evaluation.evaluate(config, model_dirs=models, out_dir=out_dir, tracker=NullTracker())


@pytest.fixture(scope="module")
def slippery(tmp_path_factory):
    """Random and optimal play on the slippery lake, and the folder of their files."""
    out_dir = tmp_path_factory.mktemp("evaluation")
    config = make_config(puzzles=96)
    return run(config, out_dir, after_sft="random", final="oracle"), out_dir


def test_every_seed_is_measured_on_the_same_puzzles():
    drawn = []
    for seed in (0, 1):
        config = make_config(puzzles=8, samples=2)
        config.seed = seed
        drawn.append(evaluation.episode_specs(config))
    assert [spec.env_seed for spec in drawn[0]] == [spec.env_seed for spec in drawn[1]]
    assert not {each.sampling_seed for each in drawn[0]} & {each.sampling_seed for each in drawn[1]}


def test_optimal_play_scores_the_ceiling_and_random_play_the_floor(slippery):
    summary = slippery[0]["summary"]
    random = summary["after_sft"]
    assert summary["pass@1_low"] <= summary["ceiling"] <= summary["pass@1_high"]
    assert random["pass@1_low"] <= random["floor"] <= random["pass@1_high"]
    assert random["pass@1_high"] < summary["ceiling"]
    assert summary["attainable_low"] <= 1 <= summary["attainable_high"]
    assert random["attainable_low"] <= 0 <= random["attainable_high"]
    assert summary["pass@1_low"] > summary["floor"]


def test_without_slip_optimal_play_equals_the_ceiling_exactly(tmp_path):
    config = make_config("frozenlake_deterministic", samples=2, pass_k=[1, 2])
    summary = run(config, tmp_path, final="oracle")["summary"]
    assert summary["pass@1"] == summary["ceiling"] == summary["attainable"] == 1.0
    assert summary["pass@2"] == summary["pass@1_high"] == 1.0


def test_without_slip_a_short_budget_lowers_optimal_play_and_ceiling_alike(tmp_path):
    config = make_config(
        "frozenlake_deterministic",
        samples=1,
        pass_k=[1],
        overrides=["env.max_actions=2", "env.max_turns=2"],
    )
    summary = run(config, tmp_path, final="oracle")["summary"]
    assert 0.2 < summary["ceiling"] < 0.9
    assert summary["pass@1"] == pytest.approx(summary["ceiling"])


def test_baselines_know_their_world(slippery):
    for scores in (slippery[0]["summary"], slippery[0]["summary"]["after_sft"]):
        assert scores["format_rate"] == scores["observation_exact"] == 1.0
        assert scores["prediction_possible"] == 1.0
        # Both predict the likeliest state: .8, or 1 - .8 and more where a wall helps.
        assert scores["prediction_probability"] == pytest.approx(scores["prediction_best"])
        assert 0.8 <= scores["prediction_probability"] < 0.85
        assert scores["prediction_exact"] == pytest.approx(
            scores["prediction_probability"], abs=0.03
        )


def test_summary_has_its_handles_as_plain_numbers(slippery):
    summary = slippery[0]["summary"]
    assert not HANDLES - set(summary)
    assert set(summary["after_sft"]) == set(summary) - {"after_sft"}
    for scores in (summary["after_sft"], {k: v for k, v in summary.items() if k != "after_sft"}):
        assert all(type(value) in (int, float, bool, type(None)) for value in scores.values())
        assert (scores["n"], scores["puzzles"]) == (96 * 8, 96)


def test_formats_without_states_have_no_world_model_scores(tmp_path):
    config = make_config(
        samples=1, puzzles=4, pass_k=[1], overrides=["prompt.response_format=plain"]
    )
    summary = run(config, tmp_path, final="random")["summary"]
    assert summary["format_rate"] == 1.0
    assert all(summary[key] is None for key in WORLD_MODEL)


def test_every_model_plays_the_same_episodes(slippery):
    report, out_dir = slippery
    played = {
        name: storage.read_trajectories(out_dir / report["models"][name]["file"])
        for name in ("after_sft", "final")
    }
    places = {
        name: [(each.puzzle_hash, each.env_seed, each.group, each.member) for each in episodes]
        for name, episodes in played.items()
    }
    assert places["after_sft"] == places["final"]
    assert len(set(places["final"])) == 96 * 8
    assert {each.policy for each in played["final"]} == {"oracle"}


def test_puzzles_are_distinct_and_of_the_split_alone():
    config = make_config()
    seeds = {spec.group: spec.env_seed for spec in evaluation.episode_specs(config)}
    puzzles = []
    env = env_factory(config)()
    for seed in seeds.values():
        env.reset(seed=seed)
        puzzles.append(env.unwrapped.puzzle_hash())
    assert len(set(puzzles)) == 40
    assert {splits.split_of(puzzle) for puzzle in puzzles} == {"test"}


def test_where_states_are_few_each_seed_is_a_unit(tmp_path):
    """Two orders of the arms: intervals over two puzzles would say next to nothing."""
    config = make_config("bandit", puzzles=128, samples=4)
    report = run(config, tmp_path, final="random")
    assert (report["summary"]["puzzles"], report["summary"]["n"]) == (128, 512)
    assert {num for _, num in report["models"]["final"]["puzzles"].values()} == {4}
    low, high = report["summary"]["pass@1_low"], report["summary"]["pass@1_high"]
    # A fair coin 512 times: 1.96 standard deviations are 0.043 to each side.
    assert 0.06 < high - low < 0.11


def test_the_runs_seed_varies_the_draws_and_not_the_puzzles():
    first, second = make_config(), make_config()
    second.seed = 1
    one, other = evaluation.episode_specs(first), evaluation.episode_specs(second)
    assert [spec.env_seed for spec in one] == [spec.env_seed for spec in other]
    seeds = [spec.sampling_seed for spec in [*one, *other]]
    assert len(set(seeds)) == len(seeds)


def test_the_same_call_gives_the_same_numbers(tmp_path):
    config = make_config(puzzles=6)
    first = run(config, tmp_path / "first", final="random")
    second = run(config, tmp_path / "second", final="random")
    first.pop("seconds"), second.pop("seconds")
    assert first == second


def test_report_is_written_as_it_is_returned(slippery):
    report, out_dir = slippery
    assert json.loads((out_dir / "report.json").read_text()) == report


def test_rates_follow_from_the_written_trajectories(slippery):
    report, out_dir = slippery
    episodes = storage.read_trajectories(out_dir / "trajectories_after_sft.parquet")
    wins = {}
    for each in episodes:
        wins[each.puzzle_hash] = wins.get(each.puzzle_hash, 0) + each.success
    scores = report["summary"]["after_sft"]
    assert scores["pass@1"] == pytest.approx(sum(each.success for each in episodes) / 768)
    assert scores["pass@8"] == pytest.approx(sum(won > 0 for won in wins.values()) / 96)
    assert report["models"]["after_sft"]["puzzles"] == {p: [won, 8] for p, won in wins.items()}


def test_gain_over_an_earlier_model_is_paired(slippery):
    report = slippery[0]
    gain = report["gains"]["after_sft"]
    summary = report["summary"]
    assert gain["gain"] == pytest.approx(summary["pass@1"] - summary["after_sft"]["pass@1"])
    assert 0 < gain["low"] < gain["gain"] < gain["high"] < 1


def test_scores_reach_the_tracker_under_the_models_name(tmp_path):
    tracker = NullTracker()
    config = make_config(puzzles=2, samples=1, pass_k=[1])
    report = evaluation.evaluate(
        config, model_dirs={"final": "random"}, out_dir=tmp_path, tracker=tracker
    )
    logged = tracker.logged[0][1]
    assert logged["final/pass@1"] == report["summary"]["pass@1"]
    assert logged["final/ceiling"] == report["summary"]["ceiling"]


@pytest.mark.parametrize(("env", "few"), [("bandit", True), ("frozenlake", False)])
def test_the_summary_says_whether_starts_are_shared_with_training(tmp_path, env, few):
    config = make_config(env, puzzles=2, samples=1, pass_k=[1])
    assert run(config, tmp_path, final="random")["summary"]["few_puzzles"] is few


def test_too_many_puzzles_are_refused_by_name(tmp_path):
    config = make_config(puzzles=3, samples=1, pass_k=[1])
    config.env.kwargs = {"map": ["SF", "FG"]}
    with pytest.raises(ConfigError, match=r"evaluation\.puzzles=3"):
        run(config, tmp_path, final="random")


def test_a_policy_that_only_fails_stops_the_stage(tmp_path, monkeypatch):
    from steps.agent.records import Completion, FinishReason

    class Dead:
        name = "dead"

        def complete(self, requests, sampling):
            return [
                Completion(text="", finish_reason=FinishReason.ERROR, error="server is gone")
                for _ in requests
            ]

    monkeypatch.setattr("steps.policies.parallel.make_policy", lambda spec: Dead())
    with pytest.raises(StageError, match="server is gone"):
        run(make_config(puzzles=2, samples=2, pass_k=[1]), tmp_path, final="random")


def test_the_samples_are_drawn_at_the_temperature_of_evaluation(tmp_path, monkeypatch):
    asked = []

    class Noting:
        name = "noting"

        def __init__(self, spec):
            self.policy = base.make_policy(spec)

        def complete(self, requests, sampling):
            asked.append(sampling.temperature)
            return self.policy.complete(requests, sampling)

    monkeypatch.setattr(parallel, "make_policy", Noting)
    config = make_config(
        puzzles=2, samples=2, pass_k=[1], temperature=0.5, overrides=["sampling.temperature=0.7"]
    )
    report = run(config, tmp_path, final="random")
    assert set(asked) == {0.5}
    assert report["settings"]["temperature"] == 0.5
    asked.clear()
    config.evaluation.greedy = True
    run(config, tmp_path, final="random")
    assert set(asked) == {0.5, 0.0}


def test_the_report_tells_how_the_models_were_asked_not_how_self_play_was(tmp_path):
    told = ["sft.state_loss=strip", "prompt.lenient=false", "sampling.max_new_tokens=80"]
    config = make_config(samples=1, puzzles=2, pass_k=[1], overrides=told)
    report = run(config, tmp_path, final="random")
    (played, *_) = storage.iter_trajectories(tmp_path / "trajectories_final.parquet")
    settings = json.loads((tmp_path / "report.json").read_text())["settings"]
    assert settings == report["settings"]
    assert settings["response_format"] == played.response_format == "plain"
    assert (settings["style"], settings["history"]) == ("state_only", "single_turn")
    states = ("state_shown", "observation", "prediction")
    assert [settings[name] for name in states] == ["grid"] * 3
    assert (settings["lenient"], settings["max_new_tokens"]) == (False, 80)
    assert (settings["max_model_len"], settings["max_actions_per_turn"]) == (256, 1)
    assert all(type(each) in (int, float, bool, str, dict) for each in report["settings"].values())


def turn(*steps, status="ok", emitted=None, known=None, left=9):
    """A turn whose actions were executed; `steps` are pairs of valid and effective."""
    played = tuple(
        Transition(
            action="Up", state_before="", state_after="", reward=0.25, valid=valid,
            effective=effective, terminated=False, truncated=False,
        )
        for valid, effective in steps
    )  # fmt: skip
    actions = ("Up",) * (len(steps) if known is None else known)
    return Turn(
        index=0, prompt=(), state_shown="", observation_truth="", prediction_truth="",
        completion=Completion(text="abcd", token_ids=(1, 2)), response="", transitions=played,
        parsed=ParsedResponse(
            status=ParseStatus(status), actions=actions,
            num_emitted=len(actions) if emitted is None else emitted,
        ),
        reward=0.25 * len(steps), actions_left=left,
    )  # fmt: skip


def test_play_is_counted_by_hand():
    first = Trajectory(
        trajectory_id="a", env_id="e", env_seed=0, puzzle_hash="p", group=0, member=0, policy="x",
        turns=(
            turn((True, True), (True, False)),
            turn((False, False)),  # a text that the game refuses
            turn((True, True), emitted=2, status="unknown_action"),  # one of two words is none
            turn((True, True), emitted=9, left=1, status="too_many_actions"),  # one was left
            turn((True, True), known=3),  # the game was over before the other two
        ),
        stop_reason=StopReason.MAX_TURNS, success=False, response_format=ResponseFormat.PLAIN,
    )  # fmt: skip
    second = replace(first, turns=())
    broken = replace(first, turns=(), stop_reason=StopReason.POLICY_ERROR)
    scores = evaluation.play_scores([first, second, broken], 3)
    assert scores["turns_per_episode"] == 5 / 2
    assert scores["actions_per_episode"] == 6 / 2
    assert scores["effective_actions"] == 4 / 6
    assert scores["valid_actions"] == 5 / 7
    assert scores["return"] == 1.5 / 2
    assert (scores["response_chars"], scores["response_tokens"]) == (4, 2)
    assert set(evaluation.play_scores([], 3).values()) == {None}


@pytest.mark.parametrize("status", ["extra_text", "truncated", "too_many_actions"])
def test_what_stands_beyond_a_limit_is_no_unknown_action(status):
    """`Left || Left || Left` where a turn has one action, whatever else is wrong with it."""
    played = Trajectory(
        trajectory_id="a", env_id="e", env_seed=0, puzzle_hash="p", group=0, member=0, policy="x",
        turns=(turn((True, True), emitted=3, status=status),),
        stop_reason=StopReason.MAX_TURNS, success=False, response_format=ResponseFormat.PLAIN,
    )  # fmt: skip
    assert evaluation.play_scores([played], 1)["valid_actions"] == 1.0
    assert evaluation.play_scores([played], 2)["valid_actions"] == 1 / 2


def test_a_greedy_pass_plays_each_puzzle_once_without_sampling(tmp_path, monkeypatch):
    played = []
    collect = parallel.collect

    def watching(specs, *, settings, **kwargs):
        played.append((len(specs), settings.sampling.temperature))
        return collect(specs, settings=settings, **kwargs)

    monkeypatch.setattr(parallel, "collect", watching)
    config = make_config("frozenlake_deterministic", puzzles=6, samples=2, pass_k=[1], greedy=True)
    summary = run(config, tmp_path, final="oracle")["summary"]
    assert played == [(12, 1.0), (6, 0.0)]
    assert summary["greedy_success"] == 1.0
    assert 0 < summary["greedy_success_low"] < summary["greedy_success_high"] == 1.0
    assert "greedy_success" not in run(make_config(puzzles=2), tmp_path, final="random")["summary"]


def test_a_model_that_has_likelihoods_is_read_on_random_play(tmp_path):
    config = toy_config()
    config.evaluation.puzzles, config.evaluation.samples, config.evaluation.pass_k = 8, 1, [1]
    model = finetuned(tmp_path, config)
    report = run(config, tmp_path / "out", after_sft="random", final=model)
    assert "teacher_forced_answer_nll" not in report["summary"]["after_sft"]
    # One word of two, equally likely to a model that has only learned the format.
    assert 0.4 < report["summary"]["teacher_forced_answer_nll"] < 1.0
    config.evaluation.teacher_forced_puzzles = 0
    assert "teacher_forced_answer_nll" not in run(config, tmp_path / "out", final=model)["summary"]


def test_one_engine_plays_all_models_and_its_memory_is_free_for_likelihoods(tmp_path, monkeypatch):
    order = []
    kept, bounded = parallel.kept_engine, evaluation.teacher_forced_scores

    @contextmanager
    def watched():
        order.append("engine")
        with kept():
            yield
        order.append("end")

    def judging(config, specs, model_dir):
        order.append(model_dir)
        return bounded(config, specs, model_dir)

    monkeypatch.setattr(parallel, "kept_engine", watched)
    monkeypatch.setattr(evaluation, "teacher_forced_scores", judging)
    run(make_config(puzzles=2, samples=1), tmp_path, after_sft="random", final="oracle")
    assert order == ["engine", "end", "random", "oracle"]


def test_turns_are_told_apart_by_action_and_effect(slippery):
    final = slippery[0]["models"]["final"]
    assert set(final["by_action"]) <= {"Up", "Down", "Left", "Right"}
    turns = final["scores"]["turns"]
    assert sum(each["turns"] for each in final["by_effect"].values()) == turns
    assert sum(each["turns"] for each in final["by_action"].values()) == turns


def test_quarters_of_the_puzzles_have_floors_and_ceilings_of_their_own(slippery):
    models = slippery[0]["models"]
    for name, bound in (("after_sft", "floor"), ("final", "ceiling")):  # random and optimal play
        quarters = models[name]["by_difficulty"]
        assert [each["puzzles"] for each in quarters.values()] == [24] * 4
        floors = [each["floor"] for each in quarters.values()]
        assert floors == sorted(floors) and floors[0] < floors[3] / 2
        whole = models[name]["scores"]
        assert sum(floors) / 4 == pytest.approx(whole["floor"])
        assert sum(each["pass@1"] for each in quarters.values()) / 4 == pytest.approx(
            whole["pass@1"]
        )
        for each in quarters.values():
            assert each["pass@1_low"] - 0.1 < each[bound] < each["pass@1_high"] + 0.1


def test_bounds_with_intervals_of_their_own_are_passed_on(tmp_path, monkeypatch):
    bounds = {"floor": 0.2, "floor_low": 0.1, "floor_high": 0.3, "ceiling": 0.7, "ceiling_note": 1}
    monkeypatch.setattr(evaluation.solvers, "summary", lambda puzzles: bounds)
    summary = run(make_config(puzzles=4), tmp_path, final="random")["summary"]
    assert bounds.items() <= summary.items()
    assert summary["attainable"] == pytest.approx((summary["pass@1"] - 0.2) / 0.5)
