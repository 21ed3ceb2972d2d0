"""Finds the existing request topics that are not listed: the watcher's, and those that match requests_pattern."""

from streaming.config.settings import Settings
from streaming.errors import RefusedError
from streaming.ports import TopicAdmin
from udfs.requests.topic_pattern import TopicPattern


def matched_topics(admin: TopicAdmin, settings: Settings) -> tuple[str, ...]:
    """Return topics.watch if it exists, and after it the partitioned topics that match and are not listed, by name.

    A watcher creates topics.watch, whether it runs in the service or by itself. Raises what TopicAdmin raises.
    """
    topics, pattern = settings.topics, settings.topics.pattern
    watch = _watch(admin, settings)
    if pattern is None:
        return watch
    matching = {
        topic
        for namespace in _namespaces(admin, pattern)
        for topic in admin.partitioned_topics(namespace)
        if pattern.matches(topic) and topic not in topics.owned
        if not topics.is_lane(topic)  # the lane reader reads it, and would process each request again
    }
    return (*watch, *sorted(matching))


def _watch(admin: TopicAdmin, settings: Settings) -> tuple[str, ...]:
    try:
        return (settings.topics.watch,) if admin.partitions(settings.topics.watch) is not None else ()
    except RefusedError:
        if settings.watch.enabled:
            raise
        return ()  # without a watcher, the service needs no right to that topic


def _namespaces(admin: TopicAdmin, pattern: TopicPattern) -> list[str]:
    # if the pattern names the one tenant (namespace), tenants (namespaces) are not listed: this needs fewer rights
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
