"""Measures the state that each ledger leaves, and the memory that each owner takes.

    python -m bench.sizes [--ledgers 100000]

The ledgers belong to 100 owners, and then each to an owner of its own, in chunks of 50,000. Receipts are written and
merged by the service's own tables, the journal by its own writer, in batches of 5,000 like a task's. Names, ids and
lengths are random. Then tracemalloc measures references to ten, 1,000 and 10,000 ledgers of owners with two
subscriptions. Sizes do not depend on the load of the machine.
"""

import random
import tempfile
import tracemalloc
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.session import command_line
from streaming import schemas
from streaming.clock import ManualClock
from streaming.in_use.cache import estimated_bytes
from streaming.state import receipts
from streaming.state.journal import JournalEntry, ParquetJournal
from streaming.state.receipts import Receipts
from tests.tasks import Tasks
from udfs import columns as c
from udfs.formats.acl import OPEN, acl_bytes
from udfs.formats.ledger_metadata import serialize_v3
from udfs.owners.completeness import certificate
from udfs.owners.references import key_of
from udfs.paths import Layout, ledger_path, topic_of
from udfs.records import (
    Counts,
    LedgerComponent,
    LedgerMetadata,
    LedgerState,
    LedgerType,
    PendingDelete,
    Presence,
    Reference,
)
from udfs.requests.request_format import encode
from udfs.requests.retry import retry_properties

CHUNK, FILES, LOT = 50_000, 4, 5_000
NOW_MS = 1_795_000_000_000
SOURCE = "persistent://pulsar/system/__ledger_deletion-partition-{}"
RETRY = "persistent://pulsar/ledger-deletion/__ledger_deletion-RETRY"
BOOKIES = ("bookie-0.example.com:3181", "bookie-1.example.com:3181")


