"""References of an owner: two sources united, unreadable never empty; the traps of Pulsar's metadata by number."""

import pytest

from tests.builders import (
    CURSOR,
    NOW_MS,
    OF_LEDGERS,
    SCHEMA,
    SEGMENT,
    TOPIC,
    UUID,
    bucket_request,
    compacted_request,
    cursor_request,
    cursor_znode,
    data_request,
    list_znode,
    locator_znode,
    offloaded,
    schema_request,
    snapshot_request,
    unloaded,
    view,
)
from udfs.owners.references import KeyOwner, ZnodeRead, fixed_paths, key_of, owner_of, reference_of
from udfs.paths import cursor_path, managed_ledger_path, schema_path
from udfs.records import BrokerView, Counts, PendingDelete, Presence, Reference
from udfs.verdicts.judge import refers_to

DATA, CURSOR_KEY, SCHEMA_KEY, COMPACTED, BUCKETS = (
    f"data:{TOPIC}",
    f"cursor:{TOPIC}/{CURSOR}",
    f"schema:{SCHEMA}",
    f"compacted:{TOPIC}",
    f"buckets:{TOPIC}",
)
LIST_PATH, CURSOR_PATH, LOCATOR_PATH = managed_ledger_path(TOPIC), cursor_path(TOPIC, CURSOR), schema_path(SCHEMA)
COMPACTION_PATH = cursor_path(TOPIC, "__compaction")
FIRST_PATH = {DATA: LIST_PATH, CURSOR_KEY: CURSOR_PATH, SCHEMA_KEY: LOCATOR_PATH, COMPACTED: LIST_PATH}
FIRST_PATH[BUCKETS] = LIST_PATH
EVERY_KEY = sorted(FIRST_PATH)

GONE, PRESENT, UNREADABLE = (
    view(presence=presence) for presence in (Presence.GONE, Presence.PRESENT, Presence.UNREADABLE)
)


HIDDEN = BrokerView(presence=Presence.PRESENT, is_hidden=True)


def refer(key: str, *seen: ZnodeRead, broker: BrokerView | None = PRESENT) -> Reference:
    return reference_of(key, seen, broker, read_at_ms=NOW_MS)


def seen(path: str, data: bytes | None, version: int = 7) -> ZnodeRead:
    return ZnodeRead(path, data, version) if data is not None else ZnodeRead(path)


def with_list(data: bytes, broker: BrokerView | None = PRESENT) -> Reference:
    return refer(DATA, seen(LIST_PATH, data), broker=broker)


def with_list_absent(broker: BrokerView) -> Reference:
    return refer(DATA, seen(LIST_PATH, None), broker=broker)


class TestKeys:
    @pytest.mark.parametrize(
        ("request_", "key", "owner"),
        [
            pytest.param(data_request(), DATA, KeyOwner("data", TOPIC), id="data"),
            pytest.param(cursor_request(), CURSOR_KEY, KeyOwner("cursor", TOPIC, CURSOR), id="cursor"),
            pytest.param(
                cursor_request(cursor="a%2Fb"), f"cursor:{TOPIC}/a%2Fb", KeyOwner("cursor", TOPIC, "a%2Fb"), id="slash"
            ),
            pytest.param(schema_request(), SCHEMA_KEY, KeyOwner("schema", SCHEMA), id="schema"),
            pytest.param(compacted_request(), COMPACTED, KeyOwner("compacted", TOPIC), id="compacted"),
            pytest.param(bucket_request(), BUCKETS, KeyOwner("buckets", TOPIC), id="buckets"),
        ],
    )
    def test_a_request_has_one_key_and_the_key_leads_to_its_owner(
        self, request_: PendingDelete, key: str, owner: KeyOwner
    ) -> None:
        assert key_of(request_) == key
        assert owner_of(key) == owner

    def test_every_component_has_a_key_of_its_own(self) -> None:
        made = {key_of(r) for r in (data_request(), cursor_request(), schema_request(), compacted_request())}
        assert len(made | {key_of(bucket_request())}) == len(OF_LEDGERS)

    def test_a_snapshot_has_the_key_of_its_topic(self) -> None:
        assert key_of(snapshot_request()) == key_of(data_request())

    @pytest.mark.parametrize("text", ["", "data:", "data", "nothing:x", "Data:x", ":x"])
    def test_a_text_that_is_no_key_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="not a reference key"):
            owner_of(text)

    @pytest.mark.parametrize(
        ("key", "paths"),
        [
            pytest.param(DATA, (LIST_PATH,), id="data"),
            pytest.param(CURSOR_KEY, (CURSOR_PATH,), id="cursor"),
            pytest.param(SCHEMA_KEY, (LOCATOR_PATH,), id="schema"),
            pytest.param(COMPACTED, (LIST_PATH, COMPACTION_PATH), id="compacted"),
            pytest.param(BUCKETS, (LIST_PATH,), id="buckets"),
        ],
    )
    def test_the_znodes_of_an_owner(self, key: str, paths: tuple[str, ...]) -> None:
        assert fixed_paths(owner_of(key)) == paths

    def test_a_v1_topic_is_another_owner_than_the_v2_topic_of_the_same_name(self) -> None:
        v1 = "public/cluster-a/default/persistent/orders"
        assert fixed_paths(owner_of(key_of(data_request(topic=v1)))) == (f"/managed-ledgers/{v1}",)


