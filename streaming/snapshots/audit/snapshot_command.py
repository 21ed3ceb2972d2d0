"""`ledger-reaper snapshots audit`: run one audit, show its findings, and keep findings and report."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming.audit import audit_columns as a
from streaming.audit.audit_options import AuditOptions, FindingFilters
from streaming.audit.command import Further, Section
from streaming.audit.output import FINDINGS, Output
from streaming.audit.phase_progress import Phases
from streaming.audit.result import FILE as SUMMARY
from streaming.audit.result import AuditResult, remember, remembered, remembered_filters
from streaming.audit.stopping import run_once
from streaming.clock import SystemClock
from streaming.config.settings import Settings
from streaming.errors import ConfigError, SafetyError, StopRequestedError
from streaming.snapshots.audit import snapshot_report
from streaming.snapshots.audit.advice import LEFT_OUT, NOT_LOADED
from streaming.snapshots.audit.publication import orphans_of, publish
from streaming.snapshots.audit.snapshot_audit import GRAVE, SnapshotAudit, totals
from streaming.spark.java_errors import one_line, our_errors, translated
from streaming.spark.session import Jars, start
from streaming.state.filesystem import below, folder_of
from streaming.terminal import Terminal, cell, count_of, say_json, say_json_line
from udfs.records import LedgerComponent

log = logging.getLogger("ledger-reaper")

REPORT = "report.html"


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
    folder = folder_of(str(out) if out else below(settings.state_dir, "snapshots"))
    return Output(folder.location, folder.filesystem, folder.root)


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
    spark = start(settings, Jars(), with_streams=False)
    stop = threading.Event()
    command = SnapshotCommand(spark=spark, settings=settings, request=request, output=output, stop=stop)
    try:
        run_once(command, "the next `snapshots audit --publish` requests the rest")
    finally:
        spark.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCommand:
    """One audit. Once stop is set, it ends instead of waiting for the second pass."""

    spark: SparkSession
    settings: Settings
    request: SnapshotRequest
    output: Output
    stop: threading.Event

    def search(self) -> AuditResult:
        """Audit, and show the findings. Raises ReaperError's family."""
        with our_errors():
            result, groups = audited(self.spark, self.settings, self.request.options, self.output, self.stop)
            self.output.write(REPORT, snapshot_report.page(result, groups).encode())
            if self.request.as_json:
                _print_json(self._findings(), result)
            else:
                snapshot_report.show(Terminal(), result, groups)
                Terminal().print(cell(f"Report: {self.output.shown}/{REPORT}"), soft_wrap=True)
            return result

    def ask(self, _result: AuditResult) -> None:
        """Ask before orphans are published. Raises unless the answer is yes."""
        if self.request.publish and (count := orphans_of(self._findings()).count()):
            self.request.confirm(count_of(count, "orphan"))

    def conclude(self, result: AuditResult) -> None:
        """Publish if requested. Raises SafetyError if the operator must check the audit, otherwise like search."""
        with our_errors():
            faults = [
                f"{each}; see {self.output.shown}/{REPORT}"
                for each in shortcomings(result, self.request.options.filters)
            ]
            if self.request.publish:
                faults += self._publish(result)
            if faults:
                raise SafetyError("; ".join(faults))

    def _findings(self) -> DataFrame:
        return self.output.load(self.spark, FINDINGS)

    def _publish(self, result: AuditResult) -> list[str]:
        """Request tombstones for the orphans, and return texts about what was left out.

        A namespace that could not be read has no findings of orphans.
        """
        if result.certificate.errors:
            return ["the audit requested nothing"]
        sent = publish(self.settings, self._findings())
        log.info("%s received %s", self.settings.topics.requests[0], count_of(sent, "request"))
        if result.certificate.faults_within(self.request.options.filters):
            return ["the audit requested nothing in the namespaces that it could not read"]
        return []


