"""What the operator chooses and sees: options, completeness, plots, the report, and what is remembered of it."""

import io
import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pyarrow.fs as pafs
import pytest
from rich.console import Console

from streaming.adapters.bookkeeper.http import BookieDisk, disk_of
from streaming.audit import history
from streaming.audit.audited import Audited, Share, remember, remembered
from streaming.audit.certificate import MAX_PROBLEMS, Certificate, blocked_paths, whole_errors
from streaming.audit.history import Past
from streaming.audit.options import FindingFilters, component_of, every_seconds_of
from streaming.audit.place import Place
from streaming.audit.publication.publish import Published
from streaming.audit.publication.send import PublicationPlan, finish, plan_name, plans, unfinished
from streaming.audit.report import plots, terminal
from streaming.audit.report.html import Beside, page
from streaming.audit.report.summary import AGES, Amount, Sample, Summary, TopicRow
from streaming.audit.report.text import age_text, size_text
from streaming.audit.report.words import meaning_of
from streaming.audit.run import audit_id_at, left_behind
from streaming.audit.space import Seen, Space, reasons, reclaimed_between, seen_now
from streaming.config.amounts import bytes_of, seconds_of
from streaming.errors import ConfigError
from udfs.records import LedgerComponent, Reason

CERTIFICATE = Certificate(0x1A, 0x2B, {"ledgers": 4, "owners": 2}, ())
AUDITED = Audited(
    "20261121T010203004Z",
    "instance",
    1_700_000_000_000,
    1_700_000_009_000,
    CERTIFICATE,
    {"ledgers": 4, "objects": 0, "in_use": 2, "ORPHAN": {"count": 1, "bytes": 2048}},
    (Share("public/default", "MANAGED_LEDGER", "LEDGER", 2, 4096),),
)
SUMMARY = Summary(
    by_class=(Amount("ORPHAN", "UNREFERENCED", 1, 2048), Amount("OPEN", "NOT_CLOSED", 1, 0)),
    by_topic=(TopicRow("public", "public/default", "persistent://public/default/a<b>", "MANAGED_LEDGER", 1, 2048, 90),),
    by_namespace=(Amount("public/default", "MANAGED_LEDGER", 1, 2048),),
    by_age=tuple(Amount(label, "", 1 if n == 0 else 0, 2048 if n == 0 else 0) for n, (label, _) in enumerate(AGES)),
    missing=(),
    unknown=(),
)
ALONE = Beside((), Space(0, 0, 0, 0, 0, 0, 0))
DISK = BookieDisk("http://b1:8000", 1_000, 50, 0.2, 0.8, 900)
LOST = Sample("MISSING", 7, "ledger", "MANAGED_LEDGER", "persistent://public/default/t", 10, "NOT_FOUND", "referenced")


def _place(tmp_path: Path) -> Place:
    return Place(str(tmp_path), pafs.LocalFileSystem(), str(tmp_path))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("6h", 21_600), ("7d", 604_800), ("2W", 1_209_600)]
)
def test_durations_are_read_as_operators_write_them(text: str, seconds: int) -> None:
    assert seconds_of(text, "--watch") == seconds


@pytest.mark.parametrize("text", ["", "6", "h", "-1h", "1.5h", "6 hours"])
def test_what_is_no_duration_is_refused_by_the_option_s_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--watch"):
        seconds_of(text, "--watch")


@pytest.mark.parametrize(
    ("text", "size"), [("500", 500), ("1K", 1024), ("10M", 10 << 20), ("2GiB", 2 << 30), ("1 TB", 1 << 40)]
)
def test_sizes_are_read_as_operators_write_them(text: str, size: int) -> None:
    assert bytes_of(text, "--max-bytes") == size


@pytest.mark.parametrize("text", ["", "G", "-5", "1.5G", "10X"])
def test_what_is_no_size_is_refused_by_the_option_s_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--max-bytes"):
        bytes_of(text, "--max-bytes")


def test_a_component_is_read_in_any_case_and_a_wrong_one_is_answered_with_those_there_are() -> None:
    assert component_of("schema_storage") is LedgerComponent.SCHEMA_STORAGE
    assert component_of("") is None
    with pytest.raises(ConfigError, match="COMPACTED_LEDGER"):
        component_of("schema")