class TestUnreadable:
    @pytest.mark.parametrize("key", EVERY_KEY)
    def test_a_znode_that_could_not_be_read(self, key: str) -> None:
        reference = refer(key, ZnodeRead(FIRST_PATH[key], error="too large"))
        assert reference.presence is Presence.UNREADABLE
        assert "too large" in reference.detail

    @pytest.mark.parametrize("key", EVERY_KEY)
    def test_a_second_znode_that_could_not_be_read(self, key: str) -> None:
        first, second = seen(FIRST_PATH[key], list_znode(1)), ZnodeRead(CURSOR_PATH, error="no right to read it")
        assert refer(key, first, second).presence is Presence.UNREADABLE

    @pytest.mark.parametrize("key", EVERY_KEY)
    @pytest.mark.parametrize("data", [None, b"", list_znode(1, 2)])
    def test_a_broker_that_did_not_answer(self, key: str, data: bytes | None) -> None:
        reference = refer(key, seen(FIRST_PATH[key], data), broker=UNREADABLE)
        assert reference.presence is Presence.UNREADABLE
        assert "503" in reference.detail

    @pytest.mark.parametrize("key", [DATA, CURSOR_KEY, SCHEMA_KEY])
    @pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff", b"\x47\x78\x00", b"junk"])
    def test_a_znode_that_can_not_be_parsed(self, key: str, data: bytes) -> None:
        assert refer(key, seen(FIRST_PATH[key], data)).presence is Presence.UNREADABLE

    def test_a_cursor_of_the_topic_that_can_not_be_parsed_hides_its_buckets(self) -> None:
        listed, broken = seen(LIST_PATH, list_znode(1)), seen(CURSOR_PATH, b"\xff")
        assert refer(BUCKETS, listed, broken).presence is Presence.UNREADABLE

    @pytest.mark.parametrize("bucket", ["many", "", "-1", "9" * 19, "9" * 25, "9" * 5000])
    def test_a_bucket_property_that_names_no_ledger(self, bucket: str) -> None:
        from udfs.formats.managed_ledger import ManagedCursorInfo, serialize_cursor

        info = ManagedCursorInfo(
            cursors_ledger_id=-1, cursor_properties={"#pulsar.internal.delayed.bucket_1_2": bucket}
        )
        reference = refer(BUCKETS, seen(LIST_PATH, b""), seen(CURSOR_PATH, serialize_cursor(info)))
        assert reference.presence is Presence.UNREADABLE

    @pytest.mark.parametrize("broker", [None, GONE], ids=["not asked", "says gone"])
    def test_the_compacted_ledger_of_a_topic_whose_broker_does_not_answer(self, broker: BrokerView | None) -> None:
        reference = refer(COMPACTED, seen(LIST_PATH, list_znode(1)), seen(COMPACTION_PATH, None), broker=broker)
        assert reference.presence is Presence.UNREADABLE

    def test_names_no_ids_at_all_so_it_can_not_be_mistaken_for_an_empty_list(self) -> None:
        reference = refer(DATA, ZnodeRead(LIST_PATH, error="too large"))
        assert not reference.in_use
        assert reference.checks == ()


