"""The batches of the Spark source, over the fake of a broker."""

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import wait
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from streaming.adapters.memory.source_broker import MemorySourceBroker
from streaming.adapters.pulsar.source import sharing
from streaming.adapters.pulsar.source import stream as stream_module
from streaming.adapters.pulsar.source.counting import Counting
from streaming.adapters.pulsar.source.options import OnGap, Start, parse_options
from streaming.adapters.pulsar.source.stream import PartitionBatch, PulsarStream
from streaming.errors import RefusedError, SafetyError, UnavailableError
from tests.pulsar_fields import entry, single
from udfs.entry_ranges import EntrySpan, count_of
from udfs.formats.internal_stats import InternalStats, Position
from udfs.pulsar_source.admission import Limits
from udfs.pulsar_source.offsets import from_json

A, B = "persistent://t/ns/a", "persistent://t/ns/b"
SUBSCRIPTION = "mine"
ALL = Limits()

Streams = Callable[..., PulsarStream]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "_PARTITIONS_SECONDS", 0.0)
    monkeypatch.setattr(sharing, "PLANNING_SECONDS", 600.0)  # a slow machine must not leave a partition out


@pytest.fixture
def broker() -> MemorySourceBroker:
    return MemorySourceBroker(SUBSCRIPTION)


@pytest.fixture
def opened(broker: MemorySourceBroker) -> Iterator[Streams]:
    streams: list[PulsarStream] = []

    def open_stream(*topics: str, **changes: Any) -> PulsarStream:
        options = parse_options(
            {
                "serviceUrl": "pulsar://127.0.0.1:1",
                "adminUrl": "http://127.0.0.1:1",
                "topics": ",".join(topics),
                "subscription": SUBSCRIPTION,
            }
        )
        streams.append(PulsarStream(replace(options, **changes), broker))
        return streams[-1]

    yield open_stream
    for stream in streams:
        stream.close()


def _batch_of(messages: int) -> bytes:
    return entry(single(b"x") * messages, num_messages_in_batch=messages)


def _publish(broker: MemorySourceBroker, partition: str, entries: int, messages: int = 1) -> Position:
    return [broker.publish(partition, _batch_of(messages)) for _ in range(entries)][-1]


def _read(batches: list[PartitionBatch]) -> dict[str, int]:
    return {batch.partition: count_of(batch.spans) for batch in batches}


def _next(
    stream: PulsarStream, start: Mapping[str, Any], limits: Limits = ALL
) -> tuple[dict[str, Any], dict[str, int]]:
    end = stream.latest_offset(start, limits)
    return end, _read(stream.partitions(start, end))


