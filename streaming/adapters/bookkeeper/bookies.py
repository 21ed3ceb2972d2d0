"""The bookies of a cluster: what they register in ZooKeeper, what their HTTP servers answer, and what they store."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from streaming.adapters.bookkeeper.bookie_http import can_read, read_disk, start_collection
from streaming.adapters.bookkeeper.bookie_rpc import BookieConnection, connected
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore, PlacedEntry, StoredAnswers, Znode
from udfs.formats.bookie_disk import BookieDisk
from udfs.formats.bookie_info import http_address, rpc_address

_READS_AT_ONCE = 8
_Entry = tuple[int, int]  # ledger id, entry id
_PROVES_NOTHING = "stores no entry of an existing ledger of this cluster, so its answers prove nothing"


@dataclass(frozen=True, slots=True)
class HttpBookies:
    """Implements Bookies. Each call opens its own connections."""

    store: MetadataStore
    ledgers_root: str
    timeout_seconds: float = 5.0  # of an HTTP request; a bookie that needs longer is in trouble

    def registered(self) -> dict[str, str]:
        """Return bookie id -> HTTP address. Raises UnavailableError."""
        return {name: http_address(data) or "" for name, data in self._registrations().items()}

    def _registrations(self) -> dict[str, bytes]:
        root = f"{self.ledgers_root}/available"
        folders = (root, f"{root}/readonly")
        children = self.store.children_many(folders)
        names = {
            f"{folder}/{name}": name
            for folder, listed in zip(folders, children, strict=True)
            if isinstance(listed, list)
            for name in sorted(listed)
            if name != "readonly"
        }
        nodes = self.store.read_many(list(names))
        return {name: node.data for name, node in zip(names.values(), nodes, strict=True) if isinstance(node, Znode)}

    def read_only(self) -> frozenset[str]:
        """Return the ids of read-only bookies. Raises UnavailableError."""
        listed = self.store.children_many([f"{self.ledgers_root}/available/readonly"])[0]
        return frozenset(listed if isinstance(listed, list) else ())

    def disk(self, url: str) -> BookieDisk:
        """Ask a bookie for its disk usage. Raises UnavailableError."""
        return read_disk(url, self.timeout_seconds)

    def collect(self, url: str, *, compact: bool) -> None:
        """Let a bookie collect garbage. Raises UnavailableError, RefusedError."""
        start_collection(url, self.timeout_seconds, compact=compact)

    def readable(
        self, urls: Sequence[str], entries: Sequence[_Entry], control: Callable[[], Sequence[_Entry]]
    ) -> list[bool | None]:
        """Return for each entry whether it can be read."""
        with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="bookie-read") as pool:

            def read(batch: Sequence[_Entry]) -> dict[_Entry, Literal[True] | set[str]]:
                results = pool.map(lambda entry: self._read_by_any(urls, entry), batch)
                return dict(zip(batch, results, strict=True))

            def able(some: Sequence[str], controls: Sequence[_Entry]) -> list[str]:
                results = pool.map(lambda url: self._reads_any(url, controls), some)
                return [url for url, can in zip(some, results, strict=True) if can]

            answers = read(entries)
            trusted: set[str] = set()
            if unread := [entry for entry, answer in answers.items() if answer is not True and answer]:
                controls = control()
                # A bookie's answer that it can't read an entry counts only if the bookie could read a control entry
                # both before and after that answer: the bookie may lose its access in between.
                able_before = able(urls, controls)
                answers |= read(unread)
                trusted = set(able(able_before, controls))
        return [_verdict(answers[entry], trusted) for entry in entries]

    def stored(
        self, entries: Sequence[PlacedEntry], control: Callable[[frozenset[str]], Iterable[PlacedEntry]]
    ) -> StoredAnswers:
        """Return for each entry whether a bookie stores it."""
        addresses = {name: rpc_address(data) for name, data in self._registrations().items()}
        reads = _StoredReads(addresses, self.timeout_seconds)
        try:
            answers = [reads.is_stored((ledger_id, entry_id), bookies) for ledger_id, entry_id, bookies in entries]
            unproven = [
                frozenset(bookies) - reads.proven if answer is False else frozenset[str]()
                for (*_entry, bookies), answer in zip(entries, answers, strict=True)
            ]
            doubted = frozenset[str]().union(*unproven)
            if doubted:
                reads.prove(doubted, control(doubted))
        finally:
            reads.close()
        # at a bookie's address, a bookie of another cluster may answer, and it has none of our entries
        told = [None if bookies - reads.proven else answer for answer, bookies in zip(answers, unproven, strict=True)]
        return StoredAnswers(told, dict.fromkeys(doubted - reads.proven, _PROVES_NOTHING) | reads.faults)

    def _read_by_any(self, urls: Sequence[str], entry: _Entry) -> Literal[True] | set[str]:
        """Return True if a bookie can read the entry, otherwise the bookies that report that they can't."""
        unable = set()
        for url in urls:
            can = self._can_read(url, entry)
            if can:
                return True
            if can is False:
                unable.add(url)
        return unable

    def _reads_any(self, url: str, controls: Sequence[_Entry]) -> bool:
        for entry in controls:
            can = self._can_read(url, entry)
            if can is not False:
                return bool(can)  # a bookie that does not answer is not asked for further entries
        return False

    def _can_read(self, url: str, entry: _Entry) -> bool | None:
        try:
            return can_read(url, *entry, timeout_seconds=self.timeout_seconds)
        except UnavailableError:
            return None


