"""RocketMQ's Java client and admin tool (tests/data/java/RocketLoad.java), for tests with a real broker."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streaming.sandbox.rocketmq.broker_home import BROKER_NAME
from streaming.sandbox.rocketmq.broker_jars import class_path
from streaming.sandbox.rocketmq.server import RocketMQ
from tests.integration.java_commands import JavaCommands

Queue = tuple[str, int]  # topic and id


class Read(NamedTuple):
    """A message as a client receives it."""

    offset: int
    name: str
    stored_ms: int
    physical: int
    tag: str | None
    keys: str
    deliveries: int


class Content(NamedTuple):
    """A queue: its ends as the broker reports them, and every message that can be read by offset."""

    first: int
    end: int
    messages: tuple[Read, ...]


class Taken(NamedTuple):
    """A message that a consumer of a group received, and its queue."""

    read: Read
    queue: Queue


class RocketClient(JavaCommands):
    """Sends commands to RocketLoad.java, which documents them."""

    def __init__(self, server: RocketMQ) -> None:
        spec = server.spec
        arguments = [spec.name_server, spec.broker, BROKER_NAME]
        home = [f"-Duser.home={server.home.user}"]  # the client writes its log there
        super().__init__("RocketLoad.java", class_path(spec.version), arguments, home)

    def topic(self, name: str, queues: int, **attributes: str) -> list[Queue]:
        """Create a topic; return its queues. A _ in the name of an attribute becomes a dot."""
        dotted = {key.replace("_", "."): value for key, value in attributes.items()}
        self.ask({"do": "topic", "name": name, "queues": queues, "attributes": dotted})
        return [(name, number) for number in range(queues)]

    def delete(self, name: str) -> None:
        """Delete a topic; its messages stay in the commitlog."""
        self.ask({"do": "delete", "name": name})

    def send(self, topic: str, prefix: str, count: int, **options: Any) -> dict[str, tuple[int, int]]:
        """Send messages prefix-0, prefix-1, …; return queue and offset of each (without meaning if delayed)."""
        answer = self.ask({"do": "send", "topic": topic, "prefix": prefix, "count": count, **options})
        return {name: (queue, offset) for name, (queue, offset) in answer.items()}

    def transactions(self, topic: str, prefix: str, **counts: int) -> None:
        """Send messages prefix-END-0, … each in a transaction; `counts` by end: commit, rollback, unknown."""
        self.ask({"do": "transactions", "topic": topic, "prefix": prefix, **counts})

    def resolve(self, how: Mapping[str, str]) -> None:
        """From now on report the end of transactions to the broker: commit or rollback, by prefix of names."""
        self.ask({"do": "resolve", "how": how})

    def dump(self, queues: Iterable[Queue]) -> dict[Queue, Content]:
        """Return everything in these queues."""
        answers = self.ask({"do": "dump", "queues": [list(each) for each in queues]})["queues"]
        return {
            (each["topic"], each["id"]): Content(
                each["min"], each["max"], tuple(Read(*message) for message in each["messages"])
            )
            for each in answers
        }

    def ends(self, queues: Iterable[Queue]) -> dict[Queue, tuple[int, int]]:
        """Return first and next offset of these queues."""
        answers = self.ask({"do": "ends", "queues": [list(each) for each in queues]})["queues"]
        return {(each["topic"], each["id"]): (each["min"], each["max"]) for each in answers}

    def offsets(self, group: str, queues: Sequence[Queue]) -> dict[Queue, int]:
        """Return the group's committed offsets; -1 for none."""
        offsets = self.ask({"do": "offsets", "group": group, "queues": [list(each) for each in queues]})["offsets"]
        return dict(zip(queues, offsets, strict=True))

    def commit(self, group: str, queue: Queue, offset: int) -> None:
        """Set a group's offset."""
        self.ask({"do": "commit", "group": group, "queue": list(queue), "offset": offset})

    def take(self, group: str, queues: Sequence[Queue], each: int | None = None) -> list[Taken]:
        """Consume from the group's offset, and commit.

        Args:
            group: the consumer group.
            queues: to consume.
            each: the number of messages of each queue; all by default.
        """
        limit = {} if each is None else {"each": each}
        return _taken(self.ask({"do": "take", "group": group, "queues": [list(queue) for queue in queues], **limit}))

    def push(self, group: str, topic: str, expect: int, **options: Any) -> list[Taken]:
        """Consume like a push consumer until `expect` messages came (or the time is over), and a second longer."""
        return _taken(self.ask({"do": "push", "group": group, "topic": topic, "expect": expect, **options}))

    def times(self, queues: Sequence[Queue], stamps: Sequence[int]) -> dict[Queue, tuple[int, ...]]:
        """Return the offsets that the broker finds for these times."""
        offsets = self.ask({"do": "times", "queues": [list(each) for each in queues], "stamps": list(stamps)})[
            "offsets"
        ]
        return dict(zip(queues, map(tuple, offsets), strict=True))

    def check(self) -> None:
        """Let the broker compare its two kinds of queues; it writes the result to its log."""
        self.ask({"do": "check"})

    def close(self) -> None:
        """Shut down every client before their broker stops."""
        self.ask({"do": "close"})


def _taken(answer: Mapping[str, Any]) -> list[Taken]:
    return [Taken(Read(*row[:7]), (row[7], row[8])) for row in answer["taken"]]
