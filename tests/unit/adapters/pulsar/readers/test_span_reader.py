"""Spans of entries that are read through readers."""

import socket
from pathlib import Path

import pytest

from streaming.adapters.pulsar.readers import frames, span_reader
from streaming.adapters.pulsar.readers.span_reader import SpanEntry, read_spans
from streaming.errors import RefusedError, UnavailableError
from tests.pulsar_fields import entry
from tests.pulsar_settings import pulsar_settings
from tests.unit.adapters.pulsar.frame_broker import Partition, serving, settings_for
from tests.unit.adapters.pulsar.stored_entries import ALL, LAST, ORDINARY, STORED, TOPIC
from udfs.entry_ranges import EntrySpan
from udfs.formats import internal_stats as formats
from udfs.formats.internal_stats import InternalStats, Position, ranges_in
from udfs.formats.managed_ledger import AcknowledgedRange


def _read(partition: Partition, spans: list[EntrySpan]) -> list[SpanEntry]:
    return list(read_spans(settings_for(partition), TOPIC, spans))


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_reader, "_READER_TIMEOUT_SECONDS", 1.0)


def test_entries_are_read_in_order_and_passed_over_entries_are_named() -> None:
    with serving(Partition(STORED, LAST)) as partition:
        assert _read(partition, ALL) == [
            SpanEntry((7, 0), ORDINARY),
            SpanEntry((7, 1), None, is_passed_over=True),
            SpanEntry((7, 2), ORDINARY),
            SpanEntry((8, 0), None, is_passed_over=True),
            SpanEntry((8, 1), ORDINARY),
            SpanEntry(LAST, ORDINARY),
        ]


@pytest.mark.parametrize(
    ("mark_deleted", "text", "passed_over"),
    [
        ((8, 1), "[(8:1..8:3]]", [True, True, False]),
        ((8, 2), "[]", [True, False, False]),
        ((8, 4), "", [True, True, True]),
        ((8, 1), "[(8:2..8:3]]", [False, False, False]),
        ((8, 1), "a text of another form", [False, False, False]),
    ],
)
def test_an_entry_that_the_broker_acknowledges_for_a_reader_is_passed_over_though_none_follows(
    mark_deleted: Position, text: str, passed_over: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker does so with what it reads and does not send, such as metadata that it can't parse."""
    stored: dict[Position, bytes | None] = {**STORED, (8, 2): None, (8, 3): None, (8, 4): None}
    parsed: list[str] = []

    def parse(text: str) -> tuple[AcknowledgedRange, ...]:
        parsed.append(text)
        return ranges_in(text)

    monkeypatch.setattr(formats, "ranges_in", parse)
    with serving(Partition(stored, None)) as partition:

        def internal_stats(name: str) -> InternalStats:
            assert name == TOPIC
            (*_earlier, reader) = partition.names
            cursors, acknowledged = {reader: mark_deleted, "another": (8, 9)}, {reader: text, "another": "[(8:0..8:9]]"}
            return InternalStats(ledgers=(), cursors=cursors, pending_adds=0, acknowledged=acknowledged)

        read = list(read_spans(settings_for(partition), TOPIC, [EntrySpan(8, 2, 4)], internal_stats))
        readers = len(partition.names)
    assert read == [
        SpanEntry((8, number), None, is_passed_over=expected) for number, expected in enumerate(passed_over, 2)
    ]
    assert len(parsed) <= readers, "senders decide how long the text is, so it is not parsed for each entry"


def test_a_broker_that_does_not_answer_does_not_prevent_the_use_of_another() -> None:
    with serving(Partition(STORED, LAST)) as partition, socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for others in (f"127.0.0.1:{port}", "127.0.0.1:1"):
            url = partition.url.replace("pulsar://", f"pulsar://{others},")
            settings = pulsar_settings(
                **{**settings_for(partition).model_dump(), "service_url": url, "timeout_seconds": 1}
            )
            assert [sent.data for sent in read_spans(settings, TOPIC, [EntrySpan(7, 0, 0)])] == [ORDINARY]


def test_a_reader_starts_right_before_the_spans_and_yields_only_their_entries() -> None:
    with serving(Partition(STORED, LAST)) as partition:
        assert _read(partition, [EntrySpan(7, 1, 1), EntrySpan(8, 2, 2)]) == [
            SpanEntry((7, 1), None, is_passed_over=True),
            SpanEntry(LAST, ORDINARY),
        ]
        assert partition.readers == [(7, 0)]


def test_a_few_entries_between_spans_are_skipped_and_many_need_a_new_reader() -> None:
    stored = {(7, number): ORDINARY for number in range(3000)}
    with serving(Partition(stored, (7, 2999))) as partition:
        spans = [EntrySpan(7, 0, 0), EntrySpan(7, 900, 900), EntrySpan(7, 2500, 2501)]
        assert [sent.position for sent in _read(partition, spans)] == [(7, 0), (7, 900), (7, 2500), (7, 2501)]
        assert partition.readers == [(7, -1), (7, 2499)]


def test_entries_after_the_last_that_the_broker_would_send_are_not_waited_for() -> None:
    with serving(Partition({**STORED, LAST: None, (8, 3): None}, (8, 1))) as partition:
        assert _read(partition, [EntrySpan(8, 1, 3)]) == [
            SpanEntry((8, 1), ORDINARY),
            SpanEntry(LAST, None),
            SpanEntry((8, 3), None),
        ]


@pytest.mark.parametrize("last", [LAST, None], ids=["the last is never sent", "the last is unknown"])
def test_an_entry_that_does_not_arrive_counts_as_not_sent(last: Position | None) -> None:
    with serving(Partition({**STORED, LAST: None}, last)) as partition:
        assert _read(partition, [EntrySpan(8, 1, 2)]) == [SpanEntry((8, 1), ORDINARY), SpanEntry(LAST, None)]


def test_a_broker_that_does_not_report_the_last_message_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "_LAST_SECONDS", 0.2)
    with serving(Partition({**STORED, LAST: None}, None, is_silent_on_last=True)) as partition:
        settings = settings_for(partition, timeout_seconds=60)
        read = list(read_spans(settings, TOPIC, [EntrySpan(8, 1, 2)]))
        assert read == [SpanEntry((8, 1), ORDINARY), SpanEntry(LAST, None)]


