"""Publication on Pulsar: to topics.watch, with a producer of a fixed name for each partition.

1. We read from the topic which requests an interrupted run has stored.
2. We create or check only this topic, at its first use. So a fault of another request topic stops the service, but not
   the watcher.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from streaming.clients import admin_for, publish
from streaming.config.settings import Settings
from streaming.phase_one.watcher.request_outbox import Knows, OlderStateError, Send
from streaming.ports import Copy, StoredMessage, TopicAdmin
from streaming.topics.setup import ensure_topic
from streaming.topics.stored import stored
from udfs.formats.internal_stats import Position

WATCH_ID = "WATCH_ID"  # property of the watcher's requests: <sender>/<number>


@dataclass(frozen=True, slots=True)
class TopicAccess:
    """Functions that open the topic's administration, read a sender's messages, and publish to a partition."""

    admin: Callable[[Settings], AbstractContextManager[TopicAdmin]] = admin_for
    stored: Callable[[Settings, str, Position, str, str], Iterator[tuple[int, StoredMessage]]] = stored
    publish: Callable[..., int] = publish


class PulsarPublication:
    """The Publication of a configuration. ends() also raises ConfigError, while the topic can't be used."""

    def __init__(self, settings: Settings, access: TopicAccess | None = None) -> None:
        self._settings = settings
        self._access = access or TopicAccess()
        self.topic = settings.topics.watch
        self._is_checked = False

    def ends(self) -> dict[str, Position]:
        """Return partition -> position of its newest message."""
        with self._access.admin(self._settings) as admin:
            # not before, so that the watcher can start while no broker runs
            if not self._is_checked:
                ensure_topic(admin, self._settings, self.topic)
                self._is_checked = True
            return admin.last_positions(self.topic)

    def send(self, partition: str, sender: str, sends: Sequence[Send], after: Position | None, knows: Knows) -> int:
        """Send the requests that are not stored already, and return how many were sent."""
        name = f"ledger-reaper-{sender}-{partition.rpartition('-')[2]}"

        def copies() -> Iterator[Copy]:
            # publish() calls this once the producer's name is ours; from then on no other run adds requests of ours
            last = -1
            stored = self._access.stored(self._settings, partition, after, WATCH_ID, sender) if after else ()
            for number, message in stored:
                if not knows(number, message.payload):
                    raise OlderStateError(f"{partition} has a request {number} of {sender} that is not in the state")
                last = max(last, number)
            for send in sends:
                if send.number > last:
                    properties = {WATCH_ID: f"{sender}/{send.number}"}
                    # the client ignores sequence id 0
                    # A broker may be killed after it has stored requests and before it has answered: then Pulsar's
                    # client sends them again by itself, and the broker's deduplication drops them, by the producer's
                    # name and this number. So the topic is outside pulsar/system, where brokers deduplicate nothing.
                    yield Copy(sequence_id=send.number + 1, key=send.key, payload=send.payload, properties=properties)

        return self._access.publish(self._settings, partition, name, copies(), is_exclusive=False)
