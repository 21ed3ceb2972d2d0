"""Retention is read by its level, without loading a topic, and is never guessed."""

import pytest

from streaming.errors import RefusedError, UnavailableError
from tests.builders import TOPIC
from tests.unit.space.cluster import Cluster, bytes_by
from udfs.paths import topic_of
from udfs.phase_one.trim_forecast import Retention
from udfs.space.causes import Cause

EVENTS = "public/default/persistent/__change_events"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_default_without_permission_is_unknown_and_not_zero(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    cluster.policies.brokers = RefusedError("no permission")
    assert bytes_by(cluster.measure()) == {Cause.HELD_OR_RETAINED: 1_000, Cause.OPEN_IDLE: 1_000}
    cluster.policies.namespaces["public/default"] = Retention(0, 0)
    assert bytes_by(cluster.measure()) == {Cause.TRIMMABLE: 1_000, Cause.OPEN_IDLE: 1_000}


def test_a_topics_own_policy_is_asked_for_only_if_that_loads_no_topic(cluster: Cluster) -> None:
    """A broker that is asked loads the namespace's __change_events, or creates it."""
    asked: list[str] = []
    cluster.policies.faults.before(lambda operation, _paths: asked.append(operation))
    cluster.policies.topics[topic_of(TOPIC)] = Retention(-1, -1)
    cluster.topic(1, 2)
    assert bytes_by(cluster.measure())[Cause.TRIMMABLE] == 1_000, "without __change_events no topic has a policy"
    cluster.topic(20, name=EVENTS)
    report = cluster.measure()
    assert bytes_by(report)[Cause.HELD_OR_RETAINED] == 1_000
    assert "__change_events" in report.unknown[0].detail
    assert "of_topic" not in asked
    cluster.load({}, name=EVENTS, ledgers=(20,))
    report = cluster.measure()
    assert bytes_by(report)[Cause.RETENTION] == 1_000
    assert report.policies[topic_of(TOPIC)].level == "topic"


def test_a_topic_with_a_v1_name_has_no_policy_of_its_own(cluster: Cluster) -> None:
    """Their __change_events exist, because brokers load them with such a topic, and need not be loaded."""
    name = "public/west/default/persistent/orders"
    cluster.topic(1, 2, name=name)
    cluster.topic(20, name="public/west/default/persistent/__change_events")
    cluster.policies.namespaces["public/west/default"] = Retention(-1, -1)
    report = cluster.measure()
    assert bytes_by(report, name)[Cause.RETENTION] == 1_000
    assert report.policies[topic_of(name)].level == "namespace"
    assert report.unknown == ()


def test_partitions_share_the_policy_of_their_topic(cluster: Cluster) -> None:
    cluster.topic(20, name=EVENTS)
    cluster.load({}, name=EVENTS, ledgers=(20,))
    cluster.policies.topics[topic_of(TOPIC)] = Retention(-1, -1)
    asked: list[str] = []
    cluster.policies.faults.before(lambda operation, _paths: asked.append(operation))
    for number in range(3):
        cluster.topic(100 * number + 30, 100 * number + 31, name=f"{TOPIC}-partition-{number}")
    report = cluster.measure()
    assert all(bytes_by(report, f"{TOPIC}-partition-{number}")[Cause.RETENTION] == 1_000 for number in range(3))
    assert asked.count("of_topic") == 1


def test_a_partly_loaded_change_events_topic_is_not_asked_for(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    for number in (0, 1):
        cluster.topic(20 + number, name=f"{EVENTS}-partition-{number}")
    cluster.load({}, name=f"{EVENTS}-partition-0", ledgers=(20,))
    asked: list[str] = []
    cluster.policies.faults.before(lambda operation, _paths: asked.append(operation))
    assert bytes_by(cluster.measure())[Cause.HELD_OR_RETAINED] == 1_000
    assert "of_topic" not in asked


def test_brokers_that_do_not_answer_are_asked_once(cluster: Cluster) -> None:
    for number in range(3):
        cluster.topic(10 * number, 10 * number + 1, name=f"public/ns{number}/persistent/x")
    asked: list[str] = []
    cluster.policies.faults.before(lambda operation, _paths: asked.append(operation))
    cluster.policies.brokers = UnavailableError("no answer")
    report = cluster.measure()
    assert asked == ["of_brokers"]
    (unknown,) = report.unknown
    assert (unknown.what, unknown.detail) == ("persistent://public/ns0/x and 2 more", "no answer")
    assert unknown.at_most == 3_000


def test_retention_is_not_read_where_it_decides_nothing(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    cluster.topic(3, 4, name="public/default/persistent/held")
    cluster.cursor("a", (3, 2), name="public/default/persistent/held")
    cluster.cursor("b", (3, 3), name="public/default/persistent/held")
    assert set(cluster.measure().policies) == {topic_of(TOPIC)}
