"""`ledger-reaper audit` and `explain`: options in the operator's words, nothing else."""

from pathlib import Path
from typing import Annotated

import typer

from streaming.config import amounts
from streaming.config.load import load
from udfs.records import LedgerComponent

Config = Annotated[Path, typer.Option("--config", help="Configuration file (TOML)", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines")]


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command()(audit)
    app.command()(explain)


def audit(  # noqa: PLR0913  one parameter an option: that is what typer reads
    config: Config,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where report.html and findings/ go (default: <state.dir>/audit)")
    ] = None,
    json_lines: Json = False,
    publish: Annotated[bool, typer.Option("--publish", help="Send the orphans to the request topic")] = False,
    last: Annotated[
        bool, typer.Option("--last", help="Use what the last audit in --out found, instead of looking anew")
    ] = False,
    verify_only: Annotated[
        bool, typer.Option("--verify-only", help="Only look for what is referred to and missing; exit 4 if any is")
    ] = False,
    tenant: Annotated[str, typer.Option("--tenant", help="Only this tenant's")] = "",
    namespace: Annotated[str, typer.Option("--namespace", help="Only this namespace's (tenant/ns)")] = "",
    component: Annotated[
        str, typer.Option("--component", help=f"Only this component: {', '.join(LedgerComponent)}")
    ] = "",
    older_than: Annotated[str, typer.Option("--older-than", help="Only what did not change for so long, e.g. 7d")] = "",
    max_bytes: Annotated[str, typer.Option("--max-bytes", help="Only the oldest orphans that fit, e.g. 500G")] = "",
    recheck_seconds: Annotated[
        int | None,
        typer.Option("--recheck-seconds", min=0, help="Pause between the two looks (default: safety.min_age_seconds)"),
    ] = None,
    reads_per_second: Annotated[
        int, typer.Option("--reads-per-second", help="Znodes read a second over all executors; 0: no limit")
    ] = 50_000,
    publish_per_second: Annotated[
        int, typer.Option("--publish-per-second", help="Requests sent a second; 0: no limit")
    ] = 500,
    bookie: Annotated[
        list[str] | None,
        typer.Option(
            "--bookie",
            help="Bookie to ask for its disk (http://…); repeatable (default: all)",
        ),
    ] = None,
    watch: Annotated[
        str, typer.Option("--watch", help="Repeat until stopped, e.g. every 6h; asks once for each orphan")
    ] = "",
) -> None:
    """Find what belongs to no one, and what is missing. A dry run unless --publish."""
    settings = load(config)
    from streaming.audit import options
    from streaming.audit.command import AuditRequest
    from streaming.audit.command import audit as run_audit

    filters = options.FindingFilters(
        tenant=tenant,
        namespace=namespace,
        component=options.component_of(component),
        older_than_seconds=amounts.seconds_of(older_than, "--older-than") if older_than else 0,
        max_bytes=amounts.bytes_of(max_bytes, "--max-bytes") if max_bytes else 0,
    )
    chosen = options.AuditOptions(
        recheck_seconds=settings.safety.min_age_seconds if recheck_seconds is None else recheck_seconds,
        reads_per_second=reads_per_second,
        publish_per_second=publish_per_second,
        verify_only=verify_only,
        bookies=tuple(bookie or ()),
        filters=filters,
    )
    every_seconds = options.every_seconds_of(watch, last=last)
    wanted = AuditRequest(
        chosen, str(config), out, as_json=json_lines, publish=publish, last=last, repeats=every_seconds > 0
    )
    run_audit(settings, wanted, watch_seconds=every_seconds)


def explain(
    config: Config,
    ledger: Annotated[int, typer.Option("--ledger", help="Ledger id")],
    json_lines: Json = False,
) -> None:
    """Say what a ledger is, who refers to it, and what would become of a request to delete it."""
    settings = load(config)
    from streaming.audit.explain import explain as explain_ledger

    explain_ledger(settings, ledger, as_json=json_lines)