@dataclass(slots=True)
class _StoredReads:
    """Reads entries from the bookies themselves, over one connection to each."""

    addresses: Mapping[str, tuple[str, int] | None]  # of the registered bookies; None: none is registered
    timeout_seconds: float
    connections: dict[str, BookieConnection | None] = field(default_factory=dict)  # None: this bookie does not answer
    proven: set[str] = field(default_factory=set)  # bookies that store an entry of this cluster
    faults: dict[str, str] = field(default_factory=dict)  # bookie -> why it does not answer

    def is_stored(self, entry: _Entry, bookies: Sequence[str]) -> bool | None:
        answers = set()
        for bookie in bookies:
            answer = self._has(bookie, entry)
            if answer:
                return True
            answers.add(answer)
        return False if answers == {False} else None

    def prove(self, bookies: frozenset[str], entries: Iterable[PlacedEntry]) -> None:
        """Read entries that exist, until each of the bookies has read one."""
        for ledger_id, entry_id, of_entry in entries:
            for bookie in bookies.difference(self.proven).intersection(of_entry):
                self._has(bookie, (ledger_id, entry_id))
            if bookies <= self.proven:
                return

    def close(self) -> None:
        for connection in filter(None, self.connections.values()):
            connection.close()

    def _has(self, bookie: str, entry: _Entry) -> bool | None:
        if bookie not in self.connections:
            self.connections[bookie] = self._connected(bookie)
        connection = self.connections[bookie]
        if connection is None:
            return None
        try:
            has_entry = connection.has_entry(*entry)
        except UnavailableError as error:
            # we wait only once for a bookie that does not answer
            connection.close()
            self.connections[bookie] = None
            self.faults[bookie] = f"failed to read an entry: {error}"
            return None
        if has_entry:
            self.proven.add(bookie)
        return has_entry

    def _connected(self, bookie: str) -> BookieConnection | None:
        address = self.addresses.get(bookie)
        if address is None:
            is_registered = bookie in self.addresses
            self.faults[bookie] = "has registered no address" if is_registered else "is away (not registered)"
            return None
        try:
            return connected(*address, self.timeout_seconds)
        except UnavailableError as error:
            self.faults[bookie] = f"can't be reached at {address[0]}:{address[1]}: {error}"
            return None


def _verdict(answer: Literal[True] | set[str], trusted: set[str]) -> bool | None:
    return True if answer is True else False if answer & trusted else None