class TestBrokersThatCouldNotBeAsked:
    AWAY = BrokerView(presence=Presence.UNREADABLE, detail="maybe loaded: b2 did not answer", is_unavailable=True)

    @pytest.mark.parametrize("key", EVERY_KEY)
    def test_differ_from_brokers_with_an_odd_answer_about_the_owner(self, key: str) -> None:
        absent = seen(FIRST_PATH[key], None)
        references = [refer(key, absent, broker=broker) for broker in (self.AWAY, UNREADABLE, None, PRESENT)]
        assert [reference.is_unavailable for reference in references] == [True, False, False, False]
        assert references[0].presence is Presence.UNREADABLE

    def test_excuse_no_znode_that_can_not_be_read(self) -> None:
        reference = refer(DATA, ZnodeRead(LIST_PATH, error="too large"), broker=self.AWAY)
        assert (reference.presence, reference.is_unavailable) == (Presence.UNREADABLE, False)


class TestAbsent:
    @pytest.mark.parametrize("key", EVERY_KEY)
    def test_is_gone_when_znode_and_broker_agree(self, key: str) -> None:
        assert refer(key, seen(FIRST_PATH[key], None), broker=GONE).presence is Presence.GONE

    @pytest.mark.parametrize("key", EVERY_KEY)
    def test_is_unreadable_while_the_broker_was_not_asked(self, key: str) -> None:
        assert refer(key, seen(FIRST_PATH[key], None), broker=None).presence is Presence.UNREADABLE

    @pytest.mark.parametrize("key", [DATA, SCHEMA_KEY, COMPACTED, BUCKETS])
    def test_is_unreadable_while_the_broker_knows_the_owner(self, key: str) -> None:
        assert refer(key, seen(FIRST_PATH[key], None), broker=PRESENT).presence is Presence.UNREADABLE

    def test_a_cursor_is_gone_when_the_broker_knows_the_topic_but_not_the_cursor(self) -> None:
        topic = view(1, 2, cursors={"audit": 4})
        assert refer(CURSOR_KEY, seen(CURSOR_PATH, None), broker=topic).presence is Presence.GONE

    @pytest.mark.parametrize("ledger_id", [-1, 4])
    def test_a_cursor_is_unreadable_while_the_broker_knows_it(self, ledger_id: int) -> None:
        topic = view(1, 2, cursors={CURSOR: ledger_id})
        assert refer(CURSOR_KEY, seen(CURSOR_PATH, None), broker=topic).presence is Presence.UNREADABLE

    def test_a_gone_owner_has_no_version_that_a_delete_could_check(self) -> None:
        assert refer(DATA, seen(LIST_PATH, None), broker=GONE).checks == ()


class TestData:
    def test_both_witnesses_are_united(self) -> None:
        reference = with_list(list_znode(1, 2, 3), view(2, 3, 4))
        assert list(reference.in_use) == [1, 2, 3, 4]
        assert reference.checks == ((LIST_PATH, 7),)

    @pytest.mark.parametrize("broker", [None, GONE, PRESENT], ids=["not asked", "gone", "present"])
    def test_the_list_counts_with_any_answer_of_the_broker(self, broker: BrokerView | None) -> None:
        assert list(with_list(list_znode(1, 2), broker).in_use) == [1, 2]

    def test_an_empty_znode_is_a_topic_that_names_nothing_yet(self) -> None:
        reference = with_list(b"")
        assert (reference.presence, list(reference.in_use), reference.newest_id) == (Presence.PRESENT, [], -1)

    def test_only_the_list_shows_which_ledgers_are_published(self) -> None:
        """The broker's memory is ahead of the list, and the write of the list may still fail."""
        assert with_list(list_znode(1, 2), view(1, 2, 9)).newest_id == 2

    def test_t1_a_listed_ledger_is_free_in_bookkeeper_once_offloaded_and_deleted_there(self) -> None:
        reference = with_list(list_znode(offloaded(1), offloaded(2), 3), view(1, 2, 3))
        assert list(reference.in_use) == [3]
        assert reference.offloads == {(1, UUID), (2, UUID)}

    @pytest.mark.parametrize(
        ("complete", "bookkeeper_deleted", "free"),
        [
            pytest.param(True, True, True, id="both"),
            pytest.param(True, False, False, id="still read from BookKeeper"),
            pytest.param(False, True, False, id="upload incomplete"),
            pytest.param(False, False, False, id="upload begun"),
        ],
    )
    def test_t1_needs_both_marks(self, *, complete: bool, bookkeeper_deleted: bool, free: bool) -> None:
        entry = offloaded(1, complete=complete, bookkeeper_deleted=bookkeeper_deleted)
        assert refers_to(with_list(list_znode(entry, 2)), 1) is not free

    def test_t1_the_newest_id_counts_given_up_ledgers_too(self) -> None:
        assert with_list(list_znode(offloaded(5))).newest_id == 5

    def test_t2_an_object_is_in_use_by_its_uuid_not_by_its_ledger(self) -> None:
        reference = with_list(list_znode(offloaded(1), 2))
        assert (1, UUID) in reference.offloads
        assert (1, "00000000-0000-0000-0000-000000000000") not in reference.offloads

    def test_t5_a_partition_whose_own_broker_did_not_answer_is_unreadable_not_empty(self) -> None:
        reference = with_list(list_znode(1, 2), UNREADABLE)
        assert reference.presence is Presence.UNREADABLE
        assert reference.newest_id == -1

    def test_t6_a_404_hides_no_list(self) -> None:
        reference = with_list(list_znode(1, 2), GONE)
        assert reference.presence is Presence.PRESENT
        assert refers_to(reference, 1)

    def test_t12_a_broker_that_dropped_a_ledger_from_memory_only_has_not_freed_it(self) -> None:
        """W2: the write of the list failed, or its result is unknown; the znode still names the ledger."""
        assert refers_to(with_list(list_znode(1, 2, 3), view(2, 3)), 1)


