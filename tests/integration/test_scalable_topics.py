"""Scalable topics on a real Pulsar 5.0.0-M1: audits find what segments leaked; what gone segments leaked is deleted.

No client of 5.0 is at hand, so segments have no messages: their ledgers are real, and the leaked ones are synthetic.
Orphan segments are removed only if the operator allows it, and nothing else with them.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from streaming.clients import clients_for, segment_remover
from streaming.errors import ReaperError
from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster
from tests.integration.conftest import Deployment, deployment, running_cluster
from udfs.formats.managed_ledger import in_use_ids
from udfs.formats.segment_layout import SegmentLayout, parse_layout
from udfs.paths import layout_path, managed_ledger_path, schema_path, topic_of
from udfs.records import LedgerComponent, LedgerMetadata

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long]

NAMESPACE = "public/scalable"
ORDERS, PRUNED, DELETED = f"{NAMESPACE}/orders", f"{NAMESPACE}/pruned", f"{NAMESPACE}/deleted"
VERSION = os.environ.get("LEDGER_REAPER_TEST_PULSAR") or "5.0.0-M1"
GC_SECONDS = 150.0  # a 5.0.0-M1 broker looks for sealed segments to prune every 60 s


@dataclass(frozen=True)
class World:
    """A cluster with scalable topics, and a service."""

    cluster: Cluster
    service: Deployment

    def admin(self, method: str, path: str, body: Any = None) -> str:
        return topics.admin(self.cluster, method, path, body)

    def layout(self, topic: str) -> SegmentLayout | None:
        (node,) = clients_for(self.service.settings).store.read_many([layout_path(topic)])
        return parse_layout(node.data) if node else None  # type: ignore[union-attr]

    def segments(self, topic: str) -> list[str]:
        namespace, _, name = topic.rpartition("/")
        (names,) = clients_for(self.service.settings).store.children_many(
            [f"/managed-ledgers/{namespace}/segment/{name}"]
        )
        return names or []  # type: ignore[return-value]

    def leak(self, segment: str, first_id: int) -> set[int]:
        return set(ledger_list.make_synthetic(self.cluster, segment, count=2, first_id=first_id))

    def audit(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the findings and the end of a complete audit."""
        lines = [
            json.loads(line)
            for line in self.service.call("audit", "--recheck-seconds", "3", "--json").splitlines()
            if line.startswith("{")
        ]
        assert lines[-1]["complete"]
        return lines[:-1], lines[-1]["totals"]

    def listed(self, segment: str) -> set[int]:
        """Return the ledgers that a segment's list names."""
        (node,) = clients_for(self.service.settings).store.read_many([managed_ledger_path(segment)])
        return set(in_use_ids(node.data).ids)  # type: ignore[union-attr]

    def allow_segments(self) -> None:
        """Let the service remove orphan segments."""
        text = self.service.config.read_text()
        allowed = f"allowed_components = {json.dumps(list(LedgerComponent))}"
        self.service.config.write_text(text.replace("[safety]\n", f"[safety]\n{allowed}\n"))

    def ledgers(self) -> set[int]:
        return set(ledger_list.every_ledger(self.cluster))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # without the setting, brokers merge idle segments by themselves
    settings = {"scalableTopicAutoScaleEnabled": "false"}
    with running_cluster(tmp_path_factory.mktemp("pulsar5"), pulsar=VERSION, broker_settings=settings) as running:
        created = World(running, deployment(running, tmp_path_factory.mktemp("service")))
        created.admin("PUT", f"namespaces/{NAMESPACE}")
        for path in ("orders?numInitialSegments=2", "pruned", "deleted", "persistent", "x%20y"):
            created.admin("PUT", f"scalable/{NAMESPACE}/{path}")
        created.admin("PUT", f"persistent/{NAMESPACE}/migrated/partitions", 2)
        created.admin("PUT", f"persistent/{NAMESPACE}/single")
        for name in ("migrated", "single"):
            created.admin("POST", f"scalable/{NAMESPACE}/{name}/migrate")
        yield created


def test_every_kind_of_scalable_topic_is_in_use(world: World) -> None:
    findings, totals = world.audit()

    # brokers of 5.0.1 keep the layout of a topic whose name is encoded at another path than its segments suggest
    encoded = ("UNKNOWN", "OWNER_UNREADABLE", f"segment://{NAMESPACE}/x%20y/0000-ffff-0")
    assert {(row["class"], row["reason"], row["topic"]) for row in findings} == (
        set() if VERSION == "5.0.0-M1" else {encoded}
    )
    assert totals["in_use"] == totals["ledgers"] > 0
    migrated = world.layout(f"{NAMESPACE}/migrated")
    assert migrated is not None
    assert [each.legacy_topic for each in migrated.segments.values() if not each.is_active] == [
        f"persistent://{NAMESPACE}/migrated-partition-{index}" for index in range(2)
    ]


