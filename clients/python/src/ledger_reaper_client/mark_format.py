"""PIP-129's marks as properties of a managed ledger, in the format of Ledger Reaper's own marks.

1. A key is written once and never changed, and its name is unique: two writers can't overwrite each other's marks,
   although the broker's call for properties has no versions.
2. The marks are the union of all keys. A key that can't be read marks nothing, and is never removed.
3. An upload to tiered storage is marked with its UUID and driver, because only the topic's list names them, until the
   broker drops the ledger from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledger_reaper_client.requests import OffloadContext, checked_id, checked_uuid

PREFIX = "ledger-reaper.deletable."
MOST_IDS = 500_000  # in all keys of a topic: a range of a few bytes could otherwise exhaust the memory
_MOST_BYTES = 16 * 1024  # of a value, which is rewritten as a whole when one of its ledgers is gone
_VERSION = 1

Upload = tuple[int, str]  # ledger id, UUID


@dataclass(frozen=True)
class Marked:
    """Marks of a topic."""

    ledgers: frozenset[int] = frozenset()
    uploads: Mapping[Upload, OffloadContext] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything is marked."""
        return bool(self.ledgers or self.uploads)

    def __len__(self) -> int:
        """The number of marks."""
        return len(self.ledgers) + len(self.uploads)

    def without(self, ledgers: Iterable[int], uploads: Iterable[Upload]) -> Marked:
        """Return the marks without these ledgers and uploads."""
        gone = set(uploads)
        left = {name: context for name, context in self.uploads.items() if name not in gone}
        return Marked(self.ledgers.difference(ledgers), left)


@dataclass(frozen=True)
class MarkedTopic:
    """The marks of a topic by key."""

    by_key: Mapping[str, Marked]
    unreadable: tuple[str, ...] = ()  # keys with our prefix that could not be read

    @property
    def all(self) -> Marked:
        """The union of all keys."""
        ledgers = frozenset[int]().union(*(marks.ledgers for marks in self.by_key.values()))
        return Marked(ledgers, {name: at for marks in self.by_key.values() for name, at in marks.uploads.items()})


def read_marks(properties: Mapping[str, str]) -> MarkedTopic:
    """Read the marks among a managed ledger's properties; ignores other properties. Never raises.

    Keys with fewer ledger ids are read first. A key that would exceed MOST_IDS counts as unreadable.
    """
    by_key: dict[str, Marked] = {}
    unreadable: list[str] = []
    ids_of: dict[str, tuple[int, str]] = {}
    for key, value in properties.items():
        if key.startswith(PREFIX):
            try:
                parsed = _parse(value)
                if isinstance(parsed, str):
                    ids_of[key] = sum(last - first + 1 for first, last in _spans(parsed)), parsed
                else:
                    by_key[key] = parsed
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                unreadable.append(key)
    total = 0
    for key, (count, text) in sorted(ids_of.items(), key=lambda item: item[1][0]):
        total += count
        if total > MOST_IDS:
            unreadable.append(key)
        else:
            ids = (ledger_id for first, last in _spans(text) for ledger_id in range(first, last + 1))
            by_key[key] = Marked(frozenset(ids))
    return MarkedTopic(by_key, tuple(unreadable))


def properties_of(marks: Marked, marker: str, most_bytes: int = _MOST_BYTES) -> dict[str, str]:
    """Return the properties for these marks, under keys with the name `marker`, which must be new."""
    values = [*_ledger_values(sorted(marks.ledgers), most_bytes), *_upload_values(marks.uploads, most_bytes)]
    return {f"{PREFIX}{marker}.{number}": value for number, value in enumerate(values)}


def _ledger_values(ids: list[int], most_bytes: int) -> Iterator[str]:
    head = len(_value(ledgers=""))
    ranges: list[str] = []
    size = head
    for text in _ranges(ids):
        if ranges and size + len(text) + 1 > most_bytes:
            yield _value(ledgers=",".join(ranges))
            ranges, size = [], head
        ranges.append(text)
        size += len(text) + 1
    if ranges:
        yield _value(ledgers=",".join(ranges))


def _upload_values(uploads: Mapping[Upload, OffloadContext], most_bytes: int) -> Iterator[str]:
    """Yield values, each for uploads to the same target, which it describes once."""
    targets: dict[tuple[str, tuple[tuple[str, str], ...]], list[Upload]] = {}
    for upload, context in sorted(uploads.items()):
        target = (context.driver_name, tuple(sorted(context.driver_properties.items())))
        targets.setdefault(target, []).append(upload)
    for (driver, properties), to_target in sorted(targets.items()):
        about: dict[str, Any] = {"driver": driver, "properties": dict(properties)}
        head = len(_value(**about, uploads=[]))
        pairs: list[list[Any]] = []
        size = head
        for ledger_id, uuid in to_target:
            length = len(json.dumps([ledger_id, uuid], separators=(",", ":"))) + 1
            if pairs and size + length > most_bytes:
                yield _value(**about, uploads=pairs)
                pairs, size = [], head
            pairs.append([ledger_id, uuid])
            size += length
        yield _value(**about, uploads=pairs)


def _ranges(ids: list[int]) -> Iterator[str]:
    """Write ascending ids as `5-9` and `12`."""
    start = 0
    for at in range(1, len(ids) + 1):
        if at == len(ids) or ids[at] != ids[at - 1] + 1:
            yield str(ids[start]) if at - start == 1 else f"{ids[start]}-{ids[at - 1]}"
            start = at


def _value(**fields: Any) -> str:
    return json.dumps({"v": _VERSION, **fields}, separators=(",", ":"))


def _parse(value: str) -> Marked | str:
    """Return the uploads that a value marks, or its ledger ids as text."""
    fields = json.loads(value)
    if fields["v"] != _VERSION:
        raise ValueError(f"version {fields['v']!r} is not known")
    if "ledgers" in fields:
        return _text(fields["ledgers"])
    driver = _text(fields["driver"])
    properties = {_text(key): _text(text) for key, text in fields["properties"].items()}
    uploads = {
        (checked_id(ledger_id), checked_uuid(uuid)): OffloadContext(
            uuid=uuid, driver_name=driver, driver_properties=properties
        )
        for ledger_id, uuid in fields["uploads"]
    }
    return Marked(uploads=uploads)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not a text")
    return value


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Read `5-9,12` as (5, 9) and (12, 12)."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = checked_id(int(first)), checked_id(int(last or first))
        if end < start:
            raise ValueError(f"{part[:40]!a} is not a range of ledger ids")
        yield start, end
