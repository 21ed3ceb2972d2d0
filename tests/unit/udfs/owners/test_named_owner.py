"""A ledger's owner: its own metadata decides, and has to contain every name of the request."""

from dataclasses import replace

import pytest

from tests.builders import (
    OF_LEDGERS,
    bucket_custom,
    bucket_request,
    compacted_custom,
    compacted_request,
    cursor_custom,
    cursor_request,
    custom_of,
    data_custom,
    data_request,
    schema_custom,
    schema_request,
)
from udfs.owners.named_owner import mismatch, names_another
from udfs.records import LedgerComponent, PendingDelete, Reason

V1_TOPIC = "public/cluster-a/default/persistent/orders"
REQUESTS = {
    LedgerComponent.MANAGED_LEDGER: data_request(),
    LedgerComponent.MANAGED_CURSOR: cursor_request(),
    LedgerComponent.SCHEMA_STORAGE: schema_request(),
    LedgerComponent.COMPACTED_LEDGER: compacted_request(),
    LedgerComponent.DELAYED_INDEX_BUCKET: bucket_request(),
}


@pytest.mark.parametrize("component", OF_LEDGERS)
def test_a_ledger_matches_the_request_that_names_its_owner(component: LedgerComponent) -> None:
    assert mismatch(REQUESTS[component], custom_of(REQUESTS[component])) is None


@pytest.mark.parametrize("asked", OF_LEDGERS)
@pytest.mark.parametrize("recorded", OF_LEDGERS)
def test_a_ledger_of_another_component_names_another(asked: LedgerComponent, recorded: LedgerComponent) -> None:
    assert names_another(REQUESTS[asked], custom_of(REQUESTS[recorded])) == (asked is not recorded)


def test_a_ledger_without_pulsars_metadata_names_no_owner() -> None:
    assert not names_another(data_request(), {})
    assert not names_another(data_request(), {**data_custom(), "application": b"else"})
    assert names_another(data_request(), data_custom("public/default/persistent/payments"))


@pytest.mark.parametrize("asked", OF_LEDGERS)
@pytest.mark.parametrize("recorded", OF_LEDGERS)
def test_a_ledger_of_one_component_never_matches_a_request_for_another(
    asked: LedgerComponent, recorded: LedgerComponent
) -> None:
    why = mismatch(REQUESTS[asked], custom_of(REQUESTS[recorded]))
    assert (why is None) == (asked is recorded)
    assert why is None or why[0] is Reason.OTHER_COMPONENT


@pytest.mark.parametrize(
    ("request_", "custom"),
    [
        pytest.param(data_request(topic="public/default/persistent/orders2"), data_custom(), id="another topic"),
        pytest.param(data_request(topic="public/other/persistent/orders"), data_custom(), id="another namespace"),
        pytest.param(data_request(topic="other/default/persistent/orders"), data_custom(), id="another tenant"),
        pytest.param(data_request(topic=V1_TOPIC), data_custom(), id="the V1 topic of the same name"),
        pytest.param(
            data_request(topic="public/default/persistent/orders-partition-0"),
            data_custom("public/default/persistent/orders-partition-1"),
            id="another partition",
        ),
        pytest.param(
            data_request(topic="public/default/persistent/orders"),
            data_custom("public/default/persistent/orders-partition-1"),
            id="a partition of the topic",
        ),
        pytest.param(cursor_request(cursor="audit"), cursor_custom(), id="another cursor"),
        pytest.param(cursor_request(), cursor_custom("public/default/persistent/x"), id="another topic's cursor"),
        pytest.param(schema_request(schema="public/default/x"), schema_custom(), id="another schema"),
        pytest.param(compacted_request(topic="a/b/persistent/c"), compacted_custom(), id="another compacted topic"),
        pytest.param(bucket_request(topic="a/b/persistent/c"), bucket_custom(), id="another topic's bucket"),
        pytest.param(data_request(), {**data_custom(), "pulsar/managed-ledger": b"\xff"}, id="a name that is no UTF-8"),
        pytest.param(compacted_request(), compacted_custom("no topic"), id="a name that is no topic"),
    ],
)
def test_another_owner_is_refused(request_: PendingDelete, custom: dict[str, bytes]) -> None:
    why = mismatch(request_, custom)
    assert why is not None
    assert why[0] is Reason.OTHER_OWNER


