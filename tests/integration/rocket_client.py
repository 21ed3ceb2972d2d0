"""RocketMQ's own Java client and admin tool (tests/data/java/RocketLoad.java), for tests over a real broker."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streaming.sandbox.rocketmq.broker_home import BROKER_NAME
from streaming.sandbox.rocketmq.broker_jars import class_path
from streaming.sandbox.rocketmq.server import RocketMQ
from tests.integration.java_commands import JavaCommands

Queue = tuple[str, int]  # topic and id


class Read(NamedTuple):
    """A message as a client gets it."""

    offset: int
    name: str
    stored_ms: int
    physical: int
    tag: str | None
    keys: str
    deliveries: int


class Content(NamedTuple):
    """A queue: its ends as the broker tells them, and every message that can be read by offset."""

    first: int
    end: int
    messages: tuple[Read, ...]


class Taken(NamedTuple):
    """A message as a consumer of a group got it, and the queue that it came from."""

    read: Read
    queue: Queue


class RocketClient(JavaCommands):
    """Commands for RocketLoad.java, which explains them."""

    def __init__(self, server: RocketMQ) -> None:
        spec = server.spec
        arguments = [spec.name_server, spec.broker, BROKER_NAME]
        home = [f"-Duser.home={server.home.user}"]  # where the client writes its log
        super().__init__("RocketLoad.java", class_path(spec.version), arguments, home)

    def topic(self, name: str, queues: int, **attributes: str) -> list[Queue]:
        """Create a topic; returns its queues. attributes: a _ is a dot in their names."""
        named = {key.replace("_", "."): value for key, value in attributes.items()}
        self.ask({"do": "topic", "name": name, "queues": queues, "attributes": named})
        return [(name, number) for number in range(queues)]

    def delete(self, name: str) -> None:
        """Delete a topic; its messages stay in the commitlog."""
        self.ask({"do": "delete", "name": name})

    def send(self, topic: str, prefix: str, count: int, **options: Any) -> dict[str, tuple[int, int]]:
        """Send messages prefix-0, prefix-1, …; returns queue and offset of each (without meaning where delayed)."""
        answer = self.ask({"do": "send", "topic": topic, "prefix": prefix, "count": count, **options})
        return {name: (queue, offset) for name, (queue, offset) in answer.items()}

    def transactions(self, topic: str, prefix: str, **counts: int) -> None:
        """Send messages prefix-END-0, … in a transaction each; counts by its end: commit, rollback, unknown."""
        self.ask({"do": "transactions", "topic": topic, "prefix": prefix, **counts})

    def resolve(self, how: Mapping[str, str]) -> None:
        """From now on tell the broker how transactions ended: by prefix of names, commit or rollback."""
        self.ask({"do": "resolve", "how": how})

    def dump(self, queues: Iterable[Queue]) -> dict[Queue, Content]:
        """Everything in these queues."""
        found = self.ask({"do": "dump", "queues": [list(each) for each in queues]})["queues"]
        return {
            (each["topic"], each["id"]): Content(
                each["min"], each["max"], tuple(Read(*message) for message in each["messages"])
            )
            for each in found
        }

    def ends(self, queues: Iterable[Queue]) -> dict[Queue, tuple[int, int]]:
        """First and next offset of these queues."""
        found = self.ask({"do": "ends", "queues": [list(each) for each in queues]})["queues"]
        return {(each["topic"], each["id"]): (each["min"], each["max"]) for each in found}

    def offsets(self, group: str, queues: Sequence[Queue]) -> dict[Queue, int]:
        """What the group has committed; -1 where nothing."""
        found = self.ask({"do": "offsets", "group": group, "queues": [list(each) for each in queues]})["offsets"]
        return dict(zip(queues, found, strict=True))

    def commit(self, group: str, queue: Queue, offset: int) -> None:
        """Set a group's offset."""
        self.ask({"do": "commit", "group": group, "queue": list(queue), "offset": offset})

    def take(self, group: str, queues: Sequence[Queue], each: int | None = None) -> list[Taken]:
        """Consume from where the group stands, and commit: so many of each queue, or all."""
        some = {} if each is None else {"each": each}
        return _taken(self.ask({"do": "take", "group": group, "queues": [list(q) for q in queues], **some}))

    def push(self, group: str, topic: str, expect: int, **options: Any) -> list[Taken]:
        """Consume as a push consumer does until so many messages came (or the time is over), and a second longer."""
        return _taken(self.ask({"do": "push", "group": group, "topic": topic, "expect": expect, **options}))

    def times(self, queues: Sequence[Queue], stamps: Sequence[int]) -> dict[Queue, tuple[int, ...]]:
        """The offsets that the broker finds for these times."""
        found = self.ask({"do": "times", "queues": [list(each) for each in queues], "stamps": list(stamps)})["offsets"]
        return dict(zip(queues, map(tuple, found), strict=True))

    def check(self) -> None:
        """Ask the broker to compare its two kinds of queues; it writes what it finds to its log."""
        self.ask({"do": "check"})

    def close(self) -> None:
        """Shut every client down: their broker goes away."""
        self.ask({"do": "close"})


def _taken(answer: Mapping[str, Any]) -> list[Taken]:
    return [Taken(Read(*row[:7]), (row[7], row[8])) for row in answer["taken"]]
