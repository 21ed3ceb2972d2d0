"""Records which service reads a topic, and with which state directory: two services would process each request twice.

1. A topic belongs to the first service that starts with it. A stopped service keeps its topics, as it keeps their
   checkpoints, until a topic is deleted or `ledger-reaper release` releases it.
2. A service's state directory is identified by the id of its receipts table.
"""

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from urllib.parse import quote, unquote

from streaming.clock import Clock, SystemClock
from streaming.coordination.identity import iso_time, operator_name, shown_time
from streaming.coordination.own_znodes import TOPICS, read_own
from streaming.errors import ReaperError, SafetyError, UnavailableError
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.state.filesystem import shown


@dataclass(frozen=True, slots=True)
class Owner:
    """The service that reads a topic. The field names are the keys of the topic's znode."""

    service: str
    who: str  # user@host of its first start
    since: str  # ISO 8601, UTC

    def __str__(self) -> str:
        """Describe the owner for messages."""
        return f"service {self.service!r} (by {self.who}, since {shown_time(self.since)})"


class Ownership:
    """The topics and the state directory of one service, as znodes below `root`. Methods raise UnavailableError."""

    def __init__(self, store: MetadataStore, root: str, service: str, *, clock: Clock | None = None) -> None:
        self._store = store
        self._root = f"{root}/{TOPICS}"
        self._state = f"{root}/instances/{service}/state"
        self._service = service
        self._clock = clock or SystemClock()

    def claim(self, topics: Iterable[str]) -> list[str]:
        """Take ownership of all these topics or of none; return the topics that this service did not own before.

        Raises SafetyError, which names the owner, if a topic belongs to another service.
        """
        # in ascending order, so that one of several services that claim the same topics succeeds
        claimed = sorted({*topics})
        self.refuse_foreign(claimed)
        owner = Owner(self._service, operator_name(), iso_time(self._clock))
        data = json.dumps(asdict(owner)).encode()
        created = []
        try:
            for topic in claimed:
                # the service that creates the znode owns the topic: if two services start at once, ZooKeeper refuses
                # one of them
                if self._store.create(self._path(topic), data, parents=True):
                    created.append(topic)
                else:
                    self.refuse_foreign([topic])
        except SafetyError:
            self._delete(created)
            raise
        return created

    def claim_each(self, topics: Collection[str]) -> dict[str, str]:
        """Take ownership of each topic that has no owner. Returns why not by topic, for those of other services."""
        foreign = self.foreign(topics)
        for topic in sorted({*topics} - foreign.keys()):
            try:
                self.claim([topic])
            except SafetyError:  # it has just been claimed
                foreign[topic] = "it is read by another service"
        return foreign

    def foreign(self, topics: Collection[str]) -> dict[str, str]:
        """Return by topic why another service reads it; without those that none or this one owns."""
        # few of ten thousand topics have a claim
        claimed = sorted({*topics} & {*self._claimed()})
        return {
            topic: f"it is read by {owner}" for topic, owner in self._owners(claimed) if owner.service != self._service
        }

    def refuse_foreign(self, topics: Collection[str]) -> None:
        """Raise SafetyError if one of these topics belongs to another service."""
        for topic, owner in self._owners(topics):
            if owner.service != self._service:
                raise SafetyError(
                    f"{topic} is read by {owner}. Two services on one topic would process each request twice. Name "
                    f"other topics in [topics], or stop service {owner.service!r} and release the topic there: "
                    f"`ledger-reaper release --topic {topic}` with its configuration"
                )

    def owned(self) -> list[str]:
        """Return the topics of this service."""
        return [topic for topic, owner in self._owners(self._claimed()) if owner.service == self._service]

    def release(self, topics: Iterable[str]) -> list[str]:
        """Release the given topics that this service owns, and return the released topics."""
        owned = [topic for topic, owner in self._owners([*topics]) if owner.service == self._service]
        self._delete(owned)
        return owned

    def release_gone(self, partitions: Callable[[str], int | None], *, besides: Callable[[str], bool]) -> None:
        """Release the topics that no longer exist; a topic whose existence is unknown stays owned."""
        for topic in self.owned():
            with contextlib.suppress(ReaperError):
                if not besides(topic) and partitions(topic) is None:
                    self._delete([topic])

    def hold_state(self, receipts_id: str, directory: str) -> None:
        """Record the id of this service's receipts, or compare it with the record. Raises SafetyError if it differs."""
        data = json.dumps({"receipts": receipts_id, "dir": shown(directory), "who": operator_name()}).encode()
        if not self._store.create(self._state, data, parents=True) and (fault := self.state_fault(receipts_id)):
            raise SafetyError(f"{shown(directory)}: {fault}")

    def state_fault(self, receipts_id: str | None) -> str:
        """Return why a directory with these receipts (None: without any) is not this service's; "" if it may be."""
        node = read_own(self._store, self._state)
        if node is None:
            return ""
        try:
            recorded = dict(json.loads(node.data))
        except (ValueError, TypeError):
            recorded = {}
        if recorded.get("receipts") == receipts_id:
            return ""
        return (
            f"this is not the state directory of service {self._service!r}, which is {recorded.get('dir', 'unknown')} "
            f"(used by {recorded.get('who', 'unknown')}). Name it in state.dir. If it is lost for good: stop the "
            "service, move its checkpoints away, and run `ledger-reaper release --state`"
        )

    def release_state(self) -> bool:
        """Let the next start choose a state directory; return False if none was recorded."""
        return self._store.delete(self._state)

    def _claimed(self) -> list[str]:
        (names,) = self._store.children_many([self._root])
        if isinstance(names, Unreadable):
            raise UnavailableError(f"can't list {self._root}: {names.detail}")
        return sorted(unquote(name) for name in names or ())

    def _owners(self, topics: Collection[str]) -> Iterator[tuple[str, Owner]]:
        nodes = self._store.read_many([self._path(topic) for topic in topics])
        for topic, node in zip(topics, nodes, strict=True):
            if isinstance(node, Unreadable):
                raise UnavailableError(f"can't read {self._path(topic)}: {node.detail}")
            if isinstance(node, Znode):
                yield topic, _owner(node)

    def _delete(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._store.delete(self._path(topic))

    def _path(self, topic: str) -> str:
        return f"{self._root}/{quote(topic, safe='')}"


def _owner(node: Znode) -> Owner:
    try:
        fields = json.loads(node.data)
        return Owner(str(fields["service"]), str(fields["who"]), str(fields["since"]))
    except (ValueError, KeyError, TypeError):
        return Owner("", "unknown", "unknown")  # no service has this name, so the topic is foreign to all services
