"""Self-play that was cut off plays the batches that are missing, and ends as if it wasn't."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.schema import Config
from steps import selfplay_generate as stage
from steps.agent.records import StopReason
from steps.storage import file_digest
from steps.storage.batches import Batch, BatchStore
from steps.tracking import NullTracker
from tests.batches import DirectoryBatches

BATCHES = 4


def small() -> Config:
    """Random play: 4 batches of 3 puzzles with 2 episodes each."""
    config = Config()
    config.selfplay.env_groups, config.selfplay.group_size = 3, 2
    config.selfplay.batches, config.selfplay.policy = BATCHES, "random"
    config.prompt.style, config.prompt.history = "state_only", "single_turn"
    return config


class Player:
    """Plays, and notes the first seed of each batch that really was played."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, work: Path) -> None:
        self.work = work
        self.played: list[int] = []
        self.tracker = NullTracker()
        play = stage._play

        def noting(config: Config, specs: list[Any], *rest: Any) -> Any:
            self.played.append(specs[0].env_seed)
            return play(config, specs, *rest)

        monkeypatch.setattr(stage, "_play", noting)

    def __call__(self, config: Config, name: str, batches: BatchStore | None, **more: Any) -> str:
        """Digest of the file that a call leaves; `played` are its batches alone."""
        self.played.clear()
        self.tracker = NullTracker()
        self.result = stage.selfplay_generate(
            config,
            **{"model_dir": "", **more},
            out_dir=self.work / name,
            tracker=self.tracker,
            batches=batches,
        )
        return file_digest(self.work / name / stage.FILE)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Player:
    return Player(monkeypatch, tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from steps.selfplay_generate import selfplay_generate
from steps.tracking import NullTracker
from tests.batches import DirectoryBatches
from tests.test_selfplay_resume import small

class Killing(DirectoryBatches):
    def save(self, directory, *, index, fingerprint):
        super().save(directory, index=index, fingerprint=fingerprint)
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)

selfplay_generate(small(), model_dir="", out_dir=Path(sys.argv[1]) / "killed",
                  tracker=NullTracker(), batches=Killing(Path(sys.argv[1]) / "kept"))
"""


def test_killed_between_batches_it_plays_only_the_others_and_leaves_the_same_bytes(
    play: Player, tmp_path: Path, root: Path
) -> None:
    whole = play(small(), "whole", None)
    first_seeds = list(play.played)
    assert len(first_seeds) == BATCHES
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / stage.FILE).exists()
    assert play(small(), "resumed", DirectoryBatches(tmp_path / "kept")) == whole
    assert play.played == first_seeds[2:]
    assert [step for step, _ in play.tracker.logged] == [1, 2, 3, 4]
    assert [line["selfplay/trajectories"] for _, line in play.tracker.logged] == [6, 12, 18, 24]
    assert play.result["trajectories"] == 24


def test_seconds_are_those_of_playing_in_whichever_attempt(play: Player, tmp_path: Path) -> None:
    store = DirectoryBatches(tmp_path / "kept")
    play(small(), "first", store)
    seconds, rate = play.result["seconds"], play.tracker.logged[-1][1]["selfplay/turns_per_second"]
    play(small(), "again", store)
    assert play.played == []
    assert play.result["seconds"] == seconds > 0
    assert play.tracker.logged[-1][1]["selfplay/turns_per_second"] == rate


@pytest.mark.parametrize("damage", ["altered", "cut", "missing", "manifest", "facts"])
def test_a_damaged_batch_is_named_and_played_again(
    damage: str, play: Player, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DirectoryBatches(tmp_path / "kept")
    whole = play(small(), "whole", store)
    second = play.played[1]
    (batch,) = (tmp_path / "kept").glob("*/batch_000002")
    episodes = batch / "episodes.parquet"
    data = bytearray(episodes.read_bytes())
    if damage == "altered":
        data[len(data) // 2] ^= 1
        episodes.write_bytes(data)
    elif damage == "cut":
        episodes.write_bytes(data[:-7])
    elif damage == "missing":
        episodes.unlink()
    else:
        (batch / {"manifest": "manifest.json", "facts": "batch.json"}[damage]).write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert play(small(), "again", store) == whole
    assert play.played == [second]
    assert "kept batch 2 can't be used and is played again" in caplog.text
    assert play(small(), "third", store) == whole
    assert play.played == []


def test_batches_of_other_work_are_never_taken(play: Player, tmp_path: Path) -> None:
    store = DirectoryBatches(tmp_path / "kept")
    play(small(), "whole", store)
    other_world, other_seed, other_player = small(), small(), small()
    other_world.env.kwargs = {"size": 5}
    other_seed.seed = 1
    other_player.selfplay.policy = "oracle"
    for number, config in enumerate((other_world, other_seed, other_player)):
        play(config, f"other_{number}", store)
        assert len(play.played) == BATCHES
    play(small(), "second_round", store, round_index=2)
    assert len(play.played) == BATCHES
    unrelated = small()
    unrelated.ppo.lr = 9.0
    play(unrelated, "same", store)
    assert play.played == []


def test_a_batch_with_other_episodes_than_its_name_says_is_played_again(
    play: Player, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DirectoryBatches(tmp_path / "kept")
    whole = play(small(), "whole", store)
    (home,) = (tmp_path / "kept").iterdir()
    (home / "batch_000001").rename(home / "aside")
    (home / "batch_000002").rename(home / "batch_000001")
    (home / "aside").rename(home / "batch_000002")
    assert play(small(), "again", store) == whole
    assert len(play.played) == 2
    assert caplog.text.count("other episodes") == 2


def test_a_batch_in_which_the_policy_failed_is_not_kept(
    play: Player, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryBatches(tmp_path / "kept")
    with monkeypatch.context() as patch:
        good = stage._timed_play

        def failing(*arguments: Any) -> Batch:
            batch = good(*arguments)
            first, *others = batch.trajectories
            broken = replace(first, stop_reason=StopReason.POLICY_ERROR, error="server gone")
            return replace(batch, trajectories=[broken, *others])

        patch.setattr(stage, "_timed_play", failing)
        play(small(), "failed", store)
        assert play.result["broken"] == BATCHES
    play(small(), "again", store)
    assert len(play.played) == BATCHES
    assert play.result["broken"] == 0


def test_a_store_that_cannot_be_written_costs_no_episode(
    play: Player, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = play(small(), "whole", None)
    (tmp_path / "file").write_text("")
    assert play(small(), "again", DirectoryBatches(tmp_path / "file")) == whole
    assert "isn't kept for a resumed run" in caplog.text