class TestCursor:
    def test_refers_to_its_one_ledger(self) -> None:
        reference = refer(CURSOR_KEY, seen(CURSOR_PATH, cursor_znode(6)), broker=view(cursors={CURSOR: 6}))
        assert (list(reference.in_use), reference.newest_id) == ([6], 6)
        assert reference.checks == ((CURSOR_PATH, 7),)

    def test_unites_both_witnesses_but_only_the_znode_is_published(self) -> None:
        reference = refer(CURSOR_KEY, seen(CURSOR_PATH, cursor_znode(6)), broker=view(cursors={CURSOR: 8}))
        assert (list(reference.in_use), reference.newest_id) == ([6, 8], 6)

    def test_closed_cleanly_it_refers_to_none(self) -> None:
        reference = refer(CURSOR_KEY, seen(CURSOR_PATH, cursor_znode(-1)), broker=view(cursors={CURSOR: -1}))
        assert (list(reference.in_use), reference.newest_id) == ([], -1)

    def test_other_cursors_are_no_evidence_for_it(self) -> None:
        reference = refer(CURSOR_KEY, seen(CURSOR_PATH, cursor_znode(6)), broker=view(cursors={"audit": 9}))
        assert list(reference.in_use) == [6]

    def test_without_a_broker_only_the_znode_counts(self) -> None:
        assert list(refer(CURSOR_KEY, seen(CURSOR_PATH, cursor_znode(6)), broker=None).in_use) == [6]


class TestSchema:
    def test_t7_refers_to_one_ledger_per_version_under_a_name_that_all_partitions_share(self) -> None:
        reference = refer(SCHEMA_KEY, seen(LOCATOR_PATH, locator_znode(3, 5, 9)), broker=None)
        assert (list(reference.in_use), reference.newest_id) == ([3, 5, 9], 9)
        assert "partition" not in LOCATOR_PATH
        assert "persistent" not in LOCATOR_PATH

    @pytest.mark.parametrize(
        "broker",
        [None, view(), view(5, 11, cursors={"c": 6}, compacted_ledger=12, compacted_by_cursor=13)],
        ids=["not asked", "knows the schema", "knows other ledgers"],
    )
    def test_the_locator_alone_names_them_since_brokers_read_it_themselves(self, broker: BrokerView | None) -> None:
        reference = refer(SCHEMA_KEY, seen(LOCATOR_PATH, locator_znode(3, 9)), broker=broker)
        assert (list(reference.in_use), reference.newest_id) == ([3, 9], 9)

    def test_an_empty_locator_is_unreadable_not_empty(self) -> None:
        assert refer(SCHEMA_KEY, seen(LOCATOR_PATH, b""), broker=None).presence is Presence.UNREADABLE


