"""PIP-129's API: deletable ledgers are marked in their topic's metadata, and stay marked until they are gone.

1. A mark is durable when mark_deletable_ledgers() returns: we read it back from ZooKeeper.
2. remove_all_deletable_ledgers() never deletes. It sends requests to the sweep, and the sweep judges each of them: it
   keeps a ledger that the topic still lists, whatever is marked.
3. A mark is removed only after we have seen that its ledger is gone. So a call that is interrupted at any point leaves
   marks, and the next call continues: this is PIP-129's check and retry.
4. To shorten a key, the remaining marks are first written under a new key, and only then is the old key removed.
5. We refuse to write marks that we could not read again, or that would make a topic's znode larger than
   MOST_ZNODE_BYTES.
"""

import random
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass

from streaming.clients import admin_for, command_clients, open_properties
from streaming.config.settings import Settings
from streaming.coordination.identity import read_layout
from streaming.errors import RefusedError, UnavailableError
from streaming.phase_one.receipts_by_message import NewestReceipts, await_receipts, finished_uploads
from streaming.phase_one.requested import Requested
from streaming.phase_one.services import services_of
from streaming.ports import MetadataStore, SweepStore, TopicProperties, Unreadable, Znode
from streaming.topics.routing import request_topics
from streaming.topics.senders import RequestSenders
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import ListedLedgers, ManagedLedgerInfo, in_use_ids, parse_managed_ledger
from udfs.paths import Layout, is_v1, ledger_path, managed_ledger_name, managed_ledger_path, namespace_of, segment_of
from udfs.phase_one.marks import MOST_IDS, MarkedTopic, Marks, Upload, checked_id, properties_of, read_marks
from udfs.phase_one.pip_186_requests import request_for, uploads_in
from udfs.records import LedgerComponent, OffloadContext, PendingDelete

MOST_ZNODE_BYTES = 512 * 1024  # half of ZooKeeper's default limit, because the topic's list has to grow, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Result for a topic's marks."""

    gone: int = 0  # removed, because the ledger is gone
    listed: int = 0  # the topic's list still names the ledger
    asked: int = 0  # requested, and not finished
    later: int = 0  # not examined, because there were too many
    unreadable: tuple[str, ...] = ()  # our keys with a value that we can't read

    @property
    def is_done(self) -> bool:
        """Whether no mark is left."""
        return not (self.listed or self.asked or self.later or self.unreadable)


@dataclass(frozen=True, slots=True)
class SweepAccess:
    """Functions to send requests to the sweep, and to read its receipts."""

    start_send: Callable[[PendingDelete], "Future[str]"]
    check_sent: Callable[[], object]  # raises UnavailableError if requests may be lost that counted as sent
    receipts: NewestReceipts
    finished: Callable[[Collection[Upload], int], set[Upload]]  # finished_uploads() of the state directory
    now_ms: Callable[[], int]  # this machine's clock


@dataclass(frozen=True, slots=True)
class _Topic:
    name: str
    znode_bytes: int
    info: ManagedLedgerInfo
    listed: ListedLedgers

    @property
    def marked(self) -> MarkedTopic:
        return read_marks(self.info.properties)


