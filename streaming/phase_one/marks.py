"""PIP-129's API: ledgers that may be deleted are marked in their topic's own metadata, and stay so until they are gone.

1. A mark is durable when mark_deletable_ledgers returns: we read it back from ZooKeeper.
2. remove_all_deletable_ledgers never deletes by itself. It asks the sweep, which keeps its promises: a ledger that the
   topic still lists is left alone, whatever is marked.
3. A mark goes only when its ledger is seen to be gone. So a call that is cut short at any point leaves marks behind,
   and the next call works them off: the check and retry of PIP-129.
4. A mark that is shortened is written anew first, under a new key, and only then is the old key removed.
5. Marks that could not be read again are not written, nor marks that make a topic's znode larger than
   MOST_ZNODE_BYTES: a broker whose write ZooKeeper will not take tries it again and again, and serves no other topic
   meanwhile.
"""

import random
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass

from streaming.adapters.pulsar.properties import PulsarTopicProperties
from streaming.clients import admin_settings, command_clients
from streaming.config.settings import Settings
from streaming.coordination.identity import read_layout
from streaming.errors import RefusedError, UnavailableError
from streaming.phase_one.client import LedgerDeletionClient
from streaming.phase_one.receipts import Look, await_receipts, finished_uploads
from streaming.phase_one.requested import Requested
from streaming.ports import MetadataStore, SweepStore, TopicProperties, Unreadable, Znode
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import ListedLedgers, ManagedLedgerInfo, in_use_ids, parse_managed_ledger
from udfs.paths import Layout, ledger_path, managed_ledger_name, managed_ledger_path, namespace_of
from udfs.phase_one.marks import MOST_IDS, MarkedTopic, Marks, Upload, checked_id, properties_of, read_marks
from udfs.phase_one.requests import request_for, uploads_in
from udfs.records import LedgerComponent, OffloadContext, PendingDelete

MOST_ZNODE_BYTES = 512 * 1024  # half of what a ZooKeeper takes by default: the list has to grow, too


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of a topic's marks. gone: taken away, as nothing is left of the ledger. listed: the topic needs it
    still; asked: the sweep was asked, and has not finished; later: nobody looked at it, because there were too many;
    unreadable: keys that hold no marks that we can read.
    """

    gone: int = 0
    listed: int = 0
    asked: int = 0
    later: int = 0
    unreadable: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether no mark is left."""
        return not (self.listed or self.asked or self.later or self.unreadable)


