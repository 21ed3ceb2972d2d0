"""Bookies that are registered in ZooKeeper, and whether they can still read the entries of a ledger."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from streaming.adapters.bookkeeper.http import can_read
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore, Znode
from udfs.formats.bookie_info import http_address

_READS_AT_ONCE = 8


def announced(store: MetadataStore, ledgers_root: str) -> tuple[str, ...]:
    """Return the HTTP addresses that bookies, including read-only ones, registered in ZooKeeper.

    The result omits registrations that can't be read.
    """
    return tuple(dict.fromkeys(address for address in registered(store, ledgers_root).values() if address))


def registered(store: MetadataStore, ledgers_root: str) -> dict[str, str]:
    """Return the bookies that run now, including read-only ones: id in ledger metadata -> HTTP address ("": none).

    The result omits registrations that can't be read.
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
    """Return whether any bookie's HTTP server can read each (ledger id, entry id); None: unknown.

    False means that the entry could not be read now; it is most likely gone, but that is no proof.

    Args:
        control: returns entries that certainly exist. An answer "can't read" counts only from a bookie that could read
            one of them both before and after; otherwise the fault may be the bookie's. control() is called only if a
            bookie can't read something, because it asks brokers, which may wait for the same bookies.
    """
    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="bookie-read") as pool:

        def read(batch: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Literal[True] | set[str]]:
            results = pool.map(lambda entry: _read_by_any(bookies, entry, timeout_seconds), batch)
            return dict(zip(batch, results, strict=True))

        def able(urls: Sequence[str], controls: Sequence[tuple[int, int]]) -> list[str]:
            results = pool.map(lambda url: _reads_any(url, controls, timeout_seconds), urls)
            return [url for url, can in zip(urls, results, strict=True) if can]

        answers = read(entries)
        trusted: set[str] = set()
        if unread := [entry for entry, answer in answers.items() if answer is not True and answer]:
            controls = control()
            able_before = able(bookies, controls)
            answers |= read(unread)
            trusted = set(able(able_before, controls))
    in_order = [answers[entry] for entry in entries]
    return [True if answer is True else False if answer & trusted else None for answer in in_order]


def _read_by_any(bookies: Sequence[str], entry: tuple[int, int], timeout_seconds: float) -> Literal[True] | set[str]:
    """Return True if a bookie can read the entry, otherwise the bookies that report that they can't."""
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
            return bool(can)  # a bookie that does not answer is not asked for further entries
    return False


def _can_read(url: str, entry: tuple[int, int], timeout_seconds: float) -> bool | None:
    try:
        return can_read(url, *entry, timeout_seconds=timeout_seconds)
    except UnavailableError:
        return None
