"""The program of each finetuning process: `verl.trainer.sft_trainer`, mended.

torchrun starts it with verl's own arguments; Ray, which has hooks for this, has no part here.
"""

from __future__ import annotations

from steps.training import verl_hooks, verl_sft_validation


def main() -> None:
    """Run verl's program in this process."""
    verl_hooks.install()
    verl_sft_validation.main()


if __name__ == "__main__":
    main()
