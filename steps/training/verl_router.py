"""verl's balancer between inference servers, started before them.

It is a process that imports torch and Transformers. verl starts it when the servers stand and
doesn't wait for it: the first step does, some 25 s.
"""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout import router


def start_router() -> None:
    """Start the balancer without servers; verl's `get_router_handle` will give it what it has."""
    early = ray.remote(router.GlobalRequestLoadBalancer).remote(servers={})
    make = router.get_router_handle

    def get_router_handle(
        servers: dict[str, Any],
        router_config_path: str | None = None,
        full_determinism: bool = False,
        load_balancer_cls: type | None = None,
    ) -> Any:
        if router_config_path or full_determinism or load_balancer_cls is not None:
            return make(servers, router_config_path, full_determinism, load_balancer_cls)
        ray.get(early.add_servers.remote(servers))
        return early

    router.get_router_handle = get_router_handle
