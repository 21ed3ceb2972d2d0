"""Asks bookies about their disks, and adds to each answer the bytes that ledgers' ensembles assign to the bookie."""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from streaming.errors import ReaperError, UnavailableError
from streaming.ports import Bookies
from streaming.space.reading.unread import Unread
from udfs.formats.bookie_disk import BookieDisk
from udfs.formats.bookie_info import metrics_addresses
from udfs.space.bookie_facts import with_reported
from udfs.space.space_report import BookieSpace, Unknown

_CONCURRENCY = 8
_ABSENT = "ledgers name it, and it is not registered: it does not run"
_NO_ADDRESS = "it registers no HTTP server (httpServerEnabled)"
_NO_METRICS = "it registers no HTTP server (httpServerEnabled), and no metrics of a bookie are served at {url}"


def bookie_spaces(
    bookies: Bookies, placed: Mapping[str, tuple[int, int]], only: Collection[str], unread: Unread
) -> tuple[BookieSpace, ...]:
    """Return the bookies that run or that an ensemble names.

    Args:
        bookies: of the cluster.
        placed: bookie id -> (ledgers, bytes) by ensembles.
        only: ids or HTTP addresses of bookies; empty: all.
        unread: gets the bookies that don't answer.
    """
    registered: dict[str, str] | None = None
    read_only: frozenset[str] = frozenset()
    try:
        registered, read_only = bookies.registered(), bookies.read_only()
    except UnavailableError as error:
        unread.add(Unknown(what="bookies", detail=str(error)))
    addresses = registered or {}
    names = [name for name in sorted({*placed, *addresses}) if not only or name in only or addresses.get(name) in only]
    guessed = metrics_addresses(addresses)
    with ThreadPoolExecutor(_CONCURRENCY) as threads:
        disks = list(threads.map(lambda name: _disk(bookies, addresses.get(name, ""), guessed.get(name, "")), names))
    spaces = []
    for name, disk in zip(names, disks, strict=True):
        if isinstance(disk, str) and addresses.get(name):
            unread.add(Unknown(what=f"bookie {name}", detail=disk))
        is_registered = registered is None or name in registered
        if not is_registered:
            unread.add(Unknown(what=f"bookie {name}", detail=_ABSENT))
        space = _space(name, addresses.get(name, ""), placed.get(name, (0, 0)), disk, is_registered)
        spaces.append(replace(space, is_read_only=name in read_only if name in addresses else None))
    return tuple(spaces)


def _disk(bookies: Bookies, url: str, guessed: str) -> BookieDisk | str:
    if not url and not guessed:
        return _NO_ADDRESS
    try:
        return bookies.disk(url or guessed)
    except ReaperError as error:
        return str(error) if url else _NO_METRICS.format(url=guessed)


def _space(name: str, url: str, placed: tuple[int, int], disk: BookieDisk | str, is_registered: bool) -> BookieSpace:
    ledgers, live = placed
    if isinstance(disk, str):
        faults = (disk,) if is_registered else (_ABSENT,)
        return BookieSpace(
            bookie_id=name, url=url, is_registered=is_registered, ledgers=ledgers, live=live, faults=faults
        )
    return with_reported(BookieSpace(bookie_id=name, url=url, ledgers=ledgers, live=live), disk)
