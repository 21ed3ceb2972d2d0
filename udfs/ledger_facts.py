"""Read a ledger's znode: its metadata, and when the ledger last changed, which is what its age counts from."""

from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import parse_ledger_metadata
from udfs.records import LedgerFacts


def facts_of(ledger_id: int, path: str, data: bytes, version: int, times_ms: tuple[int, int]) -> LedgerFacts:
    """Read a ledger's znode. times_ms: when ZooKeeper says that the znode was created, and when it was last changed.

    The ledger's age counts from the latest time that we know of, whether or not its metadata can be parsed: an age
    that is too small only makes a delete wait, one that is too large may delete what somebody still writes.
    """
    last_change_ms = max(times_ms)
    try:
        metadata = parse_ledger_metadata(data)
    except FormatError:
        return LedgerFacts(ledger_id, path, version, None, last_change_ms)
    return LedgerFacts(ledger_id, path, version, metadata, max(last_change_ms, metadata.ctime_ms or 0))