def test_leaked_ledgers_of_gone_segments_are_found_and_deleted_and_those_of_a_loaded_segment_kept(
    world: World,
) -> None:
    kept = world.leak(f"{NAMESPACE}/segment/orders/0000-7fff-0", 1000)
    leaked = world.leak(f"{NAMESPACE}/segment/pruned/0000-ffff-0", 2000)
    leaked |= world.leak(f"{NAMESPACE}/segment/deleted/0000-ffff-0", 3000)
    world.admin("POST", f"scalable/{PRUNED}/split/0")
    world.admin("DELETE", f"scalable/{DELETED}")
    topics.wait_for(lambda: "0000-ffff-0" not in world.segments(PRUNED), "the prune of a segment", seconds=GC_SECONDS)
    topics.wait_for(lambda: not world.segments(DELETED), "the deletion of a topic")
    assert world.layout(DELETED) is None
    before = world.ledgers()

    findings, _totals = world.audit()

    assert {(row["class"], row["reason"], row["ledger_id"]) for row in findings} == {
        ("ORPHAN", "OWNER_GONE", ledger) for ledger in leaked
    } | {("UNKNOWN", "OWNER_HIDDEN", ledger) for ledger in kept}
    assert {row["topic"].partition("://")[0] for row in findings} == {"segment"}

    world.service.run("audit", "--last", "--publish", "--yes")
    world.service.run("run", "--until-idle", seconds=600)

    final = {row["ledger_id"]: row for rows in world.service.final().values() for row in rows}
    assert {ledger: (row["outcome"], row["reason"]) for ledger, row in final.items()} == dict.fromkeys(
        leaked, ("DELETED", "OWNER_GONE")
    )
    assert before - world.ledgers() == leaked
    assert {row["ledger_id"] for row in world.audit()[0]} == kept


def test_a_segment_explains_itself_and_space_names_what_brokers_hide(world: World) -> None:
    segment = f"segment://{NAMESPACE}/orders/0000-7fff-0"
    (leaked, *_others) = sorted(world.leak(segment, 4000))

    assert segment in world.service.call("explain", str(leaked))
    assert "brokers do not show a segment's ledgers" in world.service.call("space", code=4)
    assert managed_ledger_path(segment) == f"/managed-ledgers/{NAMESPACE}/segment/orders/0000-7fff-0"


def _killed(world: World, method: str, path: str, when: Callable[[], bool]) -> None:
    """Send a request, and kill the broker as soon as a condition holds; start it again."""

    def send() -> None:
        with suppress(ReaperError):
            world.admin(method, path)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(send)
        deadline = time.monotonic() + GC_SECONDS
        while not when():
            assert time.monotonic() < deadline
            time.sleep(0.002)
        cluster_faults.kill_brokers(world.cluster)
    cluster_faults.restart_brokers(world.cluster)


def _unnamed(world: World, name: str) -> set[str]:
    """Return a topic's segments that its layout does not name."""
    layout = world.layout(f"{NAMESPACE}/{name}")
    named = layout.segments if layout else {}
    segments = [f"{NAMESPACE}/segment/{name}/{each}" for each in world.segments(f"{NAMESPACE}/{name}")]
    return {each for each in segments if int(each.rpartition("-")[2]) not in named}


def _left_by_dying_brokers(world: World) -> dict[str, set[str]]:
    """Kill brokers during a split, a merge, a prune and a deletion; return the segments that they leave."""
    for path in ("dying?numInitialSegments=16", "split", "merge?numInitialSegments=2", "prune"):
        world.admin("PUT", f"scalable/{NAMESPACE}/{path}")

    def has_child(name: str, segment: str) -> bool:
        return segment in world.segments(f"{NAMESPACE}/{name}") and bool(
            world.listed(f"{NAMESPACE}/segment/{name}/{segment}")
        )

    def is_pruned() -> bool:
        layout = world.layout(f"{NAMESPACE}/prune")
        return layout is not None and layout.next_segment_id == 3 and 0 not in layout.segments

    _killed(world, "POST", f"scalable/{NAMESPACE}/split/split/0", lambda: has_child("split", "0000-7fff-1"))
    _killed(world, "POST", f"scalable/{NAMESPACE}/merge/merge/0/1", lambda: has_child("merge", "0000-ffff-2"))
    _killed(world, "POST", f"scalable/{NAMESPACE}/prune/split/0", is_pruned)
    _killed(world, "DELETE", f"scalable/{NAMESPACE}/dying", lambda: world.layout(f"{NAMESPACE}/dying") is None)
    return {name: _unnamed(world, name) for name in ("split", "merge", "prune", "dying")}


