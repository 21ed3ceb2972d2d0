"""`ledger-reaper audit`."""

from pathlib import Path
from typing import Annotated

import typer

from streaming.arrow import load_datasets
from streaming.cli.history import record
from streaming.cli.options import (
    READS_PER_SECOND,
    Config,
    Json,
    ReadsPerSecond,
    Yes,
    completes,
    confirm,
    refuse_ignored,
    require_namespace,
    require_terminal,
    settings_of,
)
from streaming.config import amounts
from udfs.records import LedgerComponent


def audit(  # noqa: PLR0913  typer reads each option from a parameter
    context: typer.Context,
    config: Config,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of report.html and findings", show_default="<state.dir>/audit"),
    ] = None,
    json_lines: Json = False,
    publish: Annotated[bool, typer.Option("--publish", help="Request the deletion of the orphans")] = False,
    yes: Yes = False,
    last: Annotated[
        bool, typer.Option("--last", help="Use the findings of the last audit in --out instead of searching again")
    ] = False,
    verify_only: Annotated[bool, typer.Option("--verify-only", help="Only search for missing data")] = False,
    before_removing: Annotated[
        str,
        typer.Option(
            "--before-removing",
            metavar="BOOKIE",
            help="Only show what would be lost without this bookie (host:port, as in ensembles)",
        ),
    ] = "",
    tenant: Annotated[str, typer.Option("--tenant", help="Only this tenant")] = "",
    namespace: Annotated[str, typer.Option("--namespace", help="Only this namespace (tenant/ns)")] = "",
    component: Annotated[
        str,
        typer.Option(
            "--component",
            help=f"Only this component: {', '.join(LedgerComponent)}",
            autocompletion=completes(LedgerComponent),
        ),
    ] = "",
    older_than: Annotated[
        str, typer.Option("--older-than", help="Only findings that have not changed for this long, as in 7d")
    ] = "",
    max_bytes: Annotated[
        str, typer.Option("--max-bytes", help="Only the oldest orphans, up to this total size, as in 500G")
    ] = "",
    recheck_seconds: Annotated[
        int | None,
        typer.Option(
            "--recheck-seconds",
            min=0,
            help="Seconds between the two checks of each suspect",
            show_default="safety.min_age_seconds",
        ),
    ] = None,
    reads_per_second: ReadsPerSecond = READS_PER_SECOND,
    publish_per_second: Annotated[
        int, typer.Option("--publish-per-second", min=0, help="Send at most this many requests per second; 0: no limit")
    ] = 500,
    bookie: Annotated[
        list[str] | None,
        typer.Option(
            "--bookie",
            help="Bookie that is asked for its disk usage (http://…); may be given several times",
            show_default="all",
        ),
    ] = None,
    with_space: Annotated[
        bool,
        typer.Option("--space/--no-space", help="Also read where all bytes are, for a chapter of report.html"),
    ] = True,
    watch: Annotated[
        str,
        typer.Option("--watch", help="Repeat at this interval, as in 6h; each orphan is requested once"),
    ] = "",
) -> None:
    """Find orphans (storage that no topic uses any more) and missing data (storage that a topic needs and has lost).

    Nothing is deleted. The exit code is 4 if data is missing, snapshots are in danger, or the audit is incomplete.

    No topic is loaded: the audit leaves out the snapshots of namespaces whose snapshot topics are not all loaded by
    brokers. `snapshots audit` loads and reads these.

    With --verify-only --before-removing BOOKIE, the command reads only the metadata of all ledgers, and shows which
    ledgers would lose data, or have too few copies, if this bookie were removed now. The exit code is 4 if any would
    lose data.

    With --publish, the audit sends a deletion request for each orphan to the request topic, and the service checks each
    request once more before it deletes anything.
    """
    searches_again = ("--verify-only", "--recheck-seconds", "--reads-per-second", "--space")
    for_orphans = ("--publish", "--older-than", "--max-bytes")
    of_whole_audits = ("--out", "--last", "--recheck-seconds", "--bookie", "--watch", "--yes")
    filters_given = ("--tenant", "--namespace", "--component")
    refuse_ignored(
        context,
        (not verify_only, ("--before-removing",), "it belongs to --verify-only. Add --verify-only"),
        (
            before_removing != "",
            (*of_whole_audits, *filters_given),
            "the bookie is searched in all ledgers. Leave out --before-removing",
        ),
        (verify_only, for_orphans, "--verify-only searches for no orphans. Leave out --verify-only"),
        (verify_only, ("--space",), "--verify-only reads no sizes. Leave out --verify-only"),
        (last, searches_again, "--last does not search again. Leave out --last"),
        (not publish, ("--publish-per-second",), "nothing is published. Add --publish"),
    )
    require_namespace(namespace, tenant)
    settings = settings_of(config)
    load_datasets(with_numpy=not last)
    if before_removing:
        from streaming.space.bookie_removal import before_removing as show_removal

        show_removal(settings, before_removing, as_json=json_lines, reads_per_second=reads_per_second)
        return
    from streaming.audit import audit_options
    from streaming.audit.command import AuditRequest
    from streaming.audit.command import audit as run_audit

    filters = audit_options.FindingFilters(
        tenant=tenant,
        namespace=namespace,
        component=LedgerComponent(amounts.one_of(component, LedgerComponent, "--component")) if component else None,
        older_than_seconds=amounts.seconds_of(older_than, "--older-than") if older_than else 0,
        max_bytes=amounts.bytes_of(max_bytes, "--max-bytes") if max_bytes else 0,
    )
    chosen = audit_options.AuditOptions(
        recheck_seconds=settings.safety.min_age_seconds if recheck_seconds is None else recheck_seconds,
        reads_per_second=reads_per_second,
        publish_per_second=publish_per_second,
        verify_only=verify_only,
        bookies=tuple(bookie or ()),
        filters=filters,
    )
    every_seconds = audit_options.every_seconds_of(watch, last=last)
    topic = settings.topics.destination
    if publish:
        require_terminal(yes=yes)
    if publish and every_seconds:
        confirm(f"Request the deletion of all orphans that each audit finds, in {topic}?", yes=yes)
        record(settings, "audit --publish", f"every {watch}, all orphans that the audit finds, to {topic}")

    def confirm_count(orphans: str) -> None:
        confirm(f"Request the deletion of {orphans}, in {topic}?", yes=yes)
        if not every_seconds:
            record(settings, "audit --publish", f"asked for the deletion of {orphans}, in {topic}")

    from streaming.snapshots.audit import snapshot_command
    from streaming.space.output import chapter

    further = []
    if with_space and not verify_only:
        further.append(chapter.further(settings, chosen, out, last=last))
    includes_snapshots = filters.component in (None, LedgerComponent.TRANSACTION_SNAPSHOT)
    if includes_snapshots:
        further.append(snapshot_command.further(settings, chosen, last=last))
    audit_request = AuditRequest(
        options=chosen,
        config=str(config),
        out=out,
        as_json=json_lines,
        publish=publish,
        last=last,
        repeats=every_seconds > 0,
        confirm=confirm_count,
        further=further,
    )
    run_audit(settings, audit_request, watch_seconds=every_seconds)