def test_a_stalled_reader_is_replaced_and_continues() -> None:
    with serving(Partition(STORED, LAST, stalls_after=(8, 1))) as partition:
        assert _read(partition, [EntrySpan(8, 0, 2)])[-1] == SpanEntry(LAST, ORDINARY)
        assert partition.readers == [(8, -1), (8, 1)]


def test_a_topic_that_is_moved_during_the_read_is_an_outage() -> None:
    with serving(Partition(STORED, LAST, closes_after=(7, 0))) as partition, pytest.raises(UnavailableError):
        _read(partition, ALL)


def test_an_unreachable_broker_is_an_outage() -> None:
    with serving(Partition(STORED, LAST)) as partition:
        pass
    with pytest.raises(UnavailableError, match="does not answer"):
        _read(partition, ALL)


def test_lookups_are_followed_through_a_limited_number_of_redirects() -> None:
    with serving(Partition(STORED, LAST, redirects=2)) as partition:
        assert len(_read(partition, [EntrySpan(7, 0, 2)])) == 3
        partition.redirects = 99
        with pytest.raises(UnavailableError, match="redirected too often"):
            _read(partition, ALL)


def test_the_token_is_read_for_each_connection(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("right\n")
    with serving(Partition(STORED, LAST, token=b"right")) as partition:
        settings = settings_for(partition, token_file=str(token))
        assert len(list(read_spans(settings, TOPIC, [EntrySpan(7, 0, 2)]))) == 3
        token.write_text("wrong")
        with pytest.raises(RefusedError, match="wrong token"):
            list(read_spans(settings, TOPIC, ALL))


def test_a_password_is_sent_as_such(tmp_path: Path) -> None:
    file = tmp_path / "basic"
    file.write_text("reaper:pass word\n")
    with serving(Partition(STORED, LAST, token=b"reaper:pass word", method="basic")) as partition:
        settings = settings_for(partition, basic_file=str(file))
        assert len(list(read_spans(settings, TOPIC, [EntrySpan(7, 0, 2)]))) == 3


def test_a_broker_that_asks_again_during_a_read_gets_the_token_of_that_time(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("right")
    with serving(Partition(STORED, LAST, token=b"right", challenges=True)) as partition:
        reads = read_spans(settings_for(partition, token_file=str(token)), TOPIC, [EntrySpan(7, 0, 2)])
        assert len(list(reads)) == 3
        assert set(partition.responses) == {b"right"}


def test_no_secret_is_sent_in_clear_text_to_another_machine(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("right")
    with serving(Partition(STORED, LAST, token=b"right")) as partition:
        connection = frames.Connection(settings_for(partition, token_file=str(token)), partition.url)
        with connection:
            connection._url = "pulsar://broker.example.com:6650"
            with pytest.raises(UnavailableError, match="not reached over TLS"):
                connection._introduce()


@pytest.mark.parametrize("of_each", [1000, (1 << 31) - 1, -1])
def test_batches_use_permits_per_message_and_are_read_completely(of_each: int) -> None:
    large = entry(b"batch", num_messages_in_batch=of_each)
    stored = {(7, number): large for number in range(20)}
    with serving(Partition(stored, (7, 19))) as partition:
        assert [sent.data for sent in _read(partition, [EntrySpan(7, 0, 19)])] == [large] * 20
        assert len(partition.readers) == 1


def test_a_partition_of_many_ledgers_needs_one_connection() -> None:
    stored = {(ledger, number): ORDINARY for ledger in range(1, 30) for number in range(3)}
    with serving(Partition(stored, (29, 2))) as partition:
        spans = [EntrySpan(ledger, 0, 2) for ledger in range(1, 30)]
        assert len(_read(partition, spans)) == 87
        assert len(partition.readers) == 1
