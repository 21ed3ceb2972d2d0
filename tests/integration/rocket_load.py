"""A load for RocketMQ with queues of every kind, and the record of a file broker's content before the conversion."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from streaming.sandbox.rocketmq.broker_settings import COMMIT_LOG_FILE_BYTES
from streaming.sandbox.rocketmq.server import RocketMQ
from tests.integration.rocket_client import Content, Queue, RocketClient, Taken

# The broker asks about an open transaction within seconds, and does not give up. By default a broker records the end of
# transactions only every three seconds; it would ask again before that, and commit them twice.
BROKER_SETTINGS = {
    "transactionCheckInterval": "2000",
    "transactionTimeOut": "1000",
    "transactionCheckMax": "1000",
    "transactionOpBatchInterval": "100",
}
LMQ: list[Queue] = [("%LMQ%left", 0), ("%LMQ%right", 0)]
LMQ_GROUP = "%LMQ%readers"
TAGS = ["red", "緑", "🟦", None]
OLD = [("Old", 0), ("Old", 1)]
FILLER = [("Filler", 0)]
ORDERS = [("Orders", number) for number in range(4)]
TAGGED = [("Tagged", 0), ("Tagged", 1)]
DELAYED = [("Delayed", 0)]
SETTLED = [("Settled", 0)]
SOURCES = [("Sources", 0)]
BATCHES = [("Batches", 0), ("Batches", 1)]
RETRIED = [("Retried", 0)]
AGAIN = [("Again", 0), ("Again", 1)]
EMPTY = [("Empty", 0), ("Empty", 1)]
# Queues that only a client's messages change.
QUIET: list[Queue] = [*OLD, *FILLER, *ORDERS, *TAGGED, *SOURCES, *BATCHES, *RETRIED, *AGAIN, *EMPTY, *LMQ]
TOPICS = (OLD, FILLER, ORDERS, TAGGED, DELAYED, SETTLED, SOURCES, BATCHES, RETRIED, EMPTY)
GROUPS: dict[str, Sequence[Queue]] = {
    "old": OLD,
    "orders-a": ORDERS,
    "orders-b": ORDERS,
    "filtered": TAGGED,
    "retrying": RETRIED,
    LMQ_GROUP: LMQ,
    "nothing": EMPTY,
}
_FILLED = COMMIT_LOG_FILE_BYTES // 2000 + 40


@dataclass
class Recorded:
    """The file broker's content of QUIET, its offsets by time, and the groups' offsets."""

    content: dict[Queue, Content]
    stamps: list[int]  # times (ms)
    times: dict[Queue, tuple[int, ...]]  # the offset of each stamp
    offsets: dict[str, dict[Queue, int]]
    sent_ms: int  # when the delayed messages were sent
    taken: dict[str, list[Taken]] = field(default_factory=dict)


def fill(server: RocketMQ, client: RocketClient) -> Recorded:
    """Send and consume the load. The oldest file of the log then ends within the queue of Filler."""
    for queues in TOPICS:
        client.topic(queues[0][0], len(queues))
    client.send("Old", "old", 20, queues=2)
    client.take("old", OLD)
    client.send("Filler", "filler", _FILLED, bytes=1800)
    _delete_topics(client)
    client.send("Orders", "orders", 240, queues=4, bytes=1500, tags=TAGS)
    client.send("Tagged", "tagged", 80, queues=2, tags=TAGS)
    client.send("Batches", "batches", 60, queues=2, batch=10)
    client.send("Sources", "sources", 20, lmq=",".join(name for name, _ in LMQ))
    client.send("Retried", "fail", 3)
    client.send("Retried", "retried", 4)
    client.transactions("Settled", "tx", commit=4, rollback=4, unknown=6)
    taken = {
        "orders-a": client.take("orders-a", ORDERS, each=12),
        "orders-b": client.take("orders-b", ORDERS, each=41),
        "filtered": client.take("filtered", TAGGED, each=7),
        "retrying": client.push("retrying", "Retried", 4, failing="fail", seconds=240),
    }
    for number, queue in enumerate(LMQ):
        client.commit(LMQ_GROUP, queue, 5 + number)
    client.send("Delayed", "second", 2, level=1)
    sent_ms = time.time_ns() // 1_000_000
    client.send("Delayed", "half-minute", 4, level=4)
    client.send("Delayed", "minute", 4, level=5)
    client.send("Delayed", "timer", 3, delaySeconds=40)
    content = client.dump(QUIET)
    stamps = _stamps(content)
    offsets = {group: client.offsets(group, queues) for group, queues in GROUPS.items()}
    return Recorded(
        content=content,
        stamps=stamps,
        times=client.times(QUIET, stamps),
        offsets=offsets,
        sent_ms=sent_ms,
        taken=taken,
    )


def _delete_topics(client: RocketClient) -> None:
    """Leave messages in the log without a queue: of a deleted topic, and of a topic that was created again."""
    client.topic("Gone", 1)
    client.send("Gone", "gone", 6)
    client.delete("Gone")
    client.topic("Again", 2)
    client.send("Again", "before", 14, queues=2)
    client.delete("Again")
    client.topic("Again", 2)
    client.send("Again", "after", 9, queues=2)


def expire_oldest_file(server: RocketMQ, recorded: Recorded) -> None:
    """Delete the log's oldest file, as the broker does at the end of its retention; the broker must be stopped.

    Remove the lost messages from `recorded`, and the offsets by time of queues that lost messages.
    """
    oldest, *rest = sorted((server.store / "commitlog").iterdir())
    assert rest
    # allowed: the store is the test's own, and its broker is stopped
    oldest.unlink()
    start = int(rest[0].name)
    for queue, content in recorded.content.items():
        live = tuple(message for message in content.messages if message.physical >= start)
        if len(live) < len(content.messages):
            first = live[0].offset if live else content.end
            recorded.content[queue] = Content(first, content.end, live)
            del recorded.times[queue]


def _stamps(content: dict[Queue, Content]) -> list[int]:
    """Return times before, at and after the storage of messages."""
    stored = sorted({message.stored_ms for each in content.values() for message in each.messages})
    sample = stored[:: max(1, len(stored) // 25)]
    return sorted({0, stored[0] - 1, stored[-1] + 1, stored[-1] + 3_600_000, *sample, *(each + 1 for each in sample)})
