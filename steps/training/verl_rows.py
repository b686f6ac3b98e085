"""The data set of a verl run: one row a group of episodes, in the order in which they are played.

A row is a few numbers; prompts come from the environments while they are played. The puzzles and
seeds are those of the local backend, and the row's place says its step: training that goes on from
a checkpoint goes on with the next row, and no puzzle comes twice. JSON lines, since verl's own
reader of Parquet wants chats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from conf.schema import Config
from envs.splits import draw_seeds
from steps.agent.rollout import EpisodeSpec
from steps.agent.seeds import Stream, mix_seed
from steps.settings import env_factory, training_seed
from steps.training.probe import SPLIT

AGENT = "spa"
"""Name of our agent loop in verl's registry."""
TRAIN, PROBE = "train", "probe"
_STREAM = {TRAIN: Stream.PPO, PROBE: Stream.PROBE}


def training_rows(config: Config) -> Iterator[dict[str, Any]]:
    """`ppo.env_groups` rows a step, for all steps."""
    section, make_env = config.ppo, env_factory(config)
    cursor = training_seed(config, section.base_seed)
    for step in range(section.total_steps):
        seeds = draw_seeds(make_env, "train", section.env_groups, cursor)
        cursor = seeds[-1] + 1
        for group, seed in enumerate(seeds):
            yield _row(config, TRAIN, step * section.env_groups + group, step, group, seed)


def probe_rows(config: Config) -> Iterator[dict[str, Any]]:
    """The puzzles of every probe; one, which nothing plays, where there is none."""
    section = config.ppo
    count = section.probe_puzzles if section.probe_every else 1
    seeds = draw_seeds(env_factory(config), SPLIT, count, section.base_seed, distinct=True)
    for group, seed in enumerate(seeds):
        yield _row(config, PROBE, group, 0, group, seed)


def _row(
    config: Config, purpose: str, index: int, step: int, group: int, seed: int
) -> dict[str, Any]:
    return {
        "purpose": purpose,
        "step": step,
        "group": group,
        "env_seed": seed,
        "index": index,
        "agent_name": AGENT,
        # What verl reads of every row.
        "data_source": config.env.id,
        "raw_prompt": f"{config.env.id}-s{seed}",
        "reward_model": {"ground_truth": ""},
    }


def episode_spec(config: Config, row: Mapping[str, Any], *, member: int) -> EpisodeSpec:
    """The episode of one member of a row's group."""
    group, stream = int(row["group"]), _STREAM[row["purpose"]]
    parts = (int(row["step"]), group) if row["purpose"] == TRAIN else (group,)
    return EpisodeSpec(
        env_seed=int(row["env_seed"]),
        group=group,
        member=member,
        sampling_seed=mix_seed(config.seed, stream, *parts, member),
    )


def compares_logprobs(config: Config, step: int) -> bool:
    """Whether servers tell the log-probabilities of what they sample in a step, 0 for the first."""
    every = config.verl.logprobs_every
    return every > 0 and step % every == 0


def write_rows(rows: Iterator[dict[str, Any]], path: Path) -> int:
    """Write the rows and return their number."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            count += 1
    return count


class RowDataset(Dataset[dict[str, Any]]):
    """What verl makes of a file of rows (`data.custom_cls`)."""

    def __init__(self, data_files: Any, *_: Any, **__: Any) -> None:
        paths = [data_files] if isinstance(data_files, str) else list(data_files)
        self.rows = [
            json.loads(line)
            for path in paths
            for line in Path(path).read_text("utf-8").splitlines()
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(self.rows[index])
