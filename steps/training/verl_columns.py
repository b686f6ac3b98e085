"""Which columns of a batch verl's workers read, by stage. Imports nothing.

verl hands every stage all that its queue holds of a sequence: by the updates some fifteen columns
of tokens and seven of other things, each of which is packed, unpacked, cut into micro-batches and
moved to the GPU row by row.
"""

from __future__ import annotations

MODEL = ("input_ids", "position_ids", "loss_mask")
"""What a pass without gradients reads."""
LEARNED = (*MODEL, "prompts", "responses", "response_mask")
ACTOR = (*LEARNED, "old_log_probs", "advantages", "ref_log_prob", "rollout_is_weights")
"""Without a reference model there is no `ref_log_prob`; the queue leaves out what it hasn't."""
CRITIC = (*LEARNED, "values", "returns")
