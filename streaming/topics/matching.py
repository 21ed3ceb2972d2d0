"""Which request topics there are now beside the listed ones: the watcher's, and those that match requests_pattern.

We ask the admin API only about namespaces that can hold any.
"""

from streaming.config.settings import Settings
from streaming.errors import RefusedError
from streaming.ports import TopicAdmin
from udfs.topic_pattern import TopicPattern


def matched_topics(admin: TopicAdmin, settings: Settings) -> tuple[str, ...]:
    """Partitioned topics that match and are not listed in topics.requests, by name. Raises what TopicAdmin does.

    topics.watch is the first of them where it exists: a watcher makes it, beside the service or by itself.
    """
    topics, pattern = settings.topics, settings.topics.pattern
    watch = _watch(admin, settings)
    if pattern is None:
        return watch
    found = {
        topic
        for namespace in _namespaces(admin, pattern)
        for topic in admin.partitioned_topics(namespace)
        if topics.takes(topic) and topic not in (*topics.requests, topics.watch)
    }
    return (*watch, *sorted(found))


def _watch(admin: TopicAdmin, settings: Settings) -> tuple[str, ...]:
    try:
        return (settings.topics.watch,) if admin.partitions(settings.topics.watch) is not None else ()
    except RefusedError:
        if settings.watch.enabled:
            raise
        return ()  # where nobody watches, the service needs no right there


def _namespaces(admin: TopicAdmin, pattern: TopicPattern) -> list[str]:
    """We don't ask for what the pattern names itself: so the service needs fewer rights."""
    tenants = admin.tenants() if pattern.only_tenant is None else [pattern.only_tenant]
    return [
        namespace
        for tenant in tenants
        if pattern.takes_tenant(tenant)
        for namespace in (
            admin.namespaces(tenant) if pattern.only_namespace is None else [f"{tenant}/{pattern.only_namespace}"]
        )
        if pattern.takes_namespace(namespace)
    ]
