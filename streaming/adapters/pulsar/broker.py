"""The brokers as second witness: what one has loaded it is asked for, and of the rest, whether it exists.

1. A topic that no broker has loaded is not asked for its state: that would load it (docs/decisions/0006). The same
   question about a topic that does not exist assigns its bundle and creates the namespace's __change_events. So the
   list of its namespace, which is asked for once, says whether a topic exists.
2. A broker is asked only for what it has loaded itself, in threads of its own, and no redirect is followed: a broker
   that hangs keeps no other's topics waiting, and a topic that moves is not loaded by us.
3. Anything that is not a complete answer is UNREADABLE, which counts as "in use". While a broker does not say what it
   has loaded, that holds for every topic that is not known to be loaded elsewhere. Where no answer about the topic
   came at all, the view is_unavailable: nothing is known to be wrong with the topic.
4. Each partition is asked for itself: partitioned-internalStats leaves out partitions that failed.
5. All questions together have a deadline, for what is loaded and then for the topics. A topic without an
   answer by then is UNREADABLE.
6. Tenants share the threads for a broker fairly, and what hangs is known for each tenant (silence.py): no tenant can
   have the topics of another wait.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TypeVar

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
from streaming.adapters.pulsar.loaded import KIND, LoadedAt, LoadedTopics
from streaming.adapters.pulsar.silence import hangs, silence
from streaming.adapters.pulsar.threads import Asked, AskingThreads
from streaming.errors import ForbiddenError, ReaperError, UnavailableError
from udfs.formats.internal_stats import view_of
from udfs.paths import checked_schema_id, namespace_of, schema_id_of, topic_of
from udfs.records import BrokerView, Presence

# Pulsar 4.0.8 says these with 404, measured; a 404 in other words may come from a proxy or mean another thing.
NO_PARTITION = "Topic partitions were not yet created"
_NO_NAMESPACE = "Namespace does not exist"
_NO_SCHEMA = "Schema not found"
_SECONDS_A_QUESTION = 0.01  # what the deadline allows for each; brokers were seen to answer 620 a second
_PAUSES_S = (0.2, 0.5, 1.0)  # before what failed with 5xx is asked for again, after everything else
_LATE = "no answer in time"
_SEVERAL = ""  # one of them has lost the topic, and does not know
_LISTS = "namespaces"  # the threads that ask any broker for namespaces' lists

T = TypeVar("T")
_Ask = Callable[[str, float], BrokerView]  # host, deadline; raises FailedAnswerError where trying again may help


@dataclass(frozen=True, slots=True)
class _Tried:
    view: BrokerView
    may_pass: bool = False
    was_asked: bool = True


@dataclass(frozen=True, slots=True)
class _Where:
    hosts: Mapping[str, str] = field(default_factory=dict)  # topic -> the broker that has it loaded, or _SEVERAL
    error: str = ""  # why the rest is not known; "": none has it
    running: Sequence[str] = ()  # all brokers


class AdminBroker:
    """Broker by the admin API. Thread-safe; opens its connections when first used.

    running: returns the web addresses of all brokers that run now. Raises UnavailableError.
    """

    def __init__(self, settings: PulsarAdminSettings, running: Callable[[], Sequence[str]]) -> None:
        self._settings = settings
        self._http = PulsarHttp(settings)
        self._loaded = LoadedTopics(self._http, running)
        self._threads = AskingThreads(settings.concurrency)

    def views(self, managed_ledgers: Sequence[str], existing: Collection[str] = ()) -> list[BrokerView]:
        """Return what brokers know of each topic, in order; loads none. Never raises: UNREADABLE is a view.

        existing: topics that a namespace's list, which has any length, need not be read for.
        """
        names = list(dict.fromkeys(managed_ledgers))
        topics = _full_names(names)
        where = self._where()
        deadline = self._deadline(len(names))
        found: dict[str, BrokerView] = {
            name: BrokerView(presence=Presence.UNREADABLE, detail="not a topic's name")
            for name in names
            if name not in topics
        }
        unloaded = [name for name in topics if topics[name] not in where.hosts]
        found |= self._existing(unloaded, where, topics, frozenset(existing), deadline)
        asks = {name: (where.hosts[topic], self._stats(topic)) for name, topic in topics.items() if name not in found}
        found |= self._all(asks, self._deadline(len(asks)))  # of its own: lists that hang leave the topics their time
        return [found[name] for name in managed_ledgers]

    def schema_views(self, schema_ids: Sequence[str]) -> list[BrokerView]:
        """Ask whether each schema (`tenant/ns/encoded`) exists, in order; its ledgers are not shown. Never raises.

        A broker is asked where it has a topic of that schema loaded. GONE does not say that the locator is gone: a
        deleted schema keeps its ledgers until the topic goes; nor does it where no topic of that schema is loaded.
        """
        wanted = list(dict.fromkeys(schema_ids))
        where = self._where()
        deadline = self._deadline(len(wanted))
        loaded = {schema_id: topic for topic in where.hosts for schema_id in _schema_ids(topic)} if wanted else {}
        found: dict[str, BrokerView] = {}
        asks: dict[str, tuple[str, _Ask]] = {}
        for schema_id in wanted:
            if schema_id in loaded:
                asks[schema_id] = (where.hosts[loaded[schema_id]], self._schema(loaded[schema_id]))
            else:
                found[schema_id] = _of_no_loaded_topic(schema_id, where.error)
        found |= self._all(asks, deadline)
        return [found[schema_id] for schema_id in schema_ids]

    def is_loaded(self, topic: str) -> bool | None:
        """Whether a broker has this topic (any form of its name) loaded; None: no broker says, or not all do."""
        where = self._where()
        if topic_of(topic) in where.hosts:
            return True
        return None if where.error else False

    def require_answers(self) -> int:
        """Ask every running broker which topics it has loaded; return how many brokers run.

        Raises ForbiddenError where a broker refuses, UnavailableError where one does not answer.
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

    def _deadline(self, questions: int) -> float:
        return time.monotonic() + self._settings.timeout_seconds + _SECONDS_A_QUESTION * questions

    def _running(self) -> list[str]:
        hosts = self._loaded.running()
        self._threads.end_all_but((_LISTS, *hosts, *(f"{host}{KIND}" for host in hosts)))
        return hosts

    def _where(self) -> _Where:
        deadline = self._deadline(0)  # of its own: a broker that hangs here leaves the others time for their answers
        try:
            hosts = self._running()
        except ReaperError as error:
            return _Where(error=str(error))
        answers = self._loaded_at(hosts, deadline)
        found: defaultdict[str, list[str]] = defaultdict(list)
        for host, answer in answers.items():
            for topic in answer.topics:
                found[topic].append(host)
        unknown = "; ".join(answer.error for answer in answers.values() if answer.error)
        at = {topic: every[0] if len(every) == 1 else _SEVERAL for topic, every in found.items()}
        return _Where(at, unknown, hosts)

    def _loaded_at(self, hosts: Sequence[str], deadline: float) -> dict[str, LoadedAt]:
        asked: dict[str, Asked[LoadedAt]] = {}
        for host in hosts:
            asked |= self._threads.ask(
                f"{host}{KIND}", {host: ("", partial(self._loaded.at, host, deadline))}, deadline
            )
        return {host: one.result(LoadedAt(error=_LATE)) for host, one in asked.items()}

    def _existing(
        self, names: Sequence[str], where: _Where, topics: Mapping[str, str], existing: Set[str], deadline: float
    ) -> dict[str, BrokerView]:
        """Say of topics that no broker is known to have loaded whether they exist."""
        if where.error:
            return dict.fromkeys(names, _unavailable(f"maybe loaded: {where.error}"))
        found = {name: BrokerView(presence=Presence.PRESENT, is_loaded=False) for name in names if name in existing}
        spaces: defaultdict[str, list[str]] = defaultdict(list)
        for name in names:
            if name in found:
                continue
            spaces[namespace_of(topics[name])].append(name)
        calls = {each: (_tenant(each), partial(self._topics_of, each, where.running, deadline)) for each in spaces}
        # one namespace's list says nothing of the others
        for namespace, one in self._threads.ask(_LISTS, calls, deadline, hides=True).items():
            listed = one.result(_unavailable(_LATE))
            for name in spaces[namespace]:
                found[name] = _listed(topics[name], listed)
        return found

    def _topics_of(self, namespace: str, running: Sequence[str], deadline: float) -> frozenset[str] | BrokerView:
        """Return the topics of a namespace, as any broker reads them from its metadata store; a view: why not.

        That a namespace's list hangs says nothing of the broker that was asked.
        """
        path = f"{namespace_path(namespace)}?includeSystemTopic=true"
        failed = _unavailable(_LATE)
        for host in running:
            try:
                return _topics_in(self._http.get_from(host, path, deadline=deadline, kind=f"/{namespace}"))
            except ReaperError as error:
                failed = _failed(error, is_of_one_topic=False)
        return failed

    def _all(self, asks: Mapping[str, tuple[str, _Ask]], deadline: float) -> dict[str, BrokerView]:
        """Ask each broker for its own; last, ask again for what failed in a way that may pass: it delays no other."""
        torn = BrokerView(presence=Presence.UNREADABLE, detail="several brokers have it loaded")
        found = {name: torn for name, (host, _ask) in asks.items() if host == _SEVERAL}
        answers: dict[str, _Tried] = {}
        failed: set[str] = set()
        for pause_s in (0.0, *_PAUSES_S):
            time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
            answers = self._each({name: asks[name] for name in asks if name not in found}, deadline)
            found |= {
                name: answer.view
                for name, answer in answers.items()
                if not answer.may_pass or not silence.is_due(_retries(asks[name][0]))
            }
            left = {host for name, (host, _ask) in asks.items() if name not in found}
            for host in failed - left:
                silence.answered(_retries(host))
            failed = left
            if not left or time.monotonic() > deadline:
                break
        for host in failed:
            silence.timed_out(_retries(host))
        return {name: found.get(name) or answers[name].view for name in asks}

    def _stats(self, topic: str) -> _Ask:
        def ask(host: str, deadline: float) -> BrokerView:
            # it may have waited in its row for long, and been unloaded since
            loaded = self._loaded.at(host, deadline)
            if loaded.error:
                return _unavailable(loaded.error)
            if topic not in loaded.topics:
                return BrokerView(presence=Presence.UNREADABLE, detail=f"{host} has just unloaded it")
            answer = self._http.get_from(host, f"{topic_path(topic)}/internalStats", deadline=deadline)
            return view_of(answer.body) if answer.status == HTTPStatus.OK else _unreadable(answer)

        return ask

    def _schema(self, topic: str) -> _Ask:
        """By the name of a topic that is loaded there: to ask by another name of the schema would assign its bundle."""

        def ask(host: str, deadline: float) -> BrokerView:
            path = f"{topic_path(topic).replace('persistent/', 'schemas/', 1)}/schema"
            answer = self._http.get_from(host, path, deadline=deadline)
            if answer.status == HTTPStatus.NOT_FOUND and answer.reason == _NO_SCHEMA:
                return BrokerView(presence=Presence.GONE, detail=answer.reason)
            if answer.status == HTTPStatus.OK and isinstance(answer.body, dict) and "version" in answer.body:
                return BrokerView(presence=Presence.PRESENT)
            return _unreadable(answer)

        return ask

    def _each(self, asks: Mapping[str, tuple[str, _Ask]], deadline: float) -> dict[str, _Tried]:
        """Ask once about each. Where something hangs, its one try comes first: after an answer the rest is asked."""
        answers: dict[str, _Tried] = {}
        while left := [name for name in asks if name not in answers or not answers[name].was_asked]:
            asked = self._asked(left, asks, deadline)
            answers |= {name: one.result(_late(_LATE)) for name, one in asked.items()}
            if not asked or time.monotonic() > deadline:
                return {name: answers.get(name) or _late(hangs(asks[name][0])) for name in asks}
        return answers

    def _asked(
        self, names: Iterable[str], asks: Mapping[str, tuple[str, _Ask]], deadline: float
    ) -> dict[str, Asked[_Tried]]:
        """Ask about these, but for what is not due, and for what has to wait for the outcome of a try."""
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
        asked: dict[str, Asked[_Tried]] = {}
        for host, of_host in calls.items():
            asked |= self._threads.ask(host, of_host, deadline)
        return asked


