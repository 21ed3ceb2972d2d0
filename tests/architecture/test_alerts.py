"""The alert rules: promtool takes them, each fires when it should and ends when it should, and each has its runbook.

`make tools` builds promtool. tests/scrapes.py has metrics of real runs.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.alert_rules import RULES
from streaming.prometheus.table import CLUSTER, INSTANCE, TABLE
from tests.go_tools import required_tool

ROOT = Path(__file__).parents[2]
[GROUP] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in GROUP["rules"]}
WHO = {INSTANCE: "main", CLUSTER: "pulsar"}
_SELECTED = re.compile(r"\b(?:ledger_|process_)\w+")


@dataclass(frozen=True)
class Case:
    """Series with a sample each step, from the start of 1970 on; when the alert fires, and when it does not."""

    alert: str
    series: dict[str, str]  # name and labels, without those of WHO -> values, as promtool writes them
    fires: tuple[str, ...]
    quiet: tuple[str, ...]
    labels: dict[str, str] = field(default_factory=dict)  # of the alert, without those of WHO
    value: str = "1"  # as the annotations show it
    id: str = ""
    step: str = "1m"


PAUSED = "ledger_reaper_paused"
RUNS = "ledger_reaper_deleted_bytes_total"
CASES = [
    Case(
        "DataMissing",
        {
            'ledger_reaper_audit_findings{class="MISSING"}': "0x4 2x4 0x4",
            'ledger_reaper_audit_findings{class="OPEN"}': "9x14",
        },
        fires=("5m", "9m"),
        quiet=("4m", "10m"),
        labels={"class": "MISSING"},
        value="2",
    ),
    Case(
        "Unaccounted",
        {
            'ledger_reaper_unaccounted{what="messages"}': "0x4 3x4 0x4",
            'ledger_reaper_unaccounted{what="ledgers"}': "0x14",
        },
        fires=("5m",),
        quiet=("4m", "10m"),
        labels={"what": "messages"},
        value="3",
    ),
    Case(
        "SnapshotsInDanger",
        {
            'ledger_reaper_snapshot_findings{class="DANGER"}': "0x4 1x4 0x4",
            'ledger_reaper_snapshot_findings{class="WASTE"}': "5x14",
        },
        fires=("5m",),
        quiet=("4m", "10m"),
        labels={"class": "DANGER"},
    ),
    Case(
        "SnapshotsInDanger",
        {"ledger_reaper_snapshot_guard_lost_segments": "0x4 3x4 0x4"},
        fires=("5m",),
        quiet=("4m", "10m"),
        labels={"class": "MISSING"},
        value="3",
        id="lost segments",
    ),
    Case("GuardLate", {"ledger_reaper_snapshot_guard_failures": "0 2x40 0x9"}, fires=("31m",), quiet=("30m", "43m")),
    Case(
        "GuardLate",
        {"ledger_reaper_snapshot_guard_pass_timestamp_seconds": "0x52 95000x9"},
        fires=("1530m",),
        quiet=("1470m", "1620m"),
        step="30m",
        id="no pass",
    ),
    Case(
        "S3Throttled",
        {"ledger_reaper_s3_throttled_total": "0+2x70 140x90"},
        fires=("70m",),
        quiet=("60m", "90m"),
        value="2",
    ),
    Case("Down", {RUNS: "7x5 _x20 0x5"}, fires=("24m",), quiet=("5m", "15m", "28m"), value="7", id="one of one"),
    Case(
        "Restarts",
        {"process_start_time_seconds": "10x9 20x2 30x2 40x2 50x80"},
        fires=("30m",),
        quiet=("13m", "85m"),
        value="4",
    ),
    Case(
        "NotReady",
        {"ledger_reaper_ready": "1 0x30 1x5", PAUSED: "0x36"},
        fires=("16m",),
        quiet=("15m", "33m"),
        value="0",
    ),
    Case("NotReady", {"ledger_reaper_ready": "0x30", PAUSED: "1x30"}, fires=(), quiet=("16m", "29m"), id="paused"),
    Case("Outage", {"ledger_reaper_outages": "0 2x20 0x5"}, fires=("16m",), quiet=("15m", "23m"), value="2"),
    Case(
        "FactsOld",
        {
            "ledger_reaper_backlog_read_timestamp_seconds": "0x61 3720x5",
            "ledger_reaper_holds_read_timestamp_seconds": "0+60x70",
        },
        fires=("61m",),
        quiet=("60m", "63m"),
        labels={"fact": "backlog"},
        value="1h 1m 0s",
    ),
    Case(
        "AccountsUnchecked",
        {"ledger_reaper_accounts_checked_timestamp_seconds": "0x125 7560x9", RUNS: "5x140"},
        fires=("121m",),
        quiet=("120m", "127m"),
        id="checked long ago",
    ),
    Case("AccountsUnchecked", {RUNS: "5x90"}, fires=("60m",), quiet=("59m",), id="never checked"),
    Case(
        "AuditTooOld",
        {"ledger_reaper_audit_last_complete_timestamp_seconds": "0x194 700000x5", RUNS: "0x200"},
        fires=("194h",),
        quiet=("193h", "196h"),
        step="1h",
        id="too old",
    ),
    Case("AuditTooOld", {RUNS: "0x200"}, fires=("193h",), quiet=("192h",), step="1h", id="never audited"),
    Case("AuditIncomplete", {"ledger_reaper_audit_complete": "1 0x4 1"}, fires=("1m",), quiet=("0m", "6m")),
    Case(
        "AuditIncomplete",
        {"ledger_reaper_snapshot_audit_complete": "1 0x4 1"},
        fires=("1m",),
        quiet=("0m", "6m"),
        id="snapshots",
    ),
    Case(
        "WatcherLate",
        {"ledger_reaper_watcher_last_scan_timestamp_seconds": "0+60x10 _x80 6000x9"},
        fires=("87m",),
        quiet=("71m", "92m"),
        id="the watcher ended",
    ),
    Case(
        "PausedTooLong",
        {PAUSED: "1x241 0x5", "ledger_reaper_paused_since_timestamp_seconds": "0x245"},
        fires=("241m",),
        quiet=("240m", "243m"),
        value="4h 1m 0s",
    ),
    Case("LimitReached", {"ledger_reaper_limit_reached": "0 1x5 0x5"}, fires=("2m",), quiet=("1m", "7m")),
    Case(
        "TenantHeld",
        {'ledger_reaper_tenant_held{tenant="shop"}': "_ 1x10 stale"},
        fires=("6m",),
        quiet=("5m", "13m"),
        labels={"tenant": "shop"},
    ),
    Case(
        "TopicShrank",
        {
            'ledger_reaper_requests_total{query="requests",outcome="RETRY",reason="SOURCE_SHRANK"}': "0+1x30 30x90",
            'ledger_reaper_requests_total{query="requests",outcome="RETRY",reason="TOO_YOUNG"}': "0+1x120",
        },
        fires=("17m",),
        quiet=("14m", "95m"),
    ),
    Case("MetadataMigration", {"ledger_reaper_metadata_migration": "0 1x10 0x5"}, fires=("6m",), quiet=("5m", "13m")),
    Case(
        "DeadLetters",
        {'ledger_reaper_dead_letters_waiting{reason="NOT_JSON"}': "_ 4x20 _x9"},
        fires=("16m",),
        quiet=("15m", "28m"),
        labels={"reason": "NOT_JSON"},
        value="4",
    ),
    Case(
        "TopicParked",
        {'ledger_reaper_query_parked{query="retry"}': "0 1x20 0x5"},
        fires=("11m",),
        quiet=("10m", "23m"),
        labels={"query": "retry"},
    ),
    Case(
        "BacklogOld",
        {'ledger_reaper_backlog_oldest_timestamp_seconds{topic="t"}': "0x76 stale", PAUSED: "0x77"},
        fires=("380m",),
        quiet=("375m", "385m"),
        labels={"topic": "t"},
        value="6h 20m 0s",
        step="5m",
    ),
    Case(
        "BacklogOld",
        {'ledger_reaper_backlog_oldest_timestamp_seconds{topic="t"}': "0x76", PAUSED: "1x76"},
        fires=(),
        quiet=("380m",),
        labels={"topic": "t"},
        step="5m",
        id="paused",
    ),
    Case(
        "RetriesStuck",
        {
            "ledger_reaper_retries_due": "0 3x200",
            'ledger_reaper_chunks_committed_total{query="retry"}': "0+1x10 10x120 11+1x70",
            'ledger_reaper_chunks_committed_total{query="requests"}': "0+1x200",
        },
        fires=("130m",),
        quiet=("60m", "128m", "140m"),
        value="3",
    ),
    Case(
        "RetriesPileUp",
        {"ledger_reaper_retries_waiting": "10000x36 20001x10 9000x9"},
        fires=("430m",),
        quiet=("420m", "490m"),
        value="20001",
        step="10m",
    ),
]


def _named(case: Case) -> str:
    return f"{case.alert}, {case.id}" if case.id else case.alert


@pytest.fixture(scope="module")
def promtool() -> Path:
    return required_tool("promtool")


def _passes(promtool: Path, *command: str | Path) -> None:
    done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_in_the_rules(promtool: Path) -> None:
    _passes(promtool, "check", "rules", "--lint=all", "--lint-fatal", RULES)


@pytest.mark.parametrize("case", CASES, ids=_named)
def test_an_alert_fires_when_it_should_and_not_otherwise(case: Case, promtool: Path, tmp_path: Path) -> None:
    alert = f"LedgerReaper{case.alert}"
    rule = ALERTS[alert]
    labels = case.labels | WHO
    expected = {
        "exp_labels": labels | rule["labels"],
        "exp_annotations": {name: _filled_in(text, labels, case.value) for name, text in rule["annotations"].items()},
    }
    test = {
        "interval": case.step,
        "input_series": [{"series": _series(name), "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            *({"alertname": alert, "eval_time": time, "exp_alerts": [expected]} for time in case.fires),
            *({"alertname": alert, "eval_time": time, "exp_alerts": []} for time in case.quiet),
        ],
    }
    document = {"rule_files": [str(RULES)], "evaluation_interval": case.step, "tests": [test]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    _passes(promtool, "test", "rules", tmp_path / "test.yaml")


def _series(name: str) -> str:
    """Return a series' name with the labels that every series has."""
    metric, _, labels = name.partition("{")
    added = [f'{label}="{value}"' for label, value in WHO.items()]
    return f"{metric}{{{','.join([*filter(None, [labels.rstrip('}')]), *added])}}}"


