"""Checks that a ledger's own metadata names the owner that a request names.

BookKeeper keeps customMetadata with each ledger, and Pulsar fills it when it creates the ledger (LedgerMetadataUtils).
A request can be forged and a ledger's metadata can't, so if the two differ we trust the ledger.
"""

from collections.abc import Mapping

from udfs.paths import managed_ledger_name
from udfs.records import LedgerComponent, PendingDelete, Reason

APPLICATION = "application"
COMPONENT = "component"
MANAGED_LEDGER = "pulsar/managed-ledger"
CURSOR = "pulsar/cursor"
SCHEMA_ID = "pulsar/schemaId"
COMPACTED_TOPIC = "pulsar/compactedTopic"
BUCKET_TOPIC = "pulsar/delayedIndexTopic"
BUCKET_CURSOR = "pulsar/delayedIndexCursor"

_COMPONENT_NAMES = {
    LedgerComponent.MANAGED_LEDGER: (b"managed-ledger",),
    LedgerComponent.MANAGED_CURSOR: (b"managed-ledger",),
    LedgerComponent.SCHEMA_STORAGE: (b"schema",),
    # Pulsar's documentation says compacted-topic, its code writes compacted-ledger
    LedgerComponent.COMPACTED_LEDGER: (b"compacted-ledger", b"compacted-topic"),
    LedgerComponent.DELAYED_INDEX_BUCKET: (b"delayed-index-bucket",),
}


def component_of(custom: Mapping[str, bytes]) -> LedgerComponent | None:
    """Return the component that the ledger's metadata names; None if we know none of that name."""
    name = custom.get(COMPONENT, b"")
    components = [component for component, names in _COMPONENT_NAMES.items() if name in names]
    if len(components) > 1:  # data and cursor ledgers share a name; only the latter name a cursor
        return LedgerComponent.MANAGED_CURSOR if CURSOR in custom else LedgerComponent.MANAGED_LEDGER
    return components[0] if components else None


def mismatch(request: PendingDelete, custom: Mapping[str, bytes]) -> tuple[Reason, str] | None:
    """Return None if the ledger's metadata names the request's owner; else the reason and its detail."""
    if custom.get(APPLICATION) != b"pulsar":
        return Reason.NOT_PULSARS, "the ledger's metadata does not contain application=pulsar"
    component = custom.get(COMPONENT, b"")
    if component not in _COMPONENT_NAMES[request.component]:
        return Reason.OTHER_COMPONENT, f"the ledger's component is {_text(component)}"
    if CURSOR in custom and request.component is LedgerComponent.MANAGED_LEDGER:
        return Reason.OTHER_COMPONENT, f"it is a ledger of cursor {_text(custom[CURSOR])}"
    if CURSOR not in custom and request.component is LedgerComponent.MANAGED_CURSOR:
        return Reason.OTHER_COMPONENT, "it is no cursor ledger"
    for key, requested, recorded in _owner_names(request, custom):
        if requested is None or requested != recorded:
            return Reason.OTHER_OWNER, f"{key} is {recorded!r}, the request names {requested!r}"
    return None


def names_another(request: PendingDelete, custom: Mapping[str, bytes]) -> bool:
    """Whether the ledger's metadata is Pulsar's and names another owner than the request."""
    why = mismatch(request, custom)
    return why is not None and why[0] in (Reason.OTHER_OWNER, Reason.OTHER_COMPONENT)


def _owner_names(request: PendingDelete, custom: Mapping[str, bytes]) -> list[tuple[str, str | None, str | None]]:
    """Return (key, the request's name, the ledger's name) for each key that names the owner."""
    if request.component is LedgerComponent.SCHEMA_STORAGE:
        return [(SCHEMA_ID, request.schema_id, _utf8(custom, SCHEMA_ID))]
    if request.component is LedgerComponent.COMPACTED_LEDGER:
        return [(COMPACTED_TOPIC, request.managed_ledger, _topic(custom, COMPACTED_TOPIC))]
    if request.component is LedgerComponent.DELAYED_INDEX_BUCKET:
        return [(BUCKET_TOPIC, request.managed_ledger, _topic(custom, BUCKET_TOPIC))]
    names: list[tuple[str, str | None, str | None]]
    names = [(MANAGED_LEDGER, request.managed_ledger, _utf8(custom, MANAGED_LEDGER))]
    if request.component is LedgerComponent.MANAGED_CURSOR:
        names.append((CURSOR, request.cursor_name, _utf8(custom, CURSOR)))
    return names


def _utf8(custom: Mapping[str, bytes], key: str) -> str | None:
    try:
        return custom[key].decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        return None


def _topic(custom: Mapping[str, bytes], key: str) -> str | None:
    """Return the managed ledger's name for any form of the topic's name that the broker wrote."""
    name = _utf8(custom, key)
    try:
        return managed_ledger_name(name) if name else None
    except ValueError:
        return None


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace") or "(none)"
