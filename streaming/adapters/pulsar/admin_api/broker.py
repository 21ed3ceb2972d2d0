"""Asks the brokers as the second source of references: the state of loaded topics, and the existence of others.

1. The state of a topic that no broker has loaded is not requested, because that would load it (docs/decisions/0006).
   Instead, the list of its namespace, which is read once, shows whether a topic exists; of a segment, its layout.
2. A broker gets requests only for topics that it has loaded itself, in threads of its own, and no redirect is followed.
3. Anything but a complete answer is UNREADABLE, which counts as in use. While a broker does not list its loaded topics,
   that applies to every topic that no other broker has loaded. If no answer concerns the topic itself, the view
   is_unavailable: nothing is known to be wrong with the topic.
4. The requests of each step share a deadline: for the lists of loaded topics, then for the namespaces' lists, then for
   the topics. A topic without an answer by then is UNREADABLE.
5. Tenants share the threads of a broker fairly, and hanging is recorded per tenant (silence.py), so no tenant can delay
   the topics of another.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from streaming.adapters.pulsar.admin_api.loaded import KIND, LoadedAt, LoadedTopics
from streaming.adapters.pulsar.admin_api.segments import (
    HIDDEN,
    layout_in,
    layout_request,
    view_of_schema,
    view_of_segment,
)
from streaming.adapters.pulsar.admin_api.threads import AskingThreads, BrokerCall
from streaming.adapters.pulsar.http import (
    Answer,
    AnswerTooLargeError,
    FailedAnswerError,
    NotAskedError,
    PulsarAdminSettings,
    PulsarHttp,
    namespace_path,
    topic_path,
)
from streaming.adapters.pulsar.silence import hangs, silence
from streaming.errors import ForbiddenError, ReaperError, UnavailableError
from streaming.ports import Unreadable
from udfs.formats.internal_stats import InternalStats, parse_internal_stats, view_of
from udfs.formats.segment_layout import SegmentLayout
from udfs.paths import SegmentName, checked_schema_id, namespace_of, schema_id_of, segment_of, segments_among, topic_of
from udfs.records import BrokerView, Presence

# The messages of Pulsar 4.0.8 with a 404; a 404 with another message may come from a proxy or have another meaning.
NO_PARTITION = "Topic partitions were not yet created"
_NO_NAMESPACE = "Namespace does not exist"
_NO_SCHEMA = "Schema not found"
_SECONDS_PER_REQUEST = 0.01  # added to the deadline for each; brokers answer about 620 requests per second
_PAUSES_S = (0.2, 0.5, 1.0)  # before requests that failed with 5xx are repeated, after all others
_LATE = "no answer in time"
_NO_NAME = Unreadable("not a topic's name")
_SEVERAL = ""  # several brokers report the topic; all but one have lost it without knowing
_LISTS = "namespaces"  # the threads that request namespaces' lists from any broker
_LAYOUTS = "scalable topics"  # the threads that request layouts from any broker

T = TypeVar("T")
_Ask = Callable[[str, float], BrokerView]  # host, deadline; raises FailedAnswerError if a retry may help


@dataclass(frozen=True, slots=True)
class _Tried:
    view: BrokerView
    may_pass: bool = False
    was_asked: bool = True


@dataclass(frozen=True, slots=True)
class _Loaded:
    hosts: Mapping[str, str] = field(default_factory=dict)  # topic -> the broker that has it loaded, or _SEVERAL
    error: str = ""  # why other topics may be loaded too; "": no broker has them loaded
    running: Sequence[str] = ()  # all brokers


class AdminBroker:
    """Broker over the admin API. Thread-safe; opens its connections when first used.

    Args:
        running: returns the web addresses of all brokers that run now. Raises UnavailableError.
    """

    def __init__(self, settings: PulsarAdminSettings, running: Callable[[], Sequence[str]]) -> None:
        self._settings = settings
        self._http = PulsarHttp(settings)
        self._loaded = LoadedTopics(self._http, running)
        self._threads = AskingThreads(settings.concurrency)

    def views(self, managed_ledgers: Sequence[str], existing: Collection[str] = ()) -> list[BrokerView]:
        """Return the brokers' view of each topic, in order, without loading any. Never raises: UNREADABLE is a view.

        Args:
            existing: topics known to exist; for them, their namespace's list, which may be long, is not read.
        """
        names = list(dict.fromkeys(managed_ledgers))
        topics = _full_names(names)
        loaded = self._loaded_topics()
        deadline = self._deadline(len(names))
        views: dict[str, BrokerView] = {
            name: BrokerView(presence=Presence.UNREADABLE, detail="not a topic's name")
            for name in names
            if name not in topics
        }
        unloaded = [name for name in topics if topics[name] not in loaded.hosts]
        views |= self._existing(unloaded, loaded, topics, frozenset(existing), deadline)
        # internalStats only of loaded topics: the request for a topic that does not exist would assign its bundle and
        # create the namespace's __change_events
        segments = segments_among(topics)
        views |= {name: HIDDEN for name in segments if loaded.hosts.get(topics[name], _SEVERAL) != _SEVERAL}
        asks = {name: (loaded.hosts[topic], self._stats(topic)) for name, topic in topics.items() if name not in views}
        # with its own deadline, so that lists that hang take no time from the topics
        views |= self._all(asks, self._deadline(len(asks)))
        return [views[name] for name in managed_ledgers]

    def layout_views(self, segments: Sequence[str]) -> list[BrokerView]:
        """Return whether the layouts that brokers read name each segment, in order. Never raises."""
        named = segments_among(_full_names(dict.fromkeys(segments)))
        try:
            running = self._running()
        except ReaperError as error:
            return [_unavailable(str(error))] * len(segments)
        views = self._absent_segments(named, running, self._deadline(len(named)))
        other = BrokerView(presence=Presence.UNREADABLE, detail="not a segment's name")
        return [views.get(name, other) for name in segments]

    def schema_views(self, schema_ids: Sequence[str]) -> list[BrokerView]:
        """Return whether each schema (`tenant/ns/encoded`) exists, in order, but not its ledgers. Never raises.

        The request goes to a broker that has a topic of that schema loaded. GONE does not mean that the locator is
        gone: a deleted schema keeps its ledgers until the topic is deleted, and a schema is GONE as well if none of its
        topics is loaded.
        """
        distinct = list(dict.fromkeys(schema_ids))
        loaded = self._loaded_topics()
        deadline = self._deadline(len(distinct))
        hosts = loaded.hosts if distinct else {}
        topics = {schema_id: topic for topic in hosts for schema_id in _schema_ids(topic)}
        of_segments = {schema_id for topic in hosts for schema_id in _schema_ids(topic, of_segments=True)}
        views: dict[str, BrokerView] = {}
        asks: dict[str, tuple[str, _Ask]] = {}
        for schema_id in distinct:
            if schema_id in topics:
                asks[schema_id] = (loaded.hosts[topics[schema_id]], self._schema(topics[schema_id]))
            else:
                views[schema_id] = view_of_schema(schema_id, of_segments) or _of_no_loaded_topic(
                    schema_id, loaded.error
                )
        views |= self._all(asks, deadline)
        return [views[schema_id] for schema_id in schema_ids]

    def internal_stats(self, managed_ledgers: Sequence[str]) -> list[InternalStats | Unreadable | None]:
        """Return internalStats of each topic that a broker has loaded, in order, without loading any. Never raises.

        None: no broker has the topic loaded. Unreadable: that is unknown, or its broker did not answer.
        """
        topics = _full_names(dict.fromkeys(managed_ledgers))
        loaded = self._loaded_topics()
        read: dict[str, InternalStats] = {}

        def keep(topic: str, body: Any) -> BrokerView:
            read[topic] = parse_internal_stats(body)
            return BrokerView(presence=Presence.PRESENT)

        asks = {
            name: (loaded.hosts[topic], self._stats(topic, partial(keep, topic)))
            for name, topic in topics.items()
            if topic in loaded.hosts and segment_of(name) is None
        }
        views = self._all(asks, self._deadline(len(asks)))
        other = Unreadable(f"maybe loaded: {loaded.error}") if loaded.error else None
        answers: dict[str, InternalStats | Unreadable | None] = {}
        for name, topic in topics.items():
            view = views.get(name)
            if view is None:
                answers[name] = Unreadable(HIDDEN.detail) if topic in loaded.hosts else other
            else:
                is_read = view.presence is Presence.PRESENT
                answers[name] = read[topic] if is_read else Unreadable(view.detail)
        return [answers.get(name, _NO_NAME) for name in managed_ledgers]

    def is_loaded(self, topic: str) -> bool | None:
        """Whether a broker has this topic (any form of its name) loaded; None: unknown, as a broker gave no list."""
        loaded = self._loaded_topics()
        if topic_of(topic) in loaded.hosts:
            return True
        return None if loaded.error else False

    def require_answers(self) -> int:
        """Request the list of loaded topics from every running broker; return how many brokers run.

        Raises ForbiddenError if a broker refuses, UnavailableError if a broker does not answer.
        """
        answers = self._loaded_at(self._running(), self._deadline(0))
        if refused := [answer.error for answer in answers.values() if answer.is_refused]:
            raise ForbiddenError("; ".join(refused))
        if silent := [f"{host}: {answer.error}" for host, answer in answers.items() if answer.error]:
            raise UnavailableError("; ".join(silent))
        return len(answers)

    def close(self) -> None:
        """Close the connections."""
        self._threads.close()
        self._http.close()

    def _deadline(self, requests: int) -> float:
        return time.monotonic() + self._settings.timeout_seconds + _SECONDS_PER_REQUEST * requests

    def _running(self) -> list[str]:
        hosts = self._loaded.running()
        self._threads.end_all_but((_LISTS, _LAYOUTS, *hosts, *(f"{host}{KIND}" for host in hosts)))
        return hosts

    def _loaded_topics(self) -> _Loaded:
        # a deadline of its own: a broker that hangs takes no time from the requests that follow
        deadline = self._deadline(0)
        try:
            hosts = self._running()
        except ReaperError as error:
            return _Loaded(error=str(error))
        answers = self._loaded_at(hosts, deadline)
        hosts_of_topic: defaultdict[str, list[str]] = defaultdict(list)
        for host, answer in answers.items():
            for topic in answer.topics:
                hosts_of_topic[topic].append(host)
        errors = "; ".join(answer.error for answer in answers.values() if answer.error)
        host_of = {topic: owners[0] if len(owners) == 1 else _SEVERAL for topic, owners in hosts_of_topic.items()}
        return _Loaded(host_of, errors, hosts)

    def _loaded_at(self, hosts: Sequence[str], deadline: float) -> dict[str, LoadedAt]:
        """Return the answers; while a broker hangs, only the first caller waits for it."""
        calls: dict[str, BrokerCall[LoadedAt]] = {}
        answers = {}
        for host in hosts:
            now_s = time.monotonic()
            patience_s = self._loaded.patience_s(host, deadline - now_s)
            call = {host: ("", partial(self._loaded.at, host, deadline))}
            if patience_s:
                calls |= self._threads.ask(f"{host}{KIND}", call, now_s + patience_s, hides=True)
                continue
            answers[host] = LoadedAt(error=f"{host} did not answer the last request in time")
            if not self._loaded.is_asked(host):
                self._threads.ask(f"{host}{KIND}", call, deadline, hides=True)
        late = LoadedAt(error=_LATE)
        for host, sent in calls.items():
            answers[host] = sent.result(late)
            if answers[host] is late:
                self._loaded.was_late(host)
        return answers

    def _existing(
        self, names: Sequence[str], loaded: _Loaded, topics: Mapping[str, str], existing: Set[str], deadline: float
    ) -> dict[str, BrokerView]:
        """Return, for topics that no broker is known to have loaded, whether they exist."""
        if loaded.error:
            return dict.fromkeys(names, _unavailable(f"maybe loaded: {loaded.error}"))
        views = {name: BrokerView(presence=Presence.PRESENT, is_loaded=False) for name in names if name in existing}
        absent = [name for name in names if name not in views]
        segments = segments_among(absent)
        views |= self._absent_segments(segments, loaded.running, deadline)
        spaces: defaultdict[str, list[str]] = defaultdict(list)
        for name in absent:
            if name not in segments:
                spaces[namespace_of(topics[name])].append(name)
        calls = {space: (_tenant(space), partial(self._topics_of, space, loaded.running, deadline)) for space in spaces}
        # a list that hangs has no effect on the lists of other namespaces
        for namespace, call in self._threads.ask(_LISTS, calls, deadline, hides=True).items():
            listed = call.result(_unavailable(_LATE))
            for name in spaces[namespace]:
                views[name] = _listed(topics[name], listed)
        return views

    def _absent_segments(
        self, segments: Mapping[str, SegmentName], running: Sequence[str], deadline: float
    ) -> dict[str, BrokerView]:
        """Return whether segments exist that no broker has loaded, by the layouts of their scalable topics."""
        topics = dict.fromkeys(segment.topic for segment in segments.values())
        calls = {topic: (_tenant(topic), partial(self._layout_of, topic, running, deadline)) for topic in topics}
        sent = self._threads.ask(_LAYOUTS, calls, deadline, hides=True)
        layouts = {topic: call.result(_unavailable(_LATE)) for topic, call in sent.items()}
        views = {}
        for name, segment in segments.items():
            layout = layouts[segment.topic]
            views[name] = layout if isinstance(layout, BrokerView) else view_of_segment(segment, layout)
        return views

    def _layout_of(self, scalable_topic: str, running: Sequence[str], deadline: float) -> SegmentLayout | BrokerView:
        path = layout_request(scalable_topic)
        if path is None:
            return BrokerView(presence=Presence.UNREADABLE, detail="no request to a broker can name such a topic")
        read = partial(layout_in, scalable_topic)
        return self._of_any(running, path, scalable_topic, read, deadline, is_of_one_topic=True)

    def _topics_of(self, namespace: str, running: Sequence[str], deadline: float) -> frozenset[str] | BrokerView:
        path = f"{namespace_path(namespace)}?includeSystemTopic=true"
        return self._of_any(running, path, namespace, _topics_in, deadline, is_of_one_topic=False)

    def _of_any(  # noqa: PLR0913  a request and how to read its answer
        self,
        running: Sequence[str],
        path: str,
        what: str,
        read: Callable[[str, Answer], T],
        deadline: float,
        *,
        is_of_one_topic: bool,
    ) -> T | BrokerView:
        """Return what `read` finds in the answer of a broker, by its host; or a view with the reason.

        Any broker answers such a request from its metadata store. The request is a kind of its own: if it hangs, that
        is not held against the broker.
        """
        failed = _unavailable(_LATE)
        for host in running:
            try:
                return read(host, self._http.get_from(host, path, deadline=deadline, kind=f"/{what}"))
            except ReaperError as error:
                failed = _failed(error, is_of_one_topic=is_of_one_topic)
        return failed

    def _all(self, asks: Mapping[str, tuple[str, _Ask]], deadline: float) -> dict[str, BrokerView]:
        """Send each broker the requests for its topics; then repeat those that failed with a fault that may pass."""
        ambiguous = BrokerView(presence=Presence.UNREADABLE, detail="several brokers have it loaded")
        views = {name: ambiguous for name, (host, _ask) in asks.items() if host == _SEVERAL}
        answers: dict[str, _Tried] = {}
        failed: set[str] = set()
        for pause_s in (0.0, *_PAUSES_S):
            time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
            answers = self._once({name: asks[name] for name in asks if name not in views}, deadline)
            views |= {
                name: answer.view
                for name, answer in answers.items()
                if not answer.may_pass or not silence.is_due(_retries(asks[name][0]))
            }
            left = {host for name, (host, _ask) in asks.items() if name not in views}
            for host in failed - left:
                silence.answered(_retries(host))
            failed = left
            if not left or time.monotonic() > deadline:
                break
        for host in failed:
            silence.timed_out(_retries(host))
        return {name: views.get(name) or answers[name].view for name in asks}

    def _stats(self, topic: str, parse: Callable[[Any], BrokerView] = view_of) -> _Ask:
        def ask(host: str, deadline: float) -> BrokerView:
            # the topic may have been unloaded while the request waited for a thread
            loaded = self._loaded.at(host, deadline)
            if loaded.error:
                return _unavailable(loaded.error)
            if topic not in loaded.topics:
                return BrokerView(presence=Presence.UNREADABLE, detail=f"{host} has just unloaded it")
            # for one partition: partitioned-internalStats omits partitions that failed. A redirect is not followed,
            # because the topic is moving and the request would load it.
            answer = self._http.get_from(host, f"{topic_path(topic)}/internalStats", deadline=deadline)
            return parse(answer.body) if answer.status == HTTPStatus.OK else _unreadable(answer)

        return ask

    def _schema(self, topic: str) -> _Ask:
        """Request a schema by the name of a loaded topic."""
        # a request by another name would assign that name's bundle

        def ask(host: str, deadline: float) -> BrokerView:
            path = f"{topic_path(topic).replace('persistent/', 'schemas/', 1)}/schema"
            answer = self._http.get_from(host, path, deadline=deadline)
            if answer.status == HTTPStatus.NOT_FOUND and answer.reason == _NO_SCHEMA:
                return BrokerView(presence=Presence.GONE, detail=answer.reason)
            if answer.status == HTTPStatus.OK and isinstance(answer.body, dict) and "version" in answer.body:
                return BrokerView(presence=Presence.PRESENT)
            return _unreadable(answer)

        return ask

    def _once(self, asks: Mapping[str, tuple[str, _Ask]], deadline: float) -> dict[str, _Tried]:
        """Send each request once. If a target hangs, one attempt goes first, and the others follow after its answer."""
        answers: dict[str, _Tried] = {}
        while left := [name for name in asks if name not in answers or not answers[name].was_asked]:
            sent = self._send(left, asks, deadline)
            answers |= {name: call.result(_late(_LATE)) for name, call in sent.items()}
            if not sent or time.monotonic() > deadline:
                return {name: answers.get(name) or _late(hangs(asks[name][0])) for name in asks}
        return answers

    def _send(
        self, names: Iterable[str], asks: Mapping[str, tuple[str, _Ask]], deadline: float
    ) -> dict[str, BrokerCall[_Tried]]:
        """Send the requests that are due and need not wait for the outcome of an attempt."""
        trying: set[str] = set()
        calls: defaultdict[str, dict[str, tuple[str, Callable[[], _Tried]]]] = defaultdict(dict)
        for name in names:
            host, ask = asks[name]
            tenant = _tenant(name)
            tries = silence.tries(host, tenant)
            if tries in trying or not silence.is_due(host, tenant):
                continue
            if tries:
                trying.add(tries)
            calls[host][name] = (tenant, partial(_tried, ask, host, deadline))
        sent: dict[str, BrokerCall[_Tried]] = {}
        for host, of_host in calls.items():
            # in threads of its own, so that a broker that hangs does not delay other brokers' topics
            sent |= self._threads.ask(host, of_host, deadline)
        return sent


def _tenant(name: str) -> str:
    """Return the tenant of a managed ledger, a schema id or a namespace."""
    return name.partition("/")[0]


def _retries(host: str) -> str:
    """Return the name under which `silence` limits the retries at a host.

    Otherwise a broker that answers 5xx for some topics would cost each caller seconds.
    """
    return f"{host} (5xx)"


def _tried(ask: _Ask, host: str, deadline: float) -> _Tried:
    try:
        return _Tried(ask(host, deadline))
    except (ReaperError, ValueError) as error:
        view = _failed(error, is_of_one_topic=True)
        return _Tried(view, isinstance(error, FailedAnswerError), was_asked=not isinstance(error, NotAskedError))


def _failed(error: ReaperError | ValueError, *, is_of_one_topic: bool) -> BrokerView:
    """Return the view after an error: the topic is unavailable if the fault need not be the topic's own."""
    if isinstance(error, FailedAnswerError):
        is_answer = not error.is_busy
    else:  # a namespace's list may be too large because of other topics
        is_answer = is_of_one_topic and isinstance(error, AnswerTooLargeError | ValueError)
    return BrokerView(presence=Presence.UNREADABLE, detail=str(error), is_unavailable=not is_answer)


