"""PIP-129's marks as properties of a managed ledger: how ledger ids are written into few keys, and read again.

1. A key is written once and never changed, and its name is its writer's alone: two markers can't overwrite each other,
   although the broker's call for properties knows no versions.
2. What is marked is the union of all keys. A key that can't be read marks nothing, and nobody takes it away. Who may
   write properties can write anything into a key, so whatever is read of it makes a request, and is bounded.
3. An upload to tiered storage is marked with its UUID and driver: once the list drops the ledger, nothing else names
   them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from udfs.formats.java_uuid import uuid_halves
from udfs.paths import MAX_LEDGER_ID
from udfs.phase_one.requests import check_context
from udfs.records import OffloadContext

PREFIX = "ledger-reaper.deletable."
# Of one value. Brokers take 2 MiB as well, but a value is written anew as a whole where one of its ledgers is gone.
MOST_BYTES = 16 * 1024
# Ledger ids of all keys of a topic together: a range of a few bytes could otherwise take all our memory.
MOST_IDS = 500_000
_VERSION = 1

Upload = tuple[int, str]  # ledger id, UUID


@dataclass(frozen=True, slots=True)
class Marks:
    """What one key marks, or several together. uploads: (ledger id, UUID) -> where the upload lies."""

    ledgers: frozenset[int] = frozenset()
    uploads: Mapping[Upload, OffloadContext] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything is marked."""
        return bool(self.ledgers or self.uploads)

    def without(self, ledgers: Iterable[int], uploads: Iterable[Upload]) -> "Marks":
        """Return the marks that are left when these are taken away."""
        gone = set(uploads)
        return Marks(
            self.ledgers.difference(ledgers), {each: at for each, at in self.uploads.items() if each not in gone}
        )


@dataclass(frozen=True, slots=True)
class MarkedTopic:
    """The marks of a topic by key, and the keys of ours that could not be read."""

    by_key: Mapping[str, Marks]
    unreadable: tuple[str, ...] = ()

    @property
    def all(self) -> Marks:
        """Return the union of all keys."""
        ledgers = frozenset[int]().union(*(marks.ledgers for marks in self.by_key.values()))
        return Marks(ledgers, {each: at for marks in self.by_key.values() for each, at in marks.uploads.items()})


def read_marks(properties: Mapping[str, str]) -> MarkedTopic:
    """Read the marks among a managed ledger's properties; other properties are passed over. Never raises.

    Keys with fewer ledger ids come first. A key with which there would be more than MOST_IDS counts as one that can't
    be read.
    """
    found: dict[str, Marks] = {}
    unreadable: list[str] = []
    ids_of: dict[str, tuple[int, str]] = {}
    for key, value in properties.items():
        if key.startswith(PREFIX):
            try:
                parsed = _parse(value)
                if isinstance(parsed, str):
                    ids_of[key] = sum(end - begin + 1 for begin, end in _spans(parsed)), parsed
                else:
                    found[key] = parsed
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                unreadable.append(key)
    total = 0
    for key, (count, text) in sorted(ids_of.items(), key=lambda each: each[1][0]):
        total += count
        if total > MOST_IDS:
            unreadable.append(key)
        else:
            found[key] = Marks(frozenset(each for begin, end in _spans(text) for each in range(begin, end + 1)))
    return MarkedTopic(found, tuple(unreadable))


def properties_of(marks: Marks, marker: str, most_bytes: int = MOST_BYTES) -> dict[str, str]:
    """Return the properties that mark all of it. marker: a name that nobody has used before.

    Values have at most most_bytes each, unless one upload alone takes more.
    """
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
    """Uploads to one place share the place's description."""
    places: dict[tuple[str, tuple[tuple[str, str], ...]], list[Upload]] = {}
    for each, context in sorted(uploads.items()):
        place = (context.driver_name, tuple(sorted(context.driver_properties.items())))
        places.setdefault(place, []).append(each)
    for (driver, properties), some in sorted(places.items()):
        about: dict[str, Any] = {"driver": driver, "properties": dict(properties)}
        head = len(_value(**about, uploads=[]))
        pairs: list[list[Any]] = []
        size = head
        for ledger_id, uuid in some:
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


def _parse(value: str) -> Marks | str:
    """Return the uploads that a value marks, or its ledger ids as text."""
    fields = json.loads(value)
    if fields["v"] != _VERSION:
        raise ValueError(f"version {fields['v']!r} is not known")
    if "ledgers" in fields:
        return _text(fields["ledgers"])
    driver, properties = _text(fields["driver"]), _texts(fields["properties"])
    uploads = {
        (checked_id(ledger_id), uuid): OffloadContext(uuid, driver_name=driver, driver_properties=properties)
        for ledger_id, uuid in fields["uploads"]
        if uuid_halves(uuid)
    }
    for context in islice(uploads.values(), 1):
        check_context(context)  # the others differ in their numbers only
    return Marks(uploads=uploads)


def _texts(properties: Mapping[str, Any]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in properties.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is no text")
    return value


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Read `5-9,12` as (5, 9) and (12, 12)."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin, end = checked_id(int(first)), checked_id(int(last or first))
        if end < begin:
            raise ValueError(f"{part[:40]!a} is no range of ledger ids")
        yield begin, end


def checked_id(number: Any) -> int:
    """Return what is a ledger id. Raises ValueError for all else."""
    if type(number) is not int or not 0 <= number <= MAX_LEDGER_ID:
        raise ValueError(f"{number!r} is no ledger id: expected 0 to {MAX_LEDGER_ID}")
    return number
