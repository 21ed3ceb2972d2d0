"""The chapter of the audit's report: the sections of space.html, with a history in the audit's folder."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from streaming.audit.output import Output
from streaming.audit.stages import Engine
from streaming.audit.stopping import StoppedError
from streaming.audit.tables import Tables
from streaming.audit.workers import Workers
from streaming.errors import UnavailableError
from streaming.space.output.chapter import section
from streaming.space.output.page import page
from streaming.space.output.space_tables import Shown
from streaming.space.reading.measure import Progress
from streaming.state.filesystem import folder_of
from tests.unit.space.reports import AT_MS, REPORT
from udfs.space.view import Filters, View

ENGINE = Engine(tables=cast("Tables", None), workers=cast("Workers", None), stop=threading.Event())
SHOWN = Shown(report=REPORT, filters=Filters(), by=View.CAUSE)


def folder(tmp_path: Path) -> Output:
    below = folder_of(str(tmp_path))
    return Output(below.location, below.filesystem, below.root)


def measured(progress: Progress, _workers: Workers) -> Shown:
    progress("ledgers", 9)
    return SHOWN


def unasked(_progress: Progress, _workers: Workers) -> Shown:
    raise AssertionError("nothing is read")


def test_the_chapter_has_the_sections_of_the_page(tmp_path: Path) -> None:
    chapter = section(folder(tmp_path), measured, ENGINE).html
    of_page = page(SHOWN, []).partition("</header>")[2].partition("</main>")[0]
    first = of_page.partition("<h2>Growth")[0]
    assert "By tenant, namespace and topic" in first
    assert first in chapter
    assert chapter.count("<h2>") == of_page.count("<h2>") + 1


def test_later_audits_show_the_growth_and_the_last_chapter_without_reading_again(tmp_path: Path) -> None:
    output = folder(tmp_path)
    first = section(output, measured, ENGINE).html
    later = replace(SHOWN, report=replace(REPORT, at_ms=AT_MS + 60_000))
    second = section(output, lambda _progress, _workers: later, ENGINE).html
    assert ("The growth is shown from the second run" in first, "1 min ago" in second) == (True, True)
    assert section(output, unasked, ENGINE, last=True).html == second


def test_the_last_audit_may_have_no_chapter(tmp_path: Path) -> None:
    assert section(folder(tmp_path), unasked, ENGINE, last=True).html == ""


def test_a_chapter_of_filters_is_no_run_of_the_history(tmp_path: Path) -> None:
    section(folder(tmp_path), lambda _progress, _workers: replace(SHOWN, filters=Filters(tenant="shop")), ENGINE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["space-chapter.html"]


def test_an_error_is_shown_instead_and_is_no_fault_of_the_audit(tmp_path: Path) -> None:
    def fails(_progress: Progress, _workers: Workers) -> Shown:
        raise UnavailableError("a <bookie> does not answer")

    found = section(folder(tmp_path), fails, ENGINE)
    assert "Not known: a &lt;bookie&gt; does not answer" in found.html
    assert (found.faults, found.left_out) == ((), 0)


def test_a_signal_ends_the_reading(tmp_path: Path) -> None:
    stopped = replace(ENGINE, stop=threading.Event())
    stopped.stop.set()
    with pytest.raises(StoppedError):
        section(folder(tmp_path), measured, stopped)
    assert list(tmp_path.iterdir()) == []
