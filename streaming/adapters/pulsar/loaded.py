"""Asks brokers which topics they have loaded, without loading any.

1. ZooKeeper names the brokers that run (/loadbalance/brokers, with every load manager). Each answers for itself, from
   its memory at that moment: `broker-stats/bookieops` of 4.0.8 walks through the topics that are loaded. It takes the
   rights of a superuser, and 200 bytes and 0.1 ms a topic. `broker-stats/topics` is up to a minute old, and `/metrics`
   has 7 kB a topic.
2. An answer is used for a few seconds. A topic that was loaded since then is taken for one that is not: a deletion
   must not rely on that (docs/decisions/0006). One that was unloaded since then may be loaded again by a question.
3. A topic that no answer names is loaded nowhere only if every broker answered. Of brokers that advertise one address
   (a load balancer's, say) any of them answers, so what they have loaded is not known.
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

BROKERS = "/loadbalance/brokers"
KIND = "/admin/v2/broker-stats"
_USED_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class LoadedAt:
    """topics: the topics that one broker has loaded, by their full names. error: why it did not say."""

    topics: frozenset[str] = frozenset()
    error: str = ""
    is_refused: bool = False  # the broker answered that our role has no right to ask


@dataclass(slots=True)
class _Known:
    answer: LoadedAt = field(default_factory=LoadedAt)
    at_s: float = float("-inf")
    lock: Lock = field(default_factory=Lock)


def running_brokers(store: MetadataStore, *, use_tls: bool) -> list[str]:
    """Return the web addresses of the brokers that run now, as URLs. Raises UnavailableError."""
    (names,) = store.children_many([BROKERS])
    if not isinstance(names, list):
        raise UnavailableError(f"{BROKERS} can't be listed: is zookeeper.hosts the brokers' store, chroot included?")
    nodes = store.read_many([f"{BROKERS}/{name}" for name in sorted(names)])
    if unreadable := next((node for node in nodes if isinstance(node, Unreadable)), None):
        raise UnavailableError(f"a broker below {BROKERS} can't be read: {unreadable.detail}")
    # one that ended since the listing has nothing loaded
    return [_web_address(node.data, use_tls=use_tls) for node in nodes if isinstance(node, Znode)]


def _web_address(data: bytes, *, use_tls: bool) -> str:
    try:
        known: Any = json.loads(data)
        found = known.get("webServiceUrlTls" if use_tls else "webServiceUrl")
    except (ValueError, AttributeError) as error:
        raise UnavailableError(f"a broker's address below {BROKERS} is of a form not known: {error}") from error
    if not isinstance(found, str) or not found:
        scheme = "https" if use_tls else "http"
        raise UnavailableError(f"a broker below {BROKERS} has no {scheme}:// address, which pulsar.admin_url asks for")
    return found.rstrip("/")


class LoadedTopics:
    """Thread-safe. running: returns the brokers' URLs, or raises UnavailableError."""

    def __init__(self, http: PulsarHttp, running: Callable[[], Sequence[str]]) -> None:
        self._http = http
        self._running = running
        self._known: dict[str, _Known] = {}
        self._shared: frozenset[str] = frozenset()  # addresses of several brokers
        self._lock = Lock()

    def running(self) -> list[str]:
        """Return the URLs of the brokers that run now. Raises UnavailableError where there are none."""
        advertised = Counter(self._running())
        if not advertised:
            raise UnavailableError(f"no broker runs: {BROKERS} in ZooKeeper is empty")
        with self._lock:
            for host in self._known.keys() - advertised.keys():
                silence.drop(host)
            self._known = {host: self._known.get(host) or _Known() for host in advertised}
            self._shared = frozenset(host for host, brokers in advertised.items() if brokers > 1)
        return list(advertised)

    def at(self, host: str, deadline: float) -> LoadedAt:
        """Return what one broker has loaded, as it said a few seconds ago at most. Never raises.

        deadline: of time.monotonic().
        """
        if host in self._shared:
            return LoadedAt(error=f"several brokers advertise {host}: which topics each has loaded is not known")
        if not silence.is_due(f"{host}{KIND}"):  # the thread that asked last may still hold the lock
            return LoadedAt(error=hangs(f"{host}{KIND}"))
        with self._lock:
            known = self._known.setdefault(host, _Known())
        wait_s = silence.at_most(f"{host}{KIND}", max(0.0, deadline - time.monotonic()))
        if not known.lock.acquire(timeout=wait_s):
            return LoadedAt(error=f"{host} has not said in time which topics it has loaded")
        try:
            if time.monotonic() - known.at_s > _USED_SECONDS:
                known.answer = self._ask(host, deadline)
                known.at_s = time.monotonic()
            return known.answer
        finally:
            known.lock.release()

    def _ask(self, host: str, deadline: float) -> LoadedAt:
        try:
            answer = self._http.get_from(host, "v2/broker-stats/bookieops", deadline=deadline, kind=KIND)
        except ReaperError as error:
            return LoadedAt(error=str(error))
        if answer.status in (401, 403):
            refused = f"{host} does not say which topics it has loaded: that takes a superuser's rights"
            return LoadedAt(error=refused, is_refused=True)
        if not answer.ok or not _is_known(answer.body):
            return LoadedAt(error=f"{host} does not say which topics it has loaded: {answer.status} {answer.reason}")
        return LoadedAt(frozenset(_topics(answer.body.values())))


def _is_known(body: Any) -> bool:
    return isinstance(body, dict) and all(isinstance(topics, dict) for topics in body.values())


def _topics(namespaces: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    return (topic for topics in namespaces for topic in topics)
