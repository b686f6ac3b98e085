"""verl's metrics under our names."""

from __future__ import annotations

from steps.training.verl_metrics import ours, training_seconds


def test_known_names_are_translated_and_the_rest_is_left_out() -> None:
    data = {
        "actor/pg_loss": 0.5,
        "actor/ppo_kl": 0.01,
        "critic/vf_explained_var": float("nan"),
        "timing_s/gen": 3.0,
        "rollout/success": 0.25,
        "probe/pass@8": 1,
        "training/epoch": 0,
        "perf/mfu/actor": 0.3,
        "critic/vf_loss": None,
    }
    assert ours(data) == {
        "actor/loss": 0.5,
        "actor/approx_kl_k1": 0.01,
        "timing_s/rollout": 3.0,
        "rollout/success": 0.25,
        "probe/pass@8": 1.0,
    }


def test_a_checkpoint_is_no_training() -> None:
    assert training_seconds({"timing_s/step": 5.0, "timing_s/checkpoint": 2.0}) == 3.0
    assert training_seconds({"timing_s/step": 5.0}) == 5.0
