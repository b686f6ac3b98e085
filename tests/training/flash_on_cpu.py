"""flash-attn where it can't run: packed rows and Ulysses in CPU processes, in float32.

`kernels` has the settings choose it, in the process that starts a training; `install` has
transformers take the stand-in (`standins/flash_attn`), in the training's own processes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from conf.schema import VerlSection
from steps.training import verl_common
from steps.training.verl_common import FLASH, Kernels


def kernels(section: VerlSection, *, has_flash_attn: bool) -> Kernels:
    """What is chosen where flash-attn is installed; its stand-in knows float32 as well."""
    return verl_common.kernels(replace(section, dtype="bfloat16"), has_flash_attn=True)


def install(overrides: Sequence[str]) -> None:
    """Where these choose flash-attn; to be called before a model is loaded."""
    if not any(FLASH in text for text in overrides):
        return
    sys.path.insert(0, str(Path(__file__).parent / "standins"))
    from transformers import modeling_flash_attention_utils as loading
    from transformers.utils import import_utils

    import_utils.PACKAGE_DISTRIBUTION_MAPPING["flash_attn"] = ["flash-attn"]
    loading.is_flash_attn_2_available = lambda: True  # it asks for CUDA
    loading.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2] |= {
        "general_availability_check": lambda: True,
        "supported_devices": ((lambda: True, "cpu"),),
    }
