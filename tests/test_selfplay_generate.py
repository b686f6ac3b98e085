"""Self-play: who plays, on which puzzles, and what is stored."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import envs
from conf import ranges
from conf.schema import Config
from envs import splits
from steps import selfplay_generate as stage
from steps.agent.records import ParseStatus
from steps.agent.rollout import EpisodeSpec, run_episodes
from steps.errors import ConfigError, EnvironmentIdError, StageError
from steps.policies.base import make_policy
from steps.selfplay_generate import episode_specs, fingerprint_of, player, selfplay_generate
from steps.settings import env_factory, policy_spec, rollout_settings
from steps.storage import read_trajectories, recover_trajectories
from steps.storage.schemas import metadata_of
from steps.tracking import NullTracker
from tests.training.toys import finetuned, toy_config


@pytest.fixture
def config() -> Config:
    """A world model's arm, small: 3 batches of 4 puzzles with 2 episodes each."""
    config = Config()
    config.selfplay.env_groups, config.selfplay.group_size, config.selfplay.batches = 4, 2, 3
    config.prompt.style, config.prompt.history = "state_only", "single_turn"
    config.prompt.state_shown, config.prompt.prediction = "grid", "grid"
    return config


def play(config: Config, out_dir: Path, **changes: Any) -> dict[str, Any]:
    arguments = {"model_dir": "", "tracker": NullTracker(), **changes}
    return selfplay_generate(config, out_dir=out_dir, **arguments)


def test_the_result_counts_what_is_in_the_file(config: Config, tmp_path: Path) -> None:
    result = play(config, tmp_path)
    found = read_trajectories(tmp_path / result["file"])
    turns = [turn for each in found for turn in each.turns]
    assert result["trajectories"] == len(found) == 24
    assert result["turns"] == len(turns)
    assert result["success_rate"] == sum(each.success for each in found) / 24
    assert result["format_rate"] == 1.0
    assert (result["policy"], result["states"], result["round"]) == ("random", "truth", 1)
    assert result["seeds"] == [found[0].env_seed, found[-1].env_seed]
    assert result["puzzles"] == len({each.puzzle_hash for each in found})
    assert len(result["sample"]) == 3
    json.dumps(result)


def test_the_stored_answers_hold_the_truth(config: Config, tmp_path: Path) -> None:
    play(config, tmp_path)
    for trajectory in read_trajectories(tmp_path / stage.FILE):
        for turn in trajectory.turns:
            assert f"<observation>{turn.observation_truth}</observation>" in turn.response
            assert f"<prediction>{turn.prediction_truth}</prediction>" in turn.response
            assert turn.prediction_truth in turn.possible_next


def test_every_puzzle_belongs_to_the_sft_split(config: Config, tmp_path: Path) -> None:
    play(config, tmp_path)
    found = read_trajectories(tmp_path / stage.FILE)
    assert {splits.split_of(each.puzzle_hash) for each in found} == {"sft"}
    env = envs.make("frozenlake")
    env.reset(seed=found[5].env_seed)
    assert env.unwrapped.puzzle_hash() == found[5].puzzle_hash  # type: ignore[attr-defined]


def test_a_group_shares_its_puzzle_and_not_its_play(config: Config) -> None:
    config.selfplay.group_size = 8
    specs = episode_specs(config)
    assert [spec.group for spec in specs[:10]] == [0] * 8 + [1] * 2
    assert [spec.member for spec in specs[:10]] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    assert len({spec.env_seed for spec in specs[:8]}) == 1
    assert len({spec.sampling_seed for spec in specs}) == len(specs)


def test_rounds_go_on_where_the_last_one_ended(config: Config) -> None:
    first = {spec.env_seed for spec in episode_specs(config, 1)}
    second = {spec.env_seed for spec in episode_specs(config, 2)}
    assert len(first) == len(second) == 12
    assert max(first) < min(second)


def test_each_seed_plays_puzzles_of_its_own_and_all_of_the_split(config: Config) -> None:
    own = [seed for seed in range(60) if split_at(seed) == "sft"]
    assert [spec.env_seed for spec in episode_specs(config)][:8:2] == own[:4] == [10, 15, 21, 25]
    drawn = {}
    for seed in (0, 1, 2):
        config.seed = seed
        drawn[seed] = {spec.env_seed for spec in episode_specs(config)}
        assert all(seed * 10**8 <= each < seed * 10**8 + 1000 for each in drawn[seed])
        assert {split_at(each) for each in drawn[seed]} == {"sft"}
    assert len(set.union(*drawn.values())) == 36


def test_the_largest_seed_is_played_and_stored(config: Config, tmp_path: Path) -> None:
    config.seed = ranges.MAX_SEED
    play(config, tmp_path)
    found = read_trajectories(tmp_path / stage.FILE)
    assert min(each.env_seed for each in found) >= 10**17


def split_at(seed: int) -> str:
    env = envs.make("frozenlake")
    env.reset(seed=seed)
    return splits.split_of(env.unwrapped.puzzle_hash())


