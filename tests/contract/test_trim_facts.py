"""The facts that decide a trim are read without loading a topic if possible, from the policies that were set."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from streaming.adapters.memory.trims import MemoryRetentionPolicies, MemoryTrimFacts
from streaming.adapters.pulsar.admin_api.retention import Retentions
from streaming.adapters.pulsar.admin_api.trims import PulsarTrimFacts
from streaming.adapters.pulsar.http import PulsarAdminSettings, PulsarHttp
from streaming.errors import ForbiddenError, RefusedError, UnavailableError
from tests.builders import CURSOR, TOPIC
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub
from udfs.phase_one.trim_forecast import Retention
from udfs.space.space_report import RecoverySettings

OWN = "/admin/v2/persistent/public/default/orders/retention"
NAMESPACE = "/admin/v2/namespaces/public/default/retention"
RUNTIME = "/admin/v2/brokers/configuration/runtime"
STATS = "/admin/v2/persistent/public/default/orders/internalStats"
NOTHING = CannedAnswer(200, b"null")


def answer_of(**fields: object) -> CannedAnswer:
    return CannedAnswer(200, json.dumps(fields).encode())


def kept(minutes: int, megabytes: int) -> CannedAnswer:
    return answer_of(retentionTimeInMinutes=minutes, retentionSizeInMB=megabytes)


@dataclass
class Real:
    """The real adapter, and a server with canned answers."""

    stub: HttpStub
    adapter: PulsarTrimFacts
    loaded: dict[str, bool | None]

    def requests(self) -> list[str]:
        return [request.path.partition("?")[0] for request in self.stub.requests]


@pytest.fixture
def real() -> Iterator[Real]:
    with http_stub() as stub:
        loaded: dict[str, bool | None] = {}
        adapter = PulsarTrimFacts(
            PulsarAdminSettings(admin_url=stub.url, timeout_seconds=1), lambda topic: loaded[topic]
        )
        yield Real(stub, adapter, loaded)
        adapter.close()


def test_a_topic_that_may_be_loaded_is_an_error(real: Real) -> None:
    for reported in (True, False):
        real.loaded[TOPIC] = reported
        assert real.adapter.is_loaded(TOPIC) is reported
    real.loaded[TOPIC] = None
    with pytest.raises(UnavailableError, match=r"not all brokers list the topics .* without the rights of a superuser"):
        real.adapter.is_loaded(TOPIC)
    assert real.requests() == [], "a request was sent that would load the topic"


def test_the_topics_retention_precedes_its_namespaces_and_the_brokers(real: Real) -> None:
    real.stub.answer_with(OWN, kept(5, -1), CannedAnswer(204), NOTHING)
    real.stub.answer_with(NAMESPACE, kept(7, 100), NOTHING)
    real.stub.answer_with(RUNTIME, answer_of(defaultRetentionTimeInMinutes="9", defaultRetentionSizeInMB="-1"))
    retentions = [real.adapter.retention(TOPIC) for _ in range(4)]
    assert retentions == [Retention(5, -1), Retention(7, 100), Retention(9, -1), Retention(9, -1)]
    assert real.requests().count(RUNTIME) == 1


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(
            answer_of(autoSkipNonRecoverableData="true", managedLedgerForceRecovery="false"),
            RecoverySettings(True, False, None),
            id="an older broker has no setting for schemas",
        ),
        pytest.param(
            answer_of(schemaLedgerForceRecovery="maybe"), RecoverySettings(None, None, None), id="other words"
        ),
    ],
)
def test_a_brokers_recovery_settings_are_those_that_it_reports(
    answer: CannedAnswer, expected: RecoverySettings
) -> None:
    with http_stub() as stub:
        stub.answer_with(RUNTIME, answer)
        policies = Retentions(PulsarHttp(PulsarAdminSettings(admin_url=stub.url, timeout_seconds=1)))
        assert policies.recovery() == expected
        policies.close()


@pytest.mark.parametrize(
    ("answer", "error", "remedy"),
    [
        pytest.param(CannedAnswer(401), RefusedError, "role the rights of a superuser", id="a wrong token"),
        pytest.param(CannedAnswer(500), UnavailableError, "500", id="a fault"),
        pytest.param(NOTHING, UnavailableError, "unknown format", id="nothing"),
        pytest.param(CannedAnswer(200, b"[" * 100_000), UnavailableError, "unknown format", id="nested"),
    ],
)
def test_recovery_settings_that_cannot_be_read_are_an_error_with_a_remedy(
    answer: CannedAnswer, error: type[Exception], remedy: str
) -> None:
    with http_stub() as stub:
        stub.answer_with(RUNTIME, answer)
        policies = Retentions(PulsarHttp(PulsarAdminSettings(admin_url=stub.url, timeout_seconds=1)))
        with pytest.raises(error, match=remedy):
            policies.recovery()
        policies.close()


def test_a_partition_has_the_retention_of_its_topic(real: Real) -> None:
    real.stub.answer_with(OWN, kept(5, -1))
    assert real.adapter.retention(f"{TOPIC}-partition-3") == Retention(5, -1)
    assert real.requests() == [OWN]


def test_without_topic_policies_the_namespaces_retention_counts(real: Real) -> None:
    real.stub.answer_with(OWN, CannedAnswer(405))
    real.stub.answer_with(NAMESPACE, kept(7, -1))
    assert real.adapter.retention(TOPIC) == Retention(7, -1)


def test_the_retention_of_a_topic_with_a_v1_name_is_its_namespaces(real: Real) -> None:
    """Brokers answer 404 to a request for the policy of such a topic."""
    real.stub.answer_with("/admin/namespaces/public/west/default/retention", kept(7, 100))
    assert real.adapter.retention("public/west/default/persistent/orders") == Retention(7, 100)
    assert real.requests() == ["/admin/namespaces/public/west/default/retention"]


def test_a_default_without_permission_counts_as_zero(real: Real) -> None:
    real.stub.answer_with(OWN, NOTHING)
    real.stub.answer_with(NAMESPACE, NOTHING)
    real.stub.answer_with(RUNTIME, CannedAnswer(403))
    assert real.adapter.retention(TOPIC).is_none


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (CannedAnswer(403), ForbiddenError),
        (CannedAnswer(401), ForbiddenError),
        (CannedAnswer(404), RefusedError),
        (answer_of(retentionTimeInMinutes=5), UnavailableError),
        (CannedAnswer(500), UnavailableError),
    ],
)
def test_an_incomplete_answer_is_an_error(real: Real, answer: CannedAnswer, error: type[Exception]) -> None:
    real.stub.answer_with(OWN, answer)
    with pytest.raises(error):
        real.adapter.retention(TOPIC)


def test_cursors_and_sizes_are_those_of_internal_stats(real: Real) -> None:
    stats = answer_of(
        ledgers=[{"ledgerId": 5, "entries": 10, "size": 100}, {"ledgerId": 6, "entries": 0, "size": 0}],
        cursors={CURSOR: {"markDeletePosition": "5:9"}},
        currentLedgerEntries=3,
        currentLedgerSize=30,
        pendingAddEntriesCount=0,
    )
    real.stub.answer_with(STATS, stats, answer_of(ledgers=[]), CannedAnswer(403))
    facts = real.adapter.internal_stats(TOPIC)
    assert (facts.cursors, facts.sizes) == ({CURSOR: (5, 9)}, {5: 100, 6: 30})
    with pytest.raises(UnavailableError):
        real.adapter.internal_stats(TOPIC)
    with pytest.raises(ForbiddenError):
        real.adapter.internal_stats(TOPIC)


@pytest.fixture
def levels(real: Real) -> Iterator[Retentions]:
    adapter = Retentions(PulsarHttp(PulsarAdminSettings(admin_url=real.stub.url, timeout_seconds=1)))
    yield adapter
    adapter.close()


def test_each_level_has_its_own_retention(real: Real, levels: Retentions) -> None:
    real.stub.answer_with(OWN, kept(5, -1), NOTHING, CannedAnswer(405), CannedAnswer(403))
    real.stub.answer_with(NAMESPACE, kept(7, 100), NOTHING, CannedAnswer(403))
    real.stub.answer_with(RUNTIME, answer_of(defaultRetentionTimeInMinutes="9", defaultRetentionSizeInMB="-1"))
    assert [levels.of_topic(f"{TOPIC}-partition-3") for _ in range(3)] == [Retention(5, -1), None, None]
    assert [levels.of_namespace("public/default") for _ in range(2)] == [Retention(7, 100), None]
    assert levels.of_brokers() == Retention(9, -1)
    with pytest.raises(ForbiddenError):
        levels.of_topic(TOPIC)
    with pytest.raises(ForbiddenError):
        levels.of_namespace("public/default")


@pytest.mark.parametrize(
    ("answer", "error"),
    [(CannedAnswer(403), ForbiddenError), (answer_of(), UnavailableError), (CannedAnswer(500), UnavailableError)],
)
def test_an_unknown_default_is_no_zero(
    real: Real, levels: Retentions, answer: CannedAnswer, error: type[Exception]
) -> None:
    real.stub.answer_with(RUNTIME, answer)
    with pytest.raises(error):
        levels.of_brokers()


def test_the_fake_has_levels() -> None:
    fake = MemoryRetentionPolicies()
    fake.topics["persistent://public/default/orders"] = Retention(5, -1)
    fake.namespaces["public/default"] = RefusedError("no permission")
    assert fake.of_topic(f"{TOPIC}-partition-3") == Retention(5, -1)
    assert (fake.of_namespace("public/other"), fake.of_brokers()) == (None, Retention(0, 0))
    with pytest.raises(RefusedError):
        fake.of_namespace("public/default")
    fake.faults.away = True
    with pytest.raises(UnavailableError):
        fake.of_brokers()


def test_the_fake_behaves_like_brokers() -> None:
    fake = MemoryTrimFacts()
    fake.cursors, fake.kept, fake.open_bytes = {TOPIC: {CURSOR: (5, 9)}}, Retention(5, -1), 30
    assert fake.is_loaded(TOPIC) is False
    assert fake.retention(TOPIC) == Retention(5, -1)
    assert fake.is_loaded(TOPIC) is False, "policies are asked for without the topic"
    stats = fake.internal_stats(TOPIC)
    assert (stats.cursors, stats.sizes[stats.ledgers[-1][0]]) == ({CURSOR: (5, 9)}, 30)
    assert fake.is_loaded(TOPIC) is True, "internalStats loads the topic"
    with pytest.raises(RefusedError):
        fake.internal_stats("public/default/persistent/nowhere")
    fake.faults.away = True
    with pytest.raises(UnavailableError):
        fake.retention(TOPIC)
