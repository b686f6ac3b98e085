"""The bodies of the Ray actors that the driver starts; verl is imported inside them.

verl starts its agent workers when models and inference servers stand, and the first step then waits
half a minute for their imports. Ours are started first, and are given their task (`setup`) when
verl would have started its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

STORED = ("uid", "session_id", "global_steps")
"""What verl needs to know of a sequence's row of the data set."""


class AgentWorker:
    """verl's agent worker, which plays episodes; built late."""

    def __init__(self) -> None:
        from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

        from steps.training import verl_agent_loop

        self.loop_class = verl_agent_loop.SPAAgentLoop
        self._class = storing_less(AgentLoopWorkerTQ.__ray_metadata__.modified_class)
        self._worker: Any = None

    async def setup(self, *arguments: Any) -> None:
        """Build verl's worker with its own arguments."""
        self._worker = self._class(*arguments)

    async def generate_sequences(self, batch: Any) -> None:
        """Start the episodes of these rows, without waiting for them."""
        self._worker.first_error = ""
        await self._worker.generate_sequences(batch)

    async def first_error(self) -> str:
        """What the first episode that failed since then raised; empty for none."""
        return getattr(self._worker, "first_error", "")


def storing_less(worker: type[Any]) -> type[Any]:
    """verl's worker, which doesn't store a row of the data set beside each of its sequences.

    The trainer hands every column to every stage, one object a sequence and column. verl logs what
    an episode raises, and goes on; here the first such error is kept for who asks.
    """

    class Worker(worker):
        first_error = ""

        async def _run_agent_loop(self, *arguments: Any, **row: Any) -> Any:
            try:
                return await super()._run_agent_loop(*arguments, **row)
            except Exception as error:
                self.first_error = self.first_error or f"{type(error).__name__}: {error}"
                raise

        async def _agent_loop_postprocess(self, output: Any, validate: Any, **row: Any) -> None:
            kept = {name: row[name] for name in STORED}
            await super()._agent_loop_postprocess(output, validate, **kept)

    return Worker


class Runner:
    """The process that holds verl's trainer; it needs no GPU."""

    def run(self, config: Any, run_file: str, workers: Sequence[Any]) -> None:
        """Train to the end."""
        from steps.training.verl_queue import start_queue

        queue = start_queue(config.transfer_queue)
        from steps.training.verl_trainer import train

        train(config, run_file, workers, queue)