def _tenant(name: str) -> str:
    """Return the tenant of a managed ledger, a schema's id or a namespace."""
    return name.partition("/")[0]


def _retries(host: str) -> str:
    """Name the retries at a host for `silence`: a broker that answers 5xx for some topics costs all who ask seconds."""
    return f"{host} (5xx)"


def _tried(ask: _Ask, host: str, deadline: float) -> _Tried:
    try:
        return _Tried(ask(host, deadline))
    except (ReaperError, ValueError) as error:
        view = _failed(error, is_of_one_topic=True)
        return _Tried(view, isinstance(error, FailedAnswerError), was_asked=not isinstance(error, NotAskedError))


def _failed(error: ReaperError | ValueError, *, is_of_one_topic: bool) -> BrokerView:
    """Return what an error shows of a topic: it is unavailable where the fault need not be the topic's own."""
    if isinstance(error, FailedAnswerError):
        is_answer = not error.is_busy
    else:  # a list is too large through the other topics of the namespace
        is_answer = is_of_one_topic and isinstance(error, AnswerTooLargeError | ValueError)
    return BrokerView(presence=Presence.UNREADABLE, detail=str(error), is_unavailable=not is_answer)


def _late(why: str) -> _Tried:
    return _Tried(_unavailable(why))


def _full_names(managed_ledgers: Iterable[str]) -> dict[str, str]:
    """Return managed ledger -> topic; what is not a name is left out."""
    found = {}
    for name in managed_ledgers:
        with suppress(ValueError):
            found[name] = topic_of(name)
    return found


def _schema_ids(topic: str) -> list[str]:
    try:
        return [schema_id_of(topic)]
    except ValueError:
        return []


def _listed(topic: str, listed: frozenset[str] | BrokerView) -> BrokerView:
    if isinstance(listed, BrokerView):
        return listed
    if topic in listed:
        return BrokerView(presence=Presence.PRESENT, is_loaded=False)
    return BrokerView(presence=Presence.GONE, detail=f"{topic} is not in the brokers' list of its namespace")


def _topics_in(answer: Answer) -> frozenset[str] | BrokerView:
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
