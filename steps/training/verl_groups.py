"""The replay buffer of PPO by verl: a step's episodes, whole, and the groups chosen among them.

A sequence's key is `<group>_<member>_<sequence>`; an episode came with its last one
(`verl_agent_loop.TRAJECTORY`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from conf.schema import Config
from steps.agent.records import Trajectory
from steps.errors import StageError
from steps.storage.wire import from_bytes
from steps.training import probe
from steps.training.episodes import Episode, chosen_episodes
from steps.training.verl_advantages import Place
from steps.training.verl_agent_loop import TRAJECTORY
from steps.training.verl_watch import Watch
from steps.workers import Peers

POLL_S = 0.1
"""Between looks at whether a step's episodes are done; verl looks every 2 s."""
ALONE = Peers()


def session_of(key: str) -> str:
    """The episode of a sequence's key `<group>_<member>_<sequence>`."""
    return key.rpartition("_")[0]


def place_of(key: str) -> Place:
    """The episode of a sequence, and which of its sequences it is."""
    session, _, index = key.rpartition("_")
    return session, int(index)


class GroupBuffer(ReplayBuffer):
    """Waits for a step's episodes, and hands on the sequences of the chosen groups."""

    def __init__(self, settings: Config, watch: Watch) -> None:
        super().__init__(
            trainer_mode="sync",
            trainer_config={},
            max_off_policy_threshold=None,
            max_off_policy_strategy="drop",
            sampler_kwargs={},
            poll_interval=POLL_S,
        )
        self.settings = settings
        self.watch = watch
        self.probed: list[Trajectory] = []
        """Episodes of the last probe."""
        self._failed = 0.0
        """Share of a step's episodes that are missing."""

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, float]]:
        """The sequences to train on, and the metrics of all that were played.

        Raises `StageError` where more than `verl.max_failed_share` of the episodes are missing.
        """
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        episodes = episodes_of(batch)
        if partition_id == "val":
            self.probed = list(episodes.values())
            return batch, metrics
        kept, choice = chosen_episodes(ALONE, self.settings.ppo, list(episodes.values()))
        summary = probe.summarize(ALONE, list(episodes.values()))
        found = {f"rollout/{name}": value for name, value in summary.items() if value is not None}
        found |= choice | {"rollout/failed_share": self._failed}
        return self._keep(batch, episodes, kept), metrics | found

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> Any:
        """verl's; counts the episodes before verl meets a step that has none."""
        found = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        chosen, sequences = set(found[0]), found[1]
        done = {session_of(key) for key in sequences if key.split("_")[0] in chosen}
        ppo = self.settings.ppo
        members = ppo.probe_samples if partition_id == "val" else ppo.group_size
        self._failed = check_failures(
            len(done), batch_size * members, self.settings, self.watch.first_error
        )
        return found

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self.watch.check()
        return cast(float, super()._wait_for_next_poll(partition_id, last_debug_time))

    def _keep(
        self, batch: KVBatchMeta, episodes: Mapping[str, Trajectory], kept: Sequence[Episode]
    ) -> KVBatchMeta:
        """The batch without the other episodes, whose data is dropped."""
        chosen = {(item.trajectory.group, item.trajectory.member): item for item in kept}
        of_session = {
            session: chosen[trajectory.group, trajectory.member]
            for session, trajectory in episodes.items()
            if (trajectory.group, trajectory.member) in chosen
        }
        pairs = list(zip(batch.keys, batch.tags, strict=True))
        left = [(key, tag) for key, tag in pairs if session_of(key) in of_session]
        dropped = [key for key, _ in pairs if session_of(key) not in of_session]
        if dropped:
            tq.kv_clear(keys=dropped, partition_id=batch.partition_id)
        result = KVBatchMeta(
            partition_id=batch.partition_id,
            keys=[key for key, _ in left],
            tags=[tag for _, tag in left],
        )
        if self.settings.ppo.reward_norm != "none":
            _put_standings(result, of_session)
        return result


def check_failures(
    num_done: int, num_planned: int, settings: Config, first_error: Callable[[], str]
) -> float:
    """Share of the planned episodes that are missing; raises `StageError` where it is too large."""
    share = 1.0 - num_done / max(num_planned, 1)
    limit = settings.verl.max_failed_share
    if share > limit or not num_done:
        why = first_error()
        first = f", the first with {why}" if why else ""
        raise StageError(
            f"{num_planned - num_done} of {num_planned} episodes of {settings.env.id} failed{first}"
            "; the log names each failure ('Error in _run_prompt'). Mend it"
            + (f", or raise verl.max_failed_share={limit:g}." if num_done else ".")
        )
    return share


def episodes_of(batch: KVBatchMeta) -> dict[str, Trajectory]:
    """Session -> its episode, which came with its last sequence; in order of group and member."""
    last = {session_of(key): key for key in sorted(batch.keys, key=place_of)}
    data = tq.kv_batch_get(
        keys=list(last.values()), partition_id=batch.partition_id, select_fields=["extra_fields"]
    )
    fields = [getattr(each, "data", each) for each in data["extra_fields"]]
    found = {
        session: from_bytes(each[TRAJECTORY])[0] for session, each in zip(last, fields, strict=True)
    }
    return dict(sorted(found.items(), key=lambda pair: (pair[1].group, pair[1].member)))


def _put_standings(batch: KVBatchMeta, of_session: Mapping[str, Episode]) -> None:
    """Rewards of episodes as `ppo.reward_norm` makes them, at each one's last token."""
    tag_of = dict(zip(batch.keys, batch.tags, strict=True))
    last = {session_of(key): key for key in sorted(batch.keys, key=place_of)}
    rewards = []
    for session, key in last.items():
        row = torch.zeros(tag_of[key]["response_len"])
        row[-1] = of_session[session].standing
        rewards.append(row)
    fields = TensorDict(
        {"rm_scores": torch.nested.as_nested_tensor(rewards, layout=torch.jagged)},
        batch_size=len(rewards),
    )
    tq.kv_batch_put(keys=list(last.values()), partition_id=batch.partition_id, fields=fields)
