"""Accounts by position: each read entry has a receipt or waits, and every gap is found."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.deletion.supervision.upkeep import Upkeep
from streaming.errors import UnavailableError
from streaming.metrics import Metrics
from streaming.ports import Pulsar, StoredMessage
from streaming.queries.names import checkpoint_of, queries_of
from streaming.reconcile.accounting import (
    MOST_LOST,
    accept_gaps,
    reconcile,
)
from streaming.reconcile.gaps import PartitionGaps, Reconciliation
from streaming.reconcile.markers import Markers
from streaming.schemas import REQUESTS
from streaming.state.notes.lost_entries import Loss, LostEntries
from tests.unit.reconcile.rows import SOURCE, write_rows
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import Position


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    base = load(None)
    dirs = {"state": tmp_path, "checkpoints": tmp_path / "checkpoints"}
    return base.model_copy(
        update={name: getattr(base, name).model_copy(update={"dir": str(path)}) for name, path in dirs.items()}
    )


def _stored(topics: Mapping[str, list[tuple[int, int]]]) -> MemoryPulsar:
    """Topics of one partition each: name -> its ledgers (id, entries)."""
    memory = MemoryPulsar()
    for topic, ledgers in topics.items():
        memory.store(f"{topic}-partition-0", *ledgers)
    return memory


def _commit(settings: Settings, partition: str, ledger: int, entry: int, query: str = REQUESTS) -> Path:
    """Write a checkpoint that has read so far; return its file."""
    folder = Path(checkpoint_of(settings, query))
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "commits" / "0").write_text("v1")
    file = folder / "offsets" / "0"
    file.write_text("v1\n{}\n" + json.dumps({partition: [8, ledger, 16, entry]}))
    return file


def _looked_at(settings: Settings, memory: MemoryPulsar, *, remembers: bool = True) -> Reconciliation:
    return reconcile(settings, Pulsar(memory, memory), 0, service=Markers() if remembers else None)


def _remembered(settings: Settings) -> object:
    return json.loads(Path(settings.state.dir, "accounts.json").read_text())


def _remember(settings: Settings, partition: str, unread: dict[str, int]) -> None:
    Path(settings.state.dir, "accounts.json").write_text(json.dumps({partition: unread}))


@pytest.mark.parametrize(
    ("existing", "trimmed"),
    [
        pytest.param((), (5,), id="gone, with what was unread"),
        pytest.param(("persistent://acme/reaper/d",), (), id="it exists, and no query reads it"),
    ],
)
def test_unread_messages_of_a_topic_that_is_no_longer_read_are_not_forgotten(
    settings: Settings, existing: tuple[str, ...], trimmed: tuple[int, ...]
) -> None:
    partition = "persistent://acme/reaper/d-partition-0"
    _remember(settings, partition, {"5": 3})
    for _ in range(2):
        accounts = _looked_at(settings, _stored({topic: [(1, 0)] for topic in existing}))
        assert [one.trimmed for one in accounts.partitions] == ([trimmed] if trimmed else [])
        assert _remembered(settings) == {partition: {"5": 3}}


def test_a_ledger_that_vanished_unread_is_an_alarm_until_it_is_accepted(settings: Settings) -> None:
    topic = settings.topics.requests[0]
    partition = f"{topic}-partition-0"
    _remember(settings, partition, {"5": 3})
    topics = _stored({topic: [(6, 2)]})
    for remembers in (True, True, False):
        assert len(_looked_at(settings, topics, remembers=remembers).gaps) == 1
    assert _remembered(settings) == {partition: {"5": 3, "6": 2}}

    assert accept_gaps(settings, Pulsar(topics, topics), 0) == [f"{partition}: ledgers 5"]

    assert _looked_at(settings, topics).gaps == []
    assert _remembered(settings) == {partition: {"6": 2}}
    topics.store(partition, (7, 0))  # the next one goes, too
    assert [one.trimmed for one in _looked_at(settings, topics).partitions] == [(6,)]
    assert accept_gaps(settings, Pulsar(topics, topics), 0) == [f"{partition}: ledgers 6"]
    assert _looked_at(settings, topics).gaps == []


def test_what_the_source_found_deleted_is_an_alarm_until_it_is_accepted(settings: Settings) -> None:
    topic = settings.topics.requests[0]
    partition = f"{topic}-partition-0"
    write_rows(Path(settings.state.dir), "receipts", [(4, 0, -1), (5, 0, -1)], source=partition)
    # no check has seen ledger 5; of ledger 4 everything has a receipt
    LostEntries(settings.state.dir).report({partition: [Loss((5, 1), True, ""), Loss((4, 0), True, "")]})
    topics = _stored({topic: [(6, 2)]})
    for _ in range(2):
        assert [one.trimmed for one in _looked_at(settings, topics).partitions] == [(5,)]
    assert accept_gaps(settings, Pulsar(topics, topics), 0) == [f"{partition}: ledgers 5"]
    for _ in range(2):
        assert _looked_at(settings, topics).gaps == []
        accept_gaps(settings, Pulsar(topics, topics), 0)


def test_topics_that_were_deleted_unread_are_one_alarm_a_tenant_and_bounded(settings: Settings) -> None:
    topics = [
        f"persistent://{tenant}/reaper/d{n}" for tenant, count in (("acme", 30), ("rival", 1)) for n in range(count)
    ]
    unread = {
        f"{topic}-partition-{number}": {str(ledger): 1 for ledger in range(number * 50, number * 50 + 50)}
        for topic in topics
        for number in range(2)
    }
    Path(settings.state.dir, "accounts.json").write_text(json.dumps(unread))
    write_rows(Path(settings.state.dir), "receipts", [(5, 0, -1)], source=f"{topics[-1]}-partition-0")
    memory = _stored({})
    asked: list[str] = []
    memory.faults.before(lambda operation, names: asked.extend(names[:1]) if operation == "partitions" else None)
    markers = Markers()
    for _ in range(2):
        markers.keep(f"{topics[0]}-partition-0", [EntrySpan(1, 0, 0)], {1})
        asked.clear()
        accounts = reconcile(settings, Pulsar(memory, memory), 0, service=markers)
        acme, rival = accounts.gaps
        assert acme.startswith(f"tenant acme: {MOST_LOST:,} ledgers of 10 topics vanished with unread messages in them")
        assert rival.startswith("tenant rival: 99 ledgers of 1 topic vanished")
        assert markers.of(f"{topics[0]}-partition-0") == ()
    assert sum("acme" in each for each in asked) == 10, "what is not remembered any more is not asked about"
    assert len(accept_gaps(settings, Pulsar(memory, memory), 0)) == 22
    assert _looked_at(settings, memory).gaps == []


def test_a_gap_does_not_go_with_the_ledger_that_has_it(settings: Settings) -> None:
    topic = settings.topics.requests[0]
    partition = f"{topic}-partition-0"
    write_rows(Path(settings.state.dir), "receipts", [(5, 0, -1), (5, 2, -1)], source=partition)
    _commit(settings, partition, 5, 2)
    message = StoredMessage(
        partition=partition,
        ledger_id=5,
        entry_id=1,
        batch_index=-1,
        publish_ms=settings.state.receipts_days * 86_400_000,
        key="",
        payload=b"",
        properties={},
    )
    topics = _stored({topic: [(5, 3), (6, 0)]})
    topics.partition(partition).messages.append(message)
    assert [one.missing for one in _looked_at(settings, topics).partitions] == [((5, 1),)]

    topics.store(partition, (6, 0))

    for _ in range(2):
        assert [one.trimmed for one in _looked_at(settings, topics).partitions] == [(5,)]


def test_a_message_of_unknown_age_is_as_old_as_its_predecessor(settings: Settings) -> None:
    topic = settings.topics.requests[0]
    partition = f"{topic}-partition-0"
    write_rows(Path(settings.state.dir), "receipts", [(5, 0, -1)], source=partition)
    _commit(settings, partition, 5, 3)
    topics = _stored({topic: [(5, 4)]})
    young_ms = settings.state.receipts_days * 86_400_000
    topics.partition(partition).messages += [
        StoredMessage(
            partition=partition,
            ledger_id=5,
            entry_id=entry,
            batch_index=-1,
            publish_ms=publish_ms,
            key="",
            payload=b"",
            properties={},
        )
        for entry, publish_ms in ((1, young_ms - 1), (2, 0), (3, young_ms))
    ]
    assert [one.missing for one in reconcile(settings, Pulsar(topics, topics), 2 * young_ms).partitions] == [((5, 3),)]
    assert [one.missing for one in reconcile(settings, Pulsar(topics, topics), 2 * young_ms - 1).partitions] == [
        ((5, 1), (5, 2), (5, 3))
    ]


def test_an_entry_that_only_a_bulk_read_takes_for_a_message_is_no_gap(settings: Settings) -> None:
    topic = settings.topics.requests[0]
    partition = f"{topic}-partition-0"
    write_rows(Path(settings.state.dir), "receipts", [(5, 0, -1)], source=partition)
    _commit(settings, partition, 5, 2)
    topics = _stored({topic: [(5, 3)]})

    class Reader:
        """Reports (5, 1), a marker, as not shown, unless only that entry is requested."""

        def read(
            self, last: Mapping[str, Position], *, after: Mapping[str, Position] | None = None
        ) -> Iterator[StoredMessage]:
            raise NotImplementedError

        def read_entries(self, partition: str, spans: Sequence[EntrySpan]) -> Iterator[StoredMessage]:
            for entry in (entry for span in spans for entry in range(span.first, span.last + 1)):
                if entry != 1 or spans != [EntrySpan(5, 1, 1)]:
                    yield StoredMessage(
                        partition=partition,
                        ledger_id=5,
                        entry_id=entry,
                        batch_index=-1,
                        publish_ms=1,
                        key="",
                        payload=b"",
                        properties={},
                    )

    assert [one.missing for one in reconcile(settings, Pulsar(topics, Reader()), 0).partitions] == [((5, 2),)]


def test_entries_without_a_message_are_read_once_and_entries_with_receipts_are_not_read(settings: Settings) -> None:
    topic = settings.topics.requests[0]
    partition = f"{topic}-partition-0"
    write_rows(Path(settings.state.dir), "receipts", [(5, 0, -1), (5, 2, -1), (5, 3, -1)], source=partition)
    _commit(settings, partition, 6, 1)
    topics = _stored({topic: [(4, 9), (5, 6), (6, 2)]})  # all without a receipt are markers, but the last
    topics.partition(partition).messages.append(
        StoredMessage(
            partition=partition,
            ledger_id=6,
            entry_id=1,
            batch_index=-1,
            publish_ms=1,
            key="",
            payload=b"",
            properties={},
        )
    )
    asked: list[EntrySpan] = []

    class Reader:
        def read(
            self, last: Mapping[str, Position], *, after: Mapping[str, Position] | None = None
        ) -> Iterator[StoredMessage]:
            raise NotImplementedError

        def read_entries(self, partition: str, spans: Sequence[EntrySpan]) -> Iterator[StoredMessage]:
            asked.extend(spans)
            return topics.read_entries(partition, spans)

    markers, pulsar = Markers(), Pulsar(topics, Reader())
    looks = [reconcile(settings, pulsar, 0, service=markers).partitions[0].missing]
    assert asked == [
        EntrySpan(4, 0, 8),
        EntrySpan(5, 0, 1),
        EntrySpan(5, 3, 5),
        EntrySpan(6, 0, 1),
        EntrySpan(6, 1, 1),
    ], "with those before"
    del asked[:]
    topics.partition(partition).ledgers = {5: 6, 6: 3}
    looks += [reconcile(settings, pulsar, 0, service=markers).partitions[0].missing for _ in range(2)]
    assert asked == [EntrySpan(6, 0, 1), EntrySpan(6, 1, 1)] * 2, "a gap is checked again"
    assert looks == [((6, 1),)] * 3
    assert markers.of(partition) == [EntrySpan(5, 1, 1), EntrySpan(5, 4, 5), EntrySpan(6, 0, 0)], (
        "and what is gone is forgotten"
    )


def test_the_first_entry_of_a_ledger_is_as_old_as_the_last_of_the_ledger_before_it(settings: Settings) -> None:
    topic = settings.topics.requests[0]
    partition = f"{topic}-partition-0"
    write_rows(Path(settings.state.dir), "receipts", [(5, 0, -1), (5, 1, -1)], source=partition)
    _commit(settings, partition, 6, 0)
    topics = _stored({topic: [(5, 2), (6, 1)]})
    young_ms = settings.state.receipts_days * 86_400_000
    topics.partition(partition).messages += [
        StoredMessage(
            partition=partition,
            ledger_id=ledger,
            entry_id=entry,
            batch_index=-1,
            publish_ms=publish_ms,
            key="",
            payload=b"",
            properties={},
        )
        for ledger, entry, publish_ms in ((5, 1, young_ms), (6, 0, 0))
    ]
    for now_ms, missing in ((2 * young_ms, ((6, 0),)), (2 * young_ms + 1, ())):
        assert [one.missing for one in reconcile(settings, Pulsar(topics, topics), now_ms).partitions] == [missing]


def _moved(partition: str) -> Callable[[str, Sequence[str]], None]:
    def refuse(operation: str, asked: Sequence[str]) -> None:
        if operation == "internal_stats" and partition in asked:
            raise UnavailableError("the bundle is being moved")

    return refuse


def test_a_topic_that_cannot_be_read_hides_no_gap_of_another(settings: Settings) -> None:
    good, bad = settings.topics.requests[0], settings.topics.retry
    before = {f"{good}-partition-0": {"5": 3}, f"{bad}-partition-0": {"7": 1}}
    Path(settings.state.dir, "accounts.json").write_text(json.dumps(before))

    topics = _stored({good: [(6, 0)], bad: [(7, 1)]})
    topics.faults.before(_moved(f"{bad}-partition-0"))

    accounts = _looked_at(settings, topics)

    assert [(one.partition, one.trimmed) for one in accounts.partitions] == [(f"{good}-partition-0", (5,))]
    assert list(accounts.unchecked) == [f"{bad}-partition-0"]
    assert "the bundle is being moved" in accounts.doubt
    assert _remembered(settings) == before


def test_checkpoints_that_can_not_be_read_are_no_gap_and_nothing_is_forgotten(settings: Settings) -> None:
    topic = settings.topics.requests[0]
    _remember(settings, f"{topic}-partition-0", {"5": 3})
    for query in queries_of(settings):
        _commit(settings, f"{query.topics[0]}-partition-0", 6, 0, query.name).write_text("v1\n{}\n{")

    accounts = _looked_at(settings, _stored({topic: [(6, 0)]}))

    assert set(accounts.unchecked) == {*settings.topics.requests, settings.topics.retry}
    assert accounts.gaps == []
    assert _remembered(settings) == {f"{topic}-partition-0": {"5": 3}}


def test_without_an_answer_of_brokers_there_is_no_check(settings: Settings) -> None:
    topics = MemoryPulsar()
    topics.faults.away = True
    with pytest.raises(UnavailableError):
        _looked_at(settings, topics)


class _Look:
    def __init__(self) -> None:
        self.looks = 0
        self.tidied = 0
        self.now_s = 0.0
        self.answer: Reconciliation | Exception = Reconciliation(partitions=(), delayed=0)

    def accounts(self) -> Reconciliation:
        self.looks += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def tidy(self) -> None:
        self.tidied += 1


def test_accounts_are_checked_at_the_start_and_every_five_minutes() -> None:
    seen, metrics = _Look(), Metrics()
    care = Upkeep(seen.tidy, seen.accounts, metrics, monotonic=lambda: seen.now_s)
    looks = []
    for now_s in (0, 1, 299, 300, 599, 600):
        seen.now_s = now_s
        care.do_what_is_due()
        looks.append(seen.looks)
    assert looks == [1, 1, 1, 2, 2, 3]
    assert seen.tidied == 0


def test_a_gap_is_an_alarm_and_a_failed_check_is_none(caplog: pytest.LogCaptureFixture) -> None:
    seen, metrics = _Look(), Metrics()
    care = Upkeep(seen.tidy, seen.accounts, metrics, monotonic=lambda: seen.now_s)
    seen.answer = UnavailableError("the broker is away")
    assert care.find_gaps() == []
    assert "ALARM" not in caplog.text
    seen.answer = Reconciliation(
        partitions=(PartitionGaps(partition=SOURCE, read=3, unread=0, missing=((5, 1),)),), delayed=0
    )
    assert len(care.find_gaps()) == 1
    assert "ALARM" in caplog.text
    assert metrics.registry.get_sample_value("ledger_reaper_unaccounted", {"what": "messages"}) == 1
    seen.answer = Reconciliation(partitions=(), delayed=0)
    care.find_gaps()
    assert metrics.registry.get_sample_value("ledger_reaper_unaccounted", {"what": "messages"}) == 0


def test_a_run_ends_with_every_gap_that_it_saw() -> None:
    seen = _Look()
    care = Upkeep(seen.tidy, seen.accounts, Metrics(), monotonic=lambda: seen.now_s)
    seen.answer = Reconciliation(
        partitions=(PartitionGaps(partition=SOURCE, read=3, unread=0, missing=((5, 1),)),), delayed=0
    )
    care.do_what_is_due()
    seen.answer = Reconciliation(
        partitions=(PartitionGaps(partition=SOURCE, read=3, unread=0, missing=((5, 1), (5, 2))),), delayed=0
    )
    care.find_gaps()
    seen.answer = Reconciliation(partitions=(), delayed=0, lost=("1:2:3",))
    assert len(care.find_gaps()) == 2
    seen.answer = UnavailableError("the broker is away")
    assert len(care.find_gaps()) == 2


def test_an_incomplete_check_ends_no_alarm_and_does_not_count_as_a_check() -> None:
    metrics = Metrics()

    def shown(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    metrics.unaccounted(
        Reconciliation(
            partitions=(PartitionGaps(partition=SOURCE, read=3, unread=0, trimmed=(5,)),),
            delayed=0,
            unchecked={"another": "away"},
        )
    )
    metrics.unaccounted(Reconciliation(partitions=(), delayed=0, unchecked={SOURCE: "away"}))
    assert shown("ledger_reaper_unaccounted", what="ledgers") == 1
    assert shown("ledger_reaper_accounts_checked_timestamp_seconds") is None
    metrics.unaccounted(Reconciliation(partitions=(), delayed=0))
    assert shown("ledger_reaper_unaccounted", what="ledgers") == 0
    assert shown("ledger_reaper_accounts_checked_timestamp_seconds")