class DeletableLedgers:
    """The marks of any number of topics. Topics have names in any form; for a partitioned topic, name the partition.

    Every method raises UnavailableError if a server does not answer, and RefusedError if there is no such topic or it
    can't be read.
    """

    def __init__(
        self, store: SweepStore, properties: TopicProperties, sweep: SweepAccess, layout: Layout, ledgers_root: str
    ) -> None:
        self._store = store
        self._properties = properties
        self._sweep = sweep
        self._layout = layout
        self._root = ledgers_root

    def mark_deletable_ledgers(
        self, topic: str, ledger_ids: Iterable[int], offloaded_ledger_ids: Iterable[int] = ()
    ) -> None:
        """Mark ledgers, in BookKeeper and in tiered storage, and return after the marks are durable.

        Earlier marks stay. An offloaded ledger must still be in the topic's list, because only the list identifies the
        upload. Raises ValueError for an invalid ledger id, and RefusedError for a topic with a V1 name, and for marks
        that would make the topic's znode too large.
        """
        target = self._required(topic)
        uploads = _uploads(target, set(offloaded_ledger_ids))
        marked = target.marked.all
        new = Marks(frozenset(map(checked_id, ledger_ids)), uploads).without(marked.ledgers, marked.uploads)
        self._mark(target, new)

    def mark_chosen(self, topic: str, choose: Callable[[ManagedLedgerInfo, Marks], Marks]) -> int:
        """Mark what `choose` returns for the topic's list and marks, and return the number of new marks.

        If there is no such topic, nothing is marked. Otherwise like mark_deletable_ledgers().
        """
        target = self._topic(topic)
        if target is None:
            return 0
        marked = target.marked.all
        new = choose(target.info, marked).without(marked.ledgers, marked.uploads)
        self._mark(target, new)
        return _count(new)

    def get_all_deletable_ledgers(self, topic: str) -> set[int]:
        """Return the ledgers that are marked as deletable in BookKeeper."""
        return set(self._required(topic).marked.all.ledgers)

    def get_all_deletable_offloaded_ledgers(self, topic: str) -> set[int]:
        """Return the ledgers with an upload that is marked as deletable in tiered storage."""
        return {ledger_id for ledger_id, _uuid in self._required(topic).marked.all.uploads}

    def remove_all_deletable_ledgers(  # noqa: PLR0913  what to request, and how often
        self,
        topic: str,
        *,
        timeout_seconds: float = 0,
        at_most: int | None = None,
        asks: bool = True,
        receipts_since_ms: int = 0,
        requested: Requested | None = None,
    ) -> Removal:
        """Request the deletion of what is marked and no longer listed, and remove the marks of what is gone.

        Call it again later for the remaining marks. The marks of a deleted topic are gone with it; `ledger-reaper
        audit` finds what it may have leaked.

        Args:
            topic: the topic.
            timeout_seconds: how long to wait for the sweep.
            at_most: examine at most this many marks, chosen at random.
            asks: False sends no requests, and only removes the marks of what is gone.
            receipts_since_ms: ignore older receipts; an upload that was deleted before this time is requested again.
            requested: filled by the topic's earlier calls; requests of the last day that became dead letters are not
                repeated.
        """
        target = self._topic(topic)
        if target is None:
            return Removal()
        marked = target.marked
        examined = _some_of(marked.all, target.listed, at_most)
        gone, gone_uploads = self._gone(examined, receipts_since_ms)
        left = examined.without(gone, gone_uploads)
        asked = left.without(target.listed.ids, target.listed.offloads)
        if asked and asks:
            self._ask(target.name, asked, timeout_seconds, requested or Requested())
            gone_since, uploads_gone_since = self._gone(asked, receipts_since_ms)
            gone, gone_uploads = gone | gone_since, gone_uploads | uploads_gone_since
        try:
            self._remove(target.name, marked, gone, gone_uploads)
        except RefusedError:
            if self._topic(target.name) is not None:
                raise  # otherwise the topic was deleted, and its marks with it
        rest = examined.without(gone, gone_uploads)
        still_asked = asked.without(gone, gone_uploads)
        return Removal(
            gone=_count(examined) - _count(rest),
            listed=_count(rest) - _count(still_asked),
            asked=_count(still_asked),
            later=max(0, _count(marked.all.without(target.listed.ids, target.listed.offloads)) - _count(examined)),
            unreadable=marked.unreadable,
        )

    def _mark(self, topic: _Topic, new: Marks) -> None:
        _refuse_v1(topic.name)
        _refuse_segment(topic.name)
        properties = _properties(new)
        _refuse_too_large(topic, properties)
        _refuse_unreadable(topic, properties)
        self._write(topic.name, properties)

    def _ask(self, topic: str, all_marks: Marks, timeout_seconds: float, requested: Requested) -> None:
        """Send durable requests for the marks that are worth_asking(); wait for the receipts within the timeout."""
        marks = requested.worth_asking(all_marks, self._sweep.receipts, self._sweep.now_ms())
        data = LedgerComponent.MANAGED_LEDGER
        requests = [request_for(topic, ledger_id, data) for ledger_id in sorted(marks.ledgers)]
        requests += [request_for(topic, ledger_id, data, context=at) for (ledger_id, _uuid), at in _pairs(marks)]
        since_ms = self._sweep.now_ms()
        pending = [self._sweep.start_send(request) for request in requests]
        ids = [message_id.result() for message_id in pending]
        self._sweep.check_sent()
        requested.note([*sorted(marks.ledgers), *(name for name, _at in _pairs(marks))], ids, since_ms)
        if timeout_seconds > 0:
            try:
                await_receipts(self._sweep.receipts, ids, since_ms, timeout_seconds)
            except UnavailableError:
                return  # the marks stay, and the next call checks again

    def _gone(self, marks: Marks, since_ms: int) -> tuple[set[int], set[Upload]]:
        """Return the ledgers that are gone in ZooKeeper, and the uploads that are gone according to a receipt.

        A receipt never counts as proof that a ledger is gone.
        """
        ids = sorted(marks.ledgers)
        nodes = self._store.read_many([ledger_path(self._layout, self._root, ledger_id) for ledger_id in ids])
        absent = {ledger_id for ledger_id, node in zip(ids, nodes, strict=True) if node is None}
        return absent, self._sweep.finished(marks.uploads, since_ms) if marks.uploads else set()

    def _remove(self, topic: str, marked: MarkedTopic, gone: set[int], gone_uploads: set[Upload]) -> None:
        for key, marks in marked.by_key.items():
            rest = marks.without(gone, gone_uploads)
            if rest == marks and rest:
                continue
            self._write(topic, _properties(rest))
            # Allowed here: what the key marks is gone, or was just written, and read back, under another key.
            self._properties.remove(topic, key)

    def _write(self, topic: str, properties: Mapping[str, str]) -> None:
        """Write marks, and read them back. Without marks, write nothing."""
        if not properties:
            return
        self._properties.update(topic, properties)
        stored = self._required(topic).info.properties
        if not properties.items() <= stored.items():
            raise UnavailableError(
                f"the broker accepted the marks of {topic}, but ZooKeeper does not have them: mark the ledgers again"
            )

    def _required(self, topic: str) -> _Topic:
        required = self._topic(topic)
        if required is None:
            raise RefusedError(
                f"there is no topic {topic}: check the name; for a partitioned topic, name the partition (-partition-0)"
            )
        return required

    def _topic(self, topic: str) -> _Topic | None:
        name = managed_ledger_name(topic)
        (node,) = self._store.read_many([managed_ledger_path(name)])
        if node is None:
            return None
        if isinstance(node, Unreadable):
            raise RefusedError(f"the list of {topic} can't be read: {node.detail}")
        return _parsed(name, node)


