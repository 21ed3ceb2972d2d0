"""Facts beside the service: each at its interval, never a value that was not read, and right after a restart."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming import schemas
from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.audit import history as audits
from streaming.audit.audit_options import FindingFilters
from streaming.audit.certificate import Certificate
from streaming.audit.output import output_of
from streaming.audit.result import AuditResult, remember
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.deletion.supervision.facts import Fact, Waits, facts_of, reading
from streaming.errors import UnavailableError
from streaming.metrics import Metrics
from streaming.ports import Pulsar
from streaming.prometheus.registry import Registry
from streaming.space.output import earlier_runs as spaces
from streaming.state.settlements import SettlementFolder, position_of
from streaming.state.waiting import Waiting
from tests.unit.reconcile.rows import write_rows
from udfs import columns as c
from udfs.space.causes import Cause
from udfs.space.growth_by_cause import PastRun

NOW_MS = 1_700_000_000_000
WHOLE = Certificate(zxid_start=1, zxid_end=2, listed={}, unreadable=())


class Time:
    s = 0.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text(f'[state]\ndir = "{tmp_path / "state"}"\n[checkpoints]\ndir = "{tmp_path / "checkpoints"}"\n')
    return load(file)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def memory(settings: Settings) -> MemoryPulsar:
    memory = MemoryPulsar(ManualClock(NOW_MS - 5_000))
    for topic in (*settings.topics.requests, settings.topics.retry, settings.topics.dead_letter):
        memory.store(f"{topic}-partition-0", (5, 0))
    return memory


def read_all(
    settings: Settings, memory: MemoryPulsar, registry: Registry, *, done_ms: int = -1, lanes: Sequence[str] = ()
) -> None:
    """Read every fact once, as the first pass after a start does."""
    retries = cast("Waiting", SimpleNamespace(done_ms=done_ms))
    pulsar, clock = Pulsar(memory, memory), ManualClock(NOW_MS)
    found = facts_of(settings, pulsar, Waits(retries, lambda: lanes), Metrics(registry), clock)
    cast("Any", reading(found))._work.run()


def shown(registry: Registry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"ledger_reaper_{name}", labels)


def test_what_waits_is_right_after_a_restart(settings: Settings, memory: MemoryPulsar, registry: Registry) -> None:
    topic = settings.topics.requests[0]
    memory.publish(f"{topic}-partition-0")
    memory.publish(f"{topic}-partition-0")
    for ready_ms in (NOW_MS - 2, NOW_MS - 1, NOW_MS, NOW_MS + 1):
        write_rows(Path(settings.state_dir), "waiting", [(7, ready_ms, -1)], about={c.READY_MS: ready_ms})
    read_all(settings, memory, registry, done_ms=NOW_MS - 2)
    assert shown(registry, "backlog_requests", topic=topic) == 2
    assert shown(registry, "backlog_requests", topic=settings.topics.retry) == 0
    assert shown(registry, "backlog_oldest_timestamp_seconds", topic=topic) == NOW_MS / 1000 - 5
    assert shown(registry, "backlog_oldest_timestamp_seconds", topic=settings.topics.retry) is None
    assert (shown(registry, "retries_waiting"), shown(registry, "retries_due")) == (3, 2)
    for name in ("backlog", "retries", "dead_letters"):
        assert shown(registry, f"{name}_read_timestamp_seconds") == NOW_MS / 1000


def test_what_waits_in_lanes_is_shown(settings: Settings, memory: MemoryPulsar, registry: Registry) -> None:
    lane = "persistent://acme/ledger-deletion/__ledger_deletion"
    memory.store(f"{lane}-partition-0", (6, 0))
    memory.publish(f"{lane}-partition-0")
    read_all(settings, memory, registry, lanes=[f"{lane}-partition-0"])
    assert shown(registry, "backlog_requests", topic=lane) == 1
    assert shown(registry, "backlog_oldest_timestamp_seconds", topic=lane) == NOW_MS / 1000 - 5


def test_dead_letters_wait_until_they_are_settled(settings: Settings, memory: MemoryPulsar, registry: Registry) -> None:
    partition = f"{settings.topics.dead_letter}-partition-0"
    letters = [memory.publish(partition, properties={"REASON": reason}) for reason in ("IN_USE: a", "IN_USE", "odd")]
    read_all(settings, memory, registry)
    assert shown(registry, "dead_letters_waiting", reason="IN_USE") == 2
    assert shown(registry, "dead_letters_waiting", reason="(other)") == 1
    assert shown(registry, "dead_letters_oldest_timestamp_seconds") == NOW_MS / 1000 - 5
    rows = [
        dict.fromkeys(schemas.RECEIPT.names) | dict(zip(c.POSITION, position_of(each), strict=True)) for each in letters
    ]
    SettlementFolder(settings.state_dir).write_off(NOW_MS, [rows])
    read_all(settings, memory, registry)
    assert shown(registry, "dead_letters_waiting", reason="IN_USE") is None
    assert shown(registry, "dead_letters_oldest_timestamp_seconds") == 0


def test_without_an_audit_nothing_is_shown_of_it(settings: Settings, memory: MemoryPulsar, registry: Registry) -> None:
    read_all(settings, memory, registry)
    assert not [family.name for family in registry.collect() if re.search("audit|space|snapshot", family.name)]


def test_the_newest_audit_and_measurement_are_shown(
    settings: Settings, memory: MemoryPulsar, registry: Registry
) -> None:
    output = output_of(settings, None)
    totals: dict[str, Any] = {
        "ledgers": 60,
        "objects": 7,
        "in_use": 40,
        "ORPHAN": {"count": 19, "bytes": 3_000},
        "MISSING": {"count": 1, "bytes": 0},
    }
    found = AuditResult(
        audit_id="a",
        instance_id="id",
        started_ms=NOW_MS - 70_000,
        ended_ms=NOW_MS - 10_000,
        certificate=replace(WHOLE, errors=("a bookie is away",)),
        totals=totals,
        in_use=(),
    )
    remember(output, found, FindingFilters())
    for at_ms, complete in ((NOW_MS - 90_000, True), (NOW_MS - 70_000, False)):
        audits.add(
            output,
            audits.PastAudit(at_ms=at_ms, complete=complete, orphans=0, orphan_bytes=0, missing=0, ledgers=60),
        )
    causes = {Cause.BACKLOG: (10, 30), Cause.UNREFERENCED: (1, 3)}
    for at_ms in (NOW_MS - 60_000, NOW_MS - 90_000):
        spaces.add(output, PastRun(at_ms=at_ms, cluster="c", complete=True, one_copy=11, stored=33, causes=causes))
    remember(output_of(settings, None, "snapshots"), replace(found, certificate=WHOLE), FindingFilters())
    read_all(settings, memory, registry)
    assert shown(registry, "audit_findings", **{"class": "ORPHAN"}) == 19
    assert shown(registry, "audit_findings", **{"class": "MISSING"}) == 1
    assert shown(registry, "audit_findings_bytes", **{"class": "ORPHAN"}) == 3_000
    assert shown(registry, "audit_listed", what="in_use") == 40
    assert (shown(registry, "audit_complete"), shown(registry, "audit_duration_seconds")) == (0, 60)
    assert shown(registry, "audit_timestamp_seconds") == NOW_MS / 1000 - 10
    assert shown(registry, "audit_last_complete_timestamp_seconds") == NOW_MS / 1000 - 90
    assert (shown(registry, "space_bytes", cause="backlog"), shown(registry, "space_timestamp_seconds")) == (
        10,
        NOW_MS / 1000 - 60,
    )
    assert (shown(registry, "space_stored_bytes", cause="backlog"), shown(registry, "space_complete")) == (30, 1)
    assert shown(registry, "snapshot_findings", **{"class": "MISSING"}) == 1
    assert shown(registry, "snapshot_audit_complete") == 1


def test_what_can_not_be_read_keeps_its_value_and_time_and_the_others_are_read(
    settings: Settings, memory: MemoryPulsar, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def away(operation: str, _names: Sequence[str]) -> None:
        if operation == "last_positions":
            raise UnavailableError("the broker is away")

    memory.faults.before(away)
    read_all(settings, memory, registry)
    assert shown(registry, "backlog_requests", topic=settings.topics.requests[0]) is None
    assert shown(registry, "backlog_read_timestamp_seconds") is None
    assert shown(registry, "retries_waiting") == 0
    assert "the backlog could not be read, and the last values stay" in caplog.text


def test_a_fact_is_read_at_its_interval_and_takes_a_twentieth_of_the_time_at_most() -> None:
    now, reads = Time(), list[float]()

    def read() -> None:
        reads.append(now.s)
        now.s += 10 if len(reads) > 2 else 0

    fact = Fact("x", read, 60, monotonic=lambda: now.s)
    for second in range(0, 600, 5):
        now.s = max(now.s, float(second))
        fact.read_if_due()
    assert reads == [0, 60, 120, 330, 540]


def test_a_fact_that_could_not_be_read_does_not_rest_for_the_length_of_the_failure() -> None:
    now, reads = Time(), list[float]()

    def read() -> None:
        reads.append(now.s)
        now.s += 90
        if len(reads) == 1:
            raise UnavailableError("the bookies are away")

    fact = Fact("x", read, 60, monotonic=lambda: now.s)
    for second in range(0, 600, 5):
        now.s = max(now.s, float(second))
        fact.read_if_due()
    assert reads == [0, 150]


def test_a_failure_is_logged_once_until_a_read_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    answers: list[Exception | None] = [UnavailableError("a"), UnavailableError("a"), None, UnavailableError("a")]

    def read() -> None:
        if answer := answers.pop(0):
            raise answer

    fact = Fact("x", read, 0, monotonic=lambda: 0)
    while answers:
        fact.read_if_due()
    assert len(caplog.messages) == 2
