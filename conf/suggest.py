"""Which setting is meant by a key that isn't one: by other projects' names, then by spelling."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from conf.errors import MAX_LISTED, ConfigError

OTHER_NAMES = {
    "lr": "learning_rate actor_lr",
    "critic_lr": "critic_learning_rate value_lr",
    "lr_schedule": "scheduler lr_scheduler lr_scheduler_type",
    "schedule": "scheduler lr_scheduler lr_scheduler_type lr_schedule",
    "warmup_steps": "warmup num_warmup_steps",
    "max_grad_norm": "grad_clip gradient_clip clip_grad",
    "batch_size": "batch train_batch_size per_device_train_batch_size",
    "minibatch_size": "batch batch_size ppo_mini_batch_size",
    "env_groups": "num_envs n_envs train_batch_size",
    "group_size": "n num_samples num_generations rollout_n",
    "samples": "n num_samples",
    "epochs": "num_epochs num_train_epochs total_epochs",
    "ppo_epochs": "epochs num_epochs update_epochs",
    "max_steps": "steps num_steps total_steps total_training_steps iterations",
    "total_steps": "steps num_steps max_steps total_training_steps iterations",
    "eval_every": "eval_steps eval_interval test_freq",
    "probe_every": "eval_every eval_steps eval_interval test_freq",
    "save_every": "save_steps save_interval save_freq",
    "temperature": "temp",
    "max_new_tokens": "max_tokens max_response_length response_length max_completion_length",
    "max_model_len": "context_length max_context max_seq_len max_seq_length",
    "max_length": "max_tokens max_seq_len max_seq_length",
    "gamma": "discount discount_factor",
    "lam": "lambda gae_lambda",
    "clip_low": "clip_ratio clip_range cliprange clip_eps epsilon",
    "clip_high": "clip_ratio clip_range cliprange clip_eps epsilon",
    "kl_coef": "kl_beta kl_loss_coef init_kl_coef",
    "entropy_coef": "ent_coef entropy_coeff",
    "lora_rank": "lora_r rank",
    "hidden_size": "d_model hidden_dim n_embd",
    "num_layers": "n_layer layers num_hidden_layers",
    "num_heads": "n_head heads num_attention_heads",
    "ffn_size": "d_ff intermediate_size",
    "n_gpus_per_node": "gpus n_gpus num_gpus",
    "tensor_parallel_size": "tp tp_size tensor_model_parallel_size",
}
"""The last word of a key -> what other trainers and libraries call it."""
MAX_MEANT = 3
"""More candidates than this say nothing."""
_NEAR, _NEAR_SECTION = 0.7, 0.6


def unknown_setting(key: str, keys: Sequence[str], free: Sequence[str] = ()) -> ConfigError:
    """The error for a key that isn't among `keys`: what may be meant, or else what there is.

    `free` are the sections that take any key.
    """
    below = _below(key, keys)
    if below:
        return ConfigError(f"setting {key!r} is a section; override one of {', '.join(below)}.")
    found = meant(key, keys, free)
    siblings = _below(_section(key), keys)
    hint = f"; did you mean {' or '.join(map(repr, found))}?" if found else "."
    if found and not ({*found} <= {*siblings} and len(siblings) <= MAX_LISTED):
        return ConfigError(f"unknown setting {key!r}{hint}")
    tops = sorted({f"{top}.*" if dot else top for top, dot, _ in (k.partition(".") for k in keys)})
    return ConfigError(f"unknown setting {key!r}{hint} Known: {', '.join(siblings or tops)}.")


def meant(key: str, keys: Iterable[str], free: Sequence[str] = ()) -> list[str]:
    """Keys that `key` may stand for, at most `MAX_MEANT`; those of its own section come first."""
    known = list(keys)
    section, name = _section(key), _last(key)
    sections = sorted({_section(each) for each in known} - {""} | {*free})
    near = [section] if section in sections else _near_sections(section, sections)
    if near and near[0] in free:
        return [f"{near[0]}.{name}"]
    inside = [each for each in known if section and _section(each) in near]
    synonyms = _first_synonym if section in sections else _synonyms
    rules = ((inside, (_same, _synonyms, _near, _with_words)), (known, (_same, synonyms, _near)))
    for place, ways in rules:
        for way in ways:
            if found := way(name, place):
                if len(found) <= MAX_MEANT:
                    return found
                break
    return []


def _near_sections(section: str, sections: Sequence[str]) -> list[str]:
    """Sections that begin so, or else the nearest one."""
    if not section:
        return []
    begun = [each for each in sections if each.startswith(section)]
    return begun or difflib.get_close_matches(section, sections, n=1, cutoff=_NEAR_SECTION)


def _same(name: str, known: Iterable[str]) -> list[str]:
    return [each for each in known if _last(each) == name]


def _synonyms(name: str, known: Iterable[str]) -> list[str]:
    return [each for each in known if name in OTHER_NAMES.get(_last(each), "").split()]


def _first_synonym(name: str, known: Iterable[str]) -> list[str]:
    """In a section that has none, the likeliest: `generation.max_tokens` is no `sft.max_length`."""
    found = _synonyms(name, known)
    first = next((ours for ours in OTHER_NAMES if _same(ours, found)), "")
    return _same(first, found)


def _near(name: str, known: Iterable[str]) -> list[str]:
    """Keys whose last words are nearest to `name`, if near at all."""
    ratios = {each: difflib.SequenceMatcher(None, _last(each), name).ratio() for each in known}
    best = max(ratios.values(), default=0.0)
    return [each for each, ratio in ratios.items() if ratio == best >= _NEAR]


def _with_words(name: str, known: Iterable[str]) -> list[str]:
    """Keys in which all words of `name` are: `kl` is in `kl_coef` and `target_kl`."""
    words = {*name.split("_")}
    return [each for each in known if words <= {*_last(each).split("_")}]


def _below(section: str, keys: Iterable[str]) -> list[str]:
    return [each for each in keys if section and each.startswith(f"{section}.")]


def _section(key: str) -> str:
    return key.rpartition(".")[0]


def _last(key: str) -> str:
    return key.rpartition(".")[2]
