"""`ledger-reaper audit`: runs an audit or loads the last one, shows its findings, and publishes orphans on request."""

import contextlib
import hashlib
import json
import logging
import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from streaming.audit import audit_columns as a
from streaming.audit import history
from streaming.audit.audit_options import AuditOptions, FindingFilters
from streaming.audit.output import FINDINGS, Output, output_of
from streaming.audit.phase_progress import Phases
from streaming.audit.publication import asked
from streaming.audit.publication.orphan_requests import OrphanRequests
from streaming.audit.publication.segment_requests import removes_segments, requestable
from streaming.audit.repeat.faults_log import AuditFaultsError, FaultsLog
from streaming.audit.report import html, terminal_report
from streaming.audit.report.descriptions import scope_text
from streaming.audit.report.html import ReportContext
from streaming.audit.report.summary import Summary, matching, summarize
from streaming.audit.result import AuditResult, remember, remembered
from streaming.audit.space import Space, account
from streaming.audit.stages import Engine, engine_for
from streaming.audit.stopping import run_once, run_until_signal
from streaming.audit.tables import Rows
from streaming.beside import Beside, Work
from streaming.clients import bookies_for, metadata_stores_of, process_store
from streaming.clock import SystemClock
from streaming.config.settings import Settings
from streaming.coordination.exclusive import require_declared_buckets, require_exclusive_bookkeeper
from streaming.coordination.identity import instance_id_of
from streaming.coordination.live_store import require_live_store, require_no_migration
from streaming.errors import SafetyError, StoppedBySignalError
from streaming.terminal import Terminal, cell, count_of, say_json, say_json_line, size_text
from streaming.topics.requests import unsent_texts
from udfs import columns as c
from udfs.formats.bookie_info import http_addresses
from udfs.verdicts.finding_classes import FindingClass

log = logging.getLogger("ledger-reaper")

REPORT = "report.html"
_JSON_FIELDS = (
    a.CLASS,
    c.LEDGER_ID,
    c.LEDGER_TYPE,
    c.COMPONENT,
    c.TOPIC_NAME,
    c.UUID,
    c.BYTES,
    a.AGE_SECONDS,
    c.REASON,
)


@dataclass(frozen=True, slots=True)
class Section:
    """A section that another audit, or the reading of space, adds to the report."""

    html: str = ""
    faults: tuple[str, ...] = ()  # why the operator must check this section
    left_out: int = 0  # namespaces that were not audited, because no broker has all their snapshot topics loaded
    grave: tuple[str, ...] = ()  # the findings behind the faults, each as one text


def joined(sections: Sequence[Section]) -> Section:
    """Return several sections as one."""
    return Section(
        "".join(each.html for each in sections),
        tuple(fault for each in sections for fault in each.faults),
        sum(each.left_out for each in sections),
        tuple(finding for each in sections for finding in each.grave),
    )


# Returns a section; runs with the audit's engine.
Further = Callable[[Engine], Section]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """The operator's choices."""

    options: AuditOptions
    config: str  # the configuration file as the operator named it, for the commands that the output proposes
    out: Path | None = None
    as_json: bool = False
    publish: bool = False
    last: bool = False  # load the findings of the last audit instead of searching again
    is_quiet: bool = False  # write one line to the log and nothing to the terminal
    repeats: bool = False  # this audit is one of a series, and the series requests each orphan only once
    further: Sequence["Further"] = ()  # further sections of the report
    # Asks before a single audit publishes. It gets number and size of the orphans as text, and raises unless the answer
    # is yes.
    confirm: Callable[[str], None] = lambda _orphans: None


