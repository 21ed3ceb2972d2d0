"""Settings of [pulsar] for tests that read no configuration file."""

import tomllib
from typing import Any

from streaming.config.load import CONF
from streaming.config.sections import PulsarSettings


def pulsar_settings(**keys: Any) -> PulsarSettings:
    """Return the defaults of conf/default.toml with these keys."""
    defaults = tomllib.loads((CONF / "default.toml").read_text(encoding="utf-8"))["pulsar"]
    return PulsarSettings(**(defaults | keys))
