"""Requests of audits are kept with their publication, left out by the next audit, and removed with their findings."""

from typing import Any

import pyarrow as pa
import pytest

from streaming.audit import audit_columns as a
from streaming.audit.output import Output
from streaming.audit.publication import asked
from streaming.audit.tables import Rows, Tables
from streaming.config.load import load
from tests.builders import UUID
from udfs import columns as c
from udfs.requests.lanes import Lanes

OWNER = "acme/app/persistent/orders"
OTHER_UUID = UUID.replace("0", "f", 1)


def _findings(tables: Tables, *findings: tuple[int, str | None]) -> Rows:
    rows = [{c.LEDGER_ID: ledger_id, c.UUID: uuid, a.MANAGED_LEDGER: OWNER} for ledger_id, uuid in findings]
    fields = [pa.field(c.LEDGER_ID, pa.int64()), pa.field(c.UUID, pa.string()), pa.field(a.MANAGED_LEDGER, pa.string())]
    return tables.of(rows, pa.schema(fields))


def _ids(rows: Rows) -> list[tuple[Any, ...]]:
    return sorted((row[c.LEDGER_ID], row[c.UUID] or "") for row in rows.fetched())


def test_an_audit_leaves_out_requests_of_a_finished_publication(tables: Tables, output: Output) -> None:
    asked.keep(output, "first", _findings(tables, (1, None), (2, UUID)), load(None).topics)
    asked.keep(output, "cut short", _findings(tables, (3, None)), load(None).topics)
    findings = _findings(tables, (1, None), (1, UUID), (2, None), (2, UUID), (2, OTHER_UUID), (3, None))

    new = asked.without_asked(findings, output, ["first"])

    assert _ids(new) == [(1, UUID), (2, ""), (2, OTHER_UUID), (3, "")]


def test_before_the_first_publication_everything_is_new(tables: Tables, output: Output) -> None:
    findings = _findings(tables, (1, None))

    assert _ids(asked.without_asked(findings, output, [])) == [(1, "")]
    asked.forget(output, findings)


def test_a_publication_is_read_in_its_last_version(tables: Tables, output: Output) -> None:
    asked.keep(output, "first", _findings(tables, (1, None)), load(None).topics)
    asked.keep(output, "first", _findings(tables, (2, UUID)), load(None).topics)

    assert _ids(asked.rows(tables, output, "first")) == [(2, UUID)]


@pytest.mark.parametrize("output", ["disk", "s3"], indirect=True)
def test_a_publication_is_removed_when_none_of_its_requests_is_found_any_more(tables: Tables, output: Output) -> None:
    asked.keep(output, "gone", _findings(tables, (1, None), (2, UUID)), load(None).topics)
    asked.keep(output, "half gone", _findings(tables, (3, None), (4, None)), load(None).topics)
    findings = _findings(tables, (2, OTHER_UUID), (4, None))

    asked.forget(output, findings)

    assert output.folders("asked") == ["publication=half gone"]
    assert _ids(asked.without_asked(findings, output, ["half gone"])) == [(2, OTHER_UUID)]


@pytest.mark.parametrize("lanes", Lanes)
def test_each_orphan_is_kept_with_the_request_topic_of_its_owner(tables: Tables, output: Output, lanes: Lanes) -> None:
    topics = load(None).topics.model_copy(update={"lanes": lanes})
    asked.keep(output, "first", _findings(tables, (1, None)), topics)
    (row,) = asked.rows(tables, output, "first").fetched()
    assert row[asked.REQUEST_TOPIC] == topics.route(OWNER)


def test_orphans_that_an_earlier_version_kept_name_no_request_topic(tables: Tables, output: Output) -> None:
    output.save("asked/publication=first", _findings(tables, (1, None)))
    assert [row[asked.REQUEST_TOPIC] for row in asked.rows(tables, output, "first").fetched()] == [""]
