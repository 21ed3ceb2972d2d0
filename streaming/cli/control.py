"""What a person says to the service: pause and resume (one flag in ZooKeeper for every instance), and accept."""

from collections.abc import Sequence

from streaming.adapters.zookeeper.store import ZooKeeperStore
from streaming.clients import admin_for, zookeeper_settings
from streaming.clock import SystemClock
from streaming.config.settings import Settings
from streaming.coordination.pause import Pause
from streaming.errors import ConfigError
from streaming.in_use.baseline import ALL, Accepted, accepted_path
from streaming.limits.breaker import Breaker, breaker_path
from streaming.reconcile.messages import accept_gaps
from streaming.topics.matching import matched_topics
from udfs.paths import managed_ledger_name


def pause(settings: Settings, why: str) -> str:
    """Set the flag; says what is so now."""
    store = ZooKeeperStore(zookeeper_settings(settings))
    try:
        Pause(store, settings.zookeeper.own_root).set(why)
    finally:
        store.close()
    return f"paused: {why}"


def accept(settings: Settings, topics: Sequence[str]) -> str:
    """What the sources of these owners name now is right, however little (none named: of all); says what is so now.

    Raises ConfigError for what is no topic's name.
    """
    zookeeper = settings.zookeeper
    try:
        names = [managed_ledger_name(topic) for topic in topics] or [ALL]
    except ValueError as error:
        raise ConfigError(f"--topic: {error}") from error
    store = ZooKeeperStore(zookeeper_settings(settings))
    try:
        accepted = Accepted(store, accepted_path(zookeeper.own_root, settings.service.name))
        accepted.add(names, now_ms=SystemClock().now_ms())
    finally:
        store.close()
    return f"accepted: {', '.join(topics) or 'every owner'} as it is now; the next retry goes by that"


def accept_vanished(settings: Settings) -> str:
    """No alarm any more for ledgers that vanished with unread messages; says for which. Raises UnavailableError."""
    with admin_for(settings) as admin:
        matched = matched_topics(admin, settings)
        accepted = accept_gaps(settings, admin, SystemClock().now_ms(), matched=matched)
    return f"accepted: {'; '.join(accepted)}" if accepted else "no ledger vanished with unread messages"


def resume(settings: Settings) -> str:
    """Clear the flag, and this instance's breaker where a limit was reached; says what is so now."""
    zookeeper = settings.zookeeper
    store = ZooKeeperStore(zookeeper_settings(settings))
    try:
        breaker = Breaker(store, breaker_path(zookeeper.own_root, settings.service.name))
        why = breaker.reason()
        granted = breaker.clear(now_ms=SystemClock().now_ms())
        cleared = Pause(store, zookeeper.own_root).clear()
    finally:
        store.close()
    if granted:
        return f"resumed; the limit that held it: {why}"
    return "resumed" if cleared else "was not paused"