@pytest.mark.parametrize("component", OF_LEDGERS)
def test_a_ledger_that_names_no_owner_matches_no_request(component: LedgerComponent) -> None:
    request = REQUESTS[component]
    kept = {"application", "component"} | ({"pulsar/cursor"} & set(custom_of(request)))
    nameless = {key: value for key, value in custom_of(request).items() if key in kept}
    why = mismatch(request, nameless)
    assert why is not None
    assert why[0] is Reason.OTHER_OWNER


@pytest.mark.parametrize(
    ("request_", "custom"),
    [
        pytest.param(
            replace(schema_request(), schema_id=None),
            {"application": b"pulsar", "component": b"schema"},
            id="neither request nor ledger names a schema",
        ),
        pytest.param(
            replace(cursor_request(), cursor_name=None), cursor_custom(cursor="None"), id="a cursor that is named None"
        ),
    ],
)
def test_a_request_that_names_no_owner_matches_no_ledger(request_: PendingDelete, custom: dict[str, bytes]) -> None:
    why = mismatch(request_, custom)
    assert why is not None
    assert why[0] is Reason.OTHER_OWNER


@pytest.mark.parametrize(
    "custom",
    [
        pytest.param({}, id="none at all, as before 2.6"),
        pytest.param({"component": b"managed-ledger"}, id="no application"),
        pytest.param({**data_custom(), "application": b"distributedlog"}, id="another application"),
        pytest.param({**data_custom(), "application": b"Pulsar"}, id="another spelling"),
    ],
)
def test_a_ledger_of_another_application_is_refused(custom: dict[str, bytes]) -> None:
    why = mismatch(data_request(), custom)
    assert why is not None
    assert why[0] is Reason.NOT_PULSARS


@pytest.mark.parametrize("component", [b"", b"functions", b"managed-ledger2", b"MANAGED-LEDGER"])
def test_an_unknown_component_is_in_use_for_ever(component: bytes) -> None:
    custom = {**data_custom(), "component": component}
    for request in REQUESTS.values():
        why = mismatch(request, custom)
        assert why is not None
        assert why[0] is Reason.OTHER_COMPONENT


def test_t8_only_the_cursor_key_distinguishes_a_cursor_ledger_from_a_data_ledger() -> None:
    as_data = mismatch(data_request(), cursor_custom())
    as_cursor = mismatch(cursor_request(), data_custom())
    assert as_data is not None
    assert as_data[0] is Reason.OTHER_COMPONENT
    assert as_cursor is not None
    assert as_cursor[0] is Reason.OTHER_COMPONENT
    assert mismatch(cursor_request(), cursor_custom()) is None


@pytest.mark.parametrize("written", [b"compacted-ledger", b"compacted-topic"])
def test_t9_the_compaction_component_is_known_by_its_name_in_the_code_and_in_the_documentation(written: bytes) -> None:
    assert mismatch(compacted_request(), {**compacted_custom(), "component": written}) is None


def test_t7_a_schema_belongs_to_the_topic_as_a_whole_not_to_a_partition() -> None:
    of_partition = schema_request(schema="public/default/orders-partition-0")
    assert mismatch(schema_request(), schema_custom("public/default/orders")) is None
    assert mismatch(of_partition, schema_custom("public/default/orders")) is not None


@pytest.mark.parametrize("name", ["persistent://public/default/orders", "public/default/persistent/orders"])
def test_a_compacted_topic_may_be_named_in_either_form(name: str) -> None:
    assert mismatch(compacted_request(), compacted_custom(name)) is None


def test_names_are_compared_in_their_encoded_form() -> None:
    topic = "public/default/persistent/a%2Fb+c"
    assert mismatch(data_request(topic=topic), data_custom(topic)) is None
    assert mismatch(data_request(topic=topic), data_custom("public/default/persistent/a/b c")) is not None
