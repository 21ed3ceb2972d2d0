"""The bookies of a cluster: what they register in ZooKeeper, and what their HTTP servers answer."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from streaming.adapters.bookkeeper.bookie_http import can_read, read_disk, start_collection
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore, Znode
from udfs.formats.bookie_disk import BookieDisk
from udfs.formats.bookie_info import http_address

_READS_AT_ONCE = 8
_Entry = tuple[int, int]  # ledger id, entry id


@dataclass(frozen=True, slots=True)
class HttpBookies:
    """Implements Bookies. Each call opens its own connections."""

    store: MetadataStore
    ledgers_root: str
    timeout_seconds: float = 5.0  # of an HTTP request; a bookie that needs longer is in trouble

    def registered(self) -> dict[str, str]:
        """Return bookie id -> HTTP address. Raises UnavailableError."""
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
        return {
            name: http_address(node.data) or ""
            for name, node in zip(names.values(), nodes, strict=True)
            if isinstance(node, Znode)
        }

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
                # that a bookie can't read an entry counts only if the bookie could read a control entry both before
                # and after it: the bookie may lose its access in between
                able_before = able(urls, controls)
                answers |= read(unread)
                trusted = set(able(able_before, controls))
        return [_verdict(answers[entry], trusted) for entry in entries]

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


def _verdict(answer: Literal[True] | set[str], trusted: set[str]) -> bool | None:
    return True if answer is True else False if answer & trusted else None
