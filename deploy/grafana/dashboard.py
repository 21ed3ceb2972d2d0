"""The dashboard for Grafana, which `make pages` writes to ledger-reaper.json."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.builders.common import ReduceDataOptions, StackingConfig, VizLegendOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

FILE = Path(__file__).parent / "ledger-reaper.json"
WIDTH = 24  # of Grafana's grid
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


@dataclass(frozen=True)
class Panel:
    """A panel. Its queries have the legend as key; `[…]` after a metric's name selects the chosen services."""

    title: str
    unit: str  # Grafana's name of it
    queries: dict[str, str]
    is_stacked: bool = False


def _age(metric: str) -> str:
    """Return the query of the time since a timestamp; a timestamp of 0 is none."""
    return f"time() - ({metric}[] > 0)"


def _quantile(share: float, metric: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by ({by}) (rate({metric}_bucket[]{_RATE})))"


def _latency(metric: str, by: str = "") -> dict[str, str]:
    labels, legend = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    return {f"{legend}p{share * 100:.0f}": _quantile(share, metric, labels) for share in (0.5, 0.95, 0.99)}


_RATE = "[$__rate_interval]"
# numbers of the first row: title -> unit, query
NOW = {
    "Ready": ("bool_yes_no", "min(ledger_reaper_ready[])"),
    "Missing ledgers and objects": ("short", 'sum(ledger_reaper_audit_findings[class="MISSING"])'),
    "Unaccounted": ("short", "sum(ledger_reaper_unaccounted[])"),
    "Orphans": ("bytes", 'sum(ledger_reaper_audit_findings_bytes[class="ORPHAN"])'),
    "Last complete audit": ("s", f"max({_age('ledger_reaper_audit_last_complete_timestamp_seconds')})"),
    "Deleted in 24 h": ("bytes", "sum(increase(ledger_reaper_deleted_bytes_total[][24h]))"),
}
ROWS = {
    "Space": [
        Panel("Bytes by cause, one copy", "bytes", {"{{cause}}": "ledger_reaper_space_bytes[]"}, is_stacked=True),
        Panel(
            "Bytes stored, all copies", "bytes", {"{{cause}}": "ledger_reaper_space_stored_bytes[]"}, is_stacked=True
        ),
        Panel("Findings of the last audit", "short", {"{{class}}": "ledger_reaper_audit_findings[]"}),
        Panel("Bytes of these findings", "bytes", {"{{class}}": "ledger_reaper_audit_findings_bytes[]"}),
    ],
    "Requests": [
        Panel(
            "Verdicts by reason",
            "reqps",
            {"{{outcome}} {{reason}}": f"sum by (outcome, reason) (rate(ledger_reaper_requests_total[]{_RATE}))"},
            is_stacked=True,
        ),
        Panel("Bytes deleted", "Bps", {"{{instance_name}}": f"rate(ledger_reaper_deleted_bytes_total[]{_RATE})"}),
        Panel("Backlog", "short", {"{{topic}}": "ledger_reaper_backlog_requests[]"}),
        Panel("Oldest waiting request", "s", {"{{topic}}": _age("ledger_reaper_backlog_oldest_timestamp_seconds")}),
        Panel(
            "Retries",
            "short",
            {"waiting": "ledger_reaper_retries_waiting[]", "due": "ledger_reaper_retries_due[]"},
        ),
        Panel(
            "Dead letters that wait", "short", {"{{reason}}": "ledger_reaper_dead_letters_waiting[]"}, is_stacked=True
        ),
    ],
    "Latency": [
        Panel("Batches", "s", _latency("ledger_reaper_batch_seconds", "source")),
        Panel("Chunks", "s", _latency("ledger_reaper_chunk_seconds", "source")),
        Panel("Groups of deletes", "s", _latency("ledger_reaper_delete_seconds")),
        Panel(
            "Deletes a second",
            "ops",
            {
                "done": f"rate(ledger_deletion_ledgers_deleted_total[]{_RATE})",
                "pace": "ledger_reaper_deletes_per_second[]",
                "limit": "ledger_reaper_deletes_per_second_limit[]",
            },
        ),
        Panel(
            "Waits for services",
            "short",
            {
                "steps that wait": "ledger_reaper_outages[]",
                "waits a second": f"rate(ledger_reaper_outages_waited_total[]{_RATE})",
                "refusals of tiered storage a second": f"rate(ledger_reaper_s3_throttled_total[]{_RATE})",
            },
        ),
        Panel(
            "References in the cache",
            "ops",
            {
                "hits": f"rate(ledger_reaper_in_use_cache_hits_total[]{_RATE})",
                "misses": f"rate(ledger_reaper_in_use_cache_misses_total[]{_RATE})",
                "refreshes": f"rate(ledger_reaper_in_use_cache_refreshes_total[]{_RATE})",
            },
        ),
    ],
    "Holds": [
        Panel(
            "Holds of the service",
            "short",
            {
                "paused": "ledger_reaper_paused[]",
                "limit reached": "ledger_reaper_limit_reached[]",
                "metadata migration": "ledger_reaper_metadata_migration[]",
                "tenants held": "ledger_reaper_tenants_held[]",
            },
        ),
        Panel(
            "Held tenants and parked topics",
            "short",
            {
                "tenant {{tenant}}": "ledger_reaper_tenant_held[]",
                "query {{query}}": "ledger_reaper_query_parked[] > 0",
            },
        ),
    ],
    "Watcher": [
        Panel(
            "Requests",
            "reqps",
            {
                "noticed": f"rate(ledger_reaper_watcher_requests_noticed_total[]{_RATE})",
                "sent": f"rate(ledger_reaper_watcher_requests_sent_total[]{_RATE})",
                "dropped": f"rate(ledger_reaper_watcher_requests_dropped_total[]{_RATE})",
            },
        ),
        Panel(
            "Scans",
            "s",
            {
                "since the last": _age("ledger_reaper_watcher_last_scan_timestamp_seconds"),
                "duration": "ledger_reaper_watcher_scan_duration_seconds[]",
            },
        ),
        Panel(
            "Waiting and unreadable",
            "short",
            {
                "requests that wait": "ledger_reaper_watcher_requests_waiting[]",
                "unreadable znodes": "ledger_reaper_watcher_unreadable_znodes[]",
            },
        ),
        Panel(
            "Failures in an hour",
            "short",
            {"{{instance_name}}": "increase(ledger_reaper_watcher_failures_total[][1h])"},
        ),
    ],
    "Snapshots of aborted transactions": [
        Panel("Findings", "short", {"{{class}}": "ledger_reaper_snapshot_findings[]"}),
        Panel(
            "Since the last audit, and the last pass over the guards",
            "s",
            {
                "audit": _age("ledger_reaper_snapshot_audit_timestamp_seconds"),
                "guards": _age("ledger_reaper_snapshot_guard_pass_timestamp_seconds"),
            },
        ),
        Panel(
            "Since a guard moved", "s", {"{{namespace}}": _age("ledger_reaper_snapshot_guard_moved_timestamp_seconds")}
        ),
        Panel(
            "Guards",
            "short",
            {
                "guards": "ledger_reaper_snapshot_guards[]",
                "not updated": "ledger_reaper_snapshot_guard_failures[]",
                "lost segments": "ledger_reaper_snapshot_guard_lost_segments[]",
            },
        ),
    ],
    "Process": [
        Panel("Resident memory", "bytes", {"{{instance_name}}": "process_resident_memory_bytes[]"}),
        Panel("CPU", "percentunit", {"{{instance_name}}": f"rate(process_cpu_seconds_total[]{_RATE})"}),
        Panel(
            "File descriptors",
            "short",
            {"open": "process_open_fds[]", "most": "process_max_fds[]"},
        ),
        Panel("Since the start", "s", {"{{instance_name}}": "time() - process_start_time_seconds[]"}),
        Panel("Versions", "short", {"{{version}}": "count by (version) (ledger_reaper_build_info[])"}),
    ],
}


