"""Reads the retention of topics, without loading any topic.

A topic's own policy is a message in its namespace's `__change_events`. A broker that is asked for the policy loads that
topic, and creates it if there is none. So it is asked only if a broker has loaded the topic already; if there is no
such topic, no topic of the namespace has a policy of its own.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from streaming.errors import ReaperError, RefusedError
from streaming.ports import LoadedTopicStats, RetentionPolicies
from udfs.formats.internal_stats import InternalStats
from udfs.paths import base_topic, is_v1, namespace_of
from udfs.phase_one.trim_forecast import Retention

_CONCURRENCY = 8
_NOT_LOADED = "no broker has loaded the namespace's __change_events, which may contain the topic's own retention"

Found = tuple[Retention, str]  # the retention in force, and the level that sets it: topic, namespace or broker


class PolicyReading:
    """Retention by topic.

    Args:
        policies: None: brokers are not asked.
        stats: shows which topics are loaded.
        change_events: namespace -> its topics named __change_events.
    """

    def __init__(
        self,
        policies: RetentionPolicies | None,
        stats: LoadedTopicStats | None,
        change_events: Mapping[str, list[str]],
    ) -> None:
        self._policies, self._stats, self._change_events = policies, stats, change_events
        self._default: Retention | str | None = None  # a text: why it is unknown
        self._is_silent = False
        self._namespaces: dict[str, Retention | str | None] = {}
        self._own: dict[str, Retention | str | None] = {}  # by partitioned topic, or topic

    def of(self, topics: Iterable[str]) -> dict[str, Found | str]:
        """Return the retention of each topic (`persistent://…`); a text: why it is unknown."""
        wanted = list(topics)
        if not wanted or self._policies is None:
            return dict.fromkeys(wanted, "brokers are not asked for retention (safety.ask_broker)")
        self._read_default(self._policies)
        if self._is_silent:
            return dict.fromkeys(wanted, str(self._default))
        with ThreadPoolExecutor(_CONCURRENCY) as threads:
            namespaces = {namespace_of(topic) for topic in wanted} - self._namespaces.keys()
            self._namespaces |= _each(threads, self._policies.of_namespace, namespaces)
            bases = {base_topic(topic) for topic in wanted} - self._own.keys()
            askable = self._askable({namespace_of(base) for base in bases})
            self._own |= {base: askable[namespace_of(base)] or None for base in bases}
            loaded = {base for base in bases if askable[namespace_of(base)] is None}
            self._own |= _each(threads, self._policies.of_topic, loaded)
        return {topic: self._in_force(topic) for topic in wanted}

    def _read_default(self, policies: RetentionPolicies) -> None:
        if self._default is None:
            try:
                self._default = policies.of_brokers()
            except ReaperError as error:
                self._default = str(error)
                self._is_silent = not isinstance(error, RefusedError)  # then no other request would be answered

    def _askable(self, namespaces: Iterable[str]) -> dict[str, str | None]:
        """Return by namespace why its topics' own policies can't be read; "": no topic has one; None: they can."""
        # brokers create __change_events of V1 names too, but a topic with such a name has no policy of its own
        events = {each: [] if is_v1(each) else self._change_events.get(each, []) for each in namespaces}
        names = [name for of_namespace in events.values() for name in of_namespace]
        answers = dict(zip(names, self._stats.internal_stats(names), strict=True)) if self._stats and names else {}
        return {
            namespace: None
            if all(isinstance(answers.get(name), InternalStats) for name in of_namespace)
            else _NOT_LOADED
            for namespace, of_namespace in events.items()
            if of_namespace
        } | {namespace: "" for namespace, of_namespace in events.items() if not of_namespace}

    def _in_force(self, topic: str) -> Found | str:
        levels = (
            (self._own[base_topic(topic)], "topic"),
            (self._namespaces[namespace_of(topic)], "namespace"),
            (self._default, "broker"),
        )
        for found, level in levels:
            if isinstance(found, Retention):
                return found, level
            if found is not None:
                return found
        raise AssertionError("the brokers' default is known, or why it is not")


def _each(
    threads: ThreadPoolExecutor, read: Callable[[str], Retention | None], names: Iterable[str]
) -> dict[str, Retention | str | None]:
    def ask(name: str) -> Retention | str | None:
        try:
            return read(name)
        except (ReaperError, ValueError) as error:
            return str(error)

    asked = list(names)
    return dict(zip(asked, threads.map(ask, asked), strict=True))
