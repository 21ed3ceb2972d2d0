"""Asks brokers which topics they have loaded, without loading any.

1. ZooKeeper names the brokers that run (below /loadbalance/brokers, with all load managers). Each broker
   answers for itself, from its memory at that moment.
2. An answer is used for a few seconds. A topic that was loaded since then seems not loaded, so a deletion must not rely
   on that (docs/decisions/0006). A topic that was unloaded since then may be loaded again by a request for it.
3. A topic that no answer names counts as not loaded only if every broker answered.
4. A broker that was late, or gave no answer, gets further requests, but no caller waits for them until it answers one.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from streaming.adapters.pulsar.http import PulsarHttp
from streaming.adapters.pulsar.silence import hangs, silence
from streaming.errors import ReaperError, UnavailableError
from streaming.ports import MetadataStore, Unreadable, Znode
from udfs.paths import BROKERS

KIND = "/admin/v2/broker-stats"
_USED_SECONDS = 3.0
# How long callers wait for a broker that has answered before: as a rule it answers within milliseconds. A broker with
# 100,000 topics takes ten seconds.
_PATIENCE_SECONDS, _TIMES_THE_LAST = 10.0, 10


@dataclass(frozen=True, slots=True)
class LoadedAt:
    """A broker's answer."""

    topics: frozenset[str] = frozenset()  # the full names of the topics that it has loaded
    error: str = ""  # why they are unknown
    is_refused: bool = False  # the broker answered that our role lacks the permission


@dataclass(slots=True)
class _LastAnswer:
    answer: LoadedAt = field(default_factory=LoadedAt)
    at_s: float = float("-inf")
    took_s: float | None = None  # how long the broker took for its last answer; None: it has not answered yet
    is_late: bool = False  # it did not answer the last request, or not in time
    lock: Lock = field(default_factory=Lock)


def running_brokers(store: MetadataStore, *, use_tls: bool) -> list[str]:
    """Return the web addresses of the brokers that run now, as URLs. Raises UnavailableError."""
    (names,) = store.children_many([BROKERS])
    if not isinstance(names, list):
        raise UnavailableError(f"{BROKERS} can't be listed: is zookeeper.hosts the brokers' store, chroot included?")
    nodes = store.read_many([f"{BROKERS}/{name}" for name in sorted(names)])
    if unreadable := next((node for node in nodes if isinstance(node, Unreadable)), None):
        raise UnavailableError(f"a broker below {BROKERS} can't be read: {unreadable.detail}")
    # a broker that ended since the listing has no topics loaded
    return [_web_address(node.data, use_tls=use_tls) for node in nodes if isinstance(node, Znode)]


def _web_address(data: bytes, *, use_tls: bool) -> str:
    try:
        fields: Any = json.loads(data)
        address = fields.get("webServiceUrlTls" if use_tls else "webServiceUrl")
    except (ValueError, AttributeError, RecursionError) as error:
        raise UnavailableError(f"a broker's address below {BROKERS} has an unknown format: {error}") from error
    if not isinstance(address, str) or not address:
        scheme = "https" if use_tls else "http"
        raise UnavailableError(f"a broker below {BROKERS} has no {scheme}:// address, which pulsar.admin_url needs")
    return address.rstrip("/")


class LoadedTopics:
    """The topics that each broker has loaded. Thread-safe.

    Args:
        running: returns the brokers' URLs. Raises UnavailableError.
    """

    def __init__(self, http: PulsarHttp, running: Callable[[], Sequence[str]]) -> None:
        self._http = http
        self._running = running
        self._answers: dict[str, _LastAnswer] = {}
        self._shared: frozenset[str] = frozenset()  # addresses that several brokers advertise
        self._lock = Lock()

    def running(self) -> list[str]:
        """Return the URLs of the brokers that run now. Raises UnavailableError if there are none."""
        advertised = Counter(self._running())
        if not advertised:
            raise UnavailableError(f"no broker runs: {BROKERS} in ZooKeeper is empty")
        with self._lock:
            for host in self._answers.keys() - advertised.keys():
                silence.drop(host)
            self._answers = {host: self._answers.get(host) or _LastAnswer() for host in advertised}
            self._shared = frozenset(host for host, brokers in advertised.items() if brokers > 1)
        return list(advertised)

    def patience_s(self, host: str, most_s: float) -> float:
        """Return how many seconds to wait for a broker's answer, at most `most_s`; 0: it was late, so do not wait."""
        last = self._last(host)
        if last.is_late:
            return 0.0
        return most_s if last.took_s is None else min(most_s, max(_PATIENCE_SECONDS, _TIMES_THE_LAST * last.took_s))

    def is_asked(self, host: str) -> bool:
        """Whether a request to the broker is under way."""
        return self._last(host).lock.locked()

    def was_late(self, host: str) -> None:
        """Record that a caller waited for a broker in vain."""
        self._last(host).is_late = True

    def at(self, host: str, deadline: float) -> LoadedAt:
        """Return the topics that a broker has loaded; the answer may be a few seconds old. Never raises.

        Args:
            deadline: of time.monotonic().
        """
        # any of the brokers may answer at such an address, which may be a load balancer's
        if host in self._shared:
            return LoadedAt(error=f"several brokers advertise {host}: the topics that each has loaded are unknown")
        if not silence.is_due(f"{host}{KIND}"):  # the thread that sent the last request may still hold the lock
            return LoadedAt(error=hangs(f"{host}{KIND}"))
        last = self._last(host)
        wait_s = silence.at_most(f"{host}{KIND}", max(0.0, deadline - time.monotonic()))
        if not last.lock.acquire(timeout=wait_s):
            return LoadedAt(error=f"{host} did not list in time which topics it has loaded")
        try:
            if time.monotonic() - last.at_s > _USED_SECONDS:
                started_s = time.monotonic()
                last.answer, has_answered = self._ask(host, deadline)
                last.at_s = time.monotonic()
                last.is_late = not has_answered
                if has_answered:
                    last.took_s = last.at_s - started_s
            return last.answer
        finally:
            last.lock.release()

    def _last(self, host: str) -> _LastAnswer:
        with self._lock:
            return self._answers.setdefault(host, _LastAnswer())

    def _ask(self, host: str, deadline: float) -> tuple[LoadedAt, bool]:
        """Return the topics, and whether the broker has answered, whatever it was."""
        try:
            # On 4.0.8, this call iterates over the loaded topics; each costs 0.1 ms and 200 bytes of the answer.
            # `broker-stats/topics` is up to a minute old, and `/metrics` has 7 kB per topic.
            answer = self._http.get_from(host, "v2/broker-stats/bookieops", deadline=deadline, kind=KIND)
        except ReaperError as error:
            return LoadedAt(error=str(error)), False
        if answer.status in (401, 403):
            refused = f"{host} does not list the topics it has loaded: that needs a superuser's rights"
            return LoadedAt(error=refused, is_refused=True), True
        if not answer.ok or not _is_listing(answer.body):
            why = f"{host} does not list the topics it has loaded: {answer.status} {answer.reason}"
            return LoadedAt(error=why), True
        return LoadedAt(frozenset(_topics(answer.body.values()))), True


def _is_listing(body: Any) -> bool:
    return isinstance(body, dict) and all(isinstance(topics, dict) for topics in body.values())


def _topics(namespaces: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    return (topic for topics in namespaces for topic in topics)
