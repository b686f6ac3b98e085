"""Which rows make up which batch of finetuning: the same for every backend, machine and resumption.

Each epoch is a fresh permutation, fixed by seed and epoch, and batches are full: rows that fill
none are left out, others in each epoch.
"""

from __future__ import annotations

import numpy as np

from conf.schema import SFTSection


def num_steps(section: SFTSection, num_rows: int) -> int:
    """Optimizer steps of the whole run: `max_steps`, or `epochs` over the rows."""
    if section.max_steps > 0:
        return section.max_steps
    return section.epochs * epoch_steps(section, num_rows)


def epoch_steps(section: SFTSection, num_rows: int) -> int:
    """Optimizer steps of one pass over the rows."""
    return max(1, num_rows // section.batch_size)


def batch_rows(seed: int, step: int, batch_size: int, num_rows: int) -> list[int]:
    """Rows of batch `step`; all of them where there are fewer than `batch_size`."""
    per_epoch = max(1, num_rows // batch_size)
    epoch, position = divmod(step, per_epoch)
    order = np.random.default_rng([seed, epoch]).permutation(num_rows)
    return [int(row) for row in order[position * batch_size : (position + 1) * batch_size]]
