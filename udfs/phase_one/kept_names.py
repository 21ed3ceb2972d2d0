"""A compact encoding of the names in a znode, because the watcher keeps the names of every topic in memory.

Format, little-endian: the number of ids of each component and of uploads (six u32); the ids in BookKeeper (i64); per
upload its ledger's id (i64), UUID (16 bytes) and the number of its target (u32); the targets, a JSON list of
[driver name, {driver properties}]. Most uploads of a topic have the same target, so each target is stored once.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Set
from itertools import chain, islice
from uuid import UUID

from udfs.formats.errors import FormatError
from udfs.phase_one.vanished_names import Name, NamedThing, Names, named
from udfs.records import ONLY_IF_NAMED, LedgerComponent, OffloadContext, PendingDelete

# the components that a znode can name, in the order of the format
_COMPONENTS = tuple(component for component in LedgerComponent if component not in ONLY_IF_NAMED)
# named by a cursor's properties, which the client of the subscription may write
BY_CLIENTS = frozenset({LedgerComponent.DELAYED_INDEX_BUCKET, LedgerComponent.COMPACTED_LEDGER})
_HEAD = struct.Struct(f"<{len(_COMPONENTS) + 1}I")
_UPLOAD = struct.Struct("<q16sI")
_ID_BYTES = 8


def packed(names: Names) -> bytes:
    """Encode the names that names_in() returned. Equal names have equal bytes."""
    ids: dict[str, list[int]] = {component: [] for component in _COMPONENTS}
    uploads: list[tuple[int, OffloadContext]] = []
    for (component, ledger_id, _uuid), request in names.items():
        if request.offload_context is None:
            ids[component].append(ledger_id)
        else:
            uploads.append((ledger_id, request.offload_context))
    listed = [ledger_id for of_component in ids.values() for ledger_id in sorted(of_component)]
    uploads.sort(key=lambda upload: (upload[0], upload[1].uuid))
    targets = {_target_of(context): 0 for _ledger_id, context in uploads}
    targets = {target: number for number, target in enumerate(sorted(targets))}
    return b"".join(
        (
            _HEAD.pack(*map(len, ids.values()), len(uploads)),
            struct.pack(f"<{len(listed)}q", *listed),
            *(_UPLOAD.pack(ledger_id, UUID(at.uuid).bytes, targets[_target_of(at)]) for ledger_id, at in uploads),
            f"[{','.join(targets)}]".encode() if targets else b"",
        )
    )


def unpacked(path: str, data: bytes) -> dict[Name, PendingDelete]:
    """Decode the names of the znode at this path. Raises FormatError for bytes that packed() did not write."""
    try:
        return named(path, _decoded(data))
    except (struct.error, ValueError, TypeError, IndexError) as error:
        raise FormatError(f"the names kept of {path[:200]!a} can't be read: {error}") from error


def still_named(data: bytes, names: Set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return which of the names (ledger id, UUID of an upload or "" for BookKeeper) a broker has written here.

    A client that subscribes to a topic may let a cursor name any ledger as its bucket, or as the compacted ledger
    (BY_CLIENTS). That must not prevent a request for a ledger of another topic.
    """
    *counts, uploads = _HEAD.unpack_from(data)
    ids = iter(_ids(data, sum(counts)))
    by_broker = chain.from_iterable(
        islice(ids, count) if component not in BY_CLIENTS else _skipped(ids, count)
        for component, count in zip(_COMPONENTS, counts, strict=True)
    )
    present = {(ledger_id, "") for ledger_id in by_broker if (ledger_id, "") in names}
    if uploads:
        at = _HEAD.size + sum(counts) * _ID_BYTES
        for ledger_id, uuid, _target in _UPLOAD.iter_unpack(data[at : at + uploads * _UPLOAD.size]):
            if (name := (ledger_id, str(UUID(bytes=uuid)))) in names:
                present.add(name)
    return present


def _skipped(ids: Iterator[int], count: int) -> tuple[int, ...]:
    for _ in range(count):
        next(ids)
    return ()


def _decoded(data: bytes) -> Iterator[NamedThing]:
    *counts, uploads = _HEAD.unpack_from(data)
    ids = iter(_ids(data, sum(counts)))
    for component, count in zip(_COMPONENTS, counts, strict=True):
        for _ in range(count):
            yield component, next(ids), None
    at = _HEAD.size + sum(counts) * _ID_BYTES
    targets = json.loads(data[at + uploads * _UPLOAD.size :]) if uploads else []
    for ledger_id, uuid, number in _UPLOAD.iter_unpack(data[at : at + uploads * _UPLOAD.size]):
        driver, properties = targets[number]
        context = OffloadContext(uuid=str(UUID(bytes=uuid)), driver_name=driver, driver_properties=properties)
        yield LedgerComponent.MANAGED_LEDGER, ledger_id, context


def _ids(data: bytes, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f"<{count}q", data, _HEAD.size)


def _target_of(context: OffloadContext) -> str:
    properties: Mapping[str, str] = context.driver_properties
    return json.dumps([context.driver_name, dict(sorted(properties.items()))])
