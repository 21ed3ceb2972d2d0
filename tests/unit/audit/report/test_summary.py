"""Findings are filtered and summed."""

from streaming.audit import audit_columns as a
from streaming.audit.audit_options import FindingFilters
from streaming.audit.report.summary import matching, summarize
from streaming.audit.tables import Tables
from tests.unit.audit.frames import finding, findings_of, ids
from udfs import columns as c
from udfs.records import LedgerComponent
from udfs.verdicts.finding_classes import FindingClass

EXPECTED = [
    (FindingFilters(), [1, 2, 3, 4, 5, 6]),
    (FindingFilters(tenant="public"), [1, 2, 3, 5, 6]),
    (FindingFilters(namespace="other/ns"), [4]),
    (FindingFilters(component=LedgerComponent.SCHEMA_STORAGE), [3]),
    (FindingFilters(component=LedgerComponent.SEGMENT), [6]),
    (FindingFilters(older_than_seconds=3), [3, 4, 5, 6]),
    (FindingFilters(max_bytes=250), [3, 4, 5, 6]),  # the oldest findings that fit
    (FindingFilters(max_bytes=99), [5, 6]),
]


def test_filters_by_age_and_size_apply_only_to_findings_that_may_be_deleted(tables: Tables) -> None:
    rows = [
        finding(1),
        finding(2),
        finding(3, **{c.COMPONENT: "SCHEMA_STORAGE"}),
        finding(4, **{a.MANAGED_LEDGER: "other/ns/persistent/t"}),
        finding(5, **{a.CLASS: "MISSING", a.LAST_CHANGE_MS: None}),
        finding(6, **{a.CLASS: "ORPHAN_SEGMENT"}),
    ]

    found = findings_of(tables, *rows)
    for filters, expected in EXPECTED:
        assert ids(matching(found, filters)) == expected, filters


def test_orphans_are_summed_by_topic_namespace_and_age(tables: Tables) -> None:
    old = {a.SEEN_MS: 1_000 + 40 * 86_400 * 1_000}
    rows = [
        finding(1),
        finding(2, **old, **{c.COMPONENT: "SCHEMA_STORAGE"}),
        finding(3, **{a.MANAGED_LEDGER: "other/ns/persistent/t", c.BYTES: 500}),
        finding(4, **{a.CLASS: "MISSING", c.REASON: "NOT_FOUND"}),
        finding(5, **{a.CLASS: "FOREIGN", a.MANAGED_LEDGER: None, c.BYTES: None}),
    ]

    summary = summarize(findings_of(tables, *rows))

    assert (summary.orphans.count, summary.orphans.size_bytes) == (3, 700)
    assert [(row.topic, row.orphans, row.components) for row in summary.by_topic] == [
        ("persistent://other/ns/t", 1, "MANAGED_LEDGER"),
        ("persistent://public/default/a/b c", 2, "MANAGED_LEDGER, SCHEMA_STORAGE"),
    ]
    assert [(age.label, age.count) for age in summary.by_age if age.count] == [("< 1 h", 2), ("30-90 d", 1)]
    assert [finding.ledger_id for finding in summary.missing] == [4]
    assert summary.of(FindingClass.FOREIGN).count == 1
