"""The chapter of the audit's report about the cluster's bytes: it reads what `space` reads, and shows the same."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from streaming.audit.audit_options import AuditOptions
from streaming.audit.command import Further, Section
from streaming.audit.output import Output, output_of
from streaming.audit.phase_progress import Phases
from streaming.audit.stages import Engine
from streaming.audit.stopping import StoppedError
from streaming.audit.workers import Workers
from streaming.config.settings import Settings
from streaming.space.output import earlier_runs
from streaming.space.output.page import chapter, failed_chapter
from streaming.space.output.space_tables import Shown
from streaming.space.output.space_texts import price_of
from streaming.spark.java_errors import one_line
from streaming.terminal import Terminal
from udfs.space.view import Filters, View, selected

if TYPE_CHECKING:  # its module loads numpy, which `audit --last` does not need
    from streaming.space.reading.measure import Progress

log = logging.getLogger("ledger-reaper")

FILE = "space-chapter.html"  # in the audit's folder, for `audit --last`, which reads no sizes


def further(settings: Settings, options: AuditOptions, out: Path | None, *, last: bool = False) -> Further:
    """Return the chapter as a section of the ledger audit; its history is in the audit's folder.

    last: use the chapter of the last audit in the folder, if it has one, instead of reading again.
    """
    filters = Filters(tenant=options.filters.tenant, namespace=options.filters.namespace)

    def measured(progress: "Progress", workers: Workers) -> Shown:
        from streaming.space.reading.measure import space_of

        report = space_of(
            settings,
            reads_per_second=options.reads_per_second,
            filters=filters,
            progress=progress,
            workers=workers,
        )
        selection = selected(report, filters)
        return Shown(report=selection, filters=filters, by=View.CAUSE, price=price_of(settings.space))

    return partial(section, output_of(settings, out), measured, last=last)


def section(
    output: Output, measured: "Callable[[Progress, Workers], Shown]", engine: Engine, *, last: bool = False
) -> Section:
    """Return the chapter; an error becomes its text. Raises StoppedError once the engine is stopped.

    Args:
        output: the audit's folder.
        measured: measures the cluster in workers, and calls its first argument while it reads.
        engine: of the audit.
        last: as of further().
    """
    if last:
        return Section((output.read(FILE) or b"").decode())

    def progress(_what: str, _count: int) -> None:
        if engine.stop.is_set():
            raise StoppedError

    try:
        with Phases(Terminal(stderr=True), engine.stop) as phases, phases.phase("Reading where the bytes are"):
            shown, runs = earlier_runs.compared(output, measured(progress, engine.workers))
            html = chapter(shown, runs)
            output.write(FILE, html.encode())
            if runs:
                earlier_runs.add(output, runs[-1])
    except Exception as error:
        if engine.stop.is_set():
            raise
        # the audit must complete whatever the error is
        why = one_line(error)
        log.warning("the audit's report does not show where the bytes are: %s", why)
        return Section(failed_chapter(why))
    return Section(html)