def _late(why: str) -> _Tried:
    return _Tried(_unavailable(why))


def _full_names(managed_ledgers: Iterable[str]) -> dict[str, str]:
    """Return managed ledger -> topic, without invalid names."""
    topics = {}
    for name in managed_ledgers:
        with suppress(ValueError):
            topics[name] = topic_of(name)
    return topics


def _schema_ids(topic: str, *, of_segments: bool = False) -> list[str]:
    """Return the id of the schema of a loaded topic, or of a loaded segment; none of a name that is no topic's."""
    try:
        return [schema_id_of(topic)] if (segment_of(topic) is not None) == of_segments else []
    except ValueError:
        return []


def _listed(topic: str, listed: frozenset[str] | BrokerView) -> BrokerView:
    if isinstance(listed, BrokerView):
        return listed
    if topic in listed:
        return BrokerView(presence=Presence.PRESENT, is_loaded=False)
    return BrokerView(presence=Presence.GONE, detail=f"{topic} is not in the brokers' list of its namespace")


def _topics_in(_host: str, answer: Answer) -> frozenset[str] | BrokerView:
    if answer.status == HTTPStatus.NOT_FOUND and answer.reason == _NO_NAMESPACE:
        return frozenset()
    if answer.status == HTTPStatus.OK and isinstance(answer.body, list):
        return frozenset(answer.body)
    return _unreadable(answer)


def _of_no_loaded_topic(schema_id: str, error: str) -> BrokerView:
    try:
        checked_schema_id(schema_id)
    except ValueError as fault:
        return BrokerView(presence=Presence.UNREADABLE, detail=str(fault))
    if error:
        return _unavailable(f"maybe loaded: {error}")
    return BrokerView(presence=Presence.GONE, detail="no broker has a topic of it loaded")


def _unavailable(why: str) -> BrokerView:
    return BrokerView(presence=Presence.UNREADABLE, detail=why, is_unavailable=True)


def _unreadable(answer: Answer) -> BrokerView:
    return BrokerView(presence=Presence.UNREADABLE, detail=f"HTTP {answer.status}: {answer.reason}")
