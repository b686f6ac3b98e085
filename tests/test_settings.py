"""The way from a configuration to what the agent loop takes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from conf.schema import Config
from steps import settings
from steps.agent.prompts import History, PromptStyle
from steps.agent.records import ResponseFormat, StateFormat
from steps.errors import ConfigError, EnvironmentIdError


def test_prompt_settings_take_every_prompt_setting() -> None:
    config = Config()
    config.prompt.response_format = "plain"
    config.prompt.style = "state_only"
    config.prompt.history = "last_k"
    config.prompt.last_k = 2
    config.prompt.state_shown = "grid"
    config.prompt.observation = "coords"
    config.prompt.prediction = "grid_coords"
    config.env.max_actions_per_turn = 3
    config.env.action_separator = ";"
    found = settings.prompt_settings(config)
    assert found.response_format is ResponseFormat.PLAIN
    assert found.style is PromptStyle.STATE_ONLY
    assert (found.history, found.last_k) == (History.LAST_K, 2)
    assert found.state_shown is StateFormat.GRID
    assert found.observation is StateFormat.COORDS
    assert found.prediction is StateFormat.GRID_COORDS
    assert (found.max_actions_per_turn, found.separator) == (3, ";")


def test_only_ppo_counts_penalties_and_only_self_play_splices() -> None:
    config = Config()
    config.ppo.format_penalty = -0.25
    config.ppo.ineffective_penalty = -0.05
    plain = settings.rollout_settings(config)
    assert (plain.format_penalty, plain.ineffective_penalty, plain.splice) == (0.0, 0.0, False)
    training = settings.rollout_settings(config, for_ppo=True)
    assert (training.format_penalty, training.ineffective_penalty) == (-0.25, -0.05)
    assert settings.rollout_settings(config, splice=True).splice
    assert plain.foresight and not training.foresight


@pytest.mark.parametrize(
    ("factor", "turns", "actions"), [(1.0, 10, 30), (1.1, 11, 33), (1.25, 13, 38), (1.5, 15, 45)]
)
def test_only_what_ppo_learns_from_has_the_longer_budget(
    factor: float, turns: int, actions: int
) -> None:
    config = Config()
    config.env.max_turns, config.env.max_actions, config.env.max_actions_per_turn = 10, 30, 3
    config.ppo.budget_factor = factor
    learned = settings.rollout_settings(config, for_ppo=True)
    assert (learned.max_turns, learned.max_actions) == (turns, actions)
    assert learned.max_actions_per_turn == 3
    for other in (
        settings.rollout_settings(config),
        settings.rollout_settings(config, splice=True, selfplay=True),
    ):
        assert (other.max_turns, other.max_actions) == (10, 30)


def test_training_puzzles_of_each_seed_begin_elsewhere() -> None:
    config = Config()
    begins = {}
    for config.seed in (0, 1, 7):
        bases = config.selfplay.base_seed, config.ppo.base_seed
        begins[config.seed] = [settings.training_seed(config, base) for base in bases]
    assert begins == {
        0: [0, 1_000_000],
        1: [100_000_000, 101_000_000],
        7: [700_000_000, 701_000_000],
    }


def test_a_temperature_of_zero_overrules_the_configured_one() -> None:
    config = Config()
    config.sampling.temperature = 0.7
    assert settings.rollout_settings(config).sampling.temperature == 0.7
    assert settings.rollout_settings(config, temperature=0.0).sampling.temperature == 0.0


def test_the_episode_limits_are_those_of_the_environment_section() -> None:
    config = Config()
    config.env.max_turns, config.env.max_actions, config.env.max_actions_per_turn = 5, 20, 4
    found = settings.rollout_settings(config)
    assert (found.max_turns, found.max_actions, found.max_actions_per_turn) == (5, 20, 4)


def test_the_bounds_are_those_of_a_player_with_so_many_turns_and_actions_a_turn() -> None:
    """By hand: the goal is two steps away, and a slip leads on, nowhere, or back to the start.

    A step from the start succeeds with .9 (to either neighbour), from there with .8; else the
    player stays, or is back at the start, with .1 each. With n turns left, start and neighbour are
    worth s(n) = .9 b(n-1) + .1 s(n-1) and b(n) = .8 + .1 s(n-1) + .1 b(n-1):
    b = .8, .88, .96, .9824 and s = 0, .72, .864, .9504, .9792.
    """
    config = Config()
    config.env.id, config.env.kwargs = "frozenlake", {"map": ["SF", "FG"], "intended_prob": 0.8}
    config.env.max_turns, config.env.max_actions_per_turn, config.env.max_actions = 5, 1, 10
    (five,) = settings.bounds_of_puzzles(config, [0])
    assert five.ceiling == pytest.approx(0.9792)
    assert settings.floor_and_ceiling(config, [0])["ceiling"] == pytest.approx(0.9792)
    config.env.max_turns, config.env.max_actions = 10, 2
    (two,) = settings.bounds_of_puzzles(config, [0])
    assert two.ceiling == pytest.approx(0.72)


def test_the_factory_travels_to_another_process_and_passes_the_arguments() -> None:
    config = Config()
    config.env.kwargs = {"size": 5}
    factory = pickle.loads(pickle.dumps(settings.env_factory(config)))
    board, _ = factory().reset(seed=3)
    assert [len(row) for row in board.splitlines()[:5]] == [5] * 5


def test_an_unknown_environment_is_named_with_its_neighbour() -> None:
    config = Config()
    config.env.id = "frozenlak"
    with pytest.raises(EnvironmentIdError, match="did you mean 'frozenlake'"):
        settings.env_factory(config)()


def test_an_unknown_argument_of_the_environment_is_a_configuration_error() -> None:
    config = Config()
    config.env.kwargs = {"sizes": 5}
    with pytest.raises(ConfigError, match="sizes"):
        settings.env_factory(config)()


def test_a_baseline_stands_in_for_a_model_directory() -> None:
    config = Config()
    assert settings.policy_spec(config, "oracle").kind == "oracle"
    config.sampling.max_model_len = 256
    config.model.dtype, config.model.revision = "bfloat16", "v1"
    spec = settings.policy_spec(config, "some/dir")
    assert (spec.kind, spec.model_dir, spec.max_model_len) == ("hf", "some/dir", 256)
    assert (spec.dtype, spec.revision) == ("bfloat16", "v1")


def test_workers_overrule_the_machine_and_eight_is_the_most() -> None:
    config = Config()
    config.workers = 12
    assert settings.cores(config) == 12
    config.workers = 0
    assert 1 <= settings.cores(config) <= 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [("150000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("no number", None)],
)
def test_a_container_quota_limits_the_cores(
    tmp_path: Path, text: str, expected: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    found = settings.available_cores(tmp_path)
    assert found == (expected or len(os.sched_getaffinity(0)))


def test_the_older_control_groups_count_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert settings.available_cores(tmp_path) == 1


def test_an_unlimited_quota_of_the_older_control_groups_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert settings.available_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_a_word_is_refused_with_the_name_of_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"selfplay\.policy 'randm'; did you mean 'random'"):
        settings.one_of("selfplay.policy", "randm", ("random", "oracle"))


def test_a_stage_asks_of_the_parts_that_it_reads() -> None:
    config = Config()
    config.sft.state_loss, config.ppo.gamma, config.seed = "striped", 1.5, -1
    settings.check_settings(config, "filter", "evaluation", "sft.backend")
    for parts, said in (
        (("sft",), "did you mean 'strip'"),
        (("sft.state_loss",), "did you mean 'strip'"),
        (("filter", "ppo"), "ppo.gamma=1.5 is outside"),
        (("seed",), "seed=-1 is negative"),
    ):
        with pytest.raises(ConfigError, match=said):
            settings.check_settings(config, *parts)


def test_environments_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "available_cores", lambda: 6)
    config = Config()
    assert settings.cores(config) == 6
    config.branches = 2
    assert settings.cores(config) == 3
    config.branches = 9
    assert settings.cores(config) == 1
    config.workers = 4
    assert settings.cores(config) == 4