def _until_read(stream: PulsarStream, start: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    while not (batch := _next(stream, start))[1]:
        pass
    return batch


def test_every_entry_is_in_exactly_one_batch(broker: MemorySourceBroker, opened: Streams) -> None:
    first, second = broker.create(A, 2)
    stream = opened(A)
    offset = stream.initial()
    assert _next(stream, offset) == (offset, {}), "nothing is there yet"
    spans: dict[str, list[EntrySpan]] = {first: [], second: []}
    for step in range(4):
        _publish(broker, first, 5)
        _publish(broker, second, 1)
        if step == 2:
            broker.roll(first)
            _publish(broker, first, 3)
        end = stream.latest_offset(offset, Limits(messages=4))
        for batch in stream.partitions(offset, end):
            spans[batch.partition] += batch.spans
        offset = end
    while (end := stream.latest_offset(offset, Limits(messages=4))) != offset:
        for batch in stream.partitions(offset, end):
            spans[batch.partition] += batch.spans
        offset = end
    for partition, read in spans.items():
        stats = broker.stats(partition)
        assert stats is not None
        positions = [(span.ledger, number) for span in read for number in range(span.first, span.last + 1)]
        assert positions == [(ledger, number) for ledger, entries in stats.ledgers for number in range(entries)]


def test_a_restarted_stream_plans_the_same_reads_from_the_same_offsets(
    broker: MemorySourceBroker, opened: Streams
) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    start = stream.initial()
    _publish(broker, partition, 9)
    end = stream.latest_offset(start, Limits(messages=7))
    _publish(broker, partition, 9)
    broker.expire(partition)
    broker.roll(partition)
    assert opened(A).partitions(start, end) == stream.partitions(start, end)
    assert _read(opened(A).partitions(start, end)) == {partition: 7}


@pytest.mark.parametrize("start", [Start.EARLIEST, Start.LATEST])
def test_the_first_batch_is_repeated_although_a_query_would_start_elsewhere_now(
    broker: MemorySourceBroker, opened: Streams, start: Start
) -> None:
    (partition,) = broker.create(A)
    first = opened(A, start=start)
    offset = first.initial()
    _publish(broker, partition, 3)
    end, read = _next(first, offset)
    assert read == {partition: 3}
    broker.expire(partition)
    broker.roll(partition)
    again = opened(A, start=start)
    # Spark stores no offset before the first batch, and asks for it again
    assert again.partitions(again.initial(), end) == first.partitions(offset, end)


def test_topics_share_a_batch_and_leave_what_they_do_not_use(broker: MemorySourceBroker, opened: Streams) -> None:
    large, small = broker.create(A, 1)[0], broker.create(B, 1)[0]
    stream = opened(A, B)
    offset = stream.initial()
    _publish(broker, large, 1000)
    _publish(broker, small, 10)
    _end, read = _next(stream, offset, Limits(messages=100))
    assert read == {large: 90, small: 10}


def test_a_batch_counts_messages_not_entries(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    offset = stream.initial()
    _publish(broker, partition, 10, messages=30)
    offset, read = _next(stream, offset, Limits(messages=100))
    assert read == {partition: 3}
    offset, read = _next(stream, offset, Limits(size=len(_batch_of(30)) * 2))
    assert read == {partition: 2}
    assert _next(stream, offset)[1] == {partition: 5}, "without a limit everything is read"


def test_an_entry_that_exceeds_the_limits_is_read_alone_and_waits_for_its_turn_only(
    broker: MemorySourceBroker, opened: Streams
) -> None:
    (honest,), (hostile,) = broker.create(A), broker.create(B)
    stream = opened(A, B)
    offset = stream.initial()
    _publish(broker, hostile, 2, messages=1000)
    reads = []
    for _ in range(6):
        _publish(broker, honest, 1)
        offset, read = _next(stream, offset, Limits(messages=10))
        reads.append(read)
    assert reads == [{honest: 1}, {hostile: 1}, {honest: 2}, {hostile: 1}, {honest: 2}, {honest: 1}]


def test_entries_that_no_reader_gets_are_part_of_a_batch(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    offset = stream.initial()
    broker.publish(partition, None)
    _publish(broker, partition, 1)
    broker.publish(partition, None)
    offset, read = _next(stream, offset)
    assert read == {partition: 2}, "of the last entry it is not known yet whether a transaction holds it back"
    _publish(broker, partition, 1)
    assert _next(stream, offset)[1] == {partition: 2}


def test_a_batch_has_few_entries_that_no_reader_gets(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    stream = opened(A, reads_uncommitted=True)
    offset = stream.initial()
    broker.open_transaction(partition)
    _publish(broker, partition, 100)
    assert _next(stream, offset, Limits(messages=1000))[1] == {partition: 20}, "each counts as 50 messages"


def test_an_open_transaction_holds_back_later_entries_unless_they_are_wanted(
    broker: MemorySourceBroker, opened: Streams
) -> None:
    (partition,) = broker.create(A)
    committed, uncommitted = opened(A), opened(A, reads_uncommitted=True)
    offset = committed.initial()
    _publish(broker, partition, 1)
    broker.open_transaction(partition)
    _publish(broker, partition, 3)
    assert _next(uncommitted, offset)[1] == {partition: 4}
    offset, read = _next(committed, offset)
    assert read == {partition: 1}
    assert _next(committed, offset) == (offset, {})
    broker.end_transaction(partition)
    assert _next(committed, offset)[1] == {partition: 3}


def test_added_partitions_are_read_from_their_start(broker: MemorySourceBroker, opened: Streams) -> None:
    broker.create(A, 1)
    stream = opened(A, start=Start.LATEST)
    offset = stream.initial()
    _first, added = broker.create(A, 2)
    _publish(broker, added, 2)
    offset, read = _next(stream, offset)
    assert read == {added: 2}
    stats = broker.stats(added)
    assert stats is not None
    assert stats.has_subscription(SUBSCRIPTION)
    assert _next(stream, offset) == (offset, {})


def test_a_query_starts_where_it_is_told_to(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    broker.ensure_subscription(partition, SUBSCRIPTION)
    first = _publish(broker, partition, 1)
    _publish(broker, partition, 4)
    broker.acknowledge(partition, first)
    for start, unread in ((Start.EARLIEST, {partition: 5}), (Start.SUBSCRIPTION, {partition: 4}), (Start.LATEST, {})):
        stream = opened(A, start=start)
        assert _next(stream, stream.initial())[1] == unread


def test_a_topic_that_does_not_exist_is_refused_at_the_start(broker: MemorySourceBroker, opened: Streams) -> None:
    broker.create(A)
    with pytest.raises(RefusedError, match="persistent://t/ns/b: no such topic"):
        opened(A, B).initial()


def test_an_added_topic_is_read_from_its_start_and_must_exist(broker: MemorySourceBroker, opened: Streams) -> None:
    broker.create(A)
    stream = opened(A)
    offset = stream.initial()
    with pytest.raises(RefusedError, match=r"^persistent://t/ns/b: no such topic; create it"):
        opened(A, B).latest_offset(offset, ALL)
    lenient = opened(A, B)
    lenient.requires_topics = False
    assert _next(lenient, offset) == (offset, {})
    (added,) = broker.create(B)
    _publish(broker, added, 2)
    assert _next(opened(A, B, start=Start.LATEST), offset)[1] == {added: 2}


def test_a_topic_that_is_taken_out_keeps_its_position(broker: MemorySourceBroker, opened: Streams) -> None:
    (first,), (second,) = broker.create(A), broker.create(B)
    stream = opened(A, B)
    offset = stream.initial()
    _publish(broker, first, 2)
    offset, _ = _next(stream, offset)
    without = opened(B)
    for partition in (first, second):
        _publish(broker, partition, 1)
    offset, read = _next(without, offset)
    assert read == {second: 1}
    unchanged = broker.stats(first)
    without.commit(offset)
    assert broker.stats(first) == unchanged, "its subscription may have been deleted, and must not be created again"
    assert _next(opened(A, B), offset)[1] == {first: 1}


def test_a_topic_that_is_gone_is_named_at_each_start_and_when_it_vanishes(
    broker: MemorySourceBroker, opened: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create(A)
    broker.create(B, 2)
    stream = opened(A, B)
    offset = stream.initial()

    def warnings(planned: PulsarStream, count: int) -> list[str]:
        caplog.clear()
        for _ in range(count):
            assert _next(planned, offset) == (offset, {})
        return caplog.messages

    gone = ["persistent://t/ns/b: no such topic; it is read once it is created"]
    assert warnings(stream, 2) == []
    broker.delete(B)
    assert warnings(stream, 3) == gone
    assert warnings(opened(A, B), 3) == gone, "the next start"
    added = "persistent://t/ns/c"
    broker.create(added)
    later = opened(A, B, added)
    assert warnings(later, 2) == gone, "an added topic that exists"
    broker.delete(added)
    assert warnings(later, 2) == [f"{added}: no such topic; it is read once it is created"]


def test_deleted_entries_are_reported_and_the_rest_is_read(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    offset = stream.initial()
    _publish(broker, partition, 4)
    offset, _read_first = _next(stream, offset, Limits(messages=2))
    broker.expire(partition)
    kept = broker.roll(partition)
    _publish(broker, partition, 2)
    end = stream.latest_offset(offset, Limits(messages=1))
    (batch,) = stream.partitions(offset, end)
    assert batch.gap is not None
    assert (batch.gap.is_certain, batch.gap.before, batch.spans) == (True, (kept, -1), (EntrySpan(kept, 0, 0),))
    (later,) = stream.partitions(end, stream.latest_offset(end, ALL))
    assert (later.gap, later.spans) == (None, (EntrySpan(kept, 1, 1),)), "a gap is reported once"
    with pytest.raises(SafetyError, match="onDataLoss"):
        opened(A, on_gap=OnGap.FAIL).partitions(offset, end)


def test_a_ledger_that_was_closed_and_deleted_after_it_was_read_is_no_gap(
    broker: MemorySourceBroker, opened: Streams
) -> None:
    (partition,) = broker.create(A)
    stream = opened(A, on_gap=OnGap.FAIL)
    offset = stream.initial()
    _publish(broker, partition, 2)
    offset, _ = _next(stream, offset)
    stream.commit(offset)
    newest = broker.roll(partition)
    end = stream.latest_offset(offset, ALL)
    assert from_json(end)[partition].at == (newest, -1)
    assert stream.partitions(offset, end) == []
    assert stream.latest_offset(end, ALL) == end


def test_a_topic_that_was_created_again_is_read_after_a_report(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    offset = stream.initial()
    _publish(broker, partition, 2)
    offset, _ = _next(stream, offset)
    broker.delete(A)
    assert stream.latest_offset(offset, ALL) == offset, "nothing was unread"
    broker.create(A)
    _publish(broker, partition, 3)
    end = stream.latest_offset(offset, ALL)
    (batch,) = stream.partitions(offset, end)
    assert batch.gap is not None
    assert not batch.gap.is_certain
    assert count_of(batch.spans) == 3


def test_a_topic_that_was_deleted_unread_stops_the_query(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    broker.create(B)
    stream = opened(A, B)
    offset = stream.initial()
    _publish(broker, partition, 2)
    offset, _ = _next(stream, offset, Limits(messages=1))
    broker.delete(A)
    with pytest.raises(SafetyError, match="was deleted"):
        stream.latest_offset(offset, ALL)
    assert opened(B).latest_offset(offset, ALL) == offset, "the remedy: the topic is no longer read"


def test_a_cluster_that_was_replaced_stops_the_query(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    offset = stream.initial()
    offset["partitions"][partition] |= {"at": "900:3", "seen": "900:3"}
    with pytest.raises(SafetyError, match="new checkpoint"):
        stream.latest_offset(offset, ALL)


def test_offsets_of_different_batches_are_refused(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    _publish(broker, partition, 3)
    first, _ = _next(stream, stream.initial(), Limits(messages=1))
    second, _ = _next(stream, first, Limits(messages=1))
    third, _ = _next(stream, second)
    with pytest.raises(SafetyError, match="changed by hand"):
        stream.partitions(first, third)


def test_a_partition_that_does_not_answer_delays_no_other(
    broker: MemorySourceBroker, opened: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,), (second,) = broker.create(A), broker.create(B)
    stream = opened(A, B)
    offset = stream.initial()
    _publish(broker, first, 1)
    _publish(broker, second, 1)
    broker.unavailable.add(first)
    offset, read = _next(stream, offset)
    assert read == {second: 1}
    broker.unavailable.clear()
    assert _next(stream, offset)[1] == {first: 1}


def test_a_partition_that_hangs_is_left_out_until_it_answers(
    broker: MemorySourceBroker, opened: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "PLANNING_SECONDS", 0.2)
    (first,), (second,) = broker.create(A), broker.create(B)
    stream = opened(A, B)
    offset = stream.initial()
    _publish(broker, first, 1)
    _publish(broker, second, 1)
    answers, asked, stats_of = Event(), [], broker.stats

    def hanging(partition: str) -> InternalStats | None:
        if partition == first:
            asked.append(partition)
            answers.wait(60)
        return stats_of(partition)

    monkeypatch.setattr(broker, "stats", hanging)
    end, read = _until_read(stream, offset)
    assert read == {second: 1}
    assert _next(stream, end) == (end, {})
    assert asked == [first], "it is not asked again before it has answered"
    answers.set()
    assert _until_read(stream, end)[1] == {first: 1}


def test_a_topic_whose_partitions_can_not_be_listed_now_is_read(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A, 1)
    stream = opened(A)
    offset = stream.initial()
    _publish(broker, partition, 1)
    broker.unavailable.add(A)
    assert _next(stream, offset)[1] == {partition: 1}
    with pytest.raises(UnavailableError):
        stream.set_target()


def test_entries_that_arrive_while_the_next_batch_is_counted_are_part_of_it(
    broker: MemorySourceBroker, opened: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    offset = stream.initial()
    _publish(broker, partition, 10)
    goes_on, fill, calls = Event(), Counting.fill, []

    def slow(counting: Counting, share: Limits) -> None:
        calls.append(share)
        if len(calls) == 2:  # the first call is for the first batch
            goes_on.wait(60)
        fill(counting, share)

    monkeypatch.setattr(Counting, "fill", slow)
    offset, read = _next(stream, offset, Limits(messages=10))
    assert read == {partition: 10}
    _publish(broker, partition, 10)

    def waiting(*arguments: Any) -> Any:
        goes_on.set()
        return wait(*arguments)

    monkeypatch.setattr(sharing, "wait", waiting)
    assert _next(stream, offset, Limits(messages=10))[1] == {partition: 10}


def test_an_outage_of_all_partitions_is_an_error(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    offset = stream.initial()
    broker.unavailable.add(partition)
    with pytest.raises(UnavailableError):
        stream.latest_offset(offset, ALL)


def test_available_now_reads_what_was_there_and_no_partition_is_left_out(
    broker: MemorySourceBroker, opened: Streams
) -> None:
    (first,), (second,) = broker.create(A), broker.create(B, 1)
    stream = opened(A, B)
    offset = stream.initial()
    _publish(broker, first, 3)
    _publish(broker, second, 1)
    stream.set_target()
    _publish(broker, first, 5)
    broker.unavailable.add(second)
    with pytest.raises(UnavailableError):
        stream.latest_offset(offset, ALL)
    broker.unavailable.clear()
    offset, read = _next(stream, offset, Limits(messages=2))
    assert read == {first: 1, second: 1}
    offset, read = _next(stream, offset, Limits(messages=3))
    assert read == {first: 2}
    assert _next(stream, offset) == (offset, {})


def test_a_commit_moves_the_cursors_later_if_it_can_not_now(broker: MemorySourceBroker, opened: Streams) -> None:
    (first,), (second,) = broker.create(A), broker.create(B)
    stream = opened(A, B)
    offset = stream.initial()
    last = {first: _publish(broker, first, 2), second: _publish(broker, second, 2)}
    offset, _ = _next(stream, offset)

    def acknowledged() -> dict[str, Position]:
        found = {name: broker.stats(name) for name in last}
        return {name: stats.mark_deleted(SUBSCRIPTION) for name, stats in found.items() if stats is not None}

    before = acknowledged()
    broker.busy.add(first)
    stream.commit(offset)
    assert acknowledged() == {first: before[first], second: last[second]}
    broker.free()
    assert acknowledged() == last


@pytest.mark.parametrize("subscription", [SUBSCRIPTION, ""])
def test_a_cursor_that_does_not_move_is_reported_now_and_then(
    broker: MemorySourceBroker,
    opened: Streams,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    subscription: str,
) -> None:
    partitions = broker.create(A, 2)
    stream = opened(A, subscription=subscription)
    offset = stream.initial()
    for partition in partitions:
        _publish(broker, partition, 2)
    offset, _ = _next(stream, offset)
    broker.busy.update(partitions)
    stream.commit(offset)
    for _ in range(3):
        assert _next(stream, offset)[1] == {}
    reports = [text for text in caplog.messages if "Exclusive consumer is already connected" in text]
    assert len(reports) == bool(subscription)
    assert all("-partition-0 and of 1 other partitions does not move" in text for text in reports)
    monkeypatch.setattr(stream_module, "_REPORT_SECONDS", 0.0)
    vars(stream)["_report_s"].clear()
    caplog.clear()
    for _ in range(2):
        assert _next(stream, offset)[1] == {}
    assert len(caplog.messages) == 2 * bool(subscription)


def test_partitions_without_new_entries_are_asked_again_when_they_ring(
    broker: MemorySourceBroker, opened: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_QUIET_SECONDS", 600.0)
    (first,), (second,) = broker.create(A), broker.create(B)
    stream = opened(A, B)
    offset = stream.initial()
    assert _next(stream, offset) == (offset, {})
    asked, stats_of = [], broker.stats

    def counted(partition: str) -> InternalStats | None:
        asked.append(partition)
        return stats_of(partition)

    monkeypatch.setattr(broker, "stats", counted)
    assert _next(stream, offset) == (offset, {})
    assert asked == []
    for _ in range(2):
        _publish(broker, first, 2)
        offset, read = _next(stream, offset)
        assert read == {first: 2}
        assert _next(stream, offset) == (offset, {})
    assert {*asked} == {first}
    broker.unavailable.add(second)
    assert _next(stream, offset) == (offset, {})
    broker.unavailable.clear()
    assert _next(stream, offset) == (offset, {})
    assert second in asked, "a partition that can't ring is asked"


def test_what_does_not_ring_is_found_later(
    broker: MemorySourceBroker, opened: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_UNCOMMITTED_SECONDS", 0.0)
    (partition,) = broker.create(A)
    stream = opened(A, reads_uncommitted=True)
    offset = stream.initial()
    broker.open_transaction(partition)
    assert _next(stream, offset) == (offset, {})
    _publish(broker, partition, 1)
    assert _next(stream, offset)[1] == {partition: 1}


def test_a_batch_waits_for_a_message_as_long_as_it_is_told_to(
    broker: MemorySourceBroker, opened: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = broker.create(A)
    stream = opened(A, wait_seconds=600)
    offset = stream.initial()
    waits, rung = [], broker.rung

    def ringing(timeout_seconds: float) -> Collection[str]:
        if timeout_seconds:
            waits.append(timeout_seconds)
            _publish(broker, partition, 1)
        return rung(timeout_seconds)

    monkeypatch.setattr(broker, "rung", ringing)
    assert _next(stream, offset)[1] == {partition: 1}
    assert len(waits) == 1


def test_no_batch_waits_again_for_a_partition_that_was_late(
    broker: MemorySourceBroker, opened: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slow,), (other,) = broker.create(A), broker.create(B)
    stream = opened(A, B)
    offset = stream.initial()
    goes_on, counted, fill, waits = Event(), Event(), Counting.fill, []

    def hanging(counting: Counting, share: Limits) -> None:
        if counting.partition == slow:
            goes_on.wait(60)
            fill(counting, share)
            counted.set()
        else:
            fill(counting, share)

    def waiting(requests: Any, timeout: float | None = None) -> Any:
        waits.append([*requests])
        return wait(requests, 0.2)

    monkeypatch.setattr(Counting, "fill", hanging)
    monkeypatch.setattr(sharing, "wait", waiting)
    read: dict[str, int] = {}
    _publish(broker, slow, 1)
    while not read:  # a slow machine may be late with the other partition as well
        _publish(broker, other, 1)
        offset, read = _next(stream, offset)
    assert {*read} == {other}
    waits.clear()
    _publish(broker, other, 1)
    _next(stream, offset)
    busy = vars(stream)["_sharing"]._open[slow].filling
    assert not any(busy in requests for requests in waits)
    goes_on.set()
    assert counted.wait(60)
    read = {}
    while slow not in read:
        offset, read = _next(stream, offset)


def test_all_partitions_together_are_counted_ahead_by_one_batch_at_most(
    broker: MemorySourceBroker, opened: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = broker.create(A, 10)
    stream = opened(A)
    offset = stream.initial()
    for partition in partitions:
        _publish(broker, partition, 100)
    _next(stream, offset, Limits(messages=50))
    ahead = vars(stream)["_sharing"]._open
    assert len(ahead) == 10
    wait([known.filling for known in ahead.values()])
    assert sum(len(known.counting.weights()) for known in ahead.values()) <= 50 + len(ahead)


def test_a_topic_with_many_partitions_opens_few_readers_and_delays_no_other(
    broker: MemorySourceBroker, opened: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_MOST_READERS", 4)
    many, (other,) = broker.create(A, 20), broker.create(B, 1)
    stream = opened(A, B)
    offset = stream.initial()
    for partition in many:
        _publish(broker, partition, 5)
    left = dict.fromkeys(many, 5)
    while any(left.values()):
        _publish(broker, other, 1)
        offset, read = _next(stream, offset, Limits(messages=10))
        assert read.pop(other) == 1
        assert len(read) <= 4
        left |= {partition: left[partition] - entries for partition, entries in read.items()}
        wait([known.filling for known in vars(stream)["_sharing"]._open.values() if known.filling is not None])
        assert len(broker.readers) <= 4
    assert not any(left.values())


def test_without_a_subscription_nothing_is_acknowledged(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    stream = opened(A, subscription="")
    offset = stream.initial()
    _publish(broker, partition, 1)
    offset, _ = _next(stream, offset)
    stream.commit(offset)
    stats = broker.stats(partition)
    assert stats is not None
    assert not stats.cursors


def test_a_backlog_is_counted_by_one_reader(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    offset = stream.initial()
    _publish(broker, partition, 100)
    for _ in range(10):
        offset, read = _next(stream, offset, Limits(messages=10))
        assert read == {partition: 10}
    assert len(broker.scouted) == 1


def test_available_now_ends_only_when_everything_is_read(broker: MemorySourceBroker, opened: Streams) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    offset = stream.initial()
    _publish(broker, partition, 30)
    stream.set_target()
    read = 0
    for step in range(3):
        if step == 1:
            broker.close_readers()
        offset, entries = _next(stream, offset, Limits(messages=10))
        read += entries[partition]
    assert read == 30
    assert _next(stream, offset) == (offset, {})


def test_a_reader_that_the_broker_closed_between_batches_is_opened_again(
    broker: MemorySourceBroker, opened: Streams
) -> None:
    (partition,) = broker.create(A)
    stream = opened(A)
    offset = stream.initial()
    _publish(broker, partition, 30)
    offset, read = _next(stream, offset, Limits(messages=10))
    assert read == {partition: 10}
    broker.close_readers()
    offset, read = _next(stream, offset)
    assert read == {partition: 20}
