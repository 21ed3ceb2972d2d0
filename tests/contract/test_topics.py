"""Checks of our topics, which trust a broker's behaviour and not only its policies."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import RefusedError
from streaming.topics.setup import MOST_PARTITIONS, ensure_request_topic, ensure_topics, faults_of, subscribe_to
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub

TOPIC = "/admin/v2/persistent/acme/reaper/r-RETRY"
PARTITION = f"{TOPIC}-partition-0"


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    with http_stub() as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text('[topics]\nrequests = ["persistent://acme/reaper/r"]\n[pulsar]\ntimeout_seconds = 1\n')
    return load(file)


@pytest.mark.parametrize(
    ("statuses", "is_reported"),
    [
        pytest.param(["Enabled"], False, id="in force"),
        pytest.param(["Recovering", "Enabled"], False, id="in force in a moment"),
        pytest.param(["Disabled"], True, id="a policy and nothing more"),
    ],
)
def test_deduplication_counts_only_if_it_is_in_force(
    stub: HttpStub, settings: Settings, statuses: list[str], is_reported: bool
) -> None:
    for path, answer in {
        f"{TOPIC}/partitions": {"partitions": 1},
        f"{PARTITION}/internalStats": {
            "ledgers": [],
            "currentLedgerEntries": 0,
            "cursors": {"ledger-reaper": {"markDeletePosition": "1:-1"}},
            "pendingAddEntriesCount": 0,
        },
        f"{TOPIC}/messageTTL": 0,
        f"{TOPIC}/deduplicationEnabled": True,
        f"{TOPIC}/backlogQuotaMap": {},
        "/admin/v2/namespaces/acme/reaper": {},
    }.items():
        stub.answer_with(path, CannedAnswer(200, json.dumps(answer).encode()))
    stub.answer_with(
        f"{PARTITION}/stats", *(CannedAnswer(200, json.dumps({"deduplicationStatus": s}).encode()) for s in statuses)
    )

    with PulsarAdmin(PulsarAdminSettings(admin_url=stub.url)) as admin:
        faults = faults_of(admin, settings, settings.topics.retry)

    assert faults is not None
    assert [("is not deduplicated" in fault) for fault in faults] == [True] * is_reported


def test_a_topic_of_the_pattern_with_very_many_partitions_is_not_read(settings: Settings) -> None:
    pulsar = MemoryPulsar()
    pulsar.known_namespaces.add("acme/reaper")
    for name, partitions in (("many", MOST_PARTITIONS + 1), ("few", MOST_PARTITIONS)):
        pulsar.create_partitioned_topic(f"persistent://acme/reaper/{name}", partitions)
    (fault,) = subscribe_to(pulsar, settings, "persistent://acme/reaper/many")
    assert "65 partitions" in fault
    assert pulsar.internal_stats("persistent://acme/reaper/many-partition-0").cursors == {}, "it was not started"
    assert subscribe_to(pulsar, settings, "persistent://acme/reaper/few") == []


class _LatePolicies(MemoryPulsar):
    """A broker that shows a policy some time after it was set, as a busy broker of Pulsar 3.3.6 did."""

    hidden = 3  # reads that do not show it yet

    def deduplication(self, topic: str) -> bool:
        self.hidden -= 1
        return self.hidden < 0 and super().deduplication(topic)


def test_new_topics_are_used_although_the_broker_shows_their_policies_late(settings: Settings) -> None:
    pulsar = _LatePolicies()

    ensure_topics(pulsar, settings)

    assert pulsar.topics.keys() == {*settings.topics.requests, settings.topics.retry, settings.topics.dead_letter}


def _produces_only(pulsar: MemoryPulsar) -> None:
    """Let the caller's role only look up topics."""

    def refuse(operation: str, _names: Sequence[str]) -> None:
        if operation not in ("partitions", "internal_stats"):
            raise RefusedError(f"403 {operation}")

    pulsar.faults.before(refuse)


def test_a_caller_needs_permissions_only_for_its_own_topic(settings: Settings) -> None:
    pulsar, asked, (topic,) = MemoryPulsar(), set[str](), settings.topics.requests
    pulsar.faults.before(lambda _operation, names: asked.update(names))
    ensure_request_topic(pulsar, settings, topic)
    assert pulsar.topics.keys() == {topic}
    assert all(name.startswith(topic) for name in asked), asked


def test_a_role_that_may_only_produce_sends_if_the_service_has_its_subscription(settings: Settings) -> None:
    pulsar, (topic,) = MemoryPulsar(), settings.topics.requests
    ensure_request_topic(pulsar, settings, topic)
    _produces_only(pulsar)
    ensure_request_topic(pulsar, settings, topic)


@pytest.mark.parametrize(
    ("partitions", "why"), [(None, "does not exist"), (0, "is not partitioned"), (2, "has no sub")]
)
def test_a_role_that_may_only_produce_does_not_send_if_a_message_could_be_lost(
    settings: Settings, partitions: int | None, why: str
) -> None:
    """The topic does not exist, or the service would never read it, or brokers may trim it without a subscription."""
    pulsar, (topic,) = MemoryPulsar(), settings.topics.requests
    pulsar.ensure_namespace(topic)
    if partitions is not None:
        pulsar.create_partitioned_topic(topic, partitions) if partitions else pulsar.create_topic(topic)
    _produces_only(pulsar)
    with pytest.raises(RefusedError, match=why):
        ensure_request_topic(pulsar, settings, topic)
