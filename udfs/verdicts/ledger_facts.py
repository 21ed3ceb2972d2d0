"""Reads a ledger's znode: its metadata, and the time of the last change, from which the ledger's age counts."""

from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import parse_ledger_metadata
from udfs.records import LedgerFacts


def facts_of(ledger_id: int, path: str, data: bytes, version: int, times_ms: tuple[int, int]) -> LedgerFacts:
    """Read a ledger's znode. times_ms: ZooKeeper's times of the znode's creation and of its last change."""
    # The latest known time counts, whether or not the metadata can be parsed: an age that is too small only makes a
    # delete wait, an age that is too large may delete a ledger that a client still writes.
    last_change_ms = max(times_ms)
    try:
        metadata = parse_ledger_metadata(data)
    except FormatError:
        return LedgerFacts(
            ledger_id=ledger_id, path=path, version=version, metadata=None, last_change_ms=last_change_ms
        )
    return LedgerFacts(
        ledger_id=ledger_id,
        path=path,
        version=version,
        metadata=metadata,
        last_change_ms=max(last_change_ms, metadata.ctime_ms or 0),
    )