@pytest.mark.parametrize(
    ("path", "filters", "concerns"),
    [
        pytest.param("/managed-ledgers/a/b/persistent/t", FindingFilters(), True, id="no filter"),
        pytest.param("/managed-ledgers/a/b/persistent/t", FindingFilters(namespace="a/b"), True, id="below"),
        pytest.param("/managed-ledgers/a/b/persistent/t", FindingFilters(namespace="a/bb"), False, id="a similar name"),
        pytest.param("/managed-ledgers/a", FindingFilters(namespace="a/b"), True, id="above"),
        pytest.param("/managed-ledgers/a", FindingFilters(tenant="ab"), False, id="another tenant"),
        pytest.param("/schemas/a/b/t", FindingFilters(tenant="a"), True, id="schema of the tenant"),
        pytest.param("/ledgers/00/0001", FindingFilters(tenant="a"), True, id="ledgers may be anybody's"),
        pytest.param("s3 http://x b", FindingFilters(tenant="a"), True, id="objects may be anybody's"),
    ],
)
def test_an_unreadable_path_concerns_a_publication_that_it_may_hide_something_from(
    path: str, filters: FindingFilters, concerns: bool
) -> None:
    certificate = replace(CERTIFICATE, unreadable=((path, "no right"),))

    assert bool(certificate.faults_within(filters)) is concerns
    assert not certificate.is_complete


def test_a_fault_of_the_whole_audit_concerns_every_publication() -> None:
    certificate = replace(CERTIFICATE, errors=("wrong cluster",))

    assert certificate.faults_within(FindingFilters(tenant="a")) == ("wrong cluster",)
    assert blocked_paths([], certificate.errors) == ("/",)


def test_too_many_unreadable_paths_are_no_exceptions_any_more() -> None:
    problems = [(f"/managed-ledgers/{n}", "") for n in range(MAX_PROBLEMS)]

    assert len(blocked_paths(problems, ())) == MAX_PROBLEMS
    assert blocked_paths([*problems, ("/schemas", "")], ()) == ("/",)


def test_ledgers_that_name_owners_without_one_owner_look_like_a_wrong_cluster() -> None:
    assert whole_errors({"owners": 0}, claimed=3)
    assert not whole_errors({"owners": 1}, claimed=3)
    assert not whole_errors({"owners": 0}, claimed=0)


def test_a_certificate_survives_being_written_down() -> None:
    certificate = replace(CERTIFICATE, unreadable=(("/a", "b"),), errors=("c",))

    assert Certificate.from_json(certificate.as_json()) == certificate
    assert certificate.as_json()["complete"] is False


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_told_in_the_unit_that_fits(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59, "59 s"), (60, "1 min"), (3599, "59 min"), (3660, "1 h 1 min"), (93_784, "1 d 2 h"), (864_000, "10 d")],
)
def test_ages_are_told_in_two_units_at_most(seconds: int, text: str) -> None:
    assert age_text(seconds) == text


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_meaning_in_words(reason: Reason) -> None:
    assert meaning_of(reason).endswith(".")


def _widths(svg: str) -> list[float]:
    tree = ElementTree.fromstring(svg)
    return [float(rect.attrib["width"]) for rect in tree.iter("rect")]


def test_bars_are_as_long_as_their_bytes() -> None:
    svg = plots.stacked_bars({"a": {"x": 100, "y": 100}, "b": {"x": 50}}, {"x": "c1", "y": "c2"})

    first, second, third = _widths(svg)
    assert first == second == pytest.approx(2 * third, rel=0.01)


def test_more_bars_than_fit_are_counted() -> None:
    svg = plots.stacked_bars({f"ns{n}": {"x": n + 1} for n in range(25)}, {"x": "c1"})

    assert len(_widths(svg)) == 20
    assert "5 more with fewer bytes" in svg


def test_columns_show_counts_where_there_are_no_bytes() -> None:
    tree = ElementTree.fromstring(plots.columns([("new", 4, 0), ("old", 2, 0)], "bad"))

    new, old = [float(rect.attrib["height"]) for rect in tree.iter("rect")]
    assert new == pytest.approx(2 * old)


def test_a_trend_needs_two_audits() -> None:
    points = [plots.Point("mon", 10), plots.Point("tue", 20)]

    assert "<svg" not in plots.line(points[:1], "bad")
    assert len(list(ElementTree.fromstring(plots.line(points, "bad")).iter("circle"))) == 2


