"""A producer and a consumer that go on while the demo does everything else."""

import contextlib
import threading

from streaming.sandbox import clients, topics
from streaming.sandbox.cluster import Cluster

LIVE = "persistent://public/default/live"
_BURST = 5
_PAUSE_SECONDS = 0.2
_JOIN_SECONDS = 60


class Traffic:
    """Sends and receives on the topic LIVE until the with block ends."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._done = threading.Event()
        self._sent = 0
        self._received = 0
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> "Traffic":
        clients.subscribe(self._cluster.addresses.pulsar, LIVE, ["live"])
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._done.set()
        self._thread.join(_JOIN_SECONDS)

    def stop(self) -> tuple[int, int]:
        """End the producer, read to the end; returns (sent, received)."""
        self.__exit__()
        left = self._sent - self._received
        self._received += len(topics.consume(self._cluster, LIVE, "live", left)) if left else 0
        return self._sent, self._received

    def _work(self) -> None:
        while not self._done.wait(_PAUSE_SECONDS):
            with contextlib.suppress(Exception):  # the demo kills the broker; only stored messages count
                self._sent += topics.publish(self._cluster, LIVE, _BURST)
            with contextlib.suppress(Exception):
                self._received += len(topics.consume(self._cluster, LIVE, "live", self._sent - self._received))
