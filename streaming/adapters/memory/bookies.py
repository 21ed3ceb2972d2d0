"""Bookies in memory; each of them can read every stored entry, as a client of BookKeeper can."""

from collections.abc import Callable, Iterable, Sequence

from streaming.errors import RefusedError, UnavailableError
from streaming.ports import PlacedEntry, StoredAnswers
from udfs.formats.bookie_disk import BookieDisk


class MemoryBookies:
    """The port Bookies."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}  # bookie id -> HTTP address; no other address answers
        self.read_only_ids: set[str] = set()
        self.entries: set[tuple[int, int]] = set()  # that can be read
        # bookie id -> the entries that it stores; a bookie that is not in here does not answer what it stores
        self.stored_by: dict[str, set[tuple[int, int]]] = {}
        self.disks: dict[str, BookieDisk] = {}  # by HTTP address
        self.collections: list[tuple[str, bool]] = []  # requested: HTTP address, compact
        self.refusing: set[str] = set()  # HTTP addresses of bookies that refuse every request to collect

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

    def stored(
        self,
        entries: Sequence[PlacedEntry],
        control: Callable[[frozenset[str]], Iterable[PlacedEntry]],
    ) -> StoredAnswers:
        """Return for each entry whether a bookie stores it."""
        answers = [self._is_stored((ledger_id, entry_id), bookies) for ledger_id, entry_id, bookies in entries]
        denied = [bookies for (*_entry, bookies), answer in zip(entries, answers, strict=True) if answer is False]
        believed = {
            bookie
            for questions in (entries, control(frozenset().union(*denied)) if denied else ())
            for ledger_id, entry_id, bookies in questions
            for bookie in bookies
            if (ledger_id, entry_id) in self.stored_by.get(bookie, ())
        }
        named = frozenset[str]().union(*(bookies for *_entry, bookies in entries))
        faults = {
            bookie: "proves nothing" if bookie in self.stored_by else "does not answer" for bookie in named - believed
        }
        told = [
            None if answer is False and not believed.issuperset(bookies) else answer
            for (*_entry, bookies), answer in zip(entries, answers, strict=True)
        ]
        return StoredAnswers(told, faults)

    def _is_stored(self, entry: tuple[int, int], bookies: Sequence[str]) -> bool | None:
        if any(entry in self.stored_by.get(bookie, ()) for bookie in bookies):
            return True
        return False if bookies and all(bookie in self.stored_by for bookie in bookies) else None

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
