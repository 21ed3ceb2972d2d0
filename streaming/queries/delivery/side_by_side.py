"""Runs iterators in parallel, each in its own thread, so that together they wait only as long as the slowest."""

import time
from collections.abc import Iterable, Iterator, Sequence
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TypeVar

_T = TypeVar("_T")

_IN_MEMORY = 100  # items that the caller has not taken yet
_POLL_S = 0.1


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def side_by_side(sources: Sequence[Iterable[_T]], *, until_s: float | None = None) -> Iterator[_T]:
    """Yield the items of all sources as they arrive, each source's items in order. Raises the first error of any.

    When the caller stops iterating, or after an error, only threads that wait for their next item keep running.
    until_s: the items that have not arrived at this time (of time.monotonic) are left out.
    """
    if len(sources) == 1 and until_s is None:
        yield from sources[0]
        return
    items: Queue[_T | _End] = Queue(_IN_MEMORY)
    closed = Event()
    threads = [
        Thread(target=_take, args=(source, items, closed), name="side-by-side", daemon=True) for source in sources
    ]
    for thread in threads:
        thread.start()
    left = len(threads)
    try:
        while left and (until_s is None or time.monotonic() < until_s):
            try:
                item = items.get(timeout=_POLL_S)
            except Empty:
                continue
            if not isinstance(item, _End):
                yield item
                continue
            left -= 1
            if item.error is not None:
                raise item.error
    finally:
        closed.set()


def _take(source: Iterable[_T], items: "Queue[_T | _End]", closed: Event) -> None:
    error: BaseException | None = None
    try:
        for item in source:
            if not _put(item, items, closed):
                return
    except BaseException as raised:
        error = raised
    _put(_End(error), items, closed)


def _put(item: "_T | _End", items: "Queue[_T | _End]", closed: Event) -> bool:
    """Put an item into the queue; False if the caller takes no more items."""
    while not closed.is_set():
        try:
            items.put(item, timeout=_POLL_S)
        except Full:
            continue
        return True
    return False
