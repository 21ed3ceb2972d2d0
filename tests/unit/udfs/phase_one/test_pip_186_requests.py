"""Arguments become a request that the sweep accepts, or an error that names their fault."""

import pytest

from tests.builders import CURSOR, SCHEMA, TOPIC, UUID, cursor_request, data_request, schema_request
from udfs.phase_one.pip_186_requests import request_for
from udfs.records import LedgerComponent, LedgerType, OffloadContext, PendingDelete


@pytest.mark.parametrize(
    "topic", [pytest.param(TOPIC, id="managed ledger"), pytest.param("persistent://public/default/orders", id="full")]
)
def test_a_data_ledger_is_requested_by_any_form_of_its_topic(topic: str) -> None:
    assert request_for(topic, 5, LedgerComponent.MANAGED_LEDGER) == data_request(5)


def test_a_cursor_needs_its_name_and_a_schema_has_its_topics() -> None:
    asked = request_for(TOPIC, 5, LedgerComponent.MANAGED_CURSOR, cursor_name=CURSOR)
    assert asked == cursor_request(5)
    assert request_for(TOPIC, 5, LedgerComponent.SCHEMA_STORAGE) == schema_request(5, SCHEMA)
    partition = request_for(f"{TOPIC}-partition-3", 5, LedgerComponent.SCHEMA_STORAGE)
    assert partition.schema_id == SCHEMA
    with pytest.raises(ValueError, match="cursorName is missing"):
        request_for(TOPIC, 5, LedgerComponent.MANAGED_CURSOR)


def test_a_context_makes_it_a_request_for_an_upload() -> None:
    context = OffloadContext(uuid=UUID, driver_name="aws-s3", driver_properties={"bucket": "b"})
    asked = request_for(TOPIC, 5, LedgerComponent.MANAGED_LEDGER, context=context)
    expected = PendingDelete(
        managed_ledger=TOPIC,
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_type=LedgerType.OFFLOAD_LEDGER,
        ledger_id=5,
        offload_context=context,
    )
    assert asked == expected


@pytest.mark.parametrize("ledger_id", [-1, 1 << 63])
def test_an_id_that_is_none_is_refused(ledger_id: int) -> None:
    with pytest.raises(ValueError, match="BAD_LEDGER_ID"):
        request_for(TOPIC, ledger_id, LedgerComponent.MANAGED_LEDGER)


def test_a_name_that_is_no_topic_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a topic"):
        request_for("orders", 5, LedgerComponent.MANAGED_LEDGER)
