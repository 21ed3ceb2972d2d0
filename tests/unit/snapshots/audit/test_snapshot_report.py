"""The report shows findings and what to do, says what could not be read, and nothing in it acts."""

from streaming.audit.certificate import Certificate
from streaming.audit.result import AuditResult
from streaming.snapshots.audit.advice import CLASS_MEANING, NEXT
from streaming.snapshots.audit.snapshot_report import FindingGroup, failed_section, html_section, in_short, page, show
from streaming.terminal import Terminal
from udfs.snapshots.topic_findings import SnapshotClass, SnapshotReason

TOPIC = "persistent://t/ns/<script>"
GROUPS = [
    FindingGroup(
        finding_class=SnapshotClass.MISSING,
        reason=SnapshotReason.SEGMENT_LOST,
        topic=TOPIC,
        detail="segment 2 was trimmed",
        count=3,
        size_bytes=2048,
    )
]


def _result(*unreadable: tuple[str, str]) -> AuditResult:
    totals = {str(each): {"count": 0, "bytes": 0, "ids": 0} for each in SnapshotClass}
    totals["MISSING"]["count"] = 3
    certificate = Certificate(
        zxid_start=1, zxid_end=2, listed={"namespaces": 1, "messages": 9, "topics": 2}, unreadable=unreadable
    )
    return AuditResult(
        audit_id="20260101T000000000Z",
        instance_id="id",
        started_ms=0,
        ended_ms=5_000,
        certificate=certificate,
        totals=totals,
        in_use=(),
    )


def test_every_class_and_reason_has_words() -> None:
    assert set(CLASS_MEANING) == set(SnapshotClass)
    assert set(NEXT) == set(SnapshotReason)


def test_the_page_shows_findings_and_names_are_only_text() -> None:
    shown = page(_result(("persistent://t/ns/x", "broke <b>off</b>")), GROUPS)
    assert "segment 2 was trimmed" in shown
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert "broke &lt;b&gt;off&lt;/b&gt;" in shown
    assert "incomplete" in shown


def test_a_section_without_findings_says_so_and_one_without_an_audit_says_why() -> None:
    assert "None." in html_section([], _result())
    assert "no &lt;broker&gt;" in failed_section("no <broker>")


def test_the_terminal_shows_the_same() -> None:
    console = Terminal(width=220)
    with console.capture() as captured:
        show(console, _result(), GROUPS)
    assert "SEGMENT_LOST" in captured.get()
    assert "Audit them again" not in captured.get()
    assert "3 MISSING" in captured.get()
    assert in_short(_result()) == "3 MISSING"


def test_an_incomplete_audit_says_what_to_do() -> None:
    console = Terminal(width=220)
    with console.capture() as captured:
        show(console, _result(("persistent://t/ns/x", "silence")), [])
    assert "Audit them again" in captured.get()
    assert "Audit them again" in html_section([], _result(("persistent://t/ns/x", "silence")))
