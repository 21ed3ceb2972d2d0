"""The names of one znode as the watcher keeps them: a few bytes, since it keeps those of every topic in memory.

Format, little-endian: how many ids of each component there are and how many uploads (six u32); the ids in BookKeeper
(i64); per upload its ledger's id (i64), UUID (16 bytes) and the number of its place (u32); the places, a JSON list of
[driver name, {driver properties}]. A topic's uploads are mostly in one place, so each place is kept once.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Set
from itertools import chain, islice
from uuid import UUID

from udfs.formats.errors import FormatError
from udfs.phase_one.watched import Name, NamedThing, Names, named
from udfs.records import LedgerComponent, OffloadContext, PendingDelete

# those that a znode can name, in the order in which they are kept
_COMPONENTS = tuple(each for each in LedgerComponent if each is not LedgerComponent.TRANSACTION_SNAPSHOT)
# what a cursor's properties name, which its client may write
BY_CLIENTS = frozenset({LedgerComponent.DELAYED_INDEX_BUCKET, LedgerComponent.COMPACTED_LEDGER})
_HEAD = struct.Struct(f"<{len(_COMPONENTS) + 1}I")
_UPLOAD = struct.Struct("<q16sI")
_ID_BYTES = 8


def packed(names: Names) -> bytes:
    """Return the bytes of what names_in returned; equal for equal names."""
    ids: dict[str, list[int]] = {component: [] for component in _COMPONENTS}
    uploads: list[tuple[int, OffloadContext]] = []
    for (component, ledger_id, _uuid), request in names.items():
        if request.offload_context is None:
            ids[component].append(ledger_id)
        else:
            uploads.append((ledger_id, request.offload_context))
    listed = [each for some in ids.values() for each in sorted(some)]
    uploads.sort(key=lambda each: (each[0], each[1].uuid))
    places = {_place_of(context): 0 for _ledger_id, context in uploads}
    places = {place: number for number, place in enumerate(sorted(places))}
    return b"".join(
        (
            _HEAD.pack(*map(len, ids.values()), len(uploads)),
            struct.pack(f"<{len(listed)}q", *listed),
            *(_UPLOAD.pack(each, UUID(at.uuid).bytes, places[_place_of(at)]) for each, at in uploads),
            f"[{','.join(places)}]".encode() if places else b"",
        )
    )


def unpacked(path: str, data: bytes) -> dict[Name, PendingDelete]:
    """Return the names that packed() took, of the znode at this path. Raises FormatError for other bytes."""
    try:
        return named(path, _found(data))
    except (struct.error, ValueError, TypeError, IndexError) as error:
        raise FormatError(f"the names kept of {path[:200]!a} can't be read: {error}") from error


def still_named(data: bytes, wanted: Set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return which of the (ledger id, UUID of an upload; "": in BookKeeper) these names have, as far as brokers chose.

    Whoever subscribes to a topic may have a cursor name any ledger as its bucket, or as the compacted ledger
    (BY_CLIENTS). That must keep nobody from asking for a ledger of another topic.
    """
    *counts, uploads = _HEAD.unpack_from(data)
    ids = iter(_ids(data, sum(counts)))
    by_broker = chain.from_iterable(
        islice(ids, count) if component not in BY_CLIENTS else _passed_over(ids, count)
        for component, count in zip(_COMPONENTS, counts, strict=True)
    )
    found = {(each, "") for each in by_broker if (each, "") in wanted}
    if uploads:
        at = _HEAD.size + sum(counts) * _ID_BYTES
        for ledger_id, uuid, _place in _UPLOAD.iter_unpack(data[at : at + uploads * _UPLOAD.size]):
            if (name := (ledger_id, str(UUID(bytes=uuid)))) in wanted:
                found.add(name)
    return found


def _passed_over(ids: Iterator[int], count: int) -> tuple[int, ...]:
    for _ in range(count):
        next(ids)
    return ()


def _found(data: bytes) -> Iterator[NamedThing]:
    *counts, uploads = _HEAD.unpack_from(data)
    ids = iter(_ids(data, sum(counts)))
    for component, count in zip(_COMPONENTS, counts, strict=True):
        for _ in range(count):
            yield component, next(ids), None
    at = _HEAD.size + sum(counts) * _ID_BYTES
    places = json.loads(data[at + uploads * _UPLOAD.size :]) if uploads else []
    for ledger_id, uuid, number in _UPLOAD.iter_unpack(data[at : at + uploads * _UPLOAD.size]):
        driver, properties = places[number]
        context = OffloadContext(str(UUID(bytes=uuid)), driver_name=driver, driver_properties=properties)
        yield LedgerComponent.MANAGED_LEDGER, ledger_id, context


def _ids(data: bytes, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f"<{count}q", data, _HEAD.size)


def _place_of(context: OffloadContext) -> str:
    properties: Mapping[str, str] = context.driver_properties
    return json.dumps([context.driver_name, dict(sorted(properties.items()))])