def shortcomings(result: AuditResult, filters: FindingFilters) -> list[str]:
    """Return why a person must check this audit: grave findings, and what could not be read."""
    grave = sum(result.totals[str(each)]["count"] for each in GRAVE)
    unread = result.certificate.faults_within(filters)
    faults = [f"{count_of(grave, 'finding')} of {' or '.join(GRAVE)}"] if grave else []
    if unread:
        faults.append(f"the audit is incomplete: {count_of(len(unread), 'fault')}. The first: {unread[0]}")
    return faults


def audited(  # noqa: PLR0913  what an audit needs, and a choice
    spark: SparkSession,
    settings: Settings,
    options: AuditOptions,
    output: Output,
    stop: threading.Event,
    *,
    only_loaded: bool = False,
) -> tuple[AuditResult, list[snapshot_report.FindingGroup]]:
    """Run an audit into the output folder; return its result, and its findings added up."""
    with Phases(spark, Terminal(stderr=True), stop) as phases:
        result = SnapshotAudit(
            spark=spark,
            settings=settings,
            options=options,
            output=output,
            phases=phases,
            clock=SystemClock(),
            only_loaded=only_loaded,
        ).run()
        remember(output, result, options.filters)
        with phases.phase("Adding up"):
            return result, snapshot_report.groups_of(output.load(spark, FINDINGS))


def last_audit(
    spark: SparkSession, output: Output, filters: FindingFilters
) -> tuple[AuditResult, list[snapshot_report.FindingGroup]]:
    """Return the last audit as audited() does, restricted to the filters. Raises ConfigError if it covered less."""
    covered, chosen = remembered_filters(output).scope, filters.scope
    if not f"{chosen}/".startswith(covered and f"{covered}/"):
        raise ConfigError(f"the last snapshot audit covered only {covered}: run `ledger-reaper snapshots audit`")
    result, findings = remembered(output), output.load(spark, FINDINGS)
    if chosen:
        findings = findings.where(F.concat(a.NAMESPACE, F.lit("/")).startswith(f"{chosen}/"))
    return replace(result, totals={**result.totals, **totals(findings)}), snapshot_report.groups_of(findings)


def further(settings: Settings, options: AuditOptions, *, last: bool = False) -> Further:
    """Return the audit of snapshots as a section of the ledger audit; it writes to the folder of `snapshots audit`.

    It loads no topic: it leaves out namespaces with a snapshot topic that is not loaded, and logs their number.
    last: use the last audit in the folder instead of a new audit; without any, the section is empty.
    """

    def section(spark: SparkSession, stop: threading.Event) -> Section:
        try:
            output = output_of(settings, None)
            if last and output.read(SUMMARY) is None:
                return Section()
            if last:
                result, groups = last_audit(spark, output, options.filters)
            else:
                result, groups = audited(spark, settings, options, output, stop, only_loaded=True)
        except StopRequestedError:
            raise
        except Exception as error:
            if stop.is_set():  # both audits were stopped
                raise
            # the audit of ledgers must complete whatever the error is
            why = one_line(translated(error))
            log.warning("snapshots were not audited: %s", why)
            return Section(snapshot_report.failed_section(why), (f"snapshots were not audited: {why}",))
        _log(result, groups)
        faults = tuple(f"snapshots: {each}" for each in shortcomings(result, options.filters))
        left_out = result.certificate.listed.get(NOT_LOADED, 0)
        return Section(snapshot_report.html_section(groups, result), faults, left_out)

    return section


def _log(result: AuditResult, groups: Sequence[snapshot_report.FindingGroup]) -> None:
    if left_out := result.certificate.listed.get(NOT_LOADED):
        log.warning("snapshots of %s were left out: %s", count_of(left_out, "namespace"), LEFT_OUT)
    if groups:
        log.warning("snapshots: %s; `ledger-reaper snapshots audit` shows them", snapshot_report.in_short(result))


def _print_json(found: DataFrame, result: AuditResult) -> None:
    named = snapshot_report.with_advice(found)
    lines = named.select(F.to_json(F.struct(*named.columns), {"ignoreNullFields": "false"}))
    for row in lines.toLocalIterator(prefetchPartitions=True):
        say_json_line(row[0])
    say_json({"complete": result.certificate.is_complete, "totals": result.totals})
