"""Iterators that wait for others, each in a thread of its own, so that their waiting comes to that of the slowest."""

from collections.abc import Iterable, Iterator, Sequence
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TypeVar

_T = TypeVar("_T")

_IN_MEMORY = 100  # items that nobody has taken yet
_LOOK_S = 0.1


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def side_by_side(sources: Sequence[Iterable[_T]]) -> Iterator[_T]:
    """Yield what all of them yield, as it comes, each one's items in its order. Raises the first error of any.

    Whoever takes no more, or is raised an error, leaves no thread behind but those that wait for their next item.
    """
    if len(sources) == 1:
        yield from sources[0]
        return
    items: Queue[_T | _End] = Queue(_IN_MEMORY)
    closed = Event()
    threads = [Thread(target=_take, args=(each, items, closed), name="side-by-side", daemon=True) for each in sources]
    for thread in threads:
        thread.start()
    left = len(threads)
    try:
        while left:
            try:
                item = items.get(timeout=_LOOK_S)
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
    """Whether it was taken: not where nobody takes anything any more."""
    while not closed.is_set():
        try:
            items.put(item, timeout=_LOOK_S)
        except Full:
            continue
        return True
    return False
