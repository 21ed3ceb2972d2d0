"""Which service reads which topic, and with which state directory: two services would process each request twice.

1. A topic belongs to the first service that starts with it. It stays that service's while it is stopped, as the
   checkpoint does, until the topic is gone or `ledger-reaper release` gives it up.
2. A service's state directory is known by the id of its receipts table.
3. One znode for each topic; to create it is to own the topic, so of two services that start at once one is refused.
"""

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from urllib.parse import quote, unquote

from streaming.clock import Clock, SystemClock
from streaming.coordination.identity import iso_time, operator_name
from streaming.coordination.own_znodes import TOPICS, read_own
from streaming.errors import ReaperError, SafetyError, UnavailableError
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.state.filesystem import shown


@dataclass(frozen=True, slots=True)
class Owner:
    """Who reads a topic. who: user@host of its first start; since: ISO 8601, UTC."""

    service: str
    who: str
    since: str

    def __str__(self) -> str:
        """Name it for people."""
        return f"service {self.service!r} (by {self.who}, since {self.since})"


class Ownership:
    """What one service owns below `root`. Every method raises UnavailableError."""

    def __init__(self, store: MetadataStore, root: str, service: str, *, clock: Clock | None = None) -> None:
        self._store = store
        self._root = f"{root}/{TOPICS}"
        self._state = f"{root}/instances/{service}/state"
        self._service = service
        self._clock = clock or SystemClock()

    def claim(self, topics: Iterable[str]) -> list[str]:
        """Own these topics; returns those that this service did not own before.

        Raises SafetyError that names the owner of one that is another service's; then none is new.

        In ascending order, so that of several services that want the same topics one gets through.
        """
        wanted = sorted({*topics})
        self.refuse_foreign(wanted)
        owner = Owner(self._service, operator_name(), iso_time(self._clock))
        data = json.dumps(asdict(owner)).encode()
        created = []
        try:
            for topic in wanted:
                if self._store.create(self._path(topic), data, parents=True):
                    created.append(topic)
                else:
                    self.refuse_foreign([topic])
        except SafetyError:
            self._delete(created)
            raise
        return created

    def refuse_foreign(self, topics: Collection[str]) -> None:
        """Raise SafetyError if one of these topics is another service's."""
        for topic, owner in self._owners(topics):
            if owner.service != self._service:
                raise SafetyError(
                    f"{topic} is read by {owner}. Two services on one topic would process each request twice. Name "
                    f"other topics in [topics], or stop service {owner.service!r} and give the topic up there: "
                    f"`ledger-reaper release --topic {topic}` with its configuration"
                )

    def owned(self) -> list[str]:
        """Return the topics of this service."""
        (names,) = self._store.children_many([self._root])
        if isinstance(names, Unreadable):
            raise UnavailableError(f"can't list {self._root}: {names.detail}")
        topics = sorted(unquote(name) for name in names or ())
        return [topic for topic, owner in self._owners(topics) if owner.service == self._service]

    def release(self, topics: Iterable[str]) -> list[str]:
        """Give up those of these topics that this service owns; returns them."""
        mine = [topic for topic, owner in self._owners([*topics]) if owner.service == self._service]
        self._delete(mine)
        return mine

    def release_gone(self, partitions: Callable[[str], int | None], *, besides: Collection[str]) -> None:
        """Give up the topics that do not exist any more; those that can't be asked about stay."""
        for topic in self.owned():
            with contextlib.suppress(ReaperError):
                if topic not in besides and partitions(topic) is None:
                    self._delete([topic])

    def hold_state(self, receipts_id: str, directory: str) -> None:
        """Remember whose receipts this service's are. Raises SafetyError if they are others."""
        data = json.dumps({"receipts": receipts_id, "dir": shown(directory), "who": operator_name()}).encode()
        if not self._store.create(self._state, data, parents=True) and (fault := self.state_fault(receipts_id)):
            raise SafetyError(f"{shown(directory)}: {fault}")

    def state_fault(self, receipts_id: str | None) -> str:
        """Say why a directory with these receipts (None: with none) is not this service's; "" if it may be."""
        node = read_own(self._store, self._state)
        if node is None:
            return ""
        try:
            known = dict(json.loads(node.data))
        except (ValueError, TypeError):
            known = {}
        if known.get("receipts") == receipts_id:
            return ""
        return (
            f"this is not the state directory of service {self._service!r}, which is {known.get('dir', 'unknown')} "
            f"(used by {known.get('who', 'unknown')}). Name that one in state.dir. If it is lost for good: stop the "
            "service, move its checkpoints away, and run `ledger-reaper release --state`"
        )

    def release_state(self) -> bool:
        """Let the next start choose a state directory; False if none was remembered."""
        return self._store.delete(self._state)

    def _owners(self, topics: Collection[str]) -> Iterator[tuple[str, Owner]]:
        for topic, node in zip(topics, self._store.read_many([self._path(each) for each in topics]), strict=True):
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
        known = json.loads(node.data)
        return Owner(str(known["service"]), str(known["who"]), str(known["since"]))
    except (ValueError, KeyError, TypeError):
        return Owner("", "unknown", "unknown")  # nobody may take it for its own
