"""`compose`: YAML groups and command-line overrides, joined over the typed schema.

Override syntax is Hydra's (`ppo.lr=1e-5`, `+env.kwargs.size=6`, `evaluation.pass_k=[1,4]`), parsed
by Hydra's own grammar; joining and type checks are OmegaConf's. Hydra's `compose` itself isn't
used: it keeps its state in a process-wide singleton, and its messages name no nearest key.

Besides settings a YAML file may hold four keys of its own:

- `like`: another file of its group, laid under it;
- `defaults`: a profile's model, when none is asked for;
- `for_model`: settings that hold for one model and those like it only, since a learning rate that
  suits a tiny model ruins a pretrained one. An environment's says how a model plays that one world,
  so it is laid over the model's file;
- `for_env`, in a profile, experiment or cluster: settings that hold in one world, or in all worlds
  of a game (`sokoban` is laid under `sokoban_2boxes`), over the file's others. It may hold a
  `for_model` in turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.checks import check, flat
from conf.errors import ConfigError, unknown
from conf.plain import from_plain
from conf.schema import Config
from conf.suggest import unknown_setting

ROOT = Path(__file__).resolve().parent
FREE = ("env.kwargs",)
"""Sections whose keys the schema doesn't list; the environment itself refuses wrong ones."""
CHOSEN_BY_OPTION = ("profile", "experiment", "cluster", "seed", "env.id")
"""Labels of what was composed; an override would change the label and not the settings."""
NO_SETTINGS = ("like", "defaults", "for_model", "for_env")
"""Keys of a YAML file that say how it is joined."""
Values = Mapping[str, Any]
"""A YAML file's content, or a part of it."""
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
    profile_files = _files("profile", profile)
    model = model or _default_model(profile_files)
    model_group, model_values = _model(model)
    models = _names("model", model_group)
    env_files, worlds = _env_files(env), _worlds(env)
    later_files = (*profile_files, *_files("experiment", experiment), *_files("cluster", cluster))
    values = _joined(
        _own(_load(ROOT / "base.yaml")),
        *(_own(file) for file in env_files),
        *(_own(_read("model", name)) for name in models),
        model_values,
        *(_for_model(file, models) for file in env_files),
        *(part for file in later_files for part in _parts(file, models, worlds)),
        {"profile": profile, "experiment": experiment, "cluster": cluster, "seed": seed},
    )
    merged = OmegaConf.merge(_schema(), values)
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


def _read(group: str, name: str) -> Values:
    if name not in known(group):
        also = "a model directory or hub name (owner/name)" if group == "model" else ""
        raise unknown(group, name, known(group), also=also)
    return _load(ROOT / group / f"{name}.yaml")


def _names(group: str, name: str) -> list[str]:
    """A file and those that it is like, the one that lies under all the others first."""
    names = [name]
    while base := _read(group, names[0]).get("like"):
        assert base not in names, f"conf/{group}: {base} is like itself"
        names.insert(0, base)
    return names


def _files(group: str, name: str) -> list[Values]:
    return [_read(group, each) for each in _names(group, name)]


def _default_model(profile_files: Iterable[Values]) -> str:
    """The model that a profile takes when none is asked for."""
    chosen = [file["defaults"]["model"] for file in profile_files if "defaults" in file]
    return str(chosen[-1]) if chosen else "tiny"


def _env_files(env: str) -> list[Values]:
    name = env.removeprefix("spa/")
    if name in known("env"):
        return _files("env", name)
    return [_load(ROOT / "env" / "default.yaml"), {"env": {"id": env}}]


def _model(model: str) -> tuple[str, Values]:
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


@cache
def _schema() -> DictConfig:
    """What may be set, made once a process; merging copies it."""
    schema = OmegaConf.structured(Config)
    assert isinstance(schema, DictConfig)
    return schema


@cache
def _load(path: Path) -> Values:
    """A file's content, read once a process."""
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig), f"{path} holds no mapping"
    return _container(loaded)


def _joined(*parts: Values) -> dict[str, Any]:
    """Values laid over one another: mappings are joined, what else there is is replaced."""
    joined: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            under = joined.get(key)
            if isinstance(under, dict) and isinstance(value, Mapping):
                joined[key] = _joined(under, value)
            else:
                joined[key] = _joined(value) if isinstance(value, Mapping) else value
    return joined


def _own(values: Values) -> Values:
    """The settings of one file without the keys that aren't settings."""
    return {key: value for key, value in values.items() if key not in NO_SETTINGS}


def _worlds(env: str) -> list[str]:
    """`sokoban_2boxes` is one of the worlds of `sokoban`: both names, the game's first."""
    words = env.removeprefix("spa/").split("_")
    return ["_".join(words[: length + 1]) for length in range(len(words))]


def _parts(file: Values, models: Iterable[str], worlds: Iterable[str]) -> list[Values]:
    """What one file says for a model in a world, the most particular last."""
    special = file.get("for_env", {})
    here = [special[name] for name in worlds if name in special]
    return [part for each in (file, *here) for part in (_own(each), _for_model(each, models))]


def _for_model(values: Values, kin: Iterable[str]) -> Values:
    """What one file says for a model and for the one that it is like."""
    special = values.get("for_model", {})
    return _joined(*(special.get(name, {}) for name in kin))


def _container(values: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(values, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _apply(merged: DictConfig, overrides: Iterable[str]) -> None:
    texts = list(overrides)
    if not texts:
        return
    from conf.overrides import parse

    keys = sorted(flat(Config()))
    for text in texts:
        override = parse(text)
        key = override.key_or_group
        if not _is_known(key, keys):
            raise unknown_setting(key, keys, FREE)
        if key in CHOSEN_BY_OPTION:
            option = key.split(".")[0]
            raise ConfigError(f"override {text!r}: give it as the option --{option} instead.")
        try:
            OmegaConf.update(merged, key, override.value(), force_add=_is_free(key))
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ConfigError(f"override {text!r}: {reason}.") from error


def _is_known(key: str, keys: Sequence[str]) -> bool:
    return key in keys or _is_free(key)


def _is_free(key: str) -> bool:
    return key.startswith(tuple(f"{section}." for section in FREE))
