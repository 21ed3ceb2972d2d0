"""Before a chunk is swept: owners without an admitted request are not read, and a doubt affects one tenant only."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.cli import control
from streaming.config.load import load
from streaming.deletion.chunks.chunk import OwnersInUse
from streaming.deletion.chunks.held_tenants import HeldTenants
from streaming.deletion.gate import Gate
from streaming.errors import StopRequestedError, UnavailableError
from streaming.in_use.baseline import Accepted, Baseline, accepted_path
from streaming.in_use.cache import InUseCache
from streaming.in_use.source_watch import SourceWatch
from streaming.limits.tenants import TenantHolds, tenant_holds_path
from streaming.metrics import Metrics
from tests.builders import NOW_MS, list_znode, view
from tests.world import Bench
from udfs.paths import managed_ledger_path
from udfs.records import Presence
from udfs.verdicts.judge import Policy

SETTINGS = load(None)
ROOT_OF_OURS, NAME = SETTINGS.zookeeper.own_root, SETTINGS.service.name
MANY = 150


def topics(tenant: str, n: int = MANY) -> list[str]:
    return [f"{tenant}/ns/persistent/t{number}" for number in range(n)]


def asked(*names: str) -> list[tuple[str, str]]:
    return [(name.partition("/")[0], f"data:{name}") for name in names]


class Scene:
    """A cluster with two tenants, whose topics are all known. reads: every path that was read from ZooKeeper."""

    def __init__(self, state_dir: str) -> None:
        self.bench = Bench()
        self.store = MemoryStore()  # of our own znodes
        self.metrics = Metrics()
        self.lines: list[str] = []
        self.doubts: list[str] = []
        self.state_dir = state_dir
        self.owners = self.begin()
        for name in (*topics("shop"), *topics("bank")):
            self.bench.owner(managed_ledger_path(name), list_znode(8, 9))
            self.bench.broker.topics[name] = view(8, 9)
        self.learn()
        self.reads: list[str] = []
        self.bench.store.faults.before(lambda _operation, paths: self.reads.extend(paths))

    def begin(self) -> OwnersInUse:
        """A run of the service."""
        accepted = Accepted(self.store, accepted_path(ROOT_OF_OURS, NAME))
        policy = Policy(
            min_age_ms=1, above_newest_quarantine_ms=1, absence_interval_ms=1, max_shrink=0.8, shrink_applies_above=100
        )
        loader = self.bench.loader()
        watch = SourceWatch(Baseline(policy), accepted.read, self.state_dir, self.lines.append)
        watch.recall(now_ms=NOW_MS)
        gate = SimpleNamespace(hold_if_doubted=self.hold_if_doubted)
        holds = TenantHolds(self.store, tenant_holds_path(ROOT_OF_OURS, NAME))
        tenants = HeldTenants(holds, self.metrics, self.lines.append)
        cache = InUseCache(loader=loader, clock=self.bench.clock, refresh_ms=600_000, max_bytes=10**8)
        return OwnersInUse(cache, watch, cast("Gate", cast("Any", gate)), tenants)

    def hold_if_doubted(self, _query: str, doubt: str) -> None:
        """No operator resumes."""
        self.doubts.append(doubt)
        raise StopRequestedError

    def learn(self) -> None:
        self.owners.watch.baseline.learn(
            (key, f"zookeeper=2@1 broker=2 at={NOW_MS}") for _tenant, key in asked(*topics("shop"), *topics("bank"))
        )

    def lose(self, *names: str) -> None:
        for name in names:
            self.bench.tree.remove(managed_ledger_path(name))
            del self.bench.broker.topics[name]

    def held(self, tenant: str) -> float | None:
        return self.metrics.registry.get_sample_value("ledger_reaper_tenant_held", {"tenant": tenant})


@pytest.fixture
def scene(tmp_path: Any) -> Scene:
    return Scene(str(tmp_path))


def test_only_owners_of_admitted_requests_are_read(scene: Scene) -> None:
    name = topics("bank")[3]
    known = scene.owners("requests", asked(name))
    assert known.references.keys() == {f"data:{name}"}
    assert scene.reads == [managed_ledger_path(name)]
    assert scene.bench.broker.asked == [name]


def test_without_an_admitted_request_nothing_is_read(scene: Scene) -> None:
    scene.owners("requests", [])
    assert (scene.reads, scene.bench.broker.asked) == ([], [])


def test_a_tenant_that_lost_most_of_its_topics_is_held_alone_by_name_until_a_person_resumes(scene: Scene) -> None:
    scene.lose(*topics("shop"))
    known = scene.owners("requests", asked(*topics("shop"), topics("bank")[0]))
    assert known.held.keys() == {"shop"}
    assert f"data:{topics('bank')[0]}" in known.references
    assert (scene.doubts, scene.held("shop"), scene.held("bank")) == ([], 1, None)
    assert [line for line in scene.lines if "TENANT HELD, nothing of shop is deleted: 150 of the 150 owners" in line]

    assert control.resume_tenant(SETTINGS, scene.store, "shop").startswith("released tenant shop")
    known = scene.owners("requests", asked(*topics("shop")))
    assert known.held == {}
    assert {each.presence for each in known.references.values()} == {Presence.GONE}
    assert (scene.held("shop"), scene.lines[-1]) == (None, "tenant shop resumed")


def test_a_held_tenants_owners_are_not_read_also_by_a_later_run(scene: Scene) -> None:
    scene.lose(*topics("shop"))
    scene.owners("requests", asked(*topics("shop")))
    scene.owners = scene.begin()
    del scene.reads[:], scene.bench.broker.asked[:]
    known = scene.owners("requests", asked(*topics("shop"), topics("bank")[0]))
    assert known.held.keys() == {"shop"}
    assert scene.bench.broker.asked == [topics("bank")[0]]
    assert scene.reads == [managed_ledger_path(topics("bank")[0])]


def test_if_all_tenants_lose_most_of_their_topics_everything_waits(scene: Scene) -> None:
    scene.lose(*topics("shop"), *topics("bank"))
    with pytest.raises(StopRequestedError):
        scene.owners("requests", asked(*topics("shop"), *topics("bank")))
    assert len(scene.doubts) == 1
    assert "300 of the 300 owners known are gone at once" in scene.doubts[0]
    assert scene.owners.tenants.now() == {}


def test_nothing_is_deleted_while_the_held_tenants_are_unknown(scene: Scene) -> None:
    scene.store.faults.away = True
    with pytest.raises(UnavailableError, match="unreachable"):
        scene.owners("requests", asked(topics("bank")[0]))
