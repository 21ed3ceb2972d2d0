"""Does every request that was put off still wait? It has a copy in the retry topic or a row in the table `waiting`."""

from collections.abc import Iterator, Mapping

import pyarrow.dataset as ds

from streaming.config.settings import Settings
from streaming.ports import MessageReader
from streaming.schemas import RETRY
from streaming.state.tables import opened, scan
from udfs import columns as c
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.records import Outcome
from udfs.retry import MAX_DELAY_MS, ORIGIN_MESSAGE_ID
from udfs.units import DAY_MS


def put_off(settings: Settings, now_ms: int) -> dict[str, int]:
    """Requests whose newest receipt says RETRY -> the chunk of that receipt.

    We leave out the newest chunk, whose copies may still be on their way, and receipts older than a week and a day: a
    retry waits a week at most, so such a request has a newer receipt, or was an alarm a week ago.
    """
    table = opened(settings.state_dir, "receipts")
    if table is None:
        return {}
    since = ds.field(c.AT_MS) >= now_ms - MAX_DELAY_MS - DAY_MS
    retried = (ds.field(c.OUTCOME) == str(Outcome.RETRY)) | (ds.field(c.QUERY) == RETRY)
    latest: dict[str, tuple[int, str]] = {}
    columns = [c.ORIGIN_MESSAGE_ID, c.CHUNK, c.OUTCOME]
    for batch in scan(table, since & retried, columns):
        for origin, chunk, outcome in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            latest[origin] = max(latest.get(origin, (0, "")), (chunk, outcome))
    newest = max((chunk for chunk, _ in latest.values()), default=0)
    return {origin: chunk for origin, (chunk, what) in latest.items() if what == Outcome.RETRY and chunk < newest}


def not_waiting(
    settings: Settings,
    reader: MessageReader,
    waiting: Mapping[str, int],
    unread: Mapping[str, tuple[Position, Position]],
    now_ms: int,
) -> set[str]:
    """Requests of `waiting` (as put_off gave them) that wait nowhere and were not worked off since.

    unread: partition of the retry topic -> the position behind which its messages are unread, and that of its newest.
    """
    if not waiting:
        return set()
    after = {partition: begin for partition, (begin, _end) in unread.items() if begin != BEFORE_ALL}
    last = {partition: end for partition, (begin, end) in unread.items() if begin < end}
    missing = set(waiting)
    missing -= {each.properties.get(ORIGIN_MESSAGE_ID, "") for each in reader.read(last, after=after)}
    missing -= set(_held_origins(settings))
    still = put_off(settings, now_ms) if missing else {}
    return {origin for origin in missing if still.get(origin) == waiting[origin]}


def _held_origins(settings: Settings) -> Iterator[str]:
    table = opened(settings.state_dir, "waiting")
    if table is not None:
        for batch in scan(table, columns=[c.MESSAGE_PROPERTIES]):
            for properties in batch.column(0).to_pylist():
                yield dict(properties or ()).get(ORIGIN_MESSAGE_ID) or ""