class TestUnloaded:
    """No broker has the topic loaded: only its znodes name its ledgers, and their versions guard the delete."""

    def test_data_ledgers_are_those_of_the_list(self) -> None:
        reference = with_list(list_znode(1, 3), unloaded())
        assert (list(reference.in_use), reference.checks) == ([1, 3], ((LIST_PATH, 7),))
        assert (reference.counts.listed, reference.counts.remembered) == (2, -1), "there is no memory to compare with"

    def test_a_cursors_ledger_is_that_of_its_znode(self) -> None:
        reference = refer(CURSOR_KEY, seen(CURSOR_PATH, cursor_znode(11), 2), broker=unloaded())
        assert (list(reference.in_use), reference.checks) == ([11], ((CURSOR_PATH, 2),))

    def test_a_topic_that_a_broker_lists_and_that_has_no_znode_is_unreadable(self) -> None:
        assert with_list_absent(unloaded()).presence is Presence.UNREADABLE

    def test_a_cursor_without_a_znode_is_gone(self) -> None:
        reference = refer(CURSOR_KEY, seen(CURSOR_PATH, None), broker=unloaded())
        assert reference.presence is Presence.GONE

    @pytest.mark.parametrize(
        ("cursor", "named"),
        [
            pytest.param(cursor_znode(-1, properties={"CompactedTopicLedger": 3}), [3], id="closed in order"),
            pytest.param(cursor_znode(-1), [], id="closed in order, before the first compaction"),
            pytest.param(None, [], id="it was never compacted"),
        ],
    )
    def test_the_compacted_ledger_is_in_the_znode_of_a_cursor_that_was_closed_in_order(
        self, cursor: bytes | None, named: list[int]
    ) -> None:
        reference = refer(
            COMPACTED, seen(LIST_PATH, list_znode(1)), seen(COMPACTION_PATH, cursor, 2), broker=unloaded()
        )
        assert (reference.presence, list(reference.in_use)) == (Presence.PRESENT, named)
        guarded = ((LIST_PATH, 7), (COMPACTION_PATH, 2)) if cursor is not None else ((LIST_PATH, 7),)
        assert reference.checks == guarded

    def test_the_compacted_ledger_is_unknown_if_the_cursor_was_not_closed(self) -> None:
        cursor = seen(COMPACTION_PATH, cursor_znode(11, properties={"CompactedTopicLedger": 3}), 2)
        reference = refer(COMPACTED, seen(LIST_PATH, list_znode(1)), cursor, broker=unloaded())
        assert reference.presence is Presence.UNREADABLE
        assert "a cursor ledger holds" in reference.detail


class TestCompacted:
    def test_is_known_by_the_broker(self) -> None:
        reference = refer(
            COMPACTED, seen(LIST_PATH, list_znode(1)), seen(COMPACTION_PATH, None), broker=view(1, compacted_ledger=4)
        )
        assert list(reference.in_use) == [4]
        assert reference.checks == ((LIST_PATH, 7),)

    def test_is_known_by_the_cursors_property_after_a_clean_close(self) -> None:
        cursor = seen(COMPACTION_PATH, cursor_znode(-1, properties={"CompactedTopicLedger": 3}), 2)
        broker = view(1, cursors={"__compaction": -1}, compacted_ledger=4)
        reference = refer(COMPACTED, seen(LIST_PATH, list_znode(1)), cursor, broker=broker)
        assert list(reference.in_use) == [3, 4]
        assert reference.checks == ((LIST_PATH, 7), (COMPACTION_PATH, 2))

    def test_is_known_by_the_brokers_cursor_if_its_reader_did_not_start(self) -> None:
        cursor = seen(COMPACTION_PATH, cursor_znode(11, properties={"CompactedTopicLedger": 3}), 2)
        broker = view(1, cursors={"__compaction": 11}, compacted_ledger=-1, compacted_by_cursor=4)
        reference = refer(COMPACTED, seen(LIST_PATH, list_znode(1)), cursor, broker=broker)
        assert (list(reference.in_use), reference.newest_id) == ([3, 4], 4)

    def test_is_not_known_before_the_broker_has_opened_the_cursor(self) -> None:
        cursor = seen(COMPACTION_PATH, cursor_znode(11), 2)
        reference = refer(COMPACTED, seen(LIST_PATH, list_znode(1)), cursor, broker=view(1, cursors={CURSOR: 6}))
        assert reference.presence is Presence.UNREADABLE
        assert "has not opened its cursor __compaction" in reference.detail

    @pytest.mark.parametrize(
        ("remembered", "presence"),
        [
            pytest.param((1, 3), Presence.UNREADABLE, id="it lost the topic before ledger 5 was listed"),
            pytest.param((), Presence.UNREADABLE, id="it remembers no ledger"),
            pytest.param((3, 5), Presence.PRESENT, id="it knows the newest"),
            pytest.param((5, 7), Presence.PRESENT, id="it is ahead of the list"),
        ],
    )
    def test_is_not_known_by_a_broker_whose_memory_is_older_than_the_topics_list(
        self, remembered: tuple[int, ...], presence: Presence
    ) -> None:
        """A broker that was frozen answers for a moment for a topic that another broker has taken over."""
        cursor = seen(COMPACTION_PATH, cursor_znode(11), 2)
        broker = view(*remembered, cursors={"__compaction": 11}, compacted_ledger=4)
        reference = refer(COMPACTED, seen(LIST_PATH, list_znode(1, 3, 5)), cursor, broker=broker)
        assert reference.presence is presence
        assert ("ledger 5" in reference.detail) is (presence is Presence.UNREADABLE)

    def test_a_topic_never_compacted_refers_to_none(self) -> None:
        reference = refer(COMPACTED, seen(LIST_PATH, list_znode(1)), seen(COMPACTION_PATH, None), broker=view(1))
        assert (list(reference.in_use), reference.newest_id) == ([], -1)