def _filled_in(text: str, labels: dict[str, str], value: str) -> str:
    """Return an annotation as Prometheus renders it. Fails if it names a label that the alert does not have."""
    text = re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)
    return re.sub(r"{{ \$value(?: \| \w+)? }}", value, text)


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    assert {f"LedgerReaper{case.alert}" for case in CASES if case.fires} == set(ALERTS)


def test_each_alert_has_a_scene_that_triggers_it_on_a_real_service() -> None:
    scenes = (ROOT / "tests" / "integration").glob("test_alerts*.py")
    named = re.findall(r"[>=]= alerts\(([^)]*)\)", "".join(file.read_text(encoding="utf-8") for file in scenes))
    assert {f"LedgerReaper{name}" for names in named for name in re.findall(r'"(\w+)"', names)} == set(ALERTS)


def test_an_alert_has_all_that_the_person_on_call_needs() -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n\n(.+?)(?=^## |\Z)", runbook, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        assert all(f"- **{part}**: " in sections[name] for part in ("Symptom", "Cause", "Command")), name
        assert "`ledger-reaper " in sections[name], name


def metrics_of(query: str) -> Iterator[str]:
    """Yield the names of our metrics in a query; a pattern of names is expanded."""
    for pattern in re.findall(r'__name__=~"([^"]+)"', query):
        yield from (series for series in SERIES if re.fullmatch(pattern, series))
    yield from _SELECTED.findall(re.sub(r'"[^"]*"', "", query))


SERIES = {
    f"{metric.series}{suffix}"
    for metric in TABLE.values()
    for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_asks_only_for_metrics_that_exist(name: str) -> None:
    asked = set(metrics_of(ALERTS[name]["expr"]))
    assert asked
    assert asked - SERIES == set()
