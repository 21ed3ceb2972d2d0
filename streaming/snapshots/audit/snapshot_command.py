"""`ledger-reaper snapshots audit`: run one audit, show its findings, and keep findings and report."""

import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from streaming.audit import audit_columns as a
from streaming.audit.audit_options import AuditOptions, FindingFilters
from streaming.audit.command import Further, Section
from streaming.audit.output import FINDINGS, Output
from streaming.audit.output import output_of as folder_for
from streaming.audit.phase_progress import Phases
from streaming.audit.result import FILE as SUMMARY
from streaming.audit.result import AuditResult, remember, remembered, remembered_filters
from streaming.audit.stages import Engine, engine_for
from streaming.audit.stopping import run_once
from streaming.audit.tables import Rows
from streaming.clock import SystemClock
from streaming.config.settings import Settings
from streaming.errors import ConfigError, SafetyError, StopRequestedError
from streaming.snapshots.audit import snapshot_report
from streaming.snapshots.audit.advice import LEFT_OUT, NOT_LOADED
from streaming.snapshots.audit.snapshot_report import GRAVE, totals
from streaming.spark.java_errors import one_line
from streaming.terminal import Terminal, cell, count_of, say_json, say_json_line, some_of
from udfs.records import LedgerComponent

log = logging.getLogger("ledger-reaper")

REPORT = "report.html"
_SHOWN_TOPICS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """The operator's choices."""

    options: AuditOptions
    out: Path | None = None
    as_json: bool = False
    publish: bool = False
    # asks before orphans are requested; gets their number as text, and raises unless the answer is yes
    confirm: Callable[[str], None] = lambda _orphans: None


def output_of(settings: Settings, out: Path | str | None) -> Output:
    """--out, or `snapshots` in the state directory. Raises UnavailableError."""
    return folder_for(settings, out, "snapshots")


def audit(settings: Settings, request: SnapshotRequest) -> None:
    """Run one audit.

    Raises StoppedBySignalError if a signal interrupted it, SafetyError if the operator must check the audit or not all
    was published, and ConfigError if the service would refuse the requests of --publish.
    """
    if request.publish and LedgerComponent.TRANSACTION_SNAPSHOT not in settings.safety.allowed_components:
        raise ConfigError(
            f"--publish: safety.allowed_components does not name {LedgerComponent.TRANSACTION_SNAPSHOT}, so the "
            "service would refuse every request. Add it to that list"
        )
    output = output_of(settings, request.out)
    with engine_for(settings, threading.Event()) as engine:
        command = SnapshotCommand(engine=engine, settings=settings, request=request, output=output)
        run_once(command, "the next `snapshots audit --publish` requests the rest")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCommand:
    """One audit. Once the engine's stop is set, it ends at the next step."""

    engine: Engine
    settings: Settings
    request: SnapshotRequest
    output: Output

    @property
    def stop(self) -> threading.Event:
        """The event that stops the audit."""
        return self.engine.stop

    def search(self) -> AuditResult:
        """Audit, and show the findings. Raises ReaperError."""
        result, groups = audited(self.engine, self.settings, self.request.options, self.output)
        self.output.write(REPORT, snapshot_report.page(result, groups).encode())
        if self.request.as_json:
            _print_json(self._findings(), result)
        else:
            snapshot_report.show(Terminal(), result, groups)
            Terminal().print(cell(f"Report: {self.output.shown}/{REPORT}"), soft_wrap=True)
        return result

    def ask(self, _result: AuditResult) -> None:
        """Ask before orphans are published. Raises unless the answer is yes."""
        from streaming.snapshots.audit.publication import orphans_of

        if self.request.publish and (count := orphans_of(self._findings()).count()):
            self.request.confirm(count_of(count, "orphan"))

    def conclude(self, result: AuditResult) -> None:
        """Publish if requested. Raises SafetyError if the operator must check the audit, otherwise like search."""
        faults = [
            f"{each}; see {self.output.shown}/{REPORT}" for each in shortcomings(result, self.request.options.filters)
        ]
        if self.request.publish:
            faults += self._publish(result)
        if faults:
            raise SafetyError("; ".join(faults))

    def _findings(self) -> Rows:
        return self.output.load(self.engine.tables, FINDINGS)

    def _publish(self, result: AuditResult) -> list[str]:
        """Request tombstones for the orphans, and return texts about what was left out.

        A namespace that could not be read has no findings of orphans.
        """
        if result.certificate.errors:
            return ["the audit requested nothing"]
        from streaming.snapshots.audit.publication import publish

        sent = publish(self.settings, self._findings())
        topics = some_of(sorted(sent.topics), _SHOWN_TOPICS) or self.settings.topics.requests[0]
        log.info("%s received %s", topics, count_of(sent.published, "request"))
        faults = sent.unsent_texts()
        if result.certificate.faults_within(self.request.options.filters):
            faults.append("the audit requested nothing in the namespaces that it could not read")
        return faults


