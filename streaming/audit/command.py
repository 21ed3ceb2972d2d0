"""`ledger-reaper audit`, from settings to output; the CLI's functions only parse and call this."""

import json
import logging
import shlex
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from streaming.adapters.bookkeeper.bookies import announced
from streaming.audit import columns as a
from streaming.audit import history, join
from streaming.audit.audited import Audited, remember, remembered
from streaming.audit.options import AuditOptions, FindingFilters
from streaming.audit.place import FINDINGS, Place, place_of
from streaming.audit.progress import Phases
from streaming.audit.publication import asked
from streaming.audit.publication.publish import Publication
from streaming.audit.repeat.schedule import Turns
from streaming.audit.repeat.stopping import run_until_signal
from streaming.audit.report import html, terminal
from streaming.audit.report.html import Beside
from streaming.audit.report.summary import Summary, matching, summarize
from streaming.audit.report.text import age_text, size_text
from streaming.audit.run import Audit
from streaming.audit.space import Space, account
from streaming.clients import clients_for
from streaming.clock import SystemClock
from streaming.config.settings import Settings
from streaming.coordination.exclusive import require_exclusive_bookkeeper
from streaming.coordination.identity import instance_id_of
from streaming.errors import ReaperError, SafetyError
from streaming.spark.failures import translated
from streaming.spark.session import Jars, start
from udfs import columns as c
from udfs.audit import FindingClass

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
class AuditRequest:
    """What to do with what an audit finds. last: with what the last audit there found, instead of looking anew.

    config: the configuration file as the operator named it, for the commands that are proposed. is_quiet: one line to
    the log, nothing to the terminal. repeats: one audit of many, which asks once for what it finds.
    """

    options: AuditOptions
    config: str
    out: Path | None = None
    as_json: bool = False
    publish: bool = False
    last: bool = False
    is_quiet: bool = False
    repeats: bool = False


