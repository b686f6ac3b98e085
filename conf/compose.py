"""`compose`: YAML groups and command-line overrides, joined over the typed schema.

Override syntax is Hydra's (`ppo.lr=1e-5`, `+env.kwargs.size=6`, `evaluation.pass_k=[1,4]`), parsed
by Hydra's own grammar; joining and type checks are OmegaConf's. Hydra's `compose` itself isn't
used: it keeps its state in a process-wide singleton, and its messages name no nearest key.

Besides settings a YAML file may hold two keys of its own: `defaults` (a profile's model, when none
is asked for) and `for_model` (settings of this file that hold for one model only, since a learning
rate that suits a tiny model ruins a pretrained one).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.checks import check, flat
from conf.errors import ConfigError, unknown
from conf.plain import from_plain
from conf.schema import Config

ROOT = Path(__file__).resolve().parent
GROUPS = ("env", "model", "profile", "experiment", "cluster")
FREE_SECTIONS = ("env.kwargs.",)
"""Sections whose keys the schema doesn't list; the environment itself refuses wrong ones."""
CHOSEN_BY_OPTION = ("profile", "experiment", "cluster", "seed", "env.id")
"""Labels of what was composed; an override would change the label and not the settings."""
_HUB_NAME = re.compile(r"[\w][\w.-]*/[\w.-]+")


def compose(
    profile: str | None = None,
    env: str = "frozenlake",
    model: str | None = None,
    experiment: str = "spa",
    cluster: str = "local",
    seed: int = 0,
    overrides: Sequence[str] = (),
) -> Config:
    """One environment's settings, checked.

    `env` is a registered id or `module:Class`; an id without a YAML file takes `env/default.yaml`.
    `model` is a file of `conf/model`, a directory, or a hub name (`owner/name`); None takes the
    profile's. Raises `ConfigError` for a name, key, type or value that can't be meant.
    """
    profile = profile or "laptop"
    profile_file = _read("profile", profile)
    model = model or str((profile_file.get("defaults") or {}).get("model", "tiny"))
    model_group, model_values = _model(model)
    merged = OmegaConf.merge(
        OmegaConf.structured(Config),
        _settings(_load(ROOT / "base.yaml"), model_group),
        _settings(_env(env), model_group),
        _settings(_read("model", model_group), model_group),
        model_values,
        _settings(profile_file, model_group),
        _settings(_read("experiment", experiment), model_group),
        _settings(_read("cluster", cluster), model_group),
        {"profile": profile, "experiment": experiment, "cluster": cluster, "seed": seed},
    )
    assert isinstance(merged, DictConfig)
    _apply(merged, overrides)
    try:
        config = from_plain(_container(merged))
    except OmegaConfBaseException as error:
        raise ConfigError(f"settings don't resolve: {str(error).splitlines()[0]}.") from error
    check(config)
    return config


def known(group: str) -> list[str]:
    """Names that a group has files for (`env`, `model`, `profile`, `experiment`, `cluster`)."""
    return sorted(path.stem for path in (ROOT / group).glob("*.yaml") if path.stem != "default")


def split_overrides(text: str) -> list[str]:
    """Split at blanks that stand outside brackets and quotes: `"a=1 b=[1, 2]"` holds two."""
    parts, depth, quote = [""], 0, ""
    for char in text.strip():
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "[{(") - (char in "]})")
        if char.isspace() and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part]


def _read(group: str, name: str) -> DictConfig:
    if name not in known(group):
        also = "a model directory or hub name (owner/name)" if group == "model" else ""
        raise unknown(group, name, known(group), also=also)
    return _load(ROOT / group / f"{name}.yaml")


def _env(env: str) -> DictConfig:
    name = env.removeprefix("spa/")
    if name in known("env"):
        return _read("env", name)
    values = _load(ROOT / "env" / "default.yaml")
    return _plus(values, {"env": {"id": env}})


def _model(model: str) -> tuple[str, dict[str, Any]]:
    """The model's group file, and what a directory or hub name adds to it."""
    path = Path(model).expanduser()
    if model in known("model"):
        return model, {}
    if path.is_dir() or model.startswith((".", "/", "~")):
        if not (path / "config.json").is_file():
            seen = "is a file" if path.is_file() else "doesn't exist"
            seen = "has no config.json" if path.is_dir() else seen
            raise ConfigError(
                f"model directory {model!r} {seen}; give a directory that `save_pretrained` wrote."
            )
        return "hf", {"model": {"name": path.resolve().name, "path": str(path.resolve())}}
    if _HUB_NAME.fullmatch(model):
        return "hf", {"model": {"name": model.split("/")[-1], "path": model}}
    raise unknown("model", model, known("model"), also="a model directory or hub name (owner/name)")


def _load(path: Path) -> DictConfig:
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig), f"{path} holds no mapping"
    return loaded


def _plus(first: DictConfig, second: dict[str, Any]) -> DictConfig:
    merged = OmegaConf.merge(first, second)
    assert isinstance(merged, DictConfig)
    return merged


def _settings(values: DictConfig, model_group: str) -> DictConfig:
    """The settings of one file: its own keys taken out, those for this model joined in."""
    plain = _container(values)
    plain.pop("defaults", None)
    special = plain.pop("for_model", {}).get(model_group, {})
    return _plus(OmegaConf.create(plain), special)


def _container(values: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(values, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _apply(merged: DictConfig, overrides: Iterable[str]) -> None:
    texts = list(overrides)
    keys = sorted(flat(Config()))
    for text in texts:
        override = _parse(text)
        key = override.key_or_group
        if not _is_known(key, keys):
            raise _unknown_key(key, keys)
        if key in CHOSEN_BY_OPTION:
            option = key.split(".")[0]
            raise ConfigError(f"override {text!r}: give it as the option --{option} instead.")
        try:
            OmegaConf.update(merged, key, override.value(), force_add=key.startswith(FREE_SECTIONS))
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ConfigError(f"override {text!r}: {reason}.") from error


def _parse(text: str) -> Override:
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(
            f"override {text!r} can't be read; write key=value, several separated by blanks, "
            'for example "ppo.lr=1e-5 sft.lr=1e-3".'
        ) from error
    if override.type not in (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD):
        raise ConfigError(f"override {text!r} takes a setting away; give it a value instead.")
    if override.value_type is not ValueType.ELEMENT:
        raise ConfigError(f"override {text!r} is a sweep; give one value, or a list in brackets.")
    return override


def _is_known(key: str, keys: Sequence[str]) -> bool:
    return key in keys or key.startswith(FREE_SECTIONS)


def _unknown_key(key: str, keys: Sequence[str]) -> ConfigError:
    """Name the section's keys, or, for a bare name, the sections that have it."""
    section = key.split(".")[0]
    inside = [name for name in keys if name.startswith(f"{section}.")]
    if key == section and inside:
        return ConfigError(f"setting {key!r} is a section; override one of {', '.join(inside)}.")
    owners = [name for name in keys if name.split(".")[-1] == key]
    if owners:
        return ConfigError(f"unknown setting {key!r}; did you mean {' or '.join(owners)}?")
    return unknown("setting", key, inside or keys)
