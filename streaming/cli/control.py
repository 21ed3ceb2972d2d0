"""What a person says to the service: pause and resume (one flag in ZooKeeper for every instance), and accept."""

from collections.abc import Sequence

from streaming.clock import SystemClock
from streaming.config.settings import Settings
from streaming.coordination.pause import Pause
from streaming.errors import ConfigError
from streaming.in_use.baseline import ALL, Accepted, accepted_path, all_of
from streaming.limits.breaker import Breaker, breaker_path
from streaming.limits.tenants import TenantHolds, tenant_holds_path
from streaming.ports import MetadataStore, Pulsar
from streaming.reconcile.messages import accept_gaps
from streaming.topics.matching import matched_topics
from udfs.paths import managed_ledger_name


def pause(settings: Settings, store: MetadataStore, why: str) -> str:
    """Set the flag; returns in words what is so now."""
    Pause(store, settings.zookeeper.own_root).set(why)
    return f"paused: {why}"


def resume(settings: Settings, store: MetadataStore) -> str:
    """Clear the flag, this instance's breaker where a limit was reached, and its held tenants.

    Returns in words what is so now.
    """
    zookeeper = settings.zookeeper
    breaker = Breaker(store, breaker_path(zookeeper.own_root, settings.service.name))
    why = breaker.reason()
    granted = breaker.clear(now_ms=SystemClock().now_ms())
    tenants = _resume_tenants(settings, store)
    cleared = Pause(store, zookeeper.own_root).clear()
    if granted:
        return f"resumed; the limit that held it: {why}{tenants}"
    return f"resumed{tenants}" if cleared or tenants else "was not paused"


def _resume_tenants(settings: Settings, store: MetadataStore) -> str:
    """Let go of tenants that are held; returns in words which they were.

    What is known of their owners is forgotten first. If the command ends in between, they are held still.
    """
    root, name = settings.zookeeper.own_root, settings.service.name
    holds = TenantHolds(store, tenant_holds_path(root, name))
    held = holds.readable()
    if held == {}:
        return ""
    if held:
        accepted = Accepted(store, accepted_path(root, name))
        accepted.add([all_of(tenant) for tenant in held], now_ms=SystemClock().now_ms())
    holds.clear()
    return f"; tenants that were held: {', '.join(sorted(held)) if held else holds.path + ' did not tell which'}"


def accept(settings: Settings, store: MetadataStore, topics: Sequence[str]) -> str:
    """Take what the lists of these owners name now for right, however little it is (no topic: of all owners).

    Returns in words what is so now. Raises ConfigError for what is no topic's name.
    """
    zookeeper = settings.zookeeper
    try:
        names = [managed_ledger_name(topic) for topic in topics] or [ALL]
    except ValueError as error:
        raise ConfigError(f"--topic: {error}") from error
    accepted = Accepted(store, accepted_path(zookeeper.own_root, settings.service.name))
    accepted.add(names, now_ms=SystemClock().now_ms())
    return f"accepted: {', '.join(topics) or 'every owner'} as it is now; the next retry goes by that"


def accept_vanished(settings: Settings, pulsar: Pulsar) -> str:
    """Raise no alarm any more for ledgers that vanished with unread messages; returns in words which they are.

    Raises UnavailableError.
    """
    matched = matched_topics(pulsar.admin, settings)
    accepted = accept_gaps(settings, pulsar, SystemClock().now_ms(), matched=matched)
    return f"accepted: {'; '.join(accepted)}" if accepted else "no ledger vanished with unread messages"