@pytest.mark.parametrize("plot", [plots.stacked_bars({}, {}), plots.columns([("a", 0, 0)], "bad"), plots.line([], "x")])
def test_a_plot_of_nothing_says_so(plot: str) -> None:
    assert 'class="nothing"' in plot


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "xlink:href")]
        self.outside += [tag] if tag in ("script", "link", "img", "iframe") else []
        if tag not in ("meta", "rect", "line", "circle", "polygon", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line", "circle", "polygon", "polyline"):
            assert self.open.pop() == tag


def test_the_report_is_one_file_that_needs_nothing_else() -> None:
    parser = _Links()
    text = page(AUDITED, SUMMARY, ALONE)
    parser.feed(text)

    assert parser.open == []
    assert parser.outside == []
    assert "url(" not in text
    assert "@import" not in text


def test_names_in_the_report_can_not_become_markup() -> None:
    text = page(AUDITED, SUMMARY, replace(ALONE, scope="tenant <i>"))

    assert "a&lt;b&gt;" in text
    assert not re.search(r"a<b>|<i>", text)


def test_a_loss_is_shouted_and_an_incomplete_audit_says_so() -> None:
    lost = replace(SUMMARY, by_class=(Amount("MISSING", "NOT_FOUND", 1, 10),), missing=(LOST,))
    incomplete = replace(AUDITED, certificate=replace(CERTIFICATE, unreadable=(("/managed-ledgers/x", "no right"),)))

    assert "data loss" in page(AUDITED, lost, ALONE)
    assert "data loss" not in page(AUDITED, SUMMARY, ALONE)
    assert ">incomplete<" in page(incomplete, SUMMARY, ALONE)
    assert "/managed-ledgers/x" in page(incomplete, SUMMARY, ALONE)


def test_an_audit_is_remembered_as_it_was(tmp_path: Path) -> None:
    place = _place(tmp_path)
    remember(place, AUDITED, FindingFilters())

    assert remembered(place) == AUDITED


@pytest.mark.parametrize("content", [None, b"", b"{}", b"not json"])
def test_without_a_usable_audit_the_operator_is_told_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_bytes(content)

    with pytest.raises(ConfigError, match="ledger-reaper audit"):
        remembered(_place(tmp_path))


def test_history_grows_and_outlives_a_damaged_line(tmp_path: Path) -> None:
    place = _place(tmp_path)
    first, second = (Past(at, True, 1, 2, 0, 4) for at in (1, 2))
    history.add(place, first)
    (tmp_path / "history.jsonl").write_bytes((tmp_path / "history.jsonl").read_bytes() + b"{broken\n")

    assert history.add(place, second) == [first, second]
    assert history.read(place) == [first, second]


def test_a_publication_has_one_name_for_one_choice_of_filters() -> None:
    assert plan_name("1", FindingFilters(tenant="a")) == plan_name("1", FindingFilters(tenant="a"))
    assert (
        len(
            {
                plan_name("1", FindingFilters()),
                plan_name("1", FindingFilters(tenant="a")),
                plan_name("2", FindingFilters()),
            }
        )
        == 3
    )


def test_plans_are_remembered_until_all_is_stored(tmp_path: Path) -> None:
    place = _place(tmp_path)
    plan = PublicationPlan("audit-1-x", "1", 5, 3, 30, {"persistent://a/b/c-partition-0": (7, -1)})

    assert plans(place) == []
    finish(place, plan)
    assert plans(place) == [replace(plan, is_done=True)]


def test_a_turn_goes_on_with_what_was_cut_short_under_its_own_filters_only(tmp_path: Path) -> None:
    place = _place(tmp_path)
    mine, others = FindingFilters(tenant="a"), FindingFilters(tenant="b")
    for number, filters in enumerate((mine, others, mine)):
        plan = PublicationPlan(plan_name(str(number), filters), str(number), number, 3, 30, {}, is_done=number == 2)
        place.write(f"published/{plan.name}.json", json.dumps(asdict(plan)).encode())

    assert [plan.audit_id for plan in unfinished(place, mine)] == ["0"]


@pytest.mark.parametrize(
    ("published", "line"),
    [
        pytest.param(Published(2), "2 requests published to T", id="all new"),
        pytest.param(Published(2, is_repetition=True), "2 requests were already in T", id="the same again"),
        pytest.param(
            Published(0, 5),
            "0 requests published to T; 5 orphans left out that were asked for before",
            id="nothing new",
        ),
    ],
)
def test_a_log_says_what_was_asked_for_and_what_was_left_out(published: Published, line: str) -> None:
    assert published.told("T") == line


@pytest.mark.parametrize("text", ["0s", "soon"])
def test_a_watch_needs_time_between_its_turns(text: str) -> None:
    with pytest.raises(ConfigError, match="--watch"):
        every_seconds_of(text, last=False)


def test_a_watch_looks_anew_and_so_refuses_the_last_audit() -> None:
    assert (every_seconds_of("", last=True), every_seconds_of("2m", last=False)) == (0, 120)
    with pytest.raises(ConfigError, match="--last"):
        every_seconds_of("2m", last=True)


METRICS = """# TYPE bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES gauge
bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{indexDir="/a",ledgerDir="/a"} 700
bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{indexDir="/b",ledgerDir="/b"} 300.0
bookie_ACTIVE_ENTRY_LOG_TOTAL{indexDir="/b",ledgerDir="/b"} 9
bookie_RECLAIMED_COMPACTION_SPACE_BYTES{indexDir="/a",ledgerDir="/a"} 2.0E1
bookie_RECLAIMED_DELETION_SPACE_BYTES{indexDir="/a",ledgerDir="/a"} 30
"""


def test_a_bookie_s_metrics_are_summed_over_its_directories() -> None:
    config = {"minorCompactionThreshold": "0.2", "majorCompactionThreshold": "0.8", "gcWaitTime": "900000"}

    assert disk_of("http://b1:8000", METRICS, config) == DISK


@pytest.mark.parametrize("config", [None, [], {}, {"gcWaitTime": None, "majorCompactionThreshold": "often"}])
def test_a_bookie_that_hides_its_configuration_still_tells_its_space(config: object) -> None:
    disk = disk_of("u", METRICS, config)

    assert (disk.entry_log_bytes, disk.reclaimed_bytes) == (1_000, 50)
    assert (disk.major_threshold, disk.gc_wait_seconds) == (0.0, 0)


@pytest.mark.parametrize(
    ("before", "now", "reclaimed"),
    [
        pytest.param([DISK], [replace(DISK, reclaimed_bytes=80)], 30, id="more since"),
        pytest.param([DISK], [DISK], 0, id="nothing since"),
        pytest.param([DISK], [replace(DISK, reclaimed_bytes=20)], 20, id="started anew meanwhile"),
        pytest.param([], [DISK], 0, id="first look: what it did before is not ours"),
        pytest.param([DISK], [], 0, id="did not answer"),
    ],
)
def test_given_back_is_what_bookies_counted_between_two_looks(
    before: list[BookieDisk], now: list[BookieDisk], reclaimed: int
) -> None:
    assert reclaimed_between(before, now) == reclaimed


def test_what_bookies_gave_back_adds_up_over_audits_also_where_one_is_silent_for_a_while() -> None:
    other = replace(DISK, url="http://b2:8000")
    seen = seen_now(None, [DISK, other], 1_000)
    for number, answers in enumerate(
        ([replace(DISK, reclaimed_bytes=60)], [replace(other, reclaimed_bytes=90), replace(DISK, reclaimed_bytes=5)])
    ):
        seen = seen_now(seen, answers, 2_000 + number)

    assert (seen.since_ms, seen.reclaimed) == (1_000, 10 + 40 + 5)
    assert seen_now(Seen(1_000, 5, (DISK,)), [], 3_000) == Seen(1_000, 5, (DISK,))


@pytest.mark.parametrize(("deleted", "reclaimed", "held"), [(10, 4, 6), (10, 10, 0), (10, 30, 0)])
def test_still_on_disk_is_what_was_deleted_and_not_given_back(deleted: int, reclaimed: int, held: int) -> None:
    space = replace(ALONE.space, since_ms=1, bookies=1, deleted_since=deleted, reclaimed=reclaimed)

    assert ("deleted since then and still on disk, at least", held) in space.lines()


def test_an_open_ledgers_bytes_are_not_shown_as_none() -> None:
    out = io.StringIO()
    summary = replace(SUMMARY, by_class=(Amount("OPEN", "NOT_CLOSED", 3, 0), Amount("FOREIGN", "NOT_PULSARS", 1, 0)))

    terminal.show(Console(file=out, width=120), AUDITED, summary, ALONE.space, "namespace a/b")

    assert re.search(r"OPEN\s*│\s*3 │ not known", out.getvalue())
    assert re.search(r"FOREIGN\s*│\s*1 │\s*0 B", out.getvalue())
    assert "Only namespace a/b" in out.getvalue()


def test_why_the_rest_is_on_disk_names_the_bookies_own_settings() -> None:
    text = " ".join(reasons([DISK, replace(DISK, major_threshold=0.5, gc_wait_seconds=60)]))

    assert "every 900 s" in text
    assert "less than 50%" in text
    assert reasons([]) == []


@pytest.mark.parametrize(
    ("filters", "arguments"),
    [
        pytest.param(FindingFilters(), "", id="none"),
        pytest.param(FindingFilters(namespace="a b/c"), " --namespace 'a b/c'", id="quoted for a shell"),
        pytest.param(
            FindingFilters(tenant="t", component=LedgerComponent.SCHEMA_STORAGE, older_than_seconds=60, max_bytes=5),
            " --tenant t --component SCHEMA_STORAGE --older-than 60s --max-bytes 5",
            id="several",
        ),
    ],
)
def test_filters_are_told_as_the_options_that_choose_the_same(filters: FindingFilters, arguments: str) -> None:
    assert filters.arguments() == arguments


@pytest.mark.parametrize(
    ("summary", "publishes", "is_proposed"),
    [
        pytest.param(SUMMARY, False, True, id="orphans, dry run"),
        pytest.param(SUMMARY, True, False, id="orphans, published already"),
        pytest.param(replace(SUMMARY, by_class=()), False, False, id="nothing found"),
    ],
)
def test_publishing_is_proposed_only_where_there_is_something_to_publish(
    summary: Summary, publishes: bool, is_proposed: bool
) -> None:
    out = io.StringIO()

    commands = terminal.Commands("ledger-reaper audit --publish", "ledger-reaper explain")
    terminal.propose(Console(file=out), summary, commands, publishes=publishes)

    assert ("  ledger-reaper audit --publish" in out.getvalue()) is is_proposed


def test_an_audit_is_told_in_one_line_for_a_log() -> None:
    assert terminal.in_short(AUDITED, SUMMARY) == "complete, 4 ledgers, 1 ORPHAN, 1 OPEN, 2.0 KiB orphaned"


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    hostile = replace(SUMMARY.by_topic[0], topic="persistent://public/default/[red]<img src=x>")
    out = io.StringIO()

    terminal.show(Console(file=out, width=200), AUDITED, replace(SUMMARY, by_topic=(hostile,)), ALONE.space)

    assert "[red]<img src=x>" in out.getvalue()
    assert "<img" not in page(AUDITED, replace(SUMMARY, by_topic=(hostile,)), ALONE)


def test_an_incomplete_audit_says_so_at_the_top_and_names_what_is_missing_below() -> None:
    audited = replace(AUDITED, certificate=replace(CERTIFICATE, unreadable=(("/managed-ledgers/a<b>", "no right"),)))

    text = page(audited, SUMMARY, ALONE)

    assert "1 path could not be read" in text
    assert "/managed-ledgers/a&lt;b&gt;" in text
    assert "Not everything is known" not in page(AUDITED, SUMMARY, ALONE)


def test_bookies_that_answered_make_their_space_known_even_before_anything_was_deleted() -> None:
    space = replace(ALONE.space, bookies=1, reclaimed_ever=5 << 20)

    assert not ALONE.space.is_known
    assert space.is_known
    assert ("given back by bookies since each was started (all copies)", 5 << 20) in space.lines()


def test_stages_that_a_killed_audit_left_are_cleared_away_a_day_later(tmp_path: Path) -> None:
    now_ms = 1_700_000_000_000
    for hours in (25, 23):
        (tmp_path / f".work-{audit_id_at(now_ms - hours * 3_600_000)}").mkdir()
    (tmp_path / "findings").mkdir()

    found = left_behind(_place(tmp_path).folders(), now_ms)

    assert found == [f".work-{audit_id_at(now_ms - 25 * 3_600_000)}"]