@contextmanager
def deletable_ledgers(settings: Settings) -> Iterator[DeletableLedgers]:
    """Open PIP-129's API for the configured cluster, until the block ends."""
    with command_clients(settings) as clients, deletable_ledgers_on(settings, clients.store) as marks:
        yield marks


@contextmanager
def deletable_ledgers_on(settings: Settings, store: MetadataStore) -> Iterator[DeletableLedgers]:
    """Open PIP-129's API with the caller's connection to ZooKeeper."""
    services = services_of(settings)
    with (
        admin_for(settings) as admin,
        closing(RequestSenders(request_topics(settings, admin), services.open_sender)) as senders,
        closing(open_properties(settings)) as properties,
    ):
        sweep = SweepAccess(
            senders.start_send,
            senders.check_sent,
            services.receipts,
            lambda uploads, since_ms: finished_uploads(settings.state_dir, uploads, since_ms),
            services.now_ms,
        )
        root = settings.zookeeper.ledgers_root
        yield DeletableLedgers(store, properties, sweep, read_layout(store, root), root)


def _properties(marks: Marks) -> dict[str, str]:
    """Return properties for all these marks, under new keys."""
    # never rewritten: a key has no version, so a rewrite could undo a concurrent write (decision 37)
    return properties_of(marks, secrets.token_hex(8))


