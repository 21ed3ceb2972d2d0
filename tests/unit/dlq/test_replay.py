"""The counts and refusals of replays and write-offs; dry runs publish, lock and write nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.store import MemoryStore
from streaming.clients import CommandClients
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.identity import ClusterIdentity
from streaming.coordination.lock import InstanceLock
from streaming.dlq import replay as work
from streaming.dlq.letters import DeadLetterFilters
from streaming.dlq.replay import REPLAY_ID, ReplayReport
from streaming.errors import ConfigError, SafetyError
from streaming.schemas import DLQ
from streaming.state.settlements import REPLAYING, WRITTEN_OFF, SettlementFolder
from tests.builders import NOW_MS, data_request, put
from tests.services import command_clients_of
from udfs import columns as c
from udfs.records import Reason
from udfs.requests.lanes import Lanes
from udfs.requests.replay_target import UNPROVEN
from udfs.requests.request_format import encode

REQUESTS = "persistent://pulsar/system/__ledger_deletion"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Two request topics."""
    file = tmp_path / "config.toml"
    file.write_text(
        f'[topics]\nrequests = ["{REQUESTS}", "{REQUESTS}-too"]\ntrusted_tenants = ["pulsar"]\n'
        f'[state]\ndir = "{tmp_path}"\n'
    )
    return load(file)


@pytest.fixture
def pulsar(settings: Settings) -> MemoryPulsar:
    """Three dead letters without receipts; the newest is being replayed."""
    memory = MemoryPulsar(ManualClock(NOW_MS))
    partition = f"{settings.topics.dead_letter}-partition-2"
    memory.ensure_namespace(settings.topics.dead_letter)
    memory.create_partitioned_topic(settings.topics.dead_letter, 3)
    for topic in settings.topics.requests:
        memory.create_partitioned_topic(topic, 1)
    for _ in range(3):
        letter = memory.publish(partition, encode(data_request()), {"REASON": "IN_USE: listed"}, key="key")
    rows: list[dict[str, Any]] = [
        {
            **dict(zip(c.POSITION, (partition, letter.ledger_id, entry, -1), strict=True)),
            c.MESSAGE_KEY: "k",
            c.PAYLOAD: b"",
            c.MESSAGE_PROPERTIES: [],
        }
        for entry in (2, 7, 8)
    ]
    with SettlementFolder(settings.state.dir).plan(NOW_MS, REQUESTS, {}) as writer:
        writer.add(rows)
    return memory


@pytest.fixture
def clients(pulsar: MemoryPulsar) -> CommandClients:
    return command_clients_of(MemoryStore(), pulsar)


def test_a_dry_write_off_counts_what_would_be_written_off_and_publishes_nothing(
    settings: Settings, clients: CommandClients, pulsar: MemoryPulsar
) -> None:
    effects = pulsar.faults.effects
    report = work.write_off(settings, clients, DeadLetterFilters(), "junk", dry_run=True)
    assert report == ReplayReport(settled=2, skipped={REPLAYING: 1})
    assert work.is_interrupted(settings)
    assert pulsar.faults.effects == effects
    assert isinstance(clients.store, MemoryStore)
    assert clients.store.tree.paths() == ["/"]


def test_a_dry_replay_counts_what_its_topic_does_not_hold_yet(
    settings: Settings, clients: CommandClients, pulsar: MemoryPulsar
) -> None:
    (plan,) = SettlementFolder(settings.state.dir).unfinished()
    for each in (f"{plan.run}/0", f"{plan.run}/2", f"{plan.run}/99", "replay-1-another/1"):
        pulsar.publish(f"{REQUESTS}-partition-0", properties={REPLAY_ID: each})

    report = work.replay(settings, clients, DeadLetterFilters(), to=f"{REQUESTS}-too", dry_run=True)
    assert report == ReplayReport(settled=2, resumed=1, to={REQUESTS: 1, f"{REQUESTS}-too": 2}, skipped={REPLAYING: 1})


