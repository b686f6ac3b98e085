"""One override as Hydra's grammar reads it. Imported late: most processes of a flow read none."""

from __future__ import annotations

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.errors import HydraException

from conf.errors import ConfigError


def is_readable(text: str) -> bool:
    """Whether Hydra reads it as one change of a setting, whatever the setting's name."""
    try:
        return not OverridesParser.create().parse_override(text).is_sweep_override()
    except HydraException:
        return False


def parse(text: str) -> Override:
    """Raises `ConfigError` for what gives a setting no single value."""
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        how = (
            "a value that holds = stands in quotes, for example \"verl.overrides=['a.b=1']\"."
            if text.count("=") > 1
            else "write key=value, several separated by blanks, for example "
            '"ppo.lr=1e-5 sft.lr=1e-3".'
        )
        raise ConfigError(f"override {text!r} can't be read; {how}") from error
    if override.type not in (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD):
        raise ConfigError(f"override {text!r} takes a setting away; give it a value instead.")
    if override.value_type is not ValueType.ELEMENT:
        raise ConfigError(f"override {text!r} is a sweep; give one value, or a list in brackets.")
    return override
