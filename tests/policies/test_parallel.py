"""Episodes spread over processes are those of one process, in the order of their specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from steps.agent.rollout import EpisodeSpec
from steps.policies import parallel
from steps.policies.base import PolicySpec
from steps.policies.parallel import MIN_EPISODES, collect
from steps.settings import policy_spec, rollout_settings
from tests.training.toys import finetuned, toy_config

SPECS = [
    EpisodeSpec(env_seed=seed, group=seed, sampling_seed=seed) for seed in range(2 * MIN_EPISODES)
]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many processes each collection takes."""
    sizes: list[int] = []
    run_ranks = parallel.run_ranks

    def counting(*args: object, size: int, **kwargs: tuple[object]) -> object:
        sizes.append(size)
        return run_ranks(*args, size=size, **kwargs)

    monkeypatch.setattr(parallel, "run_ranks", counting)
    return sizes


def test_two_processes_play_what_one_plays(tmp_path: Path, processes: list[int]) -> None:
    config = toy_config()
    spec = policy_spec(config, finetuned(tmp_path, config))
    one, two = (
        collect(
            SPECS,
            config=config,
            policy_spec=spec,
            settings=rollout_settings(config),
            workers=workers,
        )
        for workers in (1, 2)
    )
    assert processes == [1, 2]
    assert [episode.env_seed for episode in two] == list(range(128))
    assert [episode.trajectory_id for episode in one] == [each.trajectory_id for each in two]
    assert [episode.turns[0].completion.token_ids for episode in one] == [
        episode.turns[0].completion.token_ids for episode in two
    ]
    assert [episode.success for episode in one] == [episode.success for episode in two]


@pytest.mark.parametrize(
    ("kind", "num_specs", "expected"), [("random", 128, 1), ("hf", 127, 1), ("hf", 128, 2)]
)
def test_baselines_and_a_few_episodes_take_one_process(
    kind: str, num_specs: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(parallel, "run_ranks", lambda *args, size, **_: sizes.append(size) or [])
    config = toy_config()
    spec = PolicySpec(kind=kind, model_dir="not loaded here")
    settings = rollout_settings(config)
    collect(SPECS[:num_specs], config=config, policy_spec=spec, settings=settings, workers=2)
    assert sizes == [expected]
