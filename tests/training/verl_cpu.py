"""verl's finetuning trainer on CPU processes over gloo: the real data set, loss, engine and
checkpoints, without a GPU. Run by torchrun in place of `steps.training.verl_sft_driver`.

verl knows no CPU as an accelerator, so one is made here of its CUDA platform, and its FSDP engine
is told to take it. FSDP 1 moves what it wraps to a GPU; `verl.strategy` must be fsdp2.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import torch
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_cuda import PlatformCUDA

from steps.training import verl_hooks, verl_sft_validation
from tests.training import flash_on_cpu


class CPUModule(types.ModuleType):
    """Answers for `torch.cuda`; numbers of memory are 0."""

    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: 0)

    @staticmethod
    def mem_get_info(*_: Any) -> tuple[int, int]:
        return 1, 1

    @staticmethod
    def get_device_name(*_: Any) -> str:
        return "CPU"


class PlatformCPU(PlatformCUDA):
    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: CPUModule("cpu"))

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def communication_backend_name(self) -> str:
        return "gloo"


def init_process_group(timeout_second: int = 0) -> tuple[int, int, int]:
    torch.distributed.init_process_group("gloo")
    return tuple(int(os.environ[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))  # type: ignore[return-value]


def main() -> None:
    verl_hooks.install()
    flash_on_cpu.install(sys.argv)
    platform_manager.PlatformRegistry.register(platform="cpu")(PlatformCPU)
    platform_manager.set_platform(PlatformCPU())
    from verl.utils import distributed
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    distributed.initialize_global_process_group = init_process_group
    take = EngineRegistry.register(
        model_type="language_model", backend=["fsdp", "fsdp2"], device=["cpu"]
    )
    take(FSDPEngineWithLMHead)
    verl_sft_validation.main()


if __name__ == "__main__":
    main()
