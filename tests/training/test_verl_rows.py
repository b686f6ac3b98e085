"""The rows of a verl run name the local backend's episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conf.schema import Config
from steps.agent.rollout import EpisodeSpec
from steps.training import ppo_local, probe
from steps.training.verl_rows import (
    RowDataset,
    episode_spec,
    probe_rows,
    training_rows,
    write_rows,
)
from steps.workers import Peers
from tests.training.toys import toy_config, untrained


def config_of(*, steps: int = 2, probe_every: int = 1) -> Config:
    config = replace(toy_config(), seed=3)
    return replace(
        config,
        ppo=replace(
            config.ppo,
            total_steps=steps,
            env_groups=2,
            group_size=2,
            minibatch_size=4,
            probe_every=probe_every,
            probe_puzzles=2,
            probe_samples=2,
        ),
        evaluation=replace(config.evaluation, teacher_forced_puzzles=1),
    )


def test_the_episodes_are_those_of_the_local_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, seen = config_of(), []
    play = probe.play

    def recording(peers: Peers, specs: list[EpisodeSpec], **settings: object) -> object:
        seen.append(specs)
        return play(peers, specs, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(probe, "play", recording)
    model_dir = untrained(tmp_path / "model", config)
    ppo_local.train_ppo(Peers(), config, model_dir, "f", tmp_path, None, None)
    played = [
        [episode_spec(config, row, member=member) for row in rows for member in range(2)]
        for rows in (
            [row for row in training_rows(config) if row["step"] == 0],
            list(probe_rows(config)),
            [row for row in training_rows(config) if row["step"] == 1],
            list(probe_rows(config)),
        )
    ]
    assert played == seen[1:]
    assert seen[0] == seen[2]  # the local backend's probe before the first step


def test_no_puzzle_comes_twice_and_the_place_says_the_step() -> None:
    rows = list(training_rows(config_of(steps=5)))
    assert len({row["env_seed"] for row in rows}) == len(rows) == 10
    assert [row["index"] // 2 for row in rows] == [row["step"] for row in rows]
    assert [row["index"] for row in rows] == list(range(10))


def test_without_probes_there_is_one_row_for_verl_to_load() -> None:
    assert len(list(probe_rows(config_of(probe_every=0)))) == 1


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = list(training_rows(config_of()))
    assert write_rows(iter(rows), tmp_path / "rows.jsonl") == 4
    data = RowDataset(str(tmp_path / "rows.jsonl"), tokenizer=None, processor=None, config={})
    assert [data[index] for index in range(len(data))] == rows