def test_segments_that_dying_brokers_leave_are_reported_and_removed_if_the_operator_allows_it(world: World) -> None:
    # a live topic with messages; and a persistent topic whose schema a broker deletes with a segment of the same name
    legacy, typed = f"persistent://{NAMESPACE}/legacy", f"persistent://{NAMESPACE}/typed"
    for topic in (legacy, typed):
        topics.fill(world.cluster, topic, 2, ["s"])
        topics.publish(world.cluster, topic, 5)
    world.admin("POST", f"scalable/{NAMESPACE}/legacy/migrate")
    topics.post_schema_versions(world.cluster, typed, 1)
    world.admin("PUT", f"segments/{NAMESPACE}/typed/0000-ffff-0", [])
    left = _left_by_dying_brokers(world) | {"typed": _unnamed(world, "typed")}
    ahead = left["split"] | left["merge"]
    # each may end before the broker is killed, but a deletion of 16 segments hardly does
    assert left["typed"], left
    assert left["dying"], left
    assert ahead | left["prune"], left
    ledgers = {segment: world.listed(segment) for each in left.values() for segment in each}

    findings, totals = world.audit()

    found = [row for row in findings if row["class"] == "ORPHAN_SEGMENT"]
    assert {row["ledger_id"] for row in found} == {ledger for each in ledgers.values() for ledger in each}
    assert totals["ORPHAN_SEGMENT"]["count"] == len(found)
    removable = left["prune"] | left["dying"]  # the next split or merge may take the others over
    assert {row["reason"] for row in found if row["ledger_id"] in _of(ledgers, ahead)} <= {"SEGMENT_AHEAD"}
    before = ledger_list.every_ledger(world.cluster)

    world.service.run("audit", "--last", "--publish", "--yes")
    world.service.run("run", "--until-idle", seconds=600)
    assert _of(ledgers, ledgers) <= world.ledgers(), "not allowed by default"

    world.allow_segments()
    world.audit()
    world.service.run("audit", "--last", "--publish", "--yes")
    world.service.run("run", "--until-idle", seconds=600)

    final = [row for rows in world.service.final().values() for row in rows]
    removals = {row["topic"]: (row["outcome"], row["reason"]) for row in final if row["ledger_type"] == "SEGMENT"}
    assert removals == {topic_of(segment): ("DELETED", "SEGMENT_UNNAMED") for segment in removable} | {
        topic_of(segment): ("DEAD_LETTER", "NOT_REMOVABLE") for segment in left["typed"]
    }
    orphans = {row["ledger_id"] for row in final if row["ledger_type"] == "LEDGER" and row["outcome"] == "DELETED"}
    leaked = _of(ledgers, removable) & world.ledgers()  # a broker may leak the last ledger of a terminated segment
    assert len(leaked) <= len(left["prune"])
    gone = {ledger for ledger in before.keys() - world.ledgers() - orphans if _names_segment(before[ledger])}
    assert gone == _of(ledgers, removable) - leaked
    assert leaked <= {row["ledger_id"] for row in world.audit()[0] if row["class"] in {"ORPHAN", "OPEN"}}
    assert not any(_unnamed(world, name) for name in ("prune", "dying"))
    assert len(topics.read_all(world.cluster, legacy)) == len(topics.read_all(world.cluster, typed)) == 25
    assert topics.schema_ledgers(world.cluster, typed)
    text = world.service.run("undo", "--ledger", str(min(_of(ledgers, removable))), code=(0, 1))
    assert "Nothing restores a segment" in text or "TOO_LATE" in text

    topics.delete_schema(world.cluster, typed)
    with segment_remover(world.service.settings) as remover:
        assert all(remover.delete(segment, lambda: True) for segment in left["typed"])
        assert not remover.delete(f"{NAMESPACE}/segment/orders/0000-7fff-0", lambda: True), "its layout names it"
    assert not _unnamed(world, "typed")
    assert "0000-7fff-0" in world.segments(ORDERS)


def test_a_broker_deletes_the_schema_of_its_topics_name_with_any_segment(world: World) -> None:
    """The reason why the service keeps such a segment. Brokers of 5.0.1 keep the schema."""
    world.admin("PUT", f"scalable/{NAMESPACE}/shared?numInitialSegments=2")
    topics.post_schema_versions(world.cluster, f"persistent://{NAMESPACE}/shared", 1)
    store = clients_for(world.service.settings).store
    path = schema_path(f"{NAMESPACE}/shared")
    assert store.read_many([path]) != [None]

    world.admin("DELETE", f"segments/{NAMESPACE}/shared/0000-7fff-0")

    assert (store.read_many([path]) == [None]) is (VERSION == "5.0.0-M1")
    assert world.layout(f"{NAMESPACE}/shared") is not None, "although the topic is in use"


def _names_segment(metadata: LedgerMetadata) -> bool:
    return b"/segment/" in metadata.custom_metadata.get("pulsar/managed-ledger", b"")


def _of(ledgers: Mapping[str, set[int]], segments: Iterable[str]) -> set[int]:
    return {ledger for segment in segments for ledger in ledgers[segment]}