@dataclass(frozen=True, slots=True)
class Sweep:
    """How to ask the sweep and learn of its answers.

    begin_send: as LedgerDeletionClient's. look: the newest receipts. finished: which uploads have a receipt since
    then that says that nothing is left of them. now_ms: this machine's clock.
    """

    begin_send: Callable[[PendingDelete], "Future[str]"]
    look: Look
    finished: Callable[[Collection[Upload], int], set[Upload]]
    now_ms: Callable[[], int]


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
    """The marks of any number of topics. Topics are named in any form; of a partitioned one, name the partition.

    Every method raises UnavailableError where a service does not answer, and RefusedError where there is no such topic
    or it can't be read.
    """

    def __init__(
        self, store: SweepStore, properties: TopicProperties, sweep: Sweep, layout: Layout, ledgers_root: str
    ) -> None:
        self._store = store
        self._properties = properties
        self._sweep = sweep
        self._layout = layout
        self._root = ledgers_root

    def mark_deletable_ledgers(
        self, topic: str, ledger_ids: Iterable[int], offloaded_ledger_ids: Iterable[int] = ()
    ) -> None:
        """Mark ledgers, in BookKeeper and in tiered storage; return when the marks are durable.

        What is marked already stays marked. An offloaded ledger must be in the topic's list still: the list alone knows
        which upload it is. Raises ValueError for what is no ledger id, and RefusedError for a topic with a V1 name, and
        for marks with which the topic's znode would be too large.
        """
        found = self._required(topic)
        uploads = _uploads(found, set(offloaded_ledger_ids))
        known = found.marked.all
        self._mark(found, Marks(frozenset(map(checked_id, ledger_ids)), uploads).without(known.ledgers, known.uploads))

    def mark_chosen(self, topic: str, choose: Callable[[ManagedLedgerInfo, Marks], Marks]) -> int:
        """Mark what choose returns for the topic's list and for what is marked already; return how much of it is new.

        Where there is no such topic, nothing is marked. Otherwise as mark_deletable_ledgers.
        """
        found = self._topic(topic)
        if found is None:
            return 0
        known = found.marked.all
        new = choose(found.info, known).without(known.ledgers, known.uploads)
        self._mark(found, new)
        return _count(new)

    def get_all_deletable_ledgers(self, topic: str) -> set[int]:
        """Return the ledgers that are marked as deletable in BookKeeper."""
        return set(self._required(topic).marked.all.ledgers)

    def get_all_deletable_offloaded_ledgers(self, topic: str) -> set[int]:
        """Return the ledgers of which an upload is marked as deletable in tiered storage."""
        return {ledger_id for ledger_id, _uuid in self._required(topic).marked.all.uploads}

    def remove_all_deletable_ledgers(  # noqa: PLR0913  what is asked for, and how often
        self,
        topic: str,
        *,
        timeout_seconds: float = 0,
        at_most: int | None = None,
        asks: bool = True,
        receipts_since_ms: int = 0,
        requested: Requested | None = None,
    ) -> Removal:
        """Have the sweep delete what is marked and no longer listed; take away the marks of what is gone.

        timeout_seconds: so long we wait for the sweep. Call it again later for what is left. at_most: of more marks
        than these, so many are looked at, any of them. asks: False: the sweep was asked already, and only the marks of
        what is gone are taken away. receipts_since_ms: older receipts are not looked through, so an upload that was
        deleted before is asked for again. requested: of the topic's earlier calls; what ended as a dead letter within a
        day is not asked for. Where the topic is gone, its marks are gone with it, and there is nothing to
        do: `ledger-reaper audit` finds what it may have leaked.
        """
        found = self._topic(topic)
        if found is None:
            return Removal()
        marked = found.marked
        todo = _some_of(marked.all, found.listed, at_most)
        gone, gone_uploads = self._gone(todo, receipts_since_ms)
        left = todo.without(gone, gone_uploads)
        asked = left.without(found.listed.ids, found.listed.offloads)
        if asked and asks:
            self._ask(found.name, asked, timeout_seconds, requested or Requested())
            again, uploads_again = self._gone(asked, receipts_since_ms)
            gone, gone_uploads = gone | again, gone_uploads | uploads_again
        try:
            self._take_away(found.name, marked, gone, gone_uploads)
        except RefusedError:
            if self._topic(found.name) is not None:
                raise  # else the topic was deleted meanwhile, and its marks went with it
        rest = todo.without(gone, gone_uploads)
        still_asked = asked.without(gone, gone_uploads)
        return Removal(
            gone=_count(todo) - _count(rest),
            listed=_count(rest) - _count(still_asked),
            asked=_count(still_asked),
            later=max(0, _count(marked.all.without(found.listed.ids, found.listed.offloads)) - _count(todo)),
            unreadable=marked.unreadable,
        )

    def _mark(self, topic: _Topic, new: Marks) -> None:
        _refuse_v1(topic.name)
        wanted = _properties(new)
        _refuse_too_large(topic, wanted)
        _refuse_unreadable(topic, wanted)
        self._write(topic.name, wanted)

    def _ask(self, topic: str, all_marks: Marks, timeout_seconds: float, requested: Requested) -> None:
        """Send a request for each that is worth it, durably; wait for the answers as long as we may."""
        marks = requested.worth_asking(all_marks, self._sweep.look, self._sweep.now_ms())
        data = LedgerComponent.MANAGED_LEDGER
        requests = [request_for(topic, each, data) for each in sorted(marks.ledgers)]
        requests += [request_for(topic, each, data, context=at) for (each, _uuid), at in _pairs(marks)]
        since_ms = self._sweep.now_ms()
        under_way = [self._sweep.begin_send(request) for request in requests]
        ids = [each.result() for each in under_way]
        requested.note([*sorted(marks.ledgers), *(name for name, _at in _pairs(marks))], ids, since_ms)
        if timeout_seconds > 0:
            try:
                await_receipts(self._sweep.look, ids, since_ms, timeout_seconds)
            except UnavailableError:
                return  # the marks stay, and the next call looks again

    def _gone(self, marks: Marks, since_ms: int) -> tuple[set[int], set[Upload]]:
        """Return what of it there is no more. For BookKeeper, ZooKeeper says so, never a receipt."""
        ids = sorted(marks.ledgers)
        nodes = self._store.read_many([ledger_path(self._layout, self._root, each) for each in ids])
        absent = {each for each, node in zip(ids, nodes, strict=True) if node is None}
        return absent, self._sweep.finished(marks.uploads, since_ms) if marks.uploads else set()

    def _take_away(self, topic: str, marked: MarkedTopic, gone: set[int], gone_uploads: set[Upload]) -> None:
        for key, marks in marked.by_key.items():
            rest = marks.without(gone, gone_uploads)
            if rest == marks and rest:
                continue
            self._write(topic, _properties(rest))
            # Allowed here: what the key marks is gone, or was just written, and read back, under another key.
            self._properties.remove(topic, key)

    def _write(self, topic: str, wanted: Mapping[str, str]) -> None:
        """Write marks, and read them back. Without marks, write nothing."""
        if not wanted:
            return
        self._properties.update(topic, wanted)
        stored = self._required(topic).info.properties
        if not wanted.items() <= stored.items():
            raise UnavailableError(f"the broker took marks of {topic}, and ZooKeeper does not have them; mark again")

    def _required(self, topic: str) -> _Topic:
        found = self._topic(topic)
        if found is None:
            raise RefusedError(
                f"there is no topic {topic}: check the name; of a partitioned topic, name the partition (-partition-0)"
            )
        return found

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
    """PIP-129's API on the cluster that the configuration names, until the block ends."""
    with command_clients(settings) as clients, deletable_ledgers_on(settings, clients.store) as marks:
        yield marks


