"""The port Publication on Pulsar: the first of topics.requests, a producer of a fixed name for each partition.

Topics are made or checked at the first use, so that the watcher can begin while no broker runs.
"""

from collections.abc import Iterator, Sequence

from streaming.adapters.pulsar.publish import Copy, publish
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.errors import ConfigError
from streaming.phase_one.watcher.outbox import Send
from streaming.topics.setup import ensure_topics
from streaming.topics.stored import last_stored
from udfs.formats.internal_stats import Position

WATCH_ID = "WATCH_ID"  # property of a request that the watcher sent: <sender>/<its number>


class PulsarPublication:
    """Publication of one configuration. Every method raises ConfigError too, where the topics can't be used."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topic = settings.topics.requests[0]
        self._is_checked = False

    def ends(self) -> dict[str, Position]:
        """Return where each partition ends now."""
        with admin_for(self._settings) as admin:
            if not self._is_checked:
                ensure_topics(admin, self._settings)
                if not admin.partitions(self._topic):
                    raise ConfigError(f"{self._topic} is not partitioned, and the watcher writes to fixed partitions")
                self._is_checked = True
            return admin.last_positions(self._topic)

    def send(self, partition: str, sender: str, sends: Sequence[Send], after: Position | None) -> int:
        """Send requests, but for those that are stored already; returns how many were sent."""
        name = f"ledger-reaper-{sender}-{partition.rpartition('-')[2]}"

        def copies() -> Iterator[Copy]:
            # publish() starts this when the producer's name is ours; from then on nobody else adds requests of ours
            last = -1 if after is None else last_stored(self._settings, partition, after, WATCH_ID, sender)
            for each in sends:
                if each.number > last:
                    properties = {WATCH_ID: f"{sender}/{each.number}"}
                    yield Copy(each.number + 1, each.key, each.payload, properties)  # the client ignores sequence id 0

        return publish(self._settings.pulsar, partition, name, copies(), is_exclusive=False)
