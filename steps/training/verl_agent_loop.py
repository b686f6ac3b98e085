"""verl's agent loop over our environments: each row of the data set names an episode to play.

verl makes one loop an episode, in worker processes that hold neither model nor GPU. A loop that
fails (an environment's defect, a lost server) raises: verl leaves the episode out, the trainer
counts what is missing and ends the run above `verl.max_failed_share`.

History `full` gives one output an episode, else one a turn. Rewards stand at the last token of each
turn; verl's own are one number an episode, which it copies to every output, and are left unread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import gymnasium
import torch
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from conf import from_plain
from conf.schema import Config
from steps.agent.records import Sampling, Trajectory
from steps.agent.rollout import Episode, EpisodeSpec, RolloutSettings
from steps.settings import env_factory, rollout_settings
from steps.storage.wire import to_bytes
from steps.training.verl_episode import Answer, Player, TrainedSequence, sequences, stop_ids
from steps.training.verl_final_only import FinalOnly
from steps.training.verl_rows import PROBE, compares_logprobs, episode_spec

TRAJECTORY = "trajectory"
"""Key of an episode, as bytes, among the `extra_fields` of its last output: verl's queue takes
plain values only, and makes dictionaries of records."""


class EpisodeOutput(AgentLoopOutput):
    """verl's output with a reward for each token, and with the episode itself."""

    token_rewards: list[float]
    _trajectory: Trajectory | None = None

    def as_dict(self) -> dict[str, Any]:
        """What is stored for the trainer."""
        output: dict[str, Any] = super().as_dict()
        output["rm_scores"] = torch.tensor(output.pop("token_rewards"), dtype=torch.float32)
        if self._trajectory is not None:
            output["extra_fields"][TRAJECTORY] = to_bytes([self._trajectory])
        return output


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """What every episode of a run shares."""

    config: Config
    make_env: Callable[[], gymnasium.Env[str, str]]
    train: RolloutSettings
    probe: RolloutSettings
    answer_lengths: list[list[int]]

    def lengths_at(self, step: int) -> tuple[int, int] | None:
        """Between what lengths the answers of a step are drawn; None leaves it to the model."""
        if not self.answer_lengths:
            return None
        low, high = self.answer_lengths[min(step, len(self.answer_lengths) - 1)]
        return low, high


@lru_cache(maxsize=1)
def loop_settings(run_file: str) -> LoopSettings:
    """Read once in each worker process; see `steps.training.ppo_verl` for the file."""
    run = json.loads(Path(run_file).read_text("utf-8"))
    config = from_plain(run["config"])
    return LoopSettings(
        config=config,
        make_env=env_factory(config),
        train=rollout_settings(config, for_ppo=True),
        probe=rollout_settings(config),
        answer_lengths=run["answer_lengths"],
    )


class SPAAgentLoop(AgentLoopBase):
    """Plays the episode of one row."""

    def __init__(self, *, run_file: str, server_manager: Any, tokenizer: Any, **_: Any) -> None:
        # Not `super().__init__`: it builds verl's encoder of conversations, one an episode, and
        # ours are encoded by `verl_episode.Conversation`.
        self.settings = loop_settings(run_file)
        self.server_manager = server_manager
        self.tokenizer = tokenizer

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[EpisodeOutput]:
        """One output a sequence, in order of turns; the last one carries the episode."""
        settings, began = self.settings, time.monotonic()
        is_probe = row["purpose"] == PROBE
        rollout = settings.probe if is_probe else settings.train
        spec = episode_spec(settings.config, row, member=row["session_id"])
        versions: list[int] = []
        is_compared = not is_probe and compares_logprobs(settings.config, row["step"])
        asked = sampling_params | {"logprobs": sampling_params["logprobs"] and is_compared}
        player = Player(
            tokenizer=self.tokenizer,
            generate=self._server(asked, rollout.sampling, versions),
            sampling=rollout.sampling,
            max_model_len=settings.config.sampling.max_model_len,
            answer_lengths=settings.lengths_at(row["step"]),
        )
        make_episode = partial(_new_episode, spec, settings.make_env, rollout)
        trajectory = await player.play(make_episode, settings.config.env.id)
        parts = sequences(trajectory, settings.config.ppo, history=settings.config.prompt.history)
        metrics = AgentLoopMetrics(
            generate_sequences=time.monotonic() - began - player.env_seconds,
            tool_calls=player.env_seconds,
        )
        outputs = [_output(part, trajectory, metrics, versions) for part in parts]
        outputs[-1]._trajectory = trajectory
        return outputs

    def _server(
        self, sampling_params: dict[str, Any], sampling: Sampling, versions: list[int]
    ) -> Any:
        """`Generate` by verl's servers, the same one for all turns, which keeps their prefix."""
        request_id = uuid4().hex

        async def generate(prompt_ids: list[int], *, max_tokens: int, never_stop: bool) -> Answer:
            params = sampling_params | {
                "max_tokens": max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "stop_token_ids": [] if never_stop else list(ends),
                "ignore_eos": never_stop,
                # A token costs the server's process five or six microseconds with these three, else
                # some forty: hundreds of answers at once would wait for it (LAB_NOTES.md).
                "output_kind": FinalOnly(),
                "detokenize": False,
                "flat_logprobs": True,
            }
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=prompt_ids, sampling_params=params
            )
            logprobs = tuple(output.log_probs) if output.log_probs else None
            if not output.token_ids or (logprobs is None and params["logprobs"]):
                raise RuntimeError(
                    f"the inference server gave no tokens for a prompt of {len(prompt_ids)} "
                    f"(stop reason {output.stop_reason!r}, {max_tokens} allowed)"
                )
            extra = output.extra_fields
            versions.extend(
                int(extra[name])
                for name in ("min_global_steps", "max_global_steps")
                if extra.get(name) is not None
            )
            return Answer(token_ids=tuple(output.token_ids), logprobs=logprobs)

        ends = stop_ids(self.tokenizer)
        return generate


def _new_episode(
    spec: EpisodeSpec, make_env: Callable[[], gymnasium.Env[str, str]], settings: RolloutSettings
) -> Episode:
    return Episode(0, spec, make_env(), settings)


def _output(
    part: TrainedSequence, trajectory: Trajectory, metrics: AgentLoopMetrics, versions: list[int]
) -> EpisodeOutput:
    return EpisodeOutput(
        prompt_ids=part.prompt_ids,
        response_ids=part.response_ids,
        response_mask=part.response_mask,
        response_logprobs=part.logprobs,
        token_rewards=part.rewards,
        reward_score=sum(part.rewards),  # set, so that verl asks no reward worker
        num_turns=len(trajectory.turns),
        metrics=metrics,
        extra_fields={
            "reward_extra_info": {},
            "min_global_steps": min(versions, default=0),
            "max_global_steps": max(versions, default=0),
        },
    )
