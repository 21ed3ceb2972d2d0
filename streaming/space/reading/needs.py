"""The ledgers that a topic's cursors, its compaction and its schema refer to, beside those of its list."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from streaming.ports import Unreadable
from streaming.space.reading.owner_reading import Node
from udfs.formats.errors import FormatError
from udfs.formats.schema_locator import ledger_ids, newest_ledger_id
from udfs.owners.references import COMPACTION_CURSOR
from udfs.paths import SCHEMAS_ROOT, topic_of
from udfs.records import LedgerComponent
from udfs.space.space_report import NeededLedger
from udfs.space.topic_ledgers import CursorRead
from udfs.space.topic_split import StoredTopic


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """A topic that was read, and whose bytes are not divided among causes yet."""

    name: str  # tenant/ns/persistent/encoded
    path: str
    facts: StoredTopic
    cursors: Sequence[CursorRead]
    compacted: set[int] | None  # None: unknown

    @property
    def others(self) -> set[int]:
        """The ledgers that it refers to beside those of its list, as far as they are known."""
        return {need.ledger_id for need in _others(self)}


def needed_others(topic: ReadTopic, ledger_ids: Container[int]) -> list[NeededLedger]:
    """Return, of these ledgers, those that the topic's cursors or its compaction refer to."""
    return [need for need in _others(topic) if need.ledger_id in ledger_ids]


def needed_schemas(path: str, node: Node, ledger_ids: Container[int]) -> list[NeededLedger]:
    """Return, of these ledgers, those that a schema's znode refers to."""
    named = sorted(each for each in schema_ids(node) if each in ledger_ids)
    if not named or isinstance(node, Unreadable):
        return []
    topic = topic_of_schema(path.removeprefix(f"{SCHEMAS_ROOT}/"))
    newest = newest_ledger_id(node.data)
    return [
        NeededLedger(ledger_id=each, component=LedgerComponent.SCHEMA_STORAGE, topic=topic, is_last=each == newest)
        for each in named
    ]


def schema_ids(node: Node) -> frozenset[int]:
    """Return the ledgers that a schema's znode refers to; none if it can't be read."""
    try:
        return frozenset() if isinstance(node, Unreadable) else ledger_ids(node.data)
    except FormatError:
        return frozenset()


def topic_of_schema(schema_id: str) -> str:
    """Return `persistent://tenant/ns/name` of a schema `tenant/ns/encoded`."""
    namespace, _, encoded = schema_id.rpartition("/")
    return topic_of(f"{namespace}/persistent/{encoded}")


def _others(topic: ReadTopic) -> Iterator[NeededLedger]:
    for read in topic.cursors:
        named = {LedgerComponent.MANAGED_CURSOR: (read.ledger_id,), LedgerComponent.DELAYED_INDEX_BUCKET: read.buckets}
        for component, ids in named.items():
            for ledger_id in ids:
                if ledger_id >= 0:
                    yield _need(topic, ledger_id, component, read.cursor.name, is_of_broker=read.cursor.is_of_broker)
    for ledger_id in sorted(topic.compacted or ()):
        yield _need(topic, ledger_id, LedgerComponent.COMPACTED_LEDGER, COMPACTION_CURSOR, is_of_broker=True)


def _need(
    topic: ReadTopic, ledger_id: int, component: LedgerComponent, cursor: str, *, is_of_broker: bool
) -> NeededLedger:
    return NeededLedger(
        ledger_id=ledger_id,
        component=component,
        topic=topic.facts.topic,
        cursor=cursor,
        is_of_broker=is_of_broker,
        is_loaded=topic.facts.is_loaded,
    )
