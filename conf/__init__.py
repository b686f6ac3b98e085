"""Settings: a typed schema (`schema`), YAML groups beside it, and `compose`, which joins them.

    config = compose(profile="smoke", env="frozenlake", overrides=["ppo.lr=1e-4"])

Later groups win: base < env < model < profile < experiment < cluster < overrides. No environment
variable is a setting.
"""

from conf.checks import flat
from conf.compose import compose, known, split_overrides
from conf.credentials import shown, without_credentials
from conf.errors import ConfigError
from conf.incidental import OF_TRAINING, WITHOUT_EFFECT, has_effect
from conf.plain import digest, from_plain, to_plain
from conf.schema import Config

__all__ = [
    "OF_TRAINING",
    "WITHOUT_EFFECT",
    "Config",
    "ConfigError",
    "compose",
    "digest",
    "flat",
    "from_plain",
    "has_effect",
    "known",
    "shown",
    "split_overrides",
    "to_plain",
    "without_credentials",
]
