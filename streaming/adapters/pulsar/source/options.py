"""The options of the Spark source "pulsar-frames"."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from streaming.config.load import CONF
from streaming.config.sections import PulsarSettings
from streaming.errors import ConfigError
from udfs.paths import checked_subscription, topic_named

_MOST_MESSAGES = 100_000
_MOST_BYTES = 256 * 1024 * 1024
MOST_WAIT_SECONDS = 60  # Spark can't stop a query while it waits


class Start(StrEnum):
    """Where a query without a checkpoint starts."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SUBSCRIPTION = "subscription"  # after what the subscription has acknowledged


class OnGap(StrEnum):
    """How entries are reported that Pulsar deleted before they were read."""

    ROW = "row"
    FAIL = "fail"  # the batch fails, unless no entry was seen there (MAYBE_LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Checked options."""

    pulsar: PulsarSettings
    topics: tuple[str, ...]  # full names
    subscription: str  # "": none; then retention alone keeps ledgers until they are read
    start: Start = Start.EARLIEST
    max_messages: int = _MOST_MESSAGES  # of a batch
    max_bytes: int = _MOST_BYTES
    reads_uncommitted: bool = False
    on_gap: OnGap = OnGap.ROW
    wait_seconds: int = 0  # how long a batch without messages waits for one


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of `spark.readStream`, whose names are not case-sensitive.

    Besides the keys of our section [pulsar], in camel case (`serviceUrl`, `tokenFile`, ...), these exist:
        topics: names, separated by commas.
        subscription: of the cursor that `commit` moves; created where it is missing.
        startingPosition: earliest (default), latest or subscription.
        maxMessagesPerTrigger, maxBytesPerTrigger: limits of a batch.
        isolation: read_committed (default) or read_uncommitted.
        onDataLoss: row (default) or fail.
        waitSeconds: how long Spark waits for a message, if there is none; 0 by default.

    Raises ConfigError, which names every fault.
    """
    given = {name.lower(): text for name, text in options.items()}
    faults: list[str] = []

    def take(name: str, default: str, allowed: tuple[str, ...]) -> str:
        text = given.pop(name.lower(), default)
        if text not in allowed:
            faults.append(f"{name}: must be one of {', '.join(allowed)}")
            return default
        return text

    def number(name: str, default: int, most: int = 1 << 62) -> int:
        text = given.pop(name.lower(), str(default))
        if not (text.isascii() and text.isdecimal() and min(default, 1) <= int(text[:19]) <= most):
            faults.append(f"{name}: must be a number from {min(default, 1)} to {most}")
            return default
        return int(text[:19])

    topics = _topics(given.pop("topics", ""), faults)
    subscription = _subscription(given.pop("subscription", ""), faults)
    start = Start(take("startingPosition", Start.EARLIEST, tuple(Start)))
    if start is Start.SUBSCRIPTION and not subscription:
        faults.append("startingPosition: needs the option subscription")
    max_messages = number("maxMessagesPerTrigger", _MOST_MESSAGES)
    max_bytes = number("maxBytesPerTrigger", _MOST_BYTES)
    wait_seconds = number("waitSeconds", 0, most=MOST_WAIT_SECONDS)
    isolation = take("isolation", "read_committed", ("read_committed", "read_uncommitted"))
    on_gap = OnGap(take("onDataLoss", OnGap.ROW, tuple(OnGap)))
    pulsar = _pulsar_settings(given, faults)
    if faults or pulsar is None:
        raise ConfigError("options of pulsar-frames:\n" + "\n".join(f"- {fault}" for fault in faults))
    return SourceOptions(
        pulsar=pulsar,
        topics=topics,
        subscription=subscription,
        start=start,
        max_messages=max_messages,
        max_bytes=max_bytes,
        reads_uncommitted=isolation == "read_uncommitted",
        on_gap=on_gap,
        wait_seconds=wait_seconds,
    )


def _topics(text: str, faults: list[str]) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    try:
        topics = tuple(dict.fromkeys(topic_named(name) for name in names))
    except ValueError as error:
        faults.append(f"topics: {error}")
        return ()
    if not topics:
        faults.append("topics: must name topics, separated by commas")
    return topics


def _subscription(name: str, faults: list[str]) -> str:
    try:
        return checked_subscription(name) if name else ""
    except ValueError as error:
        faults.append(f"subscription: {error}")
        return ""


def _pulsar_settings(given: Mapping[str, str], faults: list[str]) -> PulsarSettings | None:
    defaults = tomllib.loads((CONF / "default.toml").read_text(encoding="utf-8"))["pulsar"]
    keys = {key.replace("_", ""): key for key in PulsarSettings.model_fields}
    unknown = sorted(set(given) - set(keys))
    faults += [f"{name}: there is no such option" for name in unknown]
    set_here: dict[str, Any] = {keys[name]: text for name, text in given.items() if name in keys}
    try:
        return PulsarSettings.model_validate(defaults | set_here)
    except ValidationError as error:
        faults += [f"{_camel_case(str(fault['loc'][0]))}: {fault['msg']}" for fault in error.errors()]
        return None


def _camel_case(key: str) -> str:
    first, *others = key.split("_")
    return first + "".join(word.capitalize() for word in others)
