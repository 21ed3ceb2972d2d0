"""A producer and a consumer that run during the whole demo."""

import contextlib
import threading
from itertools import count

from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts import part_clients

LIVE = "persistent://public/default/live"
_BURST = 5
_PAUSE_SECONDS = 0.2
_JOIN_SECONDS = 60
_QUIET_MS = 500
_LAST_QUIET_MS = 30_000


class Traffic:
    """Sends and receives on the topic LIVE until the with block ends.

    Each message has a unique number. The demo kills the broker, so a message may be stored without an acknowledgement
    to its sender, or be received twice because the broker lost the consumer's acknowledgement.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._url = cluster.addresses.pulsar
        self._done = threading.Event()
        self._numbers = count()
        self._sent: set[bytes] = set()
        self._received: set[bytes] = set()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> "Traffic":
        part_clients.subscribe(self._url, LIVE, ["live"])
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._done.set()
        self._thread.join(_JOIN_SECONDS)

    def stop(self) -> tuple[int, int]:
        """End the producer, and receive until all messages have arrived or no more arrive.

        Returns:
            How many messages were certainly stored, and how many of those were received.
        """
        self.__exit__()
        if not self._sent <= self._received:
            self._receive(_LAST_QUIET_MS)
        return len(self._sent), len(self._sent & self._received)

    def _work(self) -> None:
        while not self._done.wait(_PAUSE_SECONDS):
            burst = [f"{next(self._numbers):08d}".encode() for _ in range(_BURST)]
            with contextlib.suppress(Exception):  # the demo kills the broker; only stored messages count
                part_clients.publish(self._url, LIVE, burst)
                self._sent.update(burst)
            with contextlib.suppress(Exception):
                self._receive(_QUIET_MS)

    def _receive(self, quiet_ms: int) -> None:
        for payload in part_clients.received(self._url, LIVE, "live", quiet_ms=quiet_ms):
            self._received.add(payload)
            if self._sent <= self._received:
                return