def test_a_letter_whose_topic_is_in_no_receipt_is_only_replayed_to_the_operators_topic(
    settings: Settings, clients: CommandClients
) -> None:
    report = work.replay(settings, clients, DeadLetterFilters(), dry_run=True)
    assert report == ReplayReport(resumed=3, to={REQUESTS: 3}, skipped={REPLAYING: 1}, stays={UNPROVEN: 2})
    with pytest.raises(ConfigError, match="no request topic of this service"):
        work.replay(settings, clients, DeadLetterFilters(), to="persistent://public/default/x", dry_run=True)


def _known_cluster(settings: Settings, clients: CommandClients) -> ClusterIdentity:
    assert isinstance(clients.store, MemoryStore)
    root = settings.zookeeper.ledgers_root
    put(clients.store.tree, f"{root}/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
    put(clients.store.tree, f"{root}/INSTANCEID", b"id")
    return identity.of_cluster(settings, clients.store, clients.pulsar.admin)


def test_a_write_off_gives_each_letter_that_waits_a_receipt_once(settings: Settings, clients: CommandClients) -> None:
    _known_cluster(settings, clients)
    report = work.write_off(settings, clients, DeadLetterFilters(), "junk")
    assert report == ReplayReport(settled=2, skipped={REPLAYING: 1})
    rows = list(SettlementFolder(settings.state.dir).written_off())
    assert {(row[c.QUERY], row[c.REASON]) for row in rows} == {(DLQ, str(Reason.WRITTEN_OFF))}
    assert all("junk (by " in row[c.DETAIL] for row in rows)
    again = work.write_off(settings, clients, DeadLetterFilters(), "junk")
    assert again == ReplayReport(settled=0, skipped={REPLAYING: 1, WRITTEN_OFF: 2})


def test_nothing_is_settled_with_another_clusters_state_or_beside_another_run(
    settings: Settings, clients: CommandClients
) -> None:
    here = _known_cluster(settings, clients)
    lock = InstanceLock(clients.store, settings.zookeeper.own_root, "main.dlq", on_lost=lambda: None)
    with lock, pytest.raises(SafetyError, match="already runs"):
        work.write_off(settings, clients, DeadLetterFilters(), "junk")
    identity.hold(replace(here, instance_id="another"), settings.state.dir)
    with pytest.raises(SafetyError, match="belongs to another cluster"):
        work.write_off(settings, clients, DeadLetterFilters(), "junk")
    assert list(SettlementFolder(settings.state.dir).written_off()) == []


def _with_lanes(settings: Settings) -> Settings:
    return settings.model_copy(update={"topics": settings.topics.model_copy(update={"lanes": Lanes.TENANT})})


def test_letters_go_to_a_lane_that_was_deleted_and_a_dry_run_does_not_create_it(
    settings: Settings, clients: CommandClients, pulsar: MemoryPulsar
) -> None:
    lane, with_lanes = "persistent://public/ledger-deletion/__ledger_deletion", _with_lanes(settings)
    assert work.replay(with_lanes, clients, DeadLetterFilters(), to=lane, dry_run=True).to[lane] == 2
    assert pulsar.partitions(lane) is None
    (plan,) = work._Work(with_lanes, clients.pulsar, lane, ManualClock(NOW_MS)).plans(DeadLetterFilters())
    assert (plan.target, pulsar.partitions(lane)) == (lane, 1)


def test_letters_whose_tenant_can_have_no_lane_stay(
    settings: Settings, clients: CommandClients, pulsar: MemoryPulsar
) -> None:
    lane, with_lanes = "persistent://ghost/ledger-deletion/__ledger_deletion", _with_lanes(settings)
    replaying = work._Work(with_lanes, clients.pulsar, lane, ManualClock(NOW_MS))
    assert replaying.plans(DeadLetterFilters()) == []
    ((why, letters),) = replaying.report.stays.items()
    assert (letters, why.startswith(f"{lane} can't be used: ")) == (2, True)
    assert pulsar.partitions(lane) is None