def shortcomings(result: AuditResult, filters: FindingFilters) -> list[str]:
    """Return why a person must check this audit: grave findings, and what could not be read."""
    grave = sum(result.totals[str(each)]["count"] for each in GRAVE)
    unread = result.certificate.faults_within(filters)
    faults = [f"{count_of(grave, 'finding')} of {' or '.join(GRAVE)}"] if grave else []
    if unread:
        faults.append(f"the audit is incomplete: {count_of(len(unread), 'fault')}. The first: {unread[0]}")
    return faults


def audited(
    engine: Engine, settings: Settings, options: AuditOptions, output: Output, *, only_loaded: bool = False
) -> tuple[AuditResult, list[snapshot_report.FindingGroup]]:
    """Run an audit into the output folder; return its result, and its findings added up."""
    from streaming.snapshots.audit.snapshot_audit import SnapshotAudit  # it loads every reader

    with Phases(Terminal(stderr=True), engine.stop) as phases:
        result = SnapshotAudit(
            engine=engine,
            settings=settings,
            options=options,
            output=output,
            phases=phases,
            clock=SystemClock(),
            only_loaded=only_loaded,
        ).run()
        remember(output, result, options.filters)
        with phases.phase("Adding up"):
            return result, snapshot_report.groups_of(output.load(engine.tables, FINDINGS))


def last_audit(
    engine: Engine, output: Output, filters: FindingFilters
) -> tuple[AuditResult, list[snapshot_report.FindingGroup]]:
    """Return the last audit as audited() does, restricted to the filters. Raises ConfigError if it covered less."""
    covered, chosen = remembered_filters(output).scope, filters.scope
    if not f"{chosen}/".startswith(covered and f"{covered}/"):
        raise ConfigError(f"the last snapshot audit covered only {covered}: run `ledger-reaper snapshots audit`")
    result, findings = remembered(output), output.load(engine.tables, FINDINGS)
    if chosen:
        findings = findings.where(f"starts_with({a.NAMESPACE} || '/', $scope)", scope=f"{chosen}/")
    return replace(result, totals={**result.totals, **totals(findings)}), snapshot_report.groups_of(findings)


def further(settings: Settings, options: AuditOptions, *, last: bool = False) -> Further:
    """Return the audit of snapshots as a section of the ledger audit; it writes to the folder of `snapshots audit`.

    It loads no topic: it leaves out namespaces with a snapshot topic that is not loaded, and logs their number.
    last: use the last audit in the folder instead of a new audit; if there is none, the section is empty.
    """

    def section(engine: Engine) -> Section:
        try:
            output = output_of(settings, None)
            if last and output.read(SUMMARY) is None:
                return Section()
            if last:
                result, groups = last_audit(engine, output, options.filters)
            else:
                result, groups = audited(engine, settings, options, output, only_loaded=True)
        except StopRequestedError:
            raise
        except Exception as error:
            if engine.stop.is_set():  # this event also stops the audit of ledgers
                raise
            # the audit of ledgers must complete whatever the error is
            why = one_line(error)
            log.warning("snapshots were not audited: %s", why)
            return Section(snapshot_report.failed_section(why), (f"snapshots were not audited: {why}",))
        _log(result, groups)
        faults = tuple(f"snapshots: {each}" for each in shortcomings(result, options.filters))
        left_out = result.certificate.listed.get(NOT_LOADED, 0)
        grave = tuple(repr(group) for group in groups if group.finding_class in GRAVE)
        return Section(snapshot_report.html_section(groups, result), faults, left_out, grave)

    return section


def _log(result: AuditResult, groups: Sequence[snapshot_report.FindingGroup]) -> None:
    if left_out := result.certificate.listed.get(NOT_LOADED):
        log.warning("snapshots of %s were left out: %s", count_of(left_out, "namespace"), LEFT_OUT)
    if groups:
        log.warning("snapshots: %s; `ledger-reaper snapshots audit` shows them", snapshot_report.in_short(result))


def _print_json(found: Rows, result: AuditResult) -> None:
    for row in snapshot_report.with_advice(found):
        say_json_line(json.dumps(row, separators=(",", ":")))
    say_json({"complete": result.certificate.is_complete, "totals": result.totals})
