"""The options of the Spark source "pulsar-frames"."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from streaming.config.amounts import most_similar
from streaming.config.combinations import credential_faults
from streaming.config.load import CONF
from streaming.config.sections import PulsarSettings
from streaming.errors import ConfigError
from udfs.paths import base_topic, checked_subscription, topic_named

_MOST_MESSAGES = 100_000
_MOST_BYTES = 256 * 1024 * 1024
_REQUIRED = ("serviceUrl", "adminUrl")
_KEY = re.compile(r"\bpulsar\.(\w+)")
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


def parse_options(options: Mapping[str, str], *, permits_partitions: bool = False) -> SourceOptions:
    """Parse the options of `spark.readStream`, whose names are not case-sensitive.

    Besides the keys of our section [pulsar], in camel case (`serviceUrl`, `tokenFile`, ...), these exist:
        topics: names, separated by commas.
        subscription: of the cursor that `commit` moves; created where it is missing.
        startingPosition: earliest (default), latest or subscription.
        maxMessagesPerTrigger, maxBytesPerTrigger: limits of a batch.
        isolation: read_committed (default) or read_uncommitted.
        onDataLoss: row (default) or fail.
        waitSeconds: how long Spark waits for a message, if there is none; 0 by default.

    Args:
        options: as given to Spark.
        permits_partitions: `topics` may name a partition and its topic, where others choose the names of topics.

    Raises ConfigError, which names every fault.
    """
    given = {name.lower(): text for name, text in options.items()}
    faults: list[str] = []
    own: list[str] = []  # the names of the options that are no keys of [pulsar]

    def text_of(name: str, default: str = "") -> str:
        own.append(name)
        return given.pop(name.lower(), default)

    def take(name: str, default: str, allowed: tuple[str, ...]) -> str:
        text = text_of(name, default)
        if text not in allowed:
            faults.append(f"{name}: must be one of {', '.join(allowed)}")
            return default
        return text

    def number(name: str, default: int, most: int = 1 << 62) -> int:
        text = text_of(name, str(default))
        if not (text.isascii() and text.isdecimal() and min(default, 1) <= int(text[:19]) <= most):
            faults.append(f"{name}: must be a number from {min(default, 1)} to {most}")
            return default
        return int(text[:19])

    topics = _topics(text_of("topics"), faults, permits_partitions=permits_partitions)
    subscription = _subscription(text_of("subscription"), faults)
    start = Start(take("startingPosition", Start.EARLIEST, tuple(Start)))
    if start is Start.SUBSCRIPTION and not subscription:
        faults.append("startingPosition: needs the option subscription")
    max_messages = number("maxMessagesPerTrigger", _MOST_MESSAGES)
    max_bytes = number("maxBytesPerTrigger", _MOST_BYTES)
    wait_seconds = number("waitSeconds", 0, most=MOST_WAIT_SECONDS)
    isolation = take("isolation", "read_committed", ("read_committed", "read_uncommitted"))
    on_gap = OnGap(take("onDataLoss", OnGap.ROW, tuple(OnGap)))
    faults += [f"{name}: must be given" for name in _REQUIRED if name.lower() not in given]
    pulsar = _pulsar_settings(given, own, faults)
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


def _topics(text: str, faults: list[str], *, permits_partitions: bool) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    try:
        topics = tuple(dict.fromkeys(topic_named(name) for name in names))
    except ValueError as error:
        faults.append(f"topics: {error}")
        return ()
    if not topics:
        faults.append("topics: must name topics, separated by commas")
    faults += [
        f"topics: {topic} is a partition of {base_topic(topic)}, which is also named: leave out one of them"
        for topic in topics
        if not permits_partitions and base_topic(topic) != topic and base_topic(topic) in topics
    ]
    return topics


def _subscription(name: str, faults: list[str]) -> str:
    try:
        return checked_subscription(name) if name else ""
    except ValueError as error:
        faults.append(f"subscription: {error}")
        return ""


def _pulsar_settings(given: Mapping[str, str], own: Iterable[str], faults: list[str]) -> PulsarSettings | None:
    defaults = tomllib.loads((CONF / "default.toml").read_text(encoding="utf-8"))["pulsar"]
    keys = {key.replace("_", ""): key for key in PulsarSettings.model_fields}
    faults += _unknown(sorted(set(given) - set(keys)), [*own, *map(_camel_case, keys.values())])
    set_here: dict[str, Any] = {keys[name]: text for name, text in given.items() if name in keys}
    try:
        pulsar = PulsarSettings.model_validate(defaults | set_here)
    except ValidationError as error:
        faults += [_fault(str(fault["loc"][0]), fault["type"], fault["msg"]) for fault in error.errors()]
        return None
    faults += map(_with_options, credential_faults(pulsar))
    return pulsar


def _unknown(names: Iterable[str], known: list[str]) -> Iterator[str]:
    for name in names:
        similar = most_similar(name, known)
        hint = f"did you mean {similar}?" if similar else f"there are {', '.join(known)}"
        yield f"{name}: there is no such option; {hint}"


def _fault(key: str, kind: str, message: str) -> str:
    """Return a message for a fault that pydantic found in the value of a key."""
    description = PulsarSettings.model_fields[key].description
    if kind == "string_pattern_mismatch" and description:
        message = f"must be {description}"
    return f"{_camel_case(key)}: {_with_options(message.removeprefix('Value error, '))}"


def _with_options(message: str) -> str:
    """Return a message about keys of the configuration with the names of the options."""
    return _KEY.sub(lambda key: _camel_case(key[1]), message)


def _camel_case(key: str) -> str:
    first, *others = key.split("_")
    return first + "".join(word.capitalize() for word in others)