def test_the_same_settings_give_the_same_file_and_another_seed_another_play(
    config: Config, tmp_path: Path
) -> None:
    play(config, tmp_path / "a")
    play(config, tmp_path / "b")
    first = read_trajectories(tmp_path / "a" / stage.FILE)
    assert first == read_trajectories(tmp_path / "b" / stage.FILE)
    config.seed = 1
    play(config, tmp_path / "c")
    other = read_trajectories(tmp_path / "c" / stage.FILE)
    assert not {each.env_seed for each in first} & {each.env_seed for each in other}
    answers = [[turn.completion.text for turn in each.turns] for each in first]
    assert answers != [[turn.completion.text for turn in each.turns] for each in other]


def test_each_batch_is_a_row_group_and_a_step_of_the_tracker(
    config: Config, tmp_path: Path
) -> None:
    tracker = NullTracker()
    play(config, tmp_path, tracker=tracker)
    assert [step for step, _ in tracker.logged] == [1, 2, 3]
    assert [metrics["selfplay/trajectories"] for _, metrics in tracker.logged] == [8, 16, 24]
    assert len(metadata_of(pq.read_schema(tmp_path / stage.FILE))["config_digest"]) >= 16


def test_a_failure_in_a_later_batch_leaves_the_earlier_ones(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = stage._play
    calls: list[int] = []

    def third_fails(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the power went")
        return played(*arguments)

    monkeypatch.setattr(stage, "_play", third_fails)
    with pytest.raises(RuntimeError, match="the power went"):
        play(config, tmp_path)
    assert not (tmp_path / stage.FILE).exists()
    assert len(recover_trajectories(tmp_path / stage.FILE)) == 16


def test_the_same_call_again_replaces_what_a_killed_one_left(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = stage._play
    calls: list[int] = []

    def second_fails(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return played(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stage, "_play", second_fails)
        play(config, tmp_path / "killed")
    whole = tmp_path / "whole"
    play(config, whole)
    expected = read_trajectories(whole / stage.FILE)
    assert recover_trajectories(tmp_path / "killed" / stage.FILE) == expected[:8]
    play(config, tmp_path / "killed")
    assert read_trajectories(tmp_path / "killed" / stage.FILE) == expected
    assert [path.name for path in (tmp_path / "killed").iterdir()] == [stage.FILE]


@pytest.mark.parametrize("batches", [1, 2, 6])
def test_play_does_not_depend_on_how_it_is_cut_into_batches(
    config: Config, tmp_path: Path, batches: int
) -> None:
    play(config, tmp_path / "a")
    config.selfplay.env_groups, config.selfplay.batches = 12 // batches, batches
    play(config, tmp_path / "b")
    assert read_trajectories(tmp_path / "a" / stage.FILE) == read_trajectories(
        tmp_path / "b" / stage.FILE
    )


@pytest.mark.slow
def test_play_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    config = toy_config()
    model = finetuned(tmp_path / "model", config)
    config.selfplay.policy = "model"
    config.selfplay.env_groups, config.selfplay.group_size, config.selfplay.batches = 64, 2, 1
    for workers in (1, 2):
        config.workers = workers
        play(config, tmp_path / str(workers), model_dir=model)
    one, two = (read_trajectories(tmp_path / name / stage.FILE) for name in ("1", "2"))
    assert [each.trajectory_id for each in one] == [each.trajectory_id for each in two]
    assert [each.turns[0].completion.token_ids for each in one] == [
        each.turns[0].completion.token_ids for each in two
    ]


def test_the_result_says_what_the_world_was_made_with(config: Config, tmp_path: Path) -> None:
    config.env.kwargs = {"size": 5}
    assert play(config, tmp_path)["env_kwargs"] == {"size": 5}


def test_coordinates_drawn_at_random_are_what_finetuning_is_taught(
    config: Config, tmp_path: Path
) -> None:
    config.prompt.random_coords, config.prompt.state_shown = True, "grid_coords"
    config.prompt.prediction = "grid_coords"
    play(config, tmp_path)
    found = read_trajectories(tmp_path / stage.FILE)
    for trajectory in found:
        for turn, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            assert f"<observation>{turn.state_shown}</observation>" in turn.response
            assert f"<prediction>{after.state_shown}</prediction>" in turn.response
    config.prompt.random_coords = False
    play(config, tmp_path / "true")
    true = read_trajectories(tmp_path / "true" / stage.FILE)
    assert [[turn.transitions[0].action for turn in each.turns] for each in found] == [
        [turn.transitions[0].action for turn in each.turns] for each in true
    ]
    assert found[0].turns[0].state_shown != true[0].turns[0].state_shown


def test_random_play_of_a_plain_arm_is_well_formed_and_holds_no_states(
    config: Config, tmp_path: Path
) -> None:
    config.sft.target = "format"
    config.prompt.response_format = "plain"
    assert play(config, tmp_path)["format_rate"] == 1.0
    found = read_trajectories(tmp_path / stage.FILE)
    assert all(turn.parsed.status is ParseStatus.OK for each in found for turn in each.turns)
    assert not any("<observation>" in turn.response for each in found for turn in each.turns)


def test_the_oracle_plays_better_than_chance(config: Config, tmp_path: Path) -> None:
    config.selfplay.policy = "oracle"
    config.env.id = "frozenlake_deterministic"
    result = play(config, tmp_path)
    assert (result["policy"], result["success_rate"]) == ("oracle", 1.0)


def test_random_play_needs_no_torch(config: Config, tmp_path: Path, root: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom conf.schema import Config\n"
        "from steps.selfplay_generate import selfplay_generate\n"
        "from steps.tracking import NullTracker\nconfig = Config()\n"
        "config.selfplay.env_groups = config.selfplay.batches = 1\n"
        f"selfplay_generate(config, model_dir='', out_dir=Path({str(tmp_path)!r}),"
        " tracker=NullTracker())\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


# Who plays


def test_a_model_from_scratch_plays_from_the_second_round_on(config: Config) -> None:
    assert player(config, "", 1).kind == "random"
    second = player(config, "runs/model", 2)
    assert (second.kind, second.model_dir) == ("hf", "runs/model")


def test_a_pretrained_model_plays_from_the_first_round_on(config: Config) -> None:
    config.model.from_scratch = False
    config.model.path = "qwen"
    assert (player(config).kind, player(config).model_dir) == ("hf", "qwen")
    assert player(config, "finetuned").model_dir == "finetuned"
    config.selfplay.policy = "random"
    assert player(config, "finetuned", 2).kind == "random"


def test_random_self_play_is_as_long_as_it_is_said_to_be_and_a_floor_is_not(config: Config) -> None:
    config.selfplay.policy, config.env.max_actions_per_turn = "random", 5
    before = fingerprint_of(config, player(config), 1)
    config.selfplay.random_actions_per_turn, config.selfplay.random_thought = 3, "I try."
    spec = player(config)
    assert (spec.actions_per_turn, spec.thought) == (3, "I try.")
    assert fingerprint_of(config, spec, 1) != before
    (episode,) = run_episodes(
        [EpisodeSpec(env_seed=0)],
        env_id=config.env.id,
        make_env=env_factory(config),
        policy=make_policy(spec),
        settings=rollout_settings(config, splice=True, selfplay=True),
    )
    assert {turn.parsed.thought for turn in episode.turns} == {"I try."}
    assert {turn.parsed.num_emitted for turn in episode.turns} <= {3, 1}
    floor = policy_spec(config, "random")
    assert (floor.actions_per_turn, floor.thought) == (0, "")


@pytest.mark.parametrize("from_scratch", [True, False])
def test_where_the_format_alone_is_taught_random_play_is_enough(
    config: Config, from_scratch: bool
) -> None:
    """A pretrained model may fail the format; an arm that isn't finetuned must not end of that."""
    config.model.from_scratch, config.model.path = from_scratch, "" if from_scratch else "qwen"
    config.sft.target = "format"
    assert player(config, "finetuned", 2).kind == "random"
    config.selfplay.policy = "model"
    assert player(config, "finetuned", 2).kind == "hf"


def test_a_model_that_does_not_exist_yet_cannot_play(config: Config, tmp_path: Path) -> None:
    config.selfplay.policy = "model"
    with pytest.raises(ConfigError, match=r"set selfplay\.policy=auto"):
        play(config, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_beliefs_of_a_baseline_are_replaced_and_those_of_a_model_kept(config: Config) -> None:
    config.selfplay.states = "self_belief"
    assert stage._takes_truth(config, player(config, "", 1))
    assert not stage._takes_truth(config, player(config, "model", 2))
    config.selfplay.states = "truth"
    assert stage._takes_truth(config, player(config, "model", 2))


# Bad settings


def test_an_unknown_policy_or_environment_is_refused_before_play(
    config: Config, tmp_path: Path
) -> None:
    config.selfplay.policy = "randm"
    with pytest.raises(ConfigError, match="did you mean 'random'"):
        play(config, tmp_path)
    config.selfplay.policy, config.selfplay.prediction = "random", "likely"
    with pytest.raises(ConfigError, match="did you mean 'likeliest'"):
        play(config, tmp_path)
    config.selfplay.prediction, config.env.id = "sampled", "frozen"
    with pytest.raises(EnvironmentIdError, match="did you mean"):
        play(config, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_world_without_puzzles_for_self_play_is_refused(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.env.kwargs = {"map": ["PG", "__"]}
    monkeypatch.setattr(splits, "split_of", lambda puzzle_hash: "test")
    with pytest.raises(ConfigError, match="too few puzzles"):
        play(config, tmp_path)


def test_a_policy_that_always_breaks_is_a_stage_error(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = stage._play
    monkeypatch.setattr(
        stage,
        "_play",
        lambda *arguments: [replace(each, error="server gone") for each in played(*arguments)],
    )
    with pytest.raises(StageError, match=r"all 24 episodes .* server gone"):
        play(config, tmp_path)