def audit(settings: Settings, request: AuditRequest, *, watch_seconds: int = 0) -> None:
    """Run one audit, or with watch_seconds one after another until SIGTERM or SIGINT.

    Raises StoppedBySignalError when a signal interrupts a single audit, and SafetyError for missing data, an incomplete
    audit or a refused publication. To publish, the operator must have declared who else uses this BookKeeper and the
    buckets of tiered_storage.allowed: otherwise raises ConfigError. If the cluster leaves ZooKeeper, raises SafetyError
    at once, unless the request is only to show the last audit.
    """
    if request.publish:
        require_exclusive_bookkeeper(settings)
        require_declared_buckets(settings)
    if watch_seconds or (request.last and request.publish):  # other audits do so when they start (tools_for)
        require_live_store(process_store(settings), partial(metadata_stores_of, settings))
    output = output_of(settings, request.out)
    if request.last:
        _refuse_other_cluster(settings, remembered(output))
    stop = threading.Event()
    if watch_seconds:
        faults = FaultsLog(watch_seconds, SystemClock())

        def run() -> None:
            run_again(settings, request, output, stop)
            faults.passed()

        work = Work(name="audit", run=run, every_s=watch_seconds, on_failure=faults.failed)
        with contextlib.suppress(StoppedBySignalError):  # only a signal ends a repeated audit
            run_until_signal(Beside(work, stop).repeat, stop)
        return
    with engine_for(settings, stop) as engine:
        command = AuditCommand(engine=engine, settings=settings, request=request, output=output)
        run_once(command, "`audit --last --publish` resumes the publication")


