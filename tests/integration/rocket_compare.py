"""Compares two brokers' content of the same store, and waits for delayed content."""

import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests.integration import rocket_load as load
from tests.integration.rocket_client import Content, Queue, RocketClient

SECONDS = 300.0


def differences(before: dict[Queue, Content], after: dict[Queue, Content]) -> list[str]:
    """Return the differences between two dumps, except first offsets.

    A file broker reports an older first offset until it has cleaned up its queues, and reads from the first existing
    message; RocksDB reports the offset of that message at once.
    """
    return [line for queue, content in before.items() for line in _difference(queue, content, after[queue])]


def _difference(queue: Queue, before: Content, after: Content) -> Iterator[str]:
    if after.end != before.end:
        yield f"{queue}: ends at {after.end}, not {before.end}"
    if lost := set(before.messages) - set(after.messages):
        yield f"{queue}: {len(lost)} lost, first {min(lost)}"
    if more := set(after.messages) - set(before.messages):
        yield f"{queue}: {len(more)} more, first {min(more)}"
    if len(after.messages) != len(set(after.messages)):
        yield f"{queue}: some messages are doubled"


def content_once(client: RocketClient, queues: list[Queue], holds: Callable[[Content], bool]) -> list[Content]:
    """Return the queues' content once the condition holds, or when the time is over."""
    deadline = time.monotonic() + SECONDS
    while True:
        contents = list(client.dump(queues).values())
        if all(map(holds, contents)) or time.monotonic() > deadline:
            break
        time.sleep(1)
    time.sleep(2)  # doubled messages arrive now
    return list(client.dump(queues).values())


def check_delayed(client: RocketClient, recorded: load.Recorded) -> None:
    """Check that each delayed message of `rocket_load.fill` arrives once, and not before its time."""
    delays = {"second": (2, 1), "half-minute": (4, 30), "minute": (4, 60), "timer": (3, 40)}
    expected = Counter(f"{name}-{number}" for name, (count, _) in delays.items() for number in range(count))
    (content,) = content_once(client, load.DELAYED, lambda read: len(read.messages) >= expected.total())
    assert Counter(message.name for message in content.messages) == expected
    for message in content.messages:
        seconds = delays[message.name.rpartition("-")[0]][1]
        if seconds > 1:  # shorter delays were sent before sent_ms
            assert message.stored_ms >= recorded.sent_ms + seconds * 1000 - 100, message
