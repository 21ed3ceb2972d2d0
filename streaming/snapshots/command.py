"""`ledger-reaper snapshots audit`: run one audit, show what it found, and keep findings and report."""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming.audit.command import Further
from streaming.audit.options import AuditOptions, FindingFilters
from streaming.audit.place import FINDINGS, Place
from streaming.audit.progress import Phases
from streaming.audit.result import AuditResult, remember
from streaming.audit.stopping import run_until_signal
from streaming.clock import SystemClock
from streaming.config.settings import Settings
from streaming.errors import ConfigError, SafetyError, StopRequestedError
from streaming.snapshots import report
from streaming.snapshots.audit import SnapshotAudit
from streaming.snapshots.publication import publish
from streaming.spark.failures import one_line, our_errors, translated
from streaming.spark.session import Jars, start
from streaming.state.filesystem import below, folder_of
from streaming.terminal import Terminal, cell, say_json, say_json_line
from udfs.records import LedgerComponent
from udfs.snapshots.audit import SnapshotClass

log = logging.getLogger("ledger-reaper")

REPORT = "report.html"
GRAVE = (SnapshotClass.MISSING, SnapshotClass.DANGER)


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """What the operator asked for."""

    options: AuditOptions
    out: Path | None = None
    as_json: bool = False
    publish: bool = False


def place_of(settings: Settings, out: Path | str | None) -> Place:
    """--out, or `snapshots` in the state directory. Raises UnavailableError."""
    folder = folder_of(str(out) if out else below(settings.state_dir, "snapshots"))
    return Place(folder.location, folder.filesystem, folder.root)


def audit(settings: Settings, request: SnapshotRequest) -> None:
    """Run one audit.

    Raises StoppedBySignalError when a signal cut it short, SafetyError as --verify-only asks for, and ConfigError where
    the service would refuse what --publish asks for.
    """
    if request.publish and LedgerComponent.TRANSACTION_SNAPSHOT not in settings.safety.allowed_components:
        raise ConfigError(
            f"--publish: safety.allowed_components does not name {LedgerComponent.TRANSACTION_SNAPSHOT}, so the "
            "service would refuse every request. Name it there, beside all others that the service is to work off"
        )
    place = place_of(settings, request.out)
    spark = start(settings, Jars(), with_streams=False)
    stop = threading.Event()
    command = SnapshotCommand(spark, settings, request, place, stop)
    try:
        run_until_signal(spark, command.run, stop)
    finally:
        spark.stop()


@dataclass(frozen=True, slots=True)
class SnapshotCommand:
    """One audit. Once stop is set, it ends instead of waiting for the second look."""

    spark: SparkSession
    settings: Settings
    request: SnapshotRequest
    place: Place
    stop: threading.Event

    def run(self) -> None:
        """Audit, and show the findings. Raises ReaperError's family."""
        with our_errors():
            self._run()

    def _run(self) -> None:
        result, groups = audited(self.spark, self.settings, self.request.options, self.place, self.stop)
        self.place.write(REPORT, report.page(result, groups).encode())
        if self.request.as_json:
            _print_json(self.place.load(self.spark, FINDINGS), result)
        else:
            report.show(Terminal(), result, groups)
            Terminal().print(cell(f"Report: {self.place.shown}/{REPORT}"), soft_wrap=True)
        if self.request.publish:
            self._publish(result)
        if self.request.options.verify_only and (why := shortcoming(result, self.request.options.filters)):
            raise SafetyError(f"{why}; see {self.place.shown}/{REPORT}")

    def _publish(self, result: AuditResult) -> None:
        """Request tombstones for the orphans; of a namespace that could not be read, nothing was called one."""
        if result.certificate.errors:
            raise SafetyError(f"the audit requested nothing: {result.certificate.errors[0]}")
        sent = publish(self.settings, self.place.load(self.spark, FINDINGS))
        log.info("%s received %d requests", self.settings.topics.requests[0], sent)
        faults = result.certificate.faults_within(self.request.options.filters)
        if faults:
            raise SafetyError(
                f"the audit did not request everything: it could not read {len(faults)} parts. The first: {faults[0]}"
            )


def shortcoming(result: AuditResult, filters: FindingFilters) -> str:
    """Return why `--verify-only` must not pass: grave findings, or what could not be read; "" where it may."""
    grave = sum(result.totals[str(each)]["count"] for each in GRAVE)
    faults = result.certificate.faults_within(filters)
    says = [f"{grave} findings are {' or '.join(GRAVE)}"] if grave else []
    says += (
        [f"the audit is incomplete: it could not read {len(faults)} parts. The first: {faults[0]}"] if faults else []
    )
    return "; ".join(says)


def audited(
    spark: SparkSession, settings: Settings, options: AuditOptions, place: Place, stop: threading.Event
) -> tuple[AuditResult, list[report.Group]]:
    """Run one audit into the place, and return what it came to with its findings added up."""
    with Phases(spark, Terminal(stderr=True), stop) as phases:
        result = SnapshotAudit(spark, settings, options, place, phases, SystemClock()).run()
        remember(place, result, options.filters)
        with phases.phase("Adding up"):
            return result, report.groups_of(place.load(spark, FINDINGS))


def further(settings: Settings, options: AuditOptions) -> Further:
    """Return the audit of snapshots as a part of that of ledgers; its findings lie where `snapshots audit` has them."""

    def section(spark: SparkSession, stop: threading.Event) -> str:
        try:
            result, groups = audited(spark, settings, options, place_of(settings, None), stop)
        except StopRequestedError:
            raise
        except Exception as error:
            if stop.is_set():  # it was told to stop, and so was the audit of ledgers
                raise
            # whatever else it is, the audit of ledgers must come to its end
            said = one_line(translated(error))
            log.warning("snapshots were not looked at: %s", said)
            return report.failed_section(said)
        if groups:
            log.warning("snapshots: %s; `ledger-reaper snapshots audit` shows them", report.in_short(result))
        return report.html_section(groups, result)

    return section


def _print_json(found: DataFrame, result: AuditResult) -> None:
    named = report.with_advice(found)
    lines = named.select(F.to_json(F.struct(*named.columns), {"ignoreNullFields": "false"}))
    for row in lines.toLocalIterator(prefetchPartitions=True):
        say_json_line(row[0])
    say_json({"complete": result.certificate.is_complete, "totals": result.totals})
