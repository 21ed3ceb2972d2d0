"""Arguments of PIP-186's LedgerDeletionService, made into a request that the sweep will understand."""

from udfs.paths import managed_ledger_name, schema_id_of
from udfs.records import LedgerComponent, LedgerType, OffloadContext, PendingDelete, Rejection
from udfs.wire import decode, encode


def request_for(
    topic: str,
    ledger_id: int,
    component: LedgerComponent,
    *,
    context: OffloadContext | None = None,
    cursor_name: str | None = None,
) -> PendingDelete:
    """Return the request for a ledger (context None) or for one upload of it to tiered storage.

    topic: any form that udfs.paths takes. cursor_name: the subscription, or its encoded name; for MANAGED_CURSOR.
    The schema's id follows from the topic. Raises ValueError for what the sweep would refuse, in its words.
    """
    name = managed_ledger_name(topic)
    request = PendingDelete(
        name,
        LedgerComponent(component),
        LedgerType.LEDGER if context is None else LedgerType.OFFLOAD_LEDGER,
        ledger_id,
        cursor_name=cursor_name,
        schema_id=schema_id_of(name) if component is LedgerComponent.SCHEMA_STORAGE else None,
        offload_context=context,
    )
    understood = decode(encode(request))
    if isinstance(understood, Rejection):
        raise ValueError(f"{understood.reason}: {understood.detail}")
    return understood