class TestHidden:
    """A loaded segment: its broker does not show what it knows."""

    def test_its_list_does_not_count_alone(self) -> None:
        reference = refer(f"data:{SEGMENT}", seen(managed_ledger_path(SEGMENT), list_znode(1, 2)), broker=HIDDEN)
        assert list(reference.in_use) == [1, 2]
        assert reference.counts == Counts(2, -1)
        assert reference.is_hidden

    def test_its_cursors_znode_does_not_count_alone(self) -> None:
        znode = seen(cursor_path(SEGMENT, CURSOR), cursor_znode(6))
        reference = refer(f"cursor:{SEGMENT}/{CURSOR}", znode, broker=HIDDEN)
        assert list(reference.in_use) == [6]
        assert reference.is_hidden

    @pytest.mark.parametrize(
        ("key", "broker"),
        [
            pytest.param(f"data:{SEGMENT}", unloaded(), id="not loaded"),
            pytest.param(f"buckets:{SEGMENT}", HIDDEN, id="buckets, which brokers show of no topic"),
        ],
    )
    def test_nothing_is_hidden_without_a_broker_that_knows_more(self, key: str, broker: BrokerView) -> None:
        assert not refer(key, seen(managed_ledger_path(SEGMENT), list_znode(1, 2)), broker=broker).is_hidden

    @pytest.mark.parametrize("listed", [list_znode(1), list_znode()], ids=["with a ledger", "without"])
    def test_its_compacted_ledger_is_unknown(self, listed: bytes) -> None:
        key = f"compacted:{SEGMENT}"
        reference = refer(key, seen(managed_ledger_path(SEGMENT), listed), broker=HIDDEN)
        assert (reference.presence, reference.is_hidden) == (Presence.UNREADABLE, True)

    @pytest.mark.parametrize(
        ("broker", "presence"),
        [
            pytest.param(HIDDEN, Presence.UNREADABLE, id="loaded: the broker may be about to write the znode"),
            pytest.param(unloaded(), Presence.GONE, id="not loaded"),
        ],
    )
    def test_its_cursor_without_a_znode_may_be_new(self, broker: BrokerView, presence: Presence) -> None:
        path = cursor_path(SEGMENT, CURSOR)
        assert refer(f"cursor:{SEGMENT}/{CURSOR}", seen(path, None), broker=broker).presence is presence


class TestBuckets:
    def test_t4_are_named_in_cursor_properties_only_which_the_broker_does_not_show(self) -> None:
        other = cursor_path(TOPIC, "audit")
        reference = refer(
            BUCKETS,
            seen(LIST_PATH, list_znode(1)),
            seen(CURSOR_PATH, cursor_znode(6, buckets=[21, 23]), 2),
            seen(other, cursor_znode(7, buckets=[22]), 4),
            broker=view(1, cursors={CURSOR: 6, "audit": 7}),
        )
        assert list(reference.in_use) == [21, 22, 23]
        assert reference.checks == ((LIST_PATH, 7), (CURSOR_PATH, 2), (other, 4))

    def test_are_published_in_any_order_so_none_is_the_newest(self) -> None:
        reference = refer(BUCKETS, seen(LIST_PATH, list_znode(1)), seen(CURSOR_PATH, cursor_znode(6, buckets=[21])))
        assert reference.newest_id == -1

    def test_a_cursor_that_was_listed_and_not_found_makes_them_unreadable(self) -> None:
        reference = refer(BUCKETS, seen(LIST_PATH, list_znode(1)), seen(CURSOR_PATH, None))
        assert reference.presence is Presence.UNREADABLE
        assert CURSOR_PATH in reference.detail
