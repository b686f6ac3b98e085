"""What every Ray worker of a verl run does first: mend verl's critic. Imports the library late.

verl 0.9.1 loads every critic with flash-attention whatever its configuration says, and gives it a
head of random weights. Ours has the attention that is configured and starts at value 0, as the
local backend's does. The function is exchanged when its module is imported, which costs the workers
that never load a critic nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

_TARGET = "verl.utils.model"


def install() -> None:
    """Ray's `worker_process_setup_hook`."""
    module = sys.modules.get(_TARGET)
    if module is not None:
        _mend(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find the module, and mends it once it is loaded."""

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            _after_loading(spec.loader)
        return spec


def _after_loading(loader: Any) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        _mend(module)

    loader.exec_module = exec_module


def _mend(module: ModuleType) -> None:
    module.__dict__["load_valuehead_model"] = load_critic


def load_critic(
    local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool
) -> Any:
    """A transformer with one number a token, 0 at first; verl's signature."""
    import torch
    from transformers import AutoModelForTokenClassification

    model = AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation=model_config._attn_implementation,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
    )
    head = model.score
    if not head.weight.is_meta:
        torch.nn.init.zeros_(head.weight)
        if head.bias is not None:
            torch.nn.init.zeros_(head.bias)
    return model
