"""The port Publication on Pulsar: topics.watch, a producer of a fixed name for each partition.

1. What an interrupted run got stored is looked up in the topic. But a broker may be killed when it has stored requests
   and not answered yet; then Pulsar's client sends them again by itself. The broker's deduplication drops these, by the
   producer's name and the request's number. So the topic lies outside pulsar/system, where brokers deduplicate nothing.
2. The topic is made or checked at the first use, so that the watcher can begin while no broker runs. What is wrong with
   other request topics holds the service, not the watcher.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from streaming.adapters.pulsar.publish import Copy, publish
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.phase_one.watcher.outbox import Knows, OlderStateError, Send
from streaming.ports import StoredMessage, TopicAdmin
from streaming.topics.setup import ensure_topic
from streaming.topics.stored import stored
from udfs.formats.internal_stats import Position

WATCH_ID = "WATCH_ID"  # property of a request that the watcher sent: <sender>/<its number>


@dataclass(frozen=True, slots=True)
class Doors:
    """How the topic is reached: its administration, what it holds of a sender, and a producer on a partition of it."""

    admin: Callable[[Settings], AbstractContextManager[TopicAdmin]] = admin_for
    stored: Callable[[Settings, str, Position, str, str], Iterator[tuple[int, StoredMessage]]] = stored
    publish: Callable[..., int] = publish


class PulsarPublication:
    """Publication of one configuration. ends() raises ConfigError too, while the topic can't be used."""

    def __init__(self, settings: Settings, doors: Doors | None = None) -> None:
        self._settings = settings
        self._doors = doors or Doors()
        self.topic = settings.topics.watch
        self._is_checked = False

    def ends(self) -> dict[str, Position]:
        """Return where each partition ends now."""
        with self._doors.admin(self._settings) as admin:
            if not self._is_checked:
                ensure_topic(admin, self._settings, self.topic)
                self._is_checked = True
            return admin.last_positions(self.topic)

    def send(self, partition: str, sender: str, sends: Sequence[Send], after: Position | None, knows: Knows) -> int:
        """Send requests, but for those that are stored already; returns how many were sent."""
        name = f"ledger-reaper-{sender}-{partition.rpartition('-')[2]}"

        def copies() -> Iterator[Copy]:
            # publish() starts this when the producer's name is ours; from then on nobody else adds requests of ours
            last = -1
            behind = self._doors.stored(self._settings, partition, after, WATCH_ID, sender) if after else ()
            for number, message in behind:
                if not knows(number, message.payload):
                    raise OlderStateError(
                        f"{partition} has a request {number} of {sender} that the state does not know"
                    )
                last = max(last, number)
            for each in sends:
                if each.number > last:
                    properties = {WATCH_ID: f"{sender}/{each.number}"}
                    yield Copy(each.number + 1, each.key, each.payload, properties)  # the client ignores sequence id 0

        return self._doors.publish(self._settings.pulsar, partition, name, copies(), is_exclusive=False)