def selected(query: str) -> str:
    """Replace `[…]` after a metric's name by the labels of the chosen services."""
    chosen = 'cluster=~"$cluster",instance_name=~"$instance_name"'
    parts = query.split("[")
    out = parts[0]
    for part in parts[1:]:
        labels, _, rest = part.partition("]")
        is_range = labels.startswith("$") or labels[:1].isdigit()
        out += f"[{labels}]{rest}" if is_range else f"{{{','.join(filter(None, [labels, chosen]))}}}{rest}"
    return out


def queries() -> Iterator[tuple[str, str]]:
    """Yield the title of a panel and a query, for all queries."""
    yield from ((title, selected(query)) for title, (_unit, query) in NOW.items())
    for panels in ROWS.values():
        for panel in panels:
            yield from ((panel.title, selected(query)) for query in panel.queries.values())


def exported() -> str:
    """Return the dashboard as JSON."""
    board = (
        dashboard.Dashboard("Ledger Reaper")
        .uid("ledger-reaper")
        .tags(["pulsar", "ledger-reaper"])
        .refresh("1m")
        .time("now-24h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for label in ("cluster", "instance_name"):
        board = board.with_variable(
            dashboard.QueryVariable(label)
            .datasource(_SOURCE)
            .query(f"label_values(ledger_reaper_ready, {label})")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    for title, (unit, query) in NOW.items():
        board = board.with_panel(_number(title, unit, query))
    for title, panels in ROWS.items():
        board = board.with_row(dashboard.Row(title))
        for panel in panels:
            board = board.with_panel(_graph(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _number(title: str, unit: str, query: str) -> stat.Panel:
    panel = stat.Panel().title(title).unit(unit).datasource(_SOURCE).height(4).span(WIDTH // len(NOW))
    return panel.reduce_options(ReduceDataOptions().calcs(["lastNotNull"])).with_target(_target(query, "", 0))


def _graph(panel: Panel) -> timeseries.Panel:
    built = timeseries.Panel().title(panel.title).unit(panel.unit).min(0).datasource(_SOURCE).height(8).span(WIDTH // 2)
    built = built.legend(
        VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM).show_legend(True)
    )
    if panel.is_stacked:
        built = built.stacking(StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(20)
    for number, (legend, query) in enumerate(panel.queries.items()):
        built = built.with_target(_target(query, legend, number))
    return built


def _target(query: str, legend: str, number: int) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(selected(query)).ref_id(chr(ord("A") + number)).datasource(_SOURCE)
    return target.legend_format(legend) if legend else target