def requests(count: int, owners: int) -> list[PendingDelete]:
    """Yield requests for ledgers, ordered by owner as in a task."""
    drawn, ledger_id, found = random.Random(1), 1_000_000, []
    names = [f"tenant-{number % 50}/orders/persistent/topic-{drawn.randbytes(6).hex()}" for number in range(owners)]
    for number in range(count):
        ledger_id += drawn.randrange(1, 20)
        owner = names[number * owners // count]
        found.append(
            PendingDelete(
                managed_ledger=owner,
                component=LedgerComponent.MANAGED_LEDGER,
                ledger_type=LedgerType.LEDGER,
                ledger_id=ledger_id,
            )
        )
    return found


def reference(key: str, ledgers: int = 10, cursors: int = 2) -> Reference:
    """Return the reference of an owner with so many ledgers and cursors."""
    paths = [f"/managed-ledgers/{key}", *(f"/managed-ledgers/{key}/subscription-{n}" for n in range(cursors))]
    checks = tuple((path, 1_000 + len(path)) for path in paths)
    in_use = array("q", range(2_000_000, 2_000_000 + ledgers))
    return Reference(
        key=key,
        presence=Presence.PRESENT,
        read_at_ms=NOW_MS,
        checks=checks,
        in_use=in_use,
        newest_id=in_use[-1],
        counts=Counts(ledgers, ledgers),
    )


def receipt(request: PendingDelete, number: int, *, is_retry: bool) -> dict[str, Any]:
    """Return the receipt of a deleted ledger, or of a ledger that is too young, with its copy."""
    chunk, key, drawn = number // CHUNK + 1, key_of(request), random.Random(number)
    origin = f"{70_000 + number // 40_000}:{number % 40_000}:{number % 4}:-1"
    found: dict[str, Any] = dict.fromkeys(schemas.RECEIPT.names) | {
        c.CHUNK: chunk,
        c.AT_MS: NOW_MS + number // 10,
        c.EPOCH: 7,
        c.QUERY: "requests",
        c.BATCH_ID: chunk,
        c.SOURCE: SOURCE.format(number % 4),
        c.POSITION_LEDGER: 70_000 + number // 40_000,
        c.POSITION_ENTRY: number % 40_000,
        c.POSITION_BATCH: -1,
        c.ORIGIN_MESSAGE_ID: origin,
        c.LEDGER_ID: request.ledger_id,
        c.LEDGER_TYPE: str(request.ledger_type),
        c.COMPONENT: str(request.component),
        c.TOPIC_NAME: topic_of(request.managed_ledger),
        c.REFERENCE_KEY: key,
        c.TENANT: request.managed_ledger.partition("/")[0],
        c.OUTCOME: "RETRY" if is_retry else "DELETED",
        c.REASON: "TOO_YOUNG" if is_retry else "UNREFERENCED",
        c.DETAIL: "",
        c.ATTEMPT: 0,
        c.BYTES: drawn.randrange(1_000, 2_000_000_000),
        c.REFRESHED: False,
        c.SOURCES: certificate(reference(key)),
    }
    if is_retry:
        wait_ms = drawn.randrange(60_000, 600_000)
        properties = retry_properties(
            {}, real_topic=SOURCE.partition("-part")[0], origin_id=origin, attempt=0, delay_ms=wait_ms
        )
        found |= {
            c.TARGET: RETRY,
            c.TARGET_PARTITION: number % 4,
            c.DELAY_MS: wait_ms,
            c.MESSAGE_KEY: key.encode(),
            c.PAYLOAD: encode(request),
            c.MESSAGE_PROPERTIES: list(properties.items()),
        }
    return found


def entry(request: PendingDelete) -> JournalEntry:
    """Return the journal's entry of a ledger."""
    custom = {
        "application": b"pulsar",
        "component": b"managed-ledger",
        "pulsar/managed-ledger": request.managed_ledger.encode(),
    }
    drawn = random.Random(request.ledger_id)
    length, last, made_ms = (
        drawn.randrange(1_000, 2_000_000_000),
        drawn.randrange(1, 50_000),
        NOW_MS - drawn.randrange(10**9),
    )
    data = serialize_v3(
        LedgerMetadata(
            state=LedgerState.CLOSED, length_bytes=length, last_entry_id=last, ctime_ms=made_ms, custom_metadata=custom
        ),
        bookies=BOOKIES,
    )
    path = ledger_path(Layout.HIERARCHICAL, "/ledgers", request.ledger_id)
    return JournalEntry(
        ledger_id=request.ledger_id,
        path=path,
        data=data,
        version=2,
        acl=acl_bytes(OPEN),
        reference=reference(key_of(request)),
    )


def lots(rows: Sequence[PendingDelete], size: int) -> Iterator[range]:
    """Yield the numbers of the rows in batches."""
    return (range(at, min(at + size, len(rows))) for at in range(0, len(rows), size))


def state_bytes(asked: Sequence[PendingDelete], *, is_retry: bool) -> Iterator[tuple[str, float]]:
    """Yield (name, bytes per ledger)."""
    with tempfile.TemporaryDirectory() as scratch:
        spark: Any = None
        table = Receipts(spark, scratch)
        for chunk in lots(asked, CHUNK):
            tasks = [chunk[at::FILES] for at in range(FILES)]
            files: Any = Tasks(*(_receipts(asked, rows, is_retry=is_retry) for rows in tasks))
            table.append(files, chunk.start // CHUNK + 1)
        yield "receipt as written", _size(Path(scratch, "receipts"), "part-*.parquet") / len(asked)
        before = set(Path(scratch, "receipts").glob("*.parquet"))
        receipts.compact(scratch)
        merged = set(Path(scratch, "receipts").glob("*.parquet")) - before
        yield "receipt when merged", sum(file.stat().st_size for file in merged) / len(asked)
        if not is_retry:
            for lot in lots(asked, LOT):
                journal = ParquetJournal(scratch, "requests", lot.start // CHUNK, ManualClock(NOW_MS))
                journal.write([entry(asked[number]) for number in lot])
            yield "entry of the undo journal", _size(Path(scratch, "journal"), "*/*.parquet") / len(asked)


def _receipts(asked: Sequence[PendingDelete], numbers: range, *, is_retry: bool) -> pa.Table:
    rows = [receipt(asked[number], number, is_retry=is_retry) for number in numbers]
    return pa.Table.from_pylist(rows, schema=schemas.RECEIPT)


def _size(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(pattern))


def owner_bytes(owners: int, ledgers: int) -> tuple[float, float]:
    """Return the bytes of each owner's reference in memory, and the cache's estimate."""
    keys = [key_of(request) for request in requests(owners, owners)]
    tracemalloc.start()
    before, _peak = tracemalloc.get_traced_memory()
    held = {"".join(list(key)): reference("".join(list(key)), ledgers) for key in keys}  # separate strings
    after, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / owners, sum(map(estimated_bytes, held.values())) / owners


def main() -> None:
    """Write, measure, print."""
    parser = command_line(__doc__)
    parser.add_argument("--ledgers", type=int, default=100_000)
    options = parser.parse_args()
    for owners in (100, options.ledgers):
        asked = requests(options.ledgers, owners)
        for is_retry in (False, True):
            for what, size in state_bytes(asked, is_retry=is_retry):
                print(f"{owners:7} owners, {'retry' if is_retry else 'delete'}: {what}: {size:.0f} bytes")
    for owners, ledgers in ((10_000, 10), (1_000, 1_000), (100, 10_000)):
        held, reckoned = owner_bytes(owners, ledgers)
        print(f"an owner that names {ledgers} ledgers: {held:.0f} bytes in memory, {reckoned:.0f} as the cache reckons")


if __name__ == "__main__":
    main()