def run_again(
    settings: Settings,
    request: AuditRequest,
    output: Output,
    stop: threading.Event,
    *,
    is_beside_service: bool = False,
) -> None:
    """Run one audit of a series; unlike a single audit, it does not ask before it publishes.

    Raises as AuditCommand.run, and StoppedError once stop is set.
    """
    with engine_for(settings, stop, is_beside_service=is_beside_service) as engine:
        AuditCommand(engine=engine, settings=settings, request=request, output=output).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings of an audit that its filters select."""

    result: AuditResult
    selected: Rows
    summary: Summary
    report: str  # the report's path
    further: Section


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCommand:
    """One audit, which ends at its next step once the engine's stop event is set."""

    engine: Engine
    settings: Settings
    request: AuditRequest
    output: Output

    @property
    def stop(self) -> threading.Event:
        """The event that stops the audit."""
        return self.engine.stop

    def run(self) -> None:
        """Audit, show the findings, and publish them if requested. Raises subclasses of ReaperError."""
        self.conclude(self.search())

    def search(self) -> Findings:
        """Audit, or load the last audit, and show the findings. Raises subclasses of ReaperError."""
        filters = self.request.options.filters
        with self._phases() as phases:
            result = self._result(phases)
            selected = self.engine.tables.keep(matching(self._findings(), filters))
            with phases.phase("Adding up findings"):
                summary = summarize(selected)
            bookies = bookies_for(self.settings, process_store(self.settings))
            urls = self.request.options.bookies or http_addresses(bookies.registered())
            space = account(self.settings, self.output, bookies, urls, SystemClock().now_ms())
            report, further = self._write(result, summary, space)
        findings = Findings(result=result, selected=selected, summary=summary, report=report, further=further)
        self._show(findings, space)
        return findings

    def ask(self, findings: Findings) -> None:
        """Ask before orphans are published. Raises unless the answer is yes."""
        if not self.request.publish:
            return
        orphans = findings.summary.orphans
        what = [f"{count_of(orphans.count, 'orphan')} ({size_text(orphans.size_bytes)})"] * bool(orphans.count)
        segments = requestable(findings.selected, self.settings).count() - orphans.count
        what += [f"{count_of(segments, 'orphan segment')}, which can't be restored"] * bool(segments)
        if what:
            self.request.confirm(", and of ".join(what))

    def conclude(self, findings: Findings) -> None:
        """Publish if requested. Raises subclasses of ReaperError; SafetyError: the operator must check the audit."""
        faults = faults_to_check(findings.result, findings.summary, self.request.options.filters, findings.report)
        faults += findings.further.faults
        unpublished = self._publish(findings.result, findings.selected) if self.request.publish else []
        faults += unpublished
        if faults:
            raise AuditFaultsError("; ".join(faults), _digest(findings, unpublished) if self.request.repeats else "")

    def _show(self, findings: Findings, space: Space) -> None:
        result, summary, filters = findings.result, findings.summary, self.request.options.filters
        if self.request.is_quiet:
            log.info(
                "audit %s: %s; report: %s", result.audit_id, terminal_report.in_short(result, summary), findings.report
            )
        elif self.request.as_json:
            _print_json(findings.selected, totals_of(result, summary, filters, left_out=findings.further.left_out))
        else:
            terminal_report.show(Terminal(), result, summary, space, scope_text(filters))
            Terminal().print(cell(f"Report: {findings.report}"), soft_wrap=True)
            terminal_report.propose(Terminal(), summary, self._commands(), publishes=self.request.publish)
        if elsewhere := missing_elsewhere(result, summary):
            log.error("outside the filters of this audit, %s; run it without filters", missing_text(elsewhere))

    def _commands(self) -> terminal_report.Commands:
        config = shlex.quote(self.request.config)
        out = f" --out {shlex.quote(str(self.request.out))}" if self.request.out else ""
        chosen = self.request.options.filters.arguments()
        return terminal_report.Commands(
            publish=f"ledger-reaper audit --config {config}{out}{chosen} --last --publish",
            explain=f"ledger-reaper explain --config {config} N",
            removes_segments=removes_segments(self.settings),
        )

    def _findings(self) -> Rows:
        return self.output.load(self.engine.tables, FINDINGS)

    def _phases(self) -> Phases:
        return Phases(Terminal(stderr=True, quiet=self.request.is_quiet), self.stop)

    def _result(self, phases: Phases) -> AuditResult:
        if self.request.last:
            return remembered(self.output)
        from streaming.audit.ledger_audit import Audit  # it loads every reader

        return Audit(
            engine=self.engine,
            settings=self.settings,
            options=self.request.options,
            output=self.output,
            phases=phases,
            clock=SystemClock(),
        ).run()

    def _write(self, result: AuditResult, summary: Summary, space: Space) -> tuple[str, Section]:
        filters = self.request.options.filters
        newest = history.PastAudit(
            at_ms=result.started_ms,
            complete=result.certificate.is_complete,
            orphans=summary.orphans.count,
            orphan_bytes=summary.orphans.size_bytes,
            missing=summary.of(FindingClass.MISSING).count,
            ledgers=result.totals["ledgers"],
        )
        # only a new audit that searches for orphans, without filters, counts: any other would distort the trend
        counts = filters.are_empty and not self.request.last and not self.request.options.verify_only
        past = history.add(self.output, newest) if counts else history.read(self.output)
        remember(self.output, result, filters)
        further = joined([each(self.engine) for each in self.request.further])
        context = ReportContext(tuple(past), space, scope_text(filters), further.html)
        self.output.write(REPORT, html.page(result, summary, context).encode())
        return f"{self.output.shown}/{REPORT}", further

    def _publish(self, result: AuditResult, selected: Rows) -> list[str]:
        """Request the deletion of the orphans; return a text about findings that were left out.

        A finding that depends on an unreadable path is UNKNOWN, so it is no orphan.
        """
        # the findings may be of an earlier audit
        require_no_migration(process_store(self.settings))
        options, topic = self.request.options, self.settings.topics.destination
        if result.certificate.errors:
            return ["the audit published nothing"]
        publication = OrphanRequests(
            settings=self.settings,
            output=self.output,
            options=options,
            clock=SystemClock(),
            is_repeated=self.request.repeats,
        )
        with self._phases() as phases, phases.phase("Publishing") as phase:
            published = publication.publish(result.audit_id, requestable(selected, self.settings))
            phase.processed(published.requests, "requests")
            # an incomplete audit may not have found an orphan that is still there
            if self.request.repeats and result.certificate.is_complete:
                asked.forget(self.output, requestable(self._findings(), self.settings))
        log.info("%s", published.log_line(topic))
        left_out = unsent_texts(published.unsent)
        if left_out:
            left_out.append("audit --last --publish sends what is missing")
        if result.certificate.faults_within(options.filters):
            left_out.append(
                "the audit did not publish everything: it left out findings that depend on unreadable paths (class "
                "UNKNOWN). Make these paths readable, or select a tenant or namespace without them (--tenant, "
                "--namespace)"
            )
        return left_out


