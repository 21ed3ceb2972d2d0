"""Orphan segments are requested only if the operator allows it: one request each, by the newest data ledger."""

from typing import Any

import pytest

from streaming.audit import audit_columns as a
from streaming.audit.output import Output
from streaming.audit.publication import asked
from streaming.audit.publication.segment_requests import requestable
from streaming.audit.tables import Rows, Tables
from streaming.audit.walk.suspects import request_of
from streaming.config.load import load
from streaming.config.settings import Settings
from tests.builders import SEGMENT, segment_request
from tests.unit.audit.frames import finding, findings_of
from udfs import columns as c
from udfs.records import LedgerComponent

ALLOWED = [*LedgerComponent]


def _settings(*components: LedgerComponent) -> Settings:
    settings = load(None)
    return settings.model_copy(
        update={"safety": settings.safety.model_copy(update={"allowed_components": tuple(components)})}
    )


def _of_segment(ledger_id: int, **changes: Any) -> dict[str, Any]:
    row = {
        a.CLASS: "ORPHAN_SEGMENT",
        c.REASON: "SEGMENT_UNNAMED",
        a.MANAGED_LEDGER: SEGMENT,
        c.REFERENCE_KEY: f"data:{SEGMENT}",
        c.BYTES: 100,
    }
    return finding(ledger_id, **(row | changes))


@pytest.fixture
def found(tables: Tables) -> Rows:
    other = SEGMENT.replace("orders", "payments")
    cursor = {c.COMPONENT: "MANAGED_CURSOR", c.REFERENCE_KEY: f"cursor:{SEGMENT}/s", a.CURSOR: "s"}
    return findings_of(
        tables,
        finding(1),
        finding(2, **{a.CLASS: "UNKNOWN"}),
        _of_segment(5),
        _of_segment(9),
        _of_segment(12, **cursor),
        _of_segment(20, **{a.MANAGED_LEDGER: other, c.REASON: "SEGMENT_AHEAD"}),
        _of_segment(21, **cursor, **{a.MANAGED_LEDGER: other}),
    )


@pytest.mark.parametrize("allowed", [(), (LedgerComponent.MANAGED_LEDGER,)])
def test_by_default_only_orphans_are_requested(found: Rows, allowed: tuple[LedgerComponent, ...]) -> None:
    assert [row[c.LEDGER_ID] for row in requestable(found, _settings(*allowed)).fetched()] == [1]


def test_each_segment_is_requested_once_by_its_newest_data_ledger(found: Rows) -> None:
    orphan, segment = requestable(found, _settings(*ALLOWED)).fetched()
    assert orphan[c.LEDGER_ID] == 1
    assert request_of(segment) == segment_request(9)
    assert segment[c.BYTES] == 300
    assert segment[c.REFERENCE_KEY] == f"data:{SEGMENT}"


def test_a_ledger_that_the_broker_leaked_is_requested_although_its_segment_was(
    found: Rows, tables: Tables, output: Output
) -> None:
    requested = requestable(found, _settings(*ALLOWED))
    asked.keep(output, "first", requested, load(None).topics)
    leaked = findings_of(tables, finding(9, **{a.MANAGED_LEDGER: SEGMENT}), _of_segment(9))

    again = requestable(leaked, _settings(*ALLOWED))
    left = asked.without_asked(again, output, ["first"]).fetched()
    asked.forget(output, again)

    assert [(row[c.LEDGER_ID], row[a.CLASS]) for row in left] == [(9, "ORPHAN")]
    assert output.folders("asked") == ["publication=first"], "the segment is still found"