def audit(settings: Settings, wanted: AuditRequest, *, watch_seconds: int = 0) -> None:
    """Run one audit, or one after another until SIGTERM or SIGINT; a single one cut short raises KeyboardInterrupt.

    Raises SafetyError for a loss found, or a publication refused; ConfigError to publish where nobody has said whose
    BookKeeper it is.
    """
    if wanted.publish:
        require_exclusive_bookkeeper(settings)
    place = place_of(settings, wanted.out)
    if wanted.last:
        _refuse_other_cluster(settings, remembered(place))
    spark = start(settings, Jars(), with_delta=False)
    stop = threading.Event()
    command = AuditCommand(spark, settings, wanted, place, stop)
    work = Turns(command.run, watch_seconds, 0, stop).repeat if watch_seconds else command.run
    try:
        is_whole = run_until_signal(spark, work, stop)
    finally:
        spark.stop()
    if not is_whole and not watch_seconds:
        raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class AuditCommand:
    """One audit, as often as it is run. stop: set, it ends where it would wait."""

    spark: SparkSession
    settings: Settings
    wanted: AuditRequest
    place: Place
    stop: threading.Event

    def run(self) -> None:
        """Audit, show, and do what was asked for. Raises ReaperError's family."""
        try:
            self._run()
        except ReaperError:
            raise
        except Exception as error:
            ours = translated(error)  # what executors raise comes back inside a Java exception
            if ours is error:
                raise
            raise ours from error

    def _run(self) -> None:
        filters = self.wanted.options.filters
        with self._phases() as phases:
            audited = self._audited(phases)
            selected = matching(self._findings(), filters)
            with phases.phase("Adding up"):
                summary = summarize(selected)
            bookies = self.wanted.options.bookies or announced(
                clients_for(self.settings).store, self.settings.zookeeper.ledgers_root
            )
            space = account(self.settings, self.place, bookies, SystemClock().now_ms())
            report = self._write(audited, summary, space)
        self._show(audited, selected, summary, space, report)
        missing = summary.of(FindingClass.MISSING).count
        if self.wanted.options.verify_only and missing:
            raise SafetyError(f"{missing} ledgers or objects are referred to and do not exist: data was lost")
        if self.wanted.publish:
            self._publish(audited, selected)

    def _show(self, audited: Audited, selected: DataFrame, summary: Summary, space: Space, report: str) -> None:
        if self.wanted.is_quiet:
            log.info("audit %s: %s; report: %s", audited.audit_id, terminal.in_short(audited, summary), report)
        elif self.wanted.as_json:
            _print_json(selected, audited)
        else:
            terminal.show(Console(), audited, summary, space, _scope(self.wanted.options.filters))
            Console().print(f"Report: {report}", soft_wrap=True)
            terminal.propose(Console(), summary, self._commands(), publishes=self.wanted.publish)
        if missing := summary.of(FindingClass.MISSING).count:
            log.error("%s ledgers or objects are referred to and do not exist: see %s", missing, report)

    def _commands(self) -> terminal.Commands:
        config = shlex.quote(self.wanted.config)
        out = f" --out {shlex.quote(str(self.wanted.out))}" if self.wanted.out else ""
        chosen = self.wanted.options.filters.arguments()
        return terminal.Commands(
            publish=f"ledger-reaper audit --config {config}{out}{chosen} --last --publish",
            explain=f"ledger-reaper explain --config {config} --ledger N",
        )

    def _findings(self) -> DataFrame:
        return self.spark.read.parquet(self.place.spark_path(FINDINGS))

    def _phases(self) -> Phases:
        return Phases(self.spark, Console(stderr=True, quiet=self.wanted.is_quiet), self.stop)

    def _audited(self, phases: Phases) -> Audited:
        if self.wanted.last:
            return remembered(self.place)
        return Audit(self.spark, self.settings, self.wanted.options, self.place, phases, SystemClock()).run()

    def _write(self, audited: Audited, summary: Summary, space: Space) -> str:
        filters = self.wanted.options.filters
        newest = history.Past(
            audited.started_ms,
            audited.certificate.is_complete,
            summary.orphans.count,
            summary.orphans.size_bytes,
            summary.of(FindingClass.MISSING).count,
            audited.totals["ledgers"],
        )
        counts = filters.are_empty and not self.wanted.last and not self.wanted.options.verify_only
        past = history.add(self.place, newest) if counts else history.read(self.place)
        remember(self.place, audited, filters)
        self.place.write(REPORT, html.page(audited, summary, Beside(tuple(past), space, _scope(filters))).encode())
        return f"{self.place.location}/{REPORT}"

    def _publish(self, audited: Audited, selected: DataFrame) -> None:
        """Send the orphans; what lies within reach of something unreadable is UNKNOWN, so it is not among them."""
        options, topic = self.wanted.options, self.settings.topics.requests[0]
        if audited.certificate.errors:
            raise SafetyError(f"nothing was published: {audited.certificate.errors[0]}")
        publication = Publication(self.settings, self.place, options, SystemClock(), self.wanted.repeats)
        with self._phases() as phases, phases.phase("Publishing") as phase:
            published = publication.publish(audited.audit_id, selected.where(join.is_class(FindingClass.ORPHAN)))
            phase.came_to(published.requests, "requests")
            if self.wanted.repeats and audited.certificate.is_complete:
                asked.forget(self.place, self._findings())
        log.info("%s", published.told(topic))
        faults = audited.certificate.faults_within(options.filters)
        if faults:
            raise SafetyError(
                f"not everything was published: {len(faults)} parts could not be read, and what belongs to them was "
                f"left out (class UNKNOWN). First: {faults[0]}. Repair them, or choose by --tenant or --namespace"
            )


def _refuse_other_cluster(settings: Settings, audited: Audited) -> None:
    found = instance_id_of(clients_for(settings).store, settings.zookeeper.ledgers_root)
    if found != audited.instance_id:
        raise SafetyError(
            f"audit {audited.audit_id} was made of cluster {audited.instance_id}; this one is {found}: "
            "use the configuration that the audit was made with"
        )


def _print_json(selected: DataFrame, audited: Audited) -> None:
    lines = selected.select(F.to_json(F.struct(*_JSON_FIELDS), {"ignoreNullFields": "false"}))
    for row in lines.toLocalIterator(prefetchPartitions=True):
        sys.stdout.write(row[0] + "\n")
    sys.stdout.write(json.dumps({"complete": audited.certificate.is_complete, "totals": audited.totals}) + "\n")
    sys.stdout.flush()


def _scope(filters: FindingFilters) -> str:
    chosen = {
        "tenant": filters.tenant,
        "namespace": filters.namespace,
        "component": str(filters.component or ""),
        "older than": age_text(filters.older_than_seconds) if filters.older_than_seconds else "",
        "the oldest orphans within": size_text(filters.max_bytes) if filters.max_bytes else "",
    }
    return ", ".join(f"{name} {value}" for name, value in chosen.items() if value)
