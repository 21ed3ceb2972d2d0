"""Compares what two brokers tell of the same store, and waits for what is to come."""

import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests.integration import rocket_load as load
from tests.integration.rocket_client import Content, Queue, RocketClient

SECONDS = 300.0


def differences(told: dict[Queue, Content], found: dict[Queue, Content]) -> list[str]:
    """What differs between two dumps.

    A file broker tells an older first offset until it has cleaned its queues up, and then reads from the first that is
    there; RocksDB tells that one at once.
    """
    return [line for queue, before in told.items() for line in _difference(queue, before, found[queue])]


def _difference(queue: Queue, before: Content, after: Content) -> Iterator[str]:
    if after.end != before.end:
        yield f"{queue}: ends at {after.end}, not {before.end}"
    if lost := set(before.messages) - set(after.messages):
        yield f"{queue}: {len(lost)} lost, first {min(lost)}"
    if more := set(after.messages) - set(before.messages):
        yield f"{queue}: {len(more)} more, first {min(more)}"
    if len(after.messages) != len(set(after.messages)):
        yield f"{queue}: some are there twice"


def content_once(client: RocketClient, queues: list[Queue], holds: Callable[[Content], bool]) -> list[Content]:
    """The queues' content once it holds, or as it is when the time is over."""
    deadline = time.monotonic() + SECONDS
    while True:
        found = list(client.dump(queues).values())
        if all(map(holds, found)) or time.monotonic() > deadline:
            break
        time.sleep(1)
    time.sleep(2)  # what comes too often comes now
    return list(client.dump(queues).values())


def delayed_come_once(client: RocketClient, told: load.Told) -> None:
    """Fails unless each of the delayed messages of `rocket_load.fill` comes once, and not before its time."""
    delays = {"second": (2, 1), "half-minute": (4, 30), "minute": (4, 60), "timer": (3, 40)}
    wanted = Counter(f"{name}-{number}" for name, (count, _) in delays.items() for number in range(count))
    (content,) = content_once(client, load.DELAYED, lambda found: len(found.messages) >= wanted.total())
    assert Counter(message.name for message in content.messages) == wanted
    for message in content.messages:
        seconds = delays[message.name.rpartition("-")[0]][1]
        if seconds > 1:  # those were sent before sent_ms
            assert message.stored_ms >= told.sent_ms + seconds * 1000 - 100, message
