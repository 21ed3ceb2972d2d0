"""What is said of a topic whose broker does not do what the policy says: the policy is not believed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.adapters.pulsar.admin import PulsarAdmin, PulsarAdminSettings
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.topics.setup import faults_of
from tests.contract.http_stub import HttpStub, Told, http_stub

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
    ("statuses", "is_told"),
    [
        pytest.param(["Enabled"], False, id="in force"),
        pytest.param(["Recovering", "Enabled"], False, id="in force in a moment"),
        pytest.param(["Disabled"], True, id="a policy and nothing more"),
    ],
)
def test_deduplication_counts_only_where_it_is_in_force(
    stub: HttpStub, settings: Settings, statuses: list[str], is_told: bool
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
        stub.tell(path, Told(200, json.dumps(answer).encode()))
    stub.tell(f"{PARTITION}/stats", *(Told(200, json.dumps({"deduplicationStatus": s}).encode()) for s in statuses))

    with PulsarAdmin(PulsarAdminSettings(stub.url)) as admin:
        faults = faults_of(admin, settings, settings.topics.retry)

    assert faults is not None
    assert [("is not deduplicated" in fault) for fault in faults] == [True] * is_told
