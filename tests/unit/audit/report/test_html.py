"""The HTML report: one file that loads nothing, with losses and gaps at the top."""

import re
from dataclasses import replace
from importlib.metadata import version

from streaming.audit.report.html import page
from streaming.audit.report.summary import Amount
from tests.unit.audit.results import ALONE, CERTIFICATE, LOST, RESULT, SUMMARY
from tests.unit.pages.markup import assert_loads_nothing


def test_the_report_is_one_file_without_external_resources() -> None:
    assert_loads_nothing(page(RESULT, SUMMARY, ALONE))


def test_names_in_the_report_cannot_become_markup() -> None:
    text = page(RESULT, SUMMARY, replace(ALONE, scope="tenant <i>"))

    assert "a&lt;b&gt;" in text
    assert f"cluster &lt;east&gt; (ZooKeeper zk:2181) · Ledger Reaper {version('ledger-reaper')}" in text
    assert not re.search(r"a<b>|<i>", text)


def test_missing_data_and_an_incomplete_audit_are_prominent() -> None:
    lost = replace(SUMMARY, by_class=(Amount("MISSING", "NOT_FOUND", 1, 10),), missing=(LOST,))
    incomplete = replace(RESULT, certificate=replace(CERTIFICATE, unreadable=(("/managed-ledgers/x", "no right"),)))

    assert "data loss" in page(RESULT, lost, ALONE)
    assert "data loss" not in page(RESULT, SUMMARY, ALONE)
    assert ">incomplete<" in page(incomplete, SUMMARY, ALONE)
    assert "/managed-ledgers/x" in page(incomplete, SUMMARY, ALONE)


def test_an_incomplete_audit_has_a_note_at_the_top_and_unreadable_paths_below() -> None:
    audited = replace(RESULT, certificate=replace(CERTIFICATE, unreadable=(("/managed-ledgers/a<b>", "no right"),)))

    text = page(audited, SUMMARY, ALONE)

    assert "1 path could not be read" in text
    assert "/managed-ledgers/a&lt;b&gt;" in text
    assert "Not everything is known" not in page(RESULT, SUMMARY, ALONE)
