"""Divides the bytes of the topics and schemas of a batch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from streaming.ports import LoadedTopicStats, Unreadable
from streaming.space.reading.ledger_reading import LedgerReading
from streaming.space.reading.needs import ReadTopic, needed_others, needed_schemas, schema_ids, topic_of_schema
from streaming.space.reading.owner_reading import Node, OwnerBatch, OwnerReading, TopicZnodes
from streaming.space.reading.policy_reading import Found, PolicyReading
from streaming.space.reading.unread import Unread
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import InternalStats
from udfs.formats.schema_locator import ledger_ids
from udfs.paths import (
    MANAGED_LEDGERS_ROOT,
    SCHEMAS_ROOT,
    checked_schema_id,
    managed_ledger_name,
    namespace_of,
    topic_of,
)
from udfs.space.causes import Cause
from udfs.space.ledger_table import Kind, LedgerTable
from udfs.space.needed import needed_data
from udfs.space.space_report import NeededLedger, Share, Subscription, TopicPolicy, Unknown
from udfs.space.system_topics import cause_of
from udfs.space.topic_ledgers import (
    CursorRead,
    compacted_ids,
    confirmed,
    is_current,
    listed_ledgers,
    needed_ids,
    read_cursor,
    unread_cursor,
)
from udfs.space.topic_split import CursorHold, Place, StoredTopic, divide

_NOT_ASKED = Unreadable("brokers are not asked (safety.ask_broker)")
_OLD = Unreadable("the topic's broker does not know the newest ledger of its list")
_STALE = "no broker has loaded the topic, and its cursors' positions are only in their ledgers, which are not read"
_NOT_NEEDED = "retention was not needed"
_UNLISTED = "its cursors could not be listed"


@dataclass(slots=True)
class DividedTopics:
    """The results of all batches so far."""

    topics: int = 0
    shares: list[Share] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    policies: dict[str, TopicPolicy] = field(default_factory=dict)
    missing: list[NeededLedger] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDivision:
    """Divides batches of owners, and claims their ledgers in the table."""

    table: LedgerTable
    ledgers: LedgerReading
    owners: OwnerReading
    stats: LoadedTopicStats | None  # None: brokers are not asked
    policies: PolicyReading
    unread: Unread
    now_ms: Callable[[], int]
    findings: DividedTopics = field(default_factory=DividedTopics)

    def add(self, batch: OwnerBatch) -> None:
        """Divide the ledgers of a batch. Raises UnavailableError."""
        for path, node in batch.schemas:
            self._add_schema(path, node)
        topics = [(topic, CursorHold(topic.facts)) for topic in self.confirmed(self.read(batch.topics))]
        deciding = [topic for topic, hold in topics if hold.needs_retention and topic.facts.of_pulsar is None]
        retentions = self.policies.of([topic.facts.topic for topic in deciding])
        for topic, hold in topics:
            self._divide(topic, hold, retentions.get(topic.facts.topic, _NOT_NEEDED))
            self._add_others(topic)
        self.findings.topics += len(topics)
        self.findings.missing += self._missing([topic for topic, _hold in topics], batch.schemas)

    def read(self, topics: Sequence[TopicZnodes]) -> list[ReadTopic]:
        """Return the topics whose lists can be read. Raises UnavailableError."""
        named = {name: znodes for znodes in topics if (name := self._name(znodes))}
        answers = self.stats.internal_stats([*named]) if self.stats else [_NOT_ASKED] * len(named)
        read = [self._topic(*each, answer) for each, answer in zip(named.items(), answers, strict=True)]
        return [topic for topic in read if topic]

    def _divide(self, topic: ReadTopic, hold: CursorHold, found: Found | str) -> None:
        retention = found if isinstance(found, str) else found[0]
        if not isinstance(found, str):
            self.findings.policies[topic.facts.topic] = TopicPolicy(
                retention_minutes=found[0].minutes,
                retention_megabytes=found[0].megabytes,
                level=found[1],
                is_loaded=topic.facts.is_loaded,
            )
        divided = divide(topic.facts, hold, retention, now_ms=self.now_ms())
        self.findings.shares += divided.shares
        self.findings.subscriptions += divided.subscriptions
        for unknown in divided.unknown:
            self.unread.add(unknown)

    def _name(self, znodes: TopicZnodes) -> str:
        try:
            return managed_ledger_name(znodes.path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/"))
        except ValueError as error:
            self.unread.add_path(znodes.path, str(error))
            return ""

    def _topic(self, name: str, znodes: TopicZnodes, answer: InternalStats | Unreadable | None) -> ReadTopic | None:
        try:
            if isinstance(znodes.listed, Unreadable):
                raise FormatError(znodes.listed.detail)
            if isinstance(answer, InternalStats) and not is_current(answer, znodes.listed.data):
                answer = _OLD
            stats = answer if isinstance(answer, InternalStats) else None
            ledgers = listed_ledgers(znodes.listed.data, stats, self.table, self.unread.ledgers)
        except FormatError as error:
            self.unread.add_path(znodes.path, str(error))
            return None
        cursors = self._cursors(name, znodes, stats)
        data = {}
        if not isinstance(znodes.cursors, Unreadable):
            data = {each: node.data for each, node in znodes.cursors.items() if not isinstance(node, Unreadable)}
        facts = StoredTopic(
            topic=topic_of(name),
            namespace=namespace_of(name),
            is_loaded=None if isinstance(answer, Unreadable) else stats is not None,
            ledgers=ledgers,
            cursors=[each.cursor for each in cursors],
            detail=answer.detail if isinstance(answer, Unreadable) else _STALE,
            of_pulsar=cause_of(name),
        )
        return ReadTopic(name, znodes.path, facts, cursors, compacted_ids(data, stats))

    def _cursors(self, name: str, znodes: TopicZnodes, stats: InternalStats | None) -> list[CursorRead]:
        if isinstance(znodes.cursors, Unreadable):
            self._add_unread_cursor(name, znodes.path, f"{_UNLISTED}: {znodes.cursors.detail}")
            return [CursorRead(unread_cursor(""))]
        reads = []
        for cursor, node in znodes.cursors.items():
            if isinstance(node, Unreadable):
                read = CursorRead(unread_cursor(cursor), fault=node.detail)
            else:
                read = read_cursor(cursor, node.data, stats)
            if read.fault:
                self._add_unread_cursor(name, f"{znodes.path}/{cursor}", read.fault)
            reads.append(read)
        return reads

    def _add_unread_cursor(self, name: str, path: str, detail: str) -> None:
        self.unread.add(Unknown(what=path, detail=detail))
        self.unread.owners |= {(name, kind) for kind in (Kind.CURSOR, Kind.COMPACTED, Kind.BUCKET)}

    def confirmed(self, topics: Sequence[ReadTopic]) -> list[ReadTopic]:
        """Read again what seems to be missing: it may be newer than the table, or have left its list since."""
        missing = {
            topic.path: [ledger.ledger_id for ledger in topic.facts.ledgers if ledger.place is Place.MISSING]
            for topic in topics
        }
        paths = [path for path, ids in missing.items() if ids]
        existing = self.ledgers.existing(sorted({each for ids in missing.values() for each in ids}))
        lists = dict(zip(paths, map(_needed, self.owners.lists(paths)), strict=True))
        return [
            replace(
                topic, facts=replace(topic.facts, ledgers=confirmed(topic.facts.ledgers, existing, lists[topic.path]))
            )
            if topic.path in lists
            else topic
            for topic in topics
        ]

    def _missing(self, topics: Sequence[ReadTopic], schemas: Sequence[tuple[str, Node]]) -> list[NeededLedger]:
        """Return the ledgers that owners refer to and BookKeeper does not have."""
        found = [
            need
            for topic in topics
            for need in needed_data(
                topic.facts, [each.ledger_id for each in topic.facts.ledgers if each.place is Place.MISSING]
            )
        ]
        absent = {topic.path: self._absent(topic.others) for topic in topics}
        absent |= {path: self._absent(schema_ids(node)) for path, node in schemas}
        ids = {ledger_id for each in absent.values() for ledger_id in each}
        gone = ids - self.ledgers.existing(sorted(ids))
        # a broker writes the new ledger into an owner before it deletes the old one, so owners are read again after
        # the ledgers
        again = self.owners.read([path for path, each in absent.items() if each & gone])
        reading = replace(self, unread=Unread(ledgers=self.unread.ledgers))  # the first reading reported what is unread
        for topic in reading.read(again.topics):
            found += needed_others(topic, absent[topic.path] & gone)
        for path, node in again.schemas:
            found += needed_schemas(path, node, absent[path] & gone)
        return found

    def _absent(self, ledger_ids: Iterable[int]) -> set[int]:
        """Return the ledgers that the table does not have."""
        ids = sorted({*ledger_ids} - self.unread.ledgers)
        return {ledger_id for ledger_id, row in zip(ids, self.table.rows_of(ids), strict=True) if row < 0}

    def _add_others(self, topic: ReadTopic) -> None:
        """Add the ledgers of a topic's cursors, delayed-delivery buckets and compaction."""
        own, of_pulsar = topic.facts, topic.facts.of_pulsar
        if topic.compacted is None:
            self.unread.owners.add((topic.name, Kind.COMPACTED))
        for cause, ids in (
            (Cause.CURSORS, {each.ledger_id for each in topic.cursors} - {-1}),
            # any subscriber can name another topic's ledger in its cursor
            (
                Cause.DELAYED_BUCKETS,
                self.table.of_owner(
                    {each for cursor in topic.cursors for each in cursor.buckets}, Kind.BUCKET, topic.name
                ),
            ),
            (Cause.COMPACTED, topic.compacted or set()),
        ):
            self._claim(of_pulsar or cause, own.namespace, own.topic, ids)

    def _add_schema(self, path: str, node: Node) -> None:
        try:
            if isinstance(node, Unreadable):
                raise FormatError(node.detail)
            schema_id = checked_schema_id(path.removeprefix(f"{SCHEMAS_ROOT}/"))
            ids = ledger_ids(node.data)
        except ValueError as error:  # a FormatError, or a wrong name
            self.unread.add_path(path, str(error))
            return
        topic = topic_of_schema(schema_id)
        self._claim(cause_of(topic) or Cause.SCHEMAS, namespace_of(topic), topic, ids)

    def _claim(self, cause: Cause, namespace: str, topic: str, ids: Iterable[int]) -> None:
        claimed = [each for each in self.table.claim(sorted(ids)) if each is not None and each.is_first]
        if claimed:
            self.findings.shares.append(
                Share(
                    cause=cause,
                    namespace=namespace,
                    topic=topic,
                    ledgers=len(claimed),
                    one_copy=sum(each.length for each in claimed),
                    stored=sum(each.stored for each in claimed),
                    is_exact=all(each.is_closed for each in claimed),
                )
            )


def _needed(node: Node | None) -> set[int]:
    """Return the ledgers that a list needs; none if it can't be read: nothing is MISSING without proof."""
    if node is None or isinstance(node, Unreadable):
        return set()
    try:
        return needed_ids(node.data)
    except FormatError:
        return set()
