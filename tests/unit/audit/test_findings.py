"""Checks become findings: named, numbered, and never before the second check."""

import pytest

from streaming.audit import audit_columns as a
from streaming.audit.findings import findings
from streaming.audit.tables import Tables
from tests.unit.audit.frames import finding, findings_of, ids
from udfs import columns as c
from udfs.paths import topic_of


def test_a_finding_has_its_topic_in_the_users_form_and_its_age_at_the_last_check(tables: Tables) -> None:
    (row,) = findings_of(tables, finding(60)).fetched()

    assert row[c.TOPIC_NAME] == "persistent://public/default/a/b c"
    assert (row[c.TENANT], row[a.NAMESPACE], row[a.AGE_SECONDS]) == ("public", "public/default", 60)


@pytest.mark.parametrize(
    ("managed_ledger", "topic", "namespace"),
    [
        ("t/ns/segment/a+b/0000-7fff-12", "segment://t/ns/a b/0000-7fff-12", "t/ns"),
        ("t/segment/segment/x/0000-ffff-0", "segment://t/segment/x/0000-ffff-0", "t/segment"),
        ("t/ns/segment/persistent/0000-ffff-0", "segment://t/ns/persistent/0000-ffff-0", "t/ns"),
        ("t/c/segment/persistent/x", "persistent://t/c/segment/x", "t/c/segment"),
        ("t/segment/persistent/x", "persistent://t/segment/x", "t/segment"),
    ],
)
def test_segments_and_v1_names_are_told_apart(tables: Tables, managed_ledger: str, topic: str, namespace: str) -> None:
    (row,) = findings_of(tables, finding(60, **{a.MANAGED_LEDGER: managed_ledger})).fetched()

    assert (row[c.TOPIC_NAME], row[a.NAMESPACE], row[c.TENANT]) == (topic, namespace, "t")
    assert topic == topic_of(managed_ledger)


def test_candidates_of_the_first_check_are_no_findings_before_the_second(tables: Tables) -> None:
    suspects = tables.of([finding(1, **{a.CLASS: "FOREIGN"}), finding(2, **{a.CLASS: None})], a.SUSPECT)
    first = tables.of([finding(3, **{a.CANDIDATE: True}), finding(4, **{a.CLASS: "OPEN"})], a.SUSPECT)
    second = tables.of([finding(5), finding(6, **{a.CLASS: "IN_USE"}), finding(7, **{a.CLASS: "GONE"})], a.SUSPECT)

    assert ids(findings(suspects, first, second)) == [1, 4, 5]


def test_findings_are_numbered_upwards_without_doubles(tables: Tables) -> None:
    numbers = [row[a.NUMBER] for row in findings_of(tables, *(finding(n) for n in range(1, 60))).fetched()]

    assert numbers == sorted(set(numbers))
    assert len(numbers) == 59
