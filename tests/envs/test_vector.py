"""Many games at once: the same as one by one, and as Gymnasium's own vector environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import envs
from envs.frozenlake import FrozenLake
from envs.vector import TextVectorEnv

MakeEnv = Callable[[], gymnasium.Env[str, str]]


def make_lake() -> gymnasium.Env[str, str]:
    return envs.make("frozenlake_6x6")


class Talkative(FrozenLake):
    """Infos of every kind, and not always."""

    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        info |= {"distance": 0.5, "words": ["a"], "nested": {"depth": 2}}
        if info["action_is_effective"]:
            info["place"] = np.array([1, 2])
        return *rest, info


MAKERS: dict[str, MakeEnv] = {
    "lake": make_lake,
    "cut": lambda: TimeLimit(envs.make("frozenlake"), max_episode_steps=3),
    "talkative": Talkative,
}


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal down to types, element types and masks."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert set(ours) == set(theirs)
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist()
    else:
        assert ours == theirs


@pytest.mark.parametrize("seed", [0, [5, None, 7, 8, 9, 5, 1, 2]])
@pytest.mark.parametrize("maker", MAKERS)
def test_everything_is_as_gymnasiums_sync_vector_env_has_it(maker: str, seed: Any) -> None:
    ours: VectorEnv[Any, Any, Any] = TextVectorEnv(MAKERS[maker], 8)
    theirs: VectorEnv[Any, Any, Any] = SyncVectorEnv([MAKERS[maker]] * 8)
    for vector in (ours, theirs):
        for env in vector.envs:  # those that aren't seeded begin alike, too
            env.reset(seed=3)
    assert_same(ours.reset(seed=seed), theirs.reset(seed=seed))
    rng, endings = np.random.default_rng(0), 0
    for _ in range(100):
        actions = tuple(rng.choice(["Left", "Down", "Right", "Up", "nonsense"], size=8).tolist())
        mine, other = ours.step(actions), theirs.step(actions)
        assert_same(mine, other)
        endings += int((mine[2] | mine[3]).sum())
    assert endings > 30
    assert ours.metadata["autoreset_mode"] is theirs.metadata["autoreset_mode"]
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.np_random_seed == theirs.np_random_seed


def test_an_episode_is_that_of_its_own_environment() -> None:
    vector = TextVectorEnv(make_lake, 3)
    texts, _ = vector.reset(seed=40)
    singles = [make_lake() for _ in range(3)]
    assert list(texts) == [env.reset(seed=40 + i)[0] for i, env in enumerate(singles)]
    for action in ("Left", "Down", "Right", "Down"):
        results = [env.step(action) for env in singles]
        texts, rewards, terminated, truncated, infos = vector.step([action] * 3)
        assert list(texts) == [result[0] for result in results]
        assert rewards.dtype == np.float64 and rewards.tolist() == [each[1] for each in results]
        assert terminated.dtype == truncated.dtype == np.bool_
        assert infos["success"].tolist() == [each[4]["success"] for each in results]
        if any(result[2] for result in results):
            return
    assert not terminated.any()


def test_the_step_after_the_end_resets_and_pays_nothing() -> None:
    """Down is the goal for every seed, so that each second step is a reset."""
    vector = TextVectorEnv(lambda: FrozenLake(map=["PO", "G_"], intended_prob=1.0), 2)
    vector.reset(seed=0)
    rewards, overs, shown = [], [], []
    for _ in range(4):
        texts, reward, terminated, truncated, infos = vector.step(("Down", "Up"))
        rewards.append(reward.tolist())
        overs.append(terminated.tolist())
        shown.append([text[:5] for text in texts])
        assert not truncated.any()
        assert infos["action_is_valid"].tolist() == [reward[0] == 1.0, True]
        assert infos["_action_is_valid"].tolist() == [True, True]
    assert rewards == [[1.0, 0.0], [0.0, 0.0]] * 2
    assert overs == [[True, False], [False, False]] * 2
    assert shown == [["_O\n√_", "PO\nG_"], ["PO\nG_", "PO\nG_"]] * 2
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


def test_results_are_not_overwritten_later() -> None:
    vector = TextVectorEnv(make_lake, 4)
    first = vector.reset(seed=0)
    second = vector.step(["Down"] * 4)
    kept = [str(first), str(second)]
    for _ in range(20):
        vector.step(["Left"] * 4)
    assert [str(first), str(second)] == kept


def test_some_games_can_be_reset_alone() -> None:
    vector = TextVectorEnv(make_lake, 3)
    before, _ = vector.reset(seed=0)
    options = {"reset_mask": np.array([False, True, False])}
    after, infos = vector.reset(seed=[None, 9, None], options=options)
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] == make_lake().reset(seed=9)[0]
    assert infos["_success"].tolist() == [False, True, False]
    assert list(options) == ["reset_mask"]
    for mask in ([True] * 3, np.array([True]), np.array([False] * 3), np.array([1, 0, 0])):
        with pytest.raises(ValueError, match="reset_mask is a bool array of 3"):
            vector.reset(options={"reset_mask": mask})


def test_actions_come_as_any_sequence_of_texts() -> None:
    results = []
    for actions in (("Down", "Up"), ["Down", "Up"], np.array(["Down", "Up"], dtype=object)):
        vector = TextVectorEnv(make_lake, 2)
        vector.reset(seed=0)
        results.append(vector.step(actions)[0])
    assert results[0] == results[1] == results[2]
    vector = TextVectorEnv(make_lake, 4)
    vector.reset(seed=0)
    for actions in ("Down", ["Down"], ["Down"] * 5):
        with pytest.raises(ValueError, match="a sequence of 4 texts"):
            vector.step(actions)


def test_gymnasiums_vector_wrappers_and_spaces_work() -> None:
    vector = RecordEpisodeStatistics(TextVectorEnv(make_lake, 5))
    texts, _ = vector.reset(seed=1)
    assert texts in vector.observation_space
    vector.action_space.seed(0)
    episodes = 0
    for _ in range(100):
        actions = vector.action_space.sample()
        assert actions in vector.action_space
        infos = vector.step(actions)[4]
        episodes += int(infos.get("_episode", np.zeros(1)).sum())
    assert episodes == vector.episode_count > 20
    vector.close()
    assert vector.unwrapped.closed


def test_gymnasium_makes_vectors_of_our_ids_as_well() -> None:
    vector = gymnasium.make_vec("spa/frozenlake", num_envs=3, vectorization_mode="sync")
    ours = TextVectorEnv(lambda: envs.make("frozenlake"), 3)
    assert_same(vector.reset(seed=2), ours.reset(seed=2))


def test_members_of_the_games_are_reached_by_name() -> None:
    vector = TextVectorEnv(make_lake, 2)
    vector.reset(seed=4)
    keys = vector.call("state_key")
    assert len(set(keys)) == 2 and all(key.startswith("frozenlake\n") for key in keys)
    assert vector.call("describe", "grid") == vector.render()
    assert vector.call("size") == (6, 6)
    assert vector.np_random_seed == (4, 5)
    assert all(isinstance(each, np.random.Generator) for each in vector.np_random)


@pytest.mark.parametrize("num_envs", [0, -1, True, 2.0, "2"])
def test_a_bad_number_of_games_is_refused(num_envs: Any) -> None:
    with pytest.raises(envs.EnvironmentConfigError, match="num_envs is"):
        TextVectorEnv(make_lake, num_envs)


def test_what_is_no_text_game_is_refused() -> None:
    with pytest.raises(envs.EnvironmentConfigError, match="no TextEnv"):
        TextVectorEnv(lambda: gymnasium.make("CartPole-v1"), 2)


def test_a_seed_for_each_game_or_none() -> None:
    vector = TextVectorEnv(make_lake, 3)
    with pytest.raises(ValueError, match="each of 3 games, not 2"):
        vector.reset(seed=[1, 2])
