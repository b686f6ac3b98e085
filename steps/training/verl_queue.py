"""verl's queue of episodes, started while verl itself is imported.

Its controller and its storage are processes of their own, started one after the other; both import
torch. verl waits for them when it has been imported itself.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import transfer_queue
from omegaconf import OmegaConf

from steps.training.verl_driver import say


def start_queue(section: Any) -> Future[None]:
    """Begin in a thread, with verl's section `transfer_queue`; its result is to be waited for."""
    settings = OmegaConf.create(OmegaConf.to_container(section, resolve=True))
    settings.enable = True
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="queue")
    started = pool.submit(_start, settings)
    pool.shutdown(wait=False)
    return started


def _start(settings: Any) -> None:
    transfer_queue.init(settings)
    say("queue stands")
