"""The brokers' memory as second witness: a topic is GONE only where a broker says so in words known to mean it.

1. Anything else that is not a complete answer is UNREADABLE, which counts as "in use".
2. Each partition is asked for itself: partitioned-internalStats leaves out partitions that failed.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

from streaming.adapters.pulsar.http import Answer, PulsarAdminSettings, PulsarHttp, topic_path
from streaming.errors import ReaperError
from udfs.paths import checked_schema_id, decode_name, topic_of
from udfs.records import BrokerView, Presence
from udfs.references import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR

# Pulsar 4.0.8 says these with 404, measured; a 404 in other words may come from a proxy or mean another thing.
_NO_PARTITION = "Topic partitions were not yet created"
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


def view_of(stats: Any) -> BrokerView:
    """Read internalStats; UNREADABLE where anything that decides is missing or of another type than known."""
    try:
        return BrokerView(
            Presence.PRESENT,
            ledgers=_ids(stats["ledgers"]),
            cursors={str(name): _id(cursor["cursorLedger"]) for name, cursor in stats["cursors"].items()},
            compacted_ledger=_id(stats["compactedLedger"]["ledgerId"]),
            compacted_by_cursor=_compacted_by_cursor(stats["cursors"].get(COMPACTION_CURSOR)),
        )
    except (KeyError, TypeError, AttributeError) as error:
        return BrokerView(Presence.UNREADABLE, detail=f"internalStats of a form not known: {error!r}")


def _says_gone(answer: Answer, topic: str) -> bool:
    if answer.status != HTTPStatus.NOT_FOUND:
        return False
    return answer.reason in (
        f"Topic {topic} not found",
        f"Partitioned Topic {topic} not found",
        f"Partitioned Topic not found: {topic} has zero partitions",
        _NO_PARTITION,
        _NO_NAMESPACE,
    )


def _witness(ask: Callable[[], BrokerView]) -> BrokerView:
    try:
        return ask()
    except (ReaperError, ValueError) as error:
        return BrokerView(Presence.UNREADABLE, detail=str(error))


def _unreadable(answer: Answer) -> BrokerView:
    return BrokerView(Presence.UNREADABLE, detail=f"HTTP {answer.status}: {answer.reason}")


def _compacted_by_cursor(cursor: Mapping[str, Any] | None) -> int:
    properties = cursor["properties"] if cursor is not None else {}
    return _id(properties.get(COMPACTED_LEDGER_PROPERTY, -1))


def _ids(ledgers: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    return tuple(_id(ledger["ledgerId"]) for ledger in ledgers)


def _id(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no ledger id")
    return value
