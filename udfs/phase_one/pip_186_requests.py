"""Turns the arguments of PIP-186's LedgerDeletionService into a request that the sweep accepts."""

from udfs.formats.managed_ledger import ManagedLedgerInfo
from udfs.paths import MAX_LEDGER_ID, MAX_NAME_LENGTH, managed_ledger_name, schema_id_of
from udfs.records import LedgerComponent, LedgerType, OffloadContext, PendingDelete, Rejection
from udfs.requests.request_format import decode, encode

# no topic makes a request longer, so a context that is valid with this topic is valid with any
_LONGEST_TOPIC = "any/any/persistent/".ljust(MAX_NAME_LENGTH, "t")


def uploads_in(info: ManagedLedgerInfo) -> dict[tuple[int, str], OffloadContext]:
    """Return every upload that a topic's list names: (ledger id, UUID) -> the context for a request."""
    return {
        (ledger.ledger_id, offload.uuid): OffloadContext(
            uuid=offload.uuid, driver_name=offload.driver_name, driver_properties=offload.driver_properties
        )
        for ledger in info.ledgers
        if (offload := ledger.offload) is not None and offload.uuid is not None
    }


def check_context(context: OffloadContext) -> None:
    """Raise ValueError if a request with this context could be invalid for some topic."""
    request_for(_LONGEST_TOPIC, MAX_LEDGER_ID, LedgerComponent.MANAGED_LEDGER, context=context)


def request_for(
    topic: str,
    ledger_id: int,
    component: LedgerComponent,
    *,
    context: OffloadContext | None = None,
    cursor_name: str | None = None,
) -> PendingDelete:
    """Return the request for a ledger (context None) or for an upload of it to tiered storage.

    Raises ValueError, with the sweep's reason, for a request that the sweep would refuse.

    Args:
        topic: in any form that udfs.paths accepts; the schema's id follows from it.
        ledger_id: the ledger.
        component: what the ledger belongs to.
        context: the upload.
        cursor_name: the subscription, or its encoded name; for MANAGED_CURSOR.
    """
    name = managed_ledger_name(topic)
    request = PendingDelete(
        managed_ledger=name,
        component=LedgerComponent(component),
        ledger_type=LedgerType.LEDGER if context is None else LedgerType.OFFLOAD_LEDGER,
        ledger_id=ledger_id,
        cursor_name=cursor_name,
        schema_id=schema_id_of(name) if component is LedgerComponent.SCHEMA_STORAGE else None,
        offload_context=context,
    )
    decoded = decode(encode(request))
    if isinstance(decoded, Rejection):
        raise ValueError(f"{decoded.reason}: {decoded.detail}")
    return decoded
