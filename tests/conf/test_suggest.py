"""What a key that isn't one is taken for."""

from __future__ import annotations

import pytest

import conf
from conf import ConfigError
from conf.suggest import OTHER_NAMES, meant, unknown_setting

KEYS = sorted(conf.flat(conf.Config()))
FREE = ("env.kwargs",)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # other projects' names, in the key's own section
        ("ppo.learning_rate", "ppo.lr"),
        ("sft.learning_rate", "sft.lr"),
        ("ppo.batch_size", "ppo.minibatch_size"),
        ("ppo.epochs", "ppo.ppo_epochs"),
        ("ppo.steps", "ppo.total_steps"),
        ("sft.num_steps", "sft.max_steps"),
        ("sft.max_tokens", "sft.max_length"),
        ("sampling.max_tokens", "sampling.max_new_tokens"),
        ("sampling.temp", "sampling.temperature"),
        ("ppo.gae_lambda", "ppo.lam"),
        ("ppo.clip_ratio", "ppo.clip_high ppo.clip_low"),
        ("evaluation.n", "evaluation.samples"),
        # spelling
        ("ppo.lrr", "ppo.lr"),
        ("sft.batchsize", "sft.batch_size"),
        ("ppo.beta", "ppo.beta1 ppo.beta2"),
        ("resources.ppo_train.gpus", "resources.ppo_train.gpu"),
        # a part of the name
        ("ppo.kl", "ppo.kl_coef ppo.target_kl"),
        ("prompt.format", "prompt.response_format"),
        # another section
        ("ppo.temperature", "evaluation.temperature sampling.temperature"),
        ("generation.max_tokens", "sampling.max_new_tokens"),
        # a misspelt, a shortened, a stranger's section
        ("ppoo.learning_rate", "ppo.lr"),
        ("eval.samples", "evaluation.samples"),
        ("env.kwarg.size", "env.kwargs.size"),
        ("actor_rollout_ref.actor.optim.lr", "ppo.lr sft.lr"),
        # none
        ("learning_rate", "ppo.lr sft.lr"),
        ("max_tokens", "sampling.max_new_tokens sft.max_length"),
        ("sed", "seed"),
        # nothing is near, or too much
        ("ppo.qqq", ""),
        ("foo.bar", ""),
        ("xyz", ""),
        ("env.size", ""),
        ("resources.gpu", ""),
        ("gpu", ""),
    ],
)
def test_what_a_key_stands_for(key: str, expected: str) -> None:
    assert meant(key, KEYS, FREE) == expected.split()


@pytest.mark.parametrize("key", KEYS)
def test_a_key_with_a_letter_too_many_is_taken_for_itself(key: str) -> None:
    assert key in meant(f"{key}z", KEYS, FREE)


def test_synonyms_are_of_settings_that_exist_and_hide_none_of_them() -> None:
    names = {key.rpartition(".")[2] for key in KEYS}
    assert set(OTHER_NAMES) <= names
    for ours, others in OTHER_NAMES.items():
        owners = [key.rpartition(".")[0] for key in KEYS if key.endswith(f".{ours}")]
        assert not {f"{owner}.{other}" for owner in owners for other in others.split()} & {*KEYS}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("ppo.lrr", "unknown setting 'ppo.lrr'; did you mean 'ppo.lr'?"),
        (
            "checkpoints.keep",
            "unknown setting 'checkpoints.keep'; did you mean 'checkpoints.keep_last'? Known: "
            "checkpoints.keep_last.",
        ),
        ("tracking", "setting 'tracking' is a section; override one of tracking.enabled, "
         "tracking.experiment, tracking.uri."),
        ("tracking.x", "unknown setting 'tracking.x'. Known: tracking.enabled, "
         "tracking.experiment, tracking.uri."),
    ],
)  # fmt: skip
def test_the_message(key: str, said: str) -> None:
    assert str(unknown_setting(key, KEYS, FREE)) == said


def test_where_nothing_is_near_the_sections_are_named_and_not_every_setting() -> None:
    said = str(unknown_setting("xyz", KEYS, FREE))
    assert said.startswith("unknown setting 'xyz'. Known: branches, checkpoints.*, cluster, ")
    assert len(said) < 300


def test_a_stored_setting_of_another_version_is_named_likewise() -> None:
    plain = conf.to_plain(conf.Config())
    plain["ppo"]["learning_rate"] = 1.0
    with pytest.raises(ConfigError, match=r"'ppo.learning_rate'; did you mean 'ppo.lr'\?"):
        conf.from_plain(plain)
