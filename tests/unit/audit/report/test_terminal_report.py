"""The audit on the terminal."""

import io
import re
from dataclasses import replace

import pytest

from streaming.audit.report import terminal_report
from streaming.audit.report.html import page
from streaming.audit.report.summary import Amount, Summary
from streaming.terminal import Terminal
from tests.unit.audit.results import ALONE, RESULT, SUMMARY


def test_the_bytes_of_an_open_ledger_are_not_known() -> None:
    out = io.StringIO()
    summary = replace(SUMMARY, by_class=(Amount("OPEN", "NOT_CLOSED", 3, 0), Amount("FOREIGN", "NOT_PULSARS", 1, 0)))

    terminal_report.show(Terminal(file=out, width=120), RESULT, summary, ALONE.space, "namespace a/b")

    assert re.search(r"OPEN\s+3  not known", out.getvalue())
    assert re.search(r"FOREIGN\s+1\s+0 B", out.getvalue())
    assert "Only namespace a/b" in out.getvalue()
    assert "Ledger audit of cluster <east> (ZooKeeper zk:2181), 2023-11-14 22:13:20 UTC; it took" in out.getvalue()


@pytest.mark.parametrize(
    ("summary", "publishes", "is_proposed"),
    [
        pytest.param(SUMMARY, False, True, id="orphans, dry run"),
        pytest.param(SUMMARY, True, False, id="orphans, published already"),
        pytest.param(replace(SUMMARY, by_class=()), False, False, id="nothing found"),
    ],
)
def test_publishing_is_proposed_only_if_there_are_orphans(summary: Summary, publishes: bool, is_proposed: bool) -> None:
    out = io.StringIO()

    commands = terminal_report.Commands("ledger-reaper audit --publish", "ledger-reaper explain")
    terminal_report.propose(Terminal(file=out), summary, commands, publishes=publishes)

    assert ("  ledger-reaper audit --publish" in out.getvalue()) is is_proposed


def test_an_audit_is_summarized_in_one_line_for_a_log() -> None:
    assert terminal_report.in_short(RESULT, SUMMARY) == "complete, 4 ledgers, 1 ORPHAN, 1 OPEN, 2.0 KiB orphaned"


def test_names_that_look_like_markup_are_printed_unchanged() -> None:
    hostile = replace(SUMMARY.by_topic[0], topic="persistent://public/default/[red]<img src=x>\x1b[2J")
    out = io.StringIO()

    terminal_report.show(Terminal(file=out, width=200), RESULT, replace(SUMMARY, by_topic=(hostile,)), ALONE.space)

    assert "[red]<img src=x>\\x1b[2J" in out.getvalue()
    assert "<img" not in page(RESULT, replace(SUMMARY, by_topic=(hostile,)), ALONE)
