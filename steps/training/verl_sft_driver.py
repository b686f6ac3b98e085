"""The program of each finetuning process: `verl.trainer.sft_trainer`, mended (`verl_hooks`).

torchrun starts it with verl's own arguments; Ray, which has hooks for this, has no part here.
"""

from __future__ import annotations

import runpy

from steps.training import verl_hooks


def main() -> None:
    """Run verl's program in this process."""
    verl_hooks.install()
    runpy.run_module("verl.trainer.sft_trainer", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