@contextmanager
def deletable_ledgers_on(settings: Settings, store: MetadataStore) -> Iterator[DeletableLedgers]:
    """The same with a connection to ZooKeeper that the caller has."""
    with (
        LedgerDeletionClient(settings) as client,
        closing(PulsarTopicProperties(admin_settings(settings))) as properties,
    ):
        sweep = Sweep(
            client.begin_send,
            client.around.look,
            lambda uploads, since_ms: finished_uploads(settings.state_dir, uploads, since_ms),
            client.around.now_ms,
        )
        root = settings.zookeeper.ledgers_root
        yield DeletableLedgers(store, properties, sweep, read_layout(store, root), root)


def _properties(marks: Marks) -> dict[str, str]:
    """Return the properties that mark all of it, under keys that are new."""
    return properties_of(marks, secrets.token_hex(8))


def _refuse_v1(topic: str) -> None:
    if namespace_of(topic).count("/") > 1:
        raise RefusedError(
            f"{topic} can't be marked: it has a V1 name (tenant/cluster/namespace), and for these Pulsar has no call "
            "that writes properties; send requests for its ledgers instead (`ledger-reaper request`)"
        )


def _refuse_too_large(topic: _Topic, wanted: Mapping[str, str]) -> None:
    size = topic.znode_bytes + sum(len(key) + len(value) for key, value in wanted.items())
    if wanted and size > MOST_ZNODE_BYTES:
        raise RefusedError(
            f"with these marks the znode of {topic.name} would have {size // 1024} KiB, and we write "
            f"{MOST_ZNODE_BYTES // 1024} at most: a ZooKeeper takes 1024 by default (jute.maxbuffer), and a broker "
            "whose write it does not take can't go on; call remove_all_deletable_ledgers, or mark fewer ledgers"
        )


def _refuse_unreadable(topic: _Topic, wanted: Mapping[str, str]) -> None:
    if not wanted:
        return
    after = read_marks({**topic.info.properties, **wanted})
    if set(after.unreadable).difference(topic.marked.unreadable):
        raise RefusedError(
            f"these marks of {topic.name} could not be read again: of one topic, {MOST_IDS} ledgers can be marked at "
            "most, and uploads whose driver's properties fit a request; call remove_all_deletable_ledgers, or mark "
            "fewer ledgers"
        )


def _parsed(name: str, node: Znode) -> _Topic:
    try:
        return _Topic(name, len(node.data), parse_managed_ledger(node.data), in_use_ids(node.data))
    except FormatError as error:
        raise RefusedError(f"the list of {name} can't be read: {error}") from error


def _uploads(topic: _Topic, ledger_ids: set[int]) -> dict[Upload, OffloadContext]:
    """Return the uploads of ledgers as the topic's list has them. Raises RefusedError for one that it does not know."""
    found = {each: at for each, at in uploads_in(topic.info).items() if each[0] in ledger_ids}
    if unknown := ledger_ids - {ledger_id for ledger_id, _uuid in found}:
        raise RefusedError(
            f"the list of {topic.name} names no upload of ledger {min(unknown)}: which objects are meant can't be told"
        )
    return found


def _pairs(marks: Marks) -> list[tuple[Upload, OffloadContext]]:
    return sorted(marks.uploads.items(), key=lambda each: each[0])


def _some_of(marks: Marks, listed: ListedLedgers, at_most: int | None) -> Marks:
    """Return all marks, or so many of those that the list does not name."""
    if at_most is None or _count(marks) <= at_most:
        return marks
    left = marks.without(listed.ids, listed.offloads)
    names = [*sorted(left.ledgers), *sorted(left.uploads)]
    chosen = set(random.sample(names, min(at_most, len(names))))
    return Marks(
        frozenset(each for each in left.ledgers if each in chosen),
        {name: at for name, at in left.uploads.items() if name in chosen},
    )


def _count(marks: Marks) -> int:
    return len(marks.ledgers) + len(marks.uploads)
