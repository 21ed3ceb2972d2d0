"""Bookies in memory; each of them can read every stored entry, as a client of BookKeeper can."""

from collections.abc import Callable, Sequence

from streaming.errors import RefusedError, UnavailableError
from udfs.formats.bookie_disk import BookieDisk


class MemoryBookies:
    """The port Bookies."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}  # bookie id -> HTTP address; no other address answers
        self.read_only_ids: set[str] = set()
        self.entries: set[tuple[int, int]] = set()  # that can be read
        self.disks: dict[str, BookieDisk] = {}  # by HTTP address
        self.collections: list[tuple[str, bool]] = []  # requested: HTTP address, compact
        self.refusing: set[str] = set()  # HTTP addresses of bookies that collect on no request

    def registered(self) -> dict[str, str]:
        """Return bookie id -> HTTP address."""
        return dict(self.addresses)

    def read_only(self) -> frozenset[str]:
        """Return the ids of read-only bookies."""
        return frozenset(self.read_only_ids)

    def readable(
        self, urls: Sequence[str], entries: Sequence[tuple[int, int]], control: Callable[[], Sequence[tuple[int, int]]]
    ) -> list[bool | None]:
        """Return for each entry whether it can be read."""
        if not set(urls).intersection(self.addresses.values()):
            return [None] * len(entries)
        answers = [entry in self.entries for entry in entries]
        if False in answers and not self.entries.intersection(control()):
            return [answer or None for answer in answers]
        return [*answers]

    def disk(self, url: str) -> BookieDisk:
        """Return the disk of a bookie."""
        if url not in self.disks:
            raise UnavailableError(f"bookie {url} does not answer")
        return self.disks[url]

    def collect(self, url: str, *, compact: bool) -> None:
        """Record a request to collect garbage."""
        if url not in self.addresses.values():
            raise UnavailableError(f"bookie {url} does not answer")
        if url in self.refusing:
            raise RefusedError(f"bookie {url} accepts no HTTP request to collect; set httpServerEnabled=true")
        self.collections.append((url, compact))