def _refuse_v1(topic: str) -> None:
    if is_v1(namespace_of(topic)):
        raise RefusedError(
            f"{topic} can't be marked: it has a V1 name (tenant/cluster/namespace), and Pulsar has no call that writes "
            "properties of such topics; send requests for its ledgers instead (`ledger-reaper request`)"
        )


def _refuse_segment(topic: str) -> None:
    if segment_of(topic):
        raise RefusedError(
            f"{topic} can't be marked: it is a segment of a scalable topic, and Pulsar has no call that writes a "
            "segment's properties; send requests for its ledgers instead (`ledger-reaper request`)"
        )


def _refuse_too_large(topic: _Topic, properties: Mapping[str, str]) -> None:
    size = topic.znode_bytes + sum(len(key) + len(value) for key, value in properties.items())
    # a broker whose write ZooKeeper refuses retries it for ever, and serves no other topic while it does
    if properties and size > MOST_ZNODE_BYTES:
        raise RefusedError(
            f"with these marks the znode of {topic.name} would have {size // 1024} KiB, and we write at most "
            f"{MOST_ZNODE_BYTES // 1024} KiB: ZooKeeper accepts 1024 KiB by default (jute.maxbuffer), and a broker "
            "whose write it refuses can't continue; call remove_all_deletable_ledgers, or mark fewer ledgers"
        )


def _refuse_unreadable(topic: _Topic, properties: Mapping[str, str]) -> None:
    if not properties:
        return
    after = read_marks({**topic.info.properties, **properties})
    if set(after.unreadable).difference(topic.marked.unreadable):
        raise RefusedError(
            f"these marks of {topic.name} could not be read again: a topic can have at most {MOST_IDS} marked ledgers, "
            "and the driver's properties of an upload must fit into a request; call remove_all_deletable_ledgers, or "
            "mark fewer ledgers"
        )


def _parsed(name: str, node: Znode) -> _Topic:
    try:
        return _Topic(name, len(node.data), parse_managed_ledger(node.data), in_use_ids(node.data))
    except FormatError as error:
        raise RefusedError(f"the list of {name} can't be read: {error}") from error


def _uploads(topic: _Topic, ledger_ids: set[int]) -> dict[Upload, OffloadContext]:
    """Return the uploads of ledgers in the topic's list. Raises RefusedError for a ledger without an upload there."""
    uploads = {name: at for name, at in uploads_in(topic.info).items() if name[0] in ledger_ids}
    if unknown := ledger_ids - {ledger_id for ledger_id, _uuid in uploads}:
        raise RefusedError(
            f"the list of {topic.name} names no upload of ledger {min(unknown)}, so its objects can't be identified"
        )
    return uploads


def _pairs(marks: Marks) -> list[tuple[Upload, OffloadContext]]:
    return sorted(marks.uploads.items(), key=lambda pair: pair[0])


def _some_of(marks: Marks, listed: ListedLedgers, at_most: int | None) -> Marks:
    """Return all marks, or if there are more, at_most of those that the list does not name."""
    if at_most is None or _count(marks) <= at_most:
        return marks
    left = marks.without(listed.ids, listed.offloads)
    names = [*sorted(left.ledgers), *sorted(left.uploads)]
    chosen = set(random.sample(names, min(at_most, len(names))))
    return Marks(
        frozenset(ledger_id for ledger_id in left.ledgers if ledger_id in chosen),
        {name: at for name, at in left.uploads.items() if name in chosen},
    )


def _count(marks: Marks) -> int:
    return len(marks.ledgers) + len(marks.uploads)
