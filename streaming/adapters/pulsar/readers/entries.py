"""Reads entries without the connector: through a reader, and through the admin API where the reader gets nothing."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from streaming.adapters.pulsar.http import Body
from streaming.adapters.pulsar.readers.admin_entries import AdminEntries
from streaming.adapters.pulsar.readers.control_entries import ControlEntries, EntryAdmin
from streaming.adapters.pulsar.readers.span_reader import SpanEntry, read_spans
from streaming.config.sections import PulsarSettings
from udfs.entry_ranges import EntrySpan
from udfs.formats.entry_answer import entry_of
from udfs.formats.internal_stats import Position
from udfs.undelivered import NotShown, UndeliveredMessage, found_in, found_in_bytes, not_shown

_REQUESTS_AT_ONCE = 4

AdminAnswer = Body | NotShown


def fallback_entries(
    settings: PulsarSettings,
    admin: EntryAdmin,
    partition: str,
    spans: Sequence[EntrySpan],
    controls: ControlEntries | None = None,
) -> Iterator[tuple[Position, UndeliveredMessage]]:
    """Yield every message of these entries in order. Only a few entries are in memory at a time.

    Raises UnavailableError, RefusedError; at the end, too, so an entry that is given up counts only after a whole read.
    If an UnavailableError contains NOTHING_SHOWN or WITHHELD (admin_entries.py), the caller may decide to give entries
    up.
    """
    for entry, answer in read_entries(settings, admin, partition, spans, controls):
        for message in messages_of(entry, answer):
            yield entry.position, message


def read_entries(
    settings: PulsarSettings,
    admin: EntryAdmin,
    partition: str,
    spans: Sequence[EntrySpan],
    controls: ControlEntries | None = None,
) -> Iterator[tuple[SpanEntry, AdminAnswer | None]]:
    """Yield every entry in order, with the answer of the admin API if no reader got it.

    Raises what fallback_entries does.
    """
    from_admin = AdminEntries(admin, partition, controls or ControlEntries(admin, partition))
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="entries") as threads:
        yield from _with_answers(from_admin, threads, read_spans(settings, partition, spans, admin.internal_stats))
        from_admin.confirm()


def _with_answers(
    from_admin: AdminEntries, threads: Executor, entries: Iterator[SpanEntry]
) -> Iterator[tuple[SpanEntry, AdminAnswer | None]]:
    """Yield the entries in order, with the admin API's answer for those that the reader did not get."""
    requested: deque[tuple[SpanEntry, Future[AdminAnswer]]] = deque()

    def answered(left: int) -> Iterator[tuple[SpanEntry, AdminAnswer]]:
        while len(requested) > left:
            entry, answer = requested.popleft()
            yield entry, answer.result()

    for entry in entries:
        if entry.data is None and not entry.is_passed_over:
            # Many entries may follow an open transaction, so a few of them are requested at once. An entry that was
            # passed over is requested alone: after a few failures, such entries are not requested (admin_entries.py).
            requested.append((entry, threads.submit(from_admin.fetch, entry)))
            yield from answered(_REQUESTS_AT_ONCE)
            continue
        yield from answered(0)
        if entry.data is not None:
            from_admin.controls.was_sent(entry.position)
        yield entry, None if entry.data is not None else from_admin.fetch(entry)
    yield from answered(0)


def messages_of(entry: SpanEntry, answer: AdminAnswer | None) -> Iterator[UndeliveredMessage]:
    """Yield the messages of an entry that read_entries yields."""
    if isinstance(answer, NotShown):
        yield not_shown(answer)
    elif answer is not None:
        parsed, standing = entry_of(answer.headers, answer.data)
        yield from found_in(parsed, standing)
    elif entry.data is not None:
        yield from found_in_bytes(entry.data)
