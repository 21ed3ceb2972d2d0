"""What bookies say of themselves in ZooKeeper, and whether they still hold what a ledger's metadata promises."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from streaming.adapters.bookkeeper.http import can_read
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore, Znode
from udfs.formats.bookie_info import http_address

_READS_AT_ONCE = 8


def announced(store: MetadataStore, ledgers_root: str) -> tuple[str, ...]:
    """HTTP addresses that bookies wrote into ZooKeeper, read-only ones included; none where that can't be read."""
    return tuple(dict.fromkeys(address for address in registered(store, ledgers_root).values() if address))


def registered(store: MetadataStore, ledgers_root: str) -> dict[str, str]:
    """The bookies that are there now, by the id that ledgers name them by, with their HTTP address ("": none).

    Read-only ones are included; what can't be read is left out.
    """
    root = f"{ledgers_root}/available"
    folders = (root, f"{root}/readonly")
    children = store.children_many(folders)
    names = {
        f"{folder}/{name}": name
        for folder, listed in zip(folders, children, strict=True)
        if isinstance(listed, list)
        for name in sorted(listed)
        if name != "readonly"
    }
    nodes = store.read_many(list(names))
    return {
        name: http_address(node.data) or ""
        for name, node in zip(names.values(), nodes, strict=True)
        if isinstance(node, Znode)
    }


def readable(
    bookies: Sequence[str],
    entries: Sequence[tuple[int, int]],
    control: Callable[[], Sequence[tuple[int, int]]],
    timeout_seconds: float,
) -> list[bool | None]:
    """Whether each (ledger id, entry id) can be read, by any of the bookies' HTTP servers; None: nobody knows.

    False is "could not be read now": most likely gone, but no proof of it. It counts only from a bookie that could read
    an entry of control(), which are surely there, both before and after: else the fault may be its own. control() is
    not called where no bookie says that it can't read something: it asks brokers, who may wait for the same bookies.
    """
    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="bookie-read") as pool:

        def asked(some: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Literal[True] | set[str]]:
            found = pool.map(lambda entry: _by_any(bookies, entry, timeout_seconds), some)
            return dict(zip(some, found, strict=True))

        def sound(urls: Sequence[str], known: Sequence[tuple[int, int]]) -> list[str]:
            reads = pool.map(lambda url: _reads_any(url, known, timeout_seconds), urls)
            return [url for url, can in zip(urls, reads, strict=True) if can]

        found = asked(entries)
        believed: set[str] = set()
        if unable := [entry for entry, answer in found.items() if answer is not True and answer]:
            known = control()
            before = sound(bookies, known)
            found |= asked(unable)
            believed = set(sound(before, known))
    answers = [found[entry] for entry in entries]
    return [True if answer is True else False if answer & believed else None for answer in answers]


def _by_any(bookies: Sequence[str], entry: tuple[int, int], timeout_seconds: float) -> Literal[True] | set[str]:
    """Return True where a bookie can read it, else those that say that they can't."""
    unable = set()
    for url in bookies:
        can = _can_read(url, entry, timeout_seconds)
        if can:
            return True
        if can is False:
            unable.add(url)
    return unable


def _reads_any(url: str, control: Sequence[tuple[int, int]], timeout_seconds: float) -> bool:
    for entry in control:
        can = _can_read(url, entry, timeout_seconds)
        if can is not False:
            return bool(can)  # one that does not answer at all is not waited for again
    return False


def _can_read(url: str, entry: tuple[int, int], timeout_seconds: float) -> bool | None:
    try:
        return can_read(url, *entry, timeout_seconds=timeout_seconds)
    except UnavailableError:
        return None
