"""The brokers' memory as second witness: a topic is GONE only where a broker says so in words known to mean it.

1. Anything else that is not a complete answer is UNREADABLE, which counts as "in use".
2. Each partition is asked for itself: partitioned-internalStats leaves out partitions that failed.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from streaming.adapters.pulsar.http import Answer, PulsarAdminSettings, PulsarHttp, topic_path
from streaming.errors import ReaperError
from udfs.formats.internal_stats import view_of
from udfs.paths import checked_schema_id, decode_name, topic_of
from udfs.records import BrokerView, Presence

# Pulsar 4.0.8 says these with 404, measured; a 404 in other words may come from a proxy or mean another thing.
NO_PARTITION = "Topic partitions were not yet created"
_NO_NAMESPACE = "Namespace not found"
_NO_SCHEMA = "Schema not found"


class AdminBroker:
    """Broker by the admin API. Thread-safe; opens its connections when first used."""

    def __init__(self, settings: PulsarAdminSettings) -> None:
        self._http = PulsarHttp(settings)
        self._pool = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="admin")

    def views(self, managed_ledgers: Sequence[str]) -> list[BrokerView]:
        """Ask for each topic's internalStats, in order, concurrently. Never raises: UNREADABLE is a view."""
        return list(self._pool.map(self._view, managed_ledgers))

    def schema_views(self, schema_ids: Sequence[str]) -> list[BrokerView]:
        """Ask whether each schema (`tenant/ns/encoded`) exists, in order; its ledgers are not shown. Never raises.

        GONE does not say that the locator is gone: a deleted schema keeps its ledgers until the topic goes.
        """
        return list(self._pool.map(self._schema_view, schema_ids))

    def close(self) -> None:
        """Close the connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._http.close()

    def _view(self, managed_ledger: str) -> BrokerView:
        def ask() -> BrokerView:
            answer = self._http.get(f"{topic_path(managed_ledger)}/internalStats")
            if _says_gone(answer, topic_of(managed_ledger)):
                return BrokerView(Presence.GONE, detail=answer.reason)
            return view_of(answer.body) if answer.status == HTTPStatus.OK else _unreadable(answer)

        return _witness(ask)

    def _schema_view(self, schema_id: str) -> BrokerView:
        def ask() -> BrokerView:
            tenant, namespace, encoded = checked_schema_id(schema_id).split("/")
            topic = topic_path(f"persistent://{tenant}/{namespace}/{decode_name(encoded)}")
            answer = self._http.get(f"{topic.replace('v2/persistent/', 'v2/schemas/', 1)}/schema")
            if answer.status == HTTPStatus.NOT_FOUND and answer.reason == _NO_SCHEMA:
                return BrokerView(Presence.GONE, detail=answer.reason)
            if answer.status == HTTPStatus.OK and isinstance(answer.body, dict) and "version" in answer.body:
                return BrokerView(Presence.PRESENT)
            return _unreadable(answer)

        return _witness(ask)


def _says_gone(answer: Answer, topic: str) -> bool:
    if answer.status != HTTPStatus.NOT_FOUND:
        return False
    return answer.reason in (
        f"Topic {topic} not found",
        f"Partitioned Topic {topic} not found",
        f"Partitioned Topic not found: {topic} has zero partitions",
        NO_PARTITION,
        _NO_NAMESPACE,
    )


def _witness(ask: Callable[[], BrokerView]) -> BrokerView:
    try:
        return ask()
    except (ReaperError, ValueError) as error:
        return BrokerView(Presence.UNREADABLE, detail=str(error))


def _unreadable(answer: Answer) -> BrokerView:
    return BrokerView(Presence.UNREADABLE, detail=f"HTTP {answer.status}: {answer.reason}")
