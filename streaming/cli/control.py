"""The operator's commands to a service: pause, resume, accept and release. Each changes a znode."""

import contextlib
from collections.abc import Iterator, Sequence
from threading import Event

from streaming.cli.history import Unchanged
from streaming.clock import SystemClock
from streaming.config.amounts import topic_from
from streaming.config.settings import Settings
from streaming.coordination.agreed_clock import AgreedClock
from streaming.coordination.lock import InstanceLock
from streaming.coordination.ownership import Ownership
from streaming.coordination.pause import Pause
from streaming.errors import ConfigError, SafetyError
from streaming.in_use.baseline import ALL, Accepted, accepted_path, all_of
from streaming.limits.breaker import Breaker, breaker_path
from streaming.limits.tenants import TenantHolds, tenant_holds_path
from streaming.ports import MetadataStore, Pulsar
from streaming.reconcile.accounting import accept_gaps
from streaming.topics.setup import watch_topic
from udfs.paths import managed_ledger_name


def pause(settings: Settings, store: MetadataStore, why: str, *, for_ms: int | None = None, force: bool = False) -> str:
    """Set the pause; return a message about the new state.

    Raises ConfigError for an empty reason, SafetyError if a pause is set already and `force` is not, UnavailableError.
    """
    if not why.strip():
        raise ConfigError('--why: give a reason, as in --why "broker upgrade, INC-7"; `status` and `check` show it')
    flag = Pause(store, settings.zookeeper.own_root)
    flag.ended(lambda: AgreedClock(store, settings.zookeeper.own_root, settings.service.name).now_ms())
    replaced = flag.set(why, for_ms=for_ms, force=force)
    paused = f"paused: {flag.reason()}"
    return f"{paused}; it replaces the pause: {replaced.text}" if replaced else paused


def resume(settings: Settings, store: MetadataStore) -> str:
    """End the pause, and nothing else; return a message about the new state. Raises UnavailableError."""
    flag = Pause(store, settings.zookeeper.own_root)
    present = flag.read()
    if present is None:
        return Unchanged("was not paused")
    if not flag.end(present):
        raise SafetyError(
            f"the pause changed before it could be ended, so it lasts: {flag.reason() or 'it has ended by itself'}"
        )
    return f"ended the pause: {present.text}"


def resume_limit(settings: Settings, store: MetadataStore) -> str:
    """Let this service resume although a limit was reached; return a message. Raises UnavailableError."""
    breaker = Breaker(store, breaker_path(settings.zookeeper.own_root, settings.service.name))
    why = breaker.reason()
    if breaker.clear(now_ms=SystemClock().now_ms()):
        return f"released; a limit held the service: {why}"
    return Unchanged("no limit holds the service")


def resume_tenant(settings: Settings, store: MetadataStore, tenant: str) -> str:
    """Release a held tenant; return a message about the new state. Raises UnavailableError."""
    root, name = settings.zookeeper.own_root, settings.service.name
    holds = TenantHolds(store, tenant_holds_path(root, name))
    held = holds.readable()
    if held is None:
        holds.release(tenant)
        return f"released all tenants, because {holds.path} could not be parsed"
    if tenant not in held:
        return Unchanged(f"tenant {tenant} is not held")
    # The baselines of the tenant's owners are discarded first: if the command ends in between, the tenant stays held.
    Accepted(store, accepted_path(root, name)).add([all_of(tenant)], now_ms=SystemClock().now_ms())
    holds.release(tenant)
    return f"released tenant {tenant}, which was held: {held[tenant]}"


def accept(settings: Settings, store: MetadataStore, topics: Sequence[str]) -> str:
    """Accept the current lists of these owners, however short they are (no topic: of all owners).

    Returns a message about the new state. Raises ConfigError for an invalid topic name.
    """
    zookeeper = settings.zookeeper
    names = [managed_ledger_name(topic_from(topic, "--topic")) for topic in topics] or [ALL]
    accepted = Accepted(store, accepted_path(zookeeper.own_root, settings.service.name))
    accepted.add(names, now_ms=SystemClock().now_ms())
    return f"accepted: {', '.join(topics) or 'every owner'} as it is now; the next retry uses this list"


@contextlib.contextmanager
def stopped(settings: Settings, store: MetadataStore) -> Iterator[Event]:
    """Keep the service from starting until the with block ends. Raises SafetyError if it runs.

    Yields an event that is set once a service may start all the same, because our session with ZooKeeper has ended.
    """
    lost = Event()
    with InstanceLock(store, settings.zookeeper.own_root, settings.service.name, on_lost=lost.set):
        yield lost


def releasable(settings: Settings, store: MetadataStore, topics: Sequence[str]) -> list[str]:
    """Return those of the topics that the service owns; without topics, all that it owns.

    Raises ConfigError if there are none.
    """
    named = {topic_from(topic, "--topic") for topic in topics}
    owned = Ownership(store, settings.zookeeper.own_root, settings.service.name).owned()
    releasable = [topic for topic in owned if topic in named or not named]
    if not releasable:
        owns = f"it owns {', '.join(owned)}" if owned else "it owns no topic"
        raise ConfigError(f"service {settings.service.name} has no topic to release: {owns}")
    return releasable


def release(settings: Settings, store: MetadataStore, topics: Sequence[str]) -> str:
    """Release these topics; return a message about the new state."""
    released = Ownership(store, settings.zookeeper.own_root, settings.service.name).release(topics)
    return f"released: {', '.join(released)}; another service may read them now"


def release_state(settings: Settings, store: MetadataStore) -> str:
    """Forget the state directory of the service; return a message about the new state."""
    was_recorded = Ownership(store, settings.zookeeper.own_root, settings.service.name).release_state()
    if was_recorded:
        return "released the state directory: the next start may use another"
    return Unchanged("no state directory was recorded")


def accept_vanished(settings: Settings, pulsar: Pulsar) -> str:
    """End the alarm for ledgers that vanished with unread messages; return a message that names them.

    Raises UnavailableError.
    """
    watch = watch_topic(pulsar.admin, settings)
    accepted = accept_gaps(settings, pulsar, SystemClock().now_ms(), unlisted=watch)
    if not accepted:
        return Unchanged("no ledger vanished with unread messages")
    return f"accepted: {'; '.join(accepted)}"