def _digest(findings: Findings, unpublished: Sequence[str]) -> str:
    """Return a digest of all that the operator must check.

    That is missing data, faults, grave findings of other sections, and `unpublished`: why requests were not sent.
    """
    named = ", ".join((c.LEDGER_ID, c.LEDGER_TYPE, c.COMPONENT, c.TOPIC_NAME, c.UUID, c.REASON))
    missing = findings.selected.where(f"{a.CLASS} = '{FindingClass.MISSING}'").select(f"SELECT {named} FROM rows")
    digest = hashlib.sha256()
    for row in missing.select("FROM rows ORDER BY ALL").each():
        digest.update(repr(row).encode())
    certificate, further = findings.result.certificate, findings.further
    others = (certificate.errors, certificate.unreadable, further.faults, further.grave, unpublished)
    digest.update(repr([sorted(each) for each in others]).encode())
    return digest.hexdigest()


def faults_to_check(result: AuditResult, summary: Summary, filters: FindingFilters, report: str) -> list[str]:
    """Return why the operator must check this audit: data is missing, or the audit is incomplete."""
    faults = []
    if missing := summary.of(FindingClass.MISSING).count:
        faults.append(f"data is missing: {missing_text(missing)}; see {report}")
    if unread := result.certificate.faults_within(filters):
        faults.append(f"the audit is incomplete: {count_of(len(unread), 'fault')}. The first: {unread[0]}")
    return faults


def missing_text(missing: int) -> str:
    """Return a clause that states how many ledgers and objects are missing."""
    refer = "that does not exist" if missing == 1 else "that do not exist"
    return f"topics refer to {count_of(missing, 'ledger or object', 'ledgers or objects')} {refer}"


def missing_elsewhere(result: AuditResult, summary: Summary) -> int:
    """Count the missing ledgers and objects outside the filters of the summary."""
    everywhere = result.totals.get(str(FindingClass.MISSING), {}).get("count", 0)
    return int(everywhere) - summary.of(FindingClass.MISSING).count


def totals_of(result: AuditResult, summary: Summary, filters: FindingFilters, *, left_out: int) -> dict[str, Any]:
    """Return the last line of --json: the totals of its rows, and those of the whole cluster."""
    chosen = {
        name: {"count": summary.of(FindingClass(name)).count, "bytes": summary.of(FindingClass(name)).size_bytes}
        for name in result.totals
        if name in set(map(str, FindingClass))
    }
    return {
        "complete": not result.certificate.faults_within(filters),
        "totals": {**result.totals, **chosen},
        "missing_elsewhere": missing_elsewhere(result, summary),
        "snapshot_namespaces_left_out": left_out,
    }


def _refuse_other_cluster(settings: Settings, result: AuditResult) -> None:
    instance_id = instance_id_of(process_store(settings), settings.zookeeper.ledgers_root)
    if instance_id != result.instance_id:
        raise SafetyError(
            f"audit {result.audit_id} searched BookKeeper {result.instance_id}, but this configuration names "
            f"{instance_id}: use the configuration of that audit"
        )


def _print_json(selected: Rows, totals: dict[str, Any]) -> None:
    for row in selected.select(f"SELECT {', '.join(_JSON_FIELDS)} FROM rows").each():
        say_json_line(json.dumps(row, separators=(",", ":")))
    say_json(totals)
