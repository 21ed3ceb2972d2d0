"""Reads in a thread what takes too long for a scrape: how much waits, and the results of the last audits.

Each fact is read at its interval. A fact whose read is slow is read less often, so that reading takes at most a
twentieth of the time. A fact that can't be read keeps its last values, and the time of their read; it is tried again
after its interval, however long the failure took.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow.compute as pc

from streaming.audit import history as audits
from streaming.audit import result
from streaming.audit.output import Output, output_of
from streaming.beside import Beside, Work, logged
from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.dlq.letters import waiting_letters
from streaming.errors import ConfigError, ReaperError
from streaming.metrics import Metrics
from streaming.ports import Pulsar
from streaming.prometheus import table
from streaming.prometheus.registry import Registry
from streaming.prometheus.table import Metric
from streaming.reconcile.backlog_count import unread_in_lanes, unread_of
from streaming.space.output import earlier_runs as spaces
from streaming.state import waiting
from streaming.state.waiting import Waiting
from streaming.terminal import count_of
from udfs.verdicts.finding_classes import FindingClass

log = logging.getLogger("ledger-reaper")

_POLL_S = 1.0
_REST = 20  # the next read of a fact waits this many times as long as the last read took
_ENTRIES = 100  # of a partition, that are read to count the backlog; of more, the count is an estimate
_LETTERS = 100_000  # of the dead-letter topic, that are read to count those that wait
SNAPSHOTS = "snapshots"  # the folder of `snapshots audit` in state.dir


@dataclass(slots=True)
class Fact:
    """A fact that is read again and again."""

    name: str
    show: Callable[[], None]  # reads the fact and sets its metrics. Raises ReaperError
    every_s: float
    monotonic: Callable[[], float] = time.monotonic
    _next_s: float = field(default=float("-inf"))
    _why: str = ""  # why the last read failed

    def read_if_due(self) -> None:
        """Read the fact if its time has come. A failure is logged when its text differs from the last read's."""
        started_s = self.monotonic()
        if started_s < self._next_s:
            return
        why = ""
        try:
            self.show()
        except ReaperError as error:
            why = str(error)
            if why != self._why:
                log.info("metrics: %s could not be read, and the last values stay: %s", self.name, why)
        ended_s = self.monotonic()
        rest_s = 0.0 if why else _REST * (ended_s - started_s)  # a failure took the time of a timeout
        self._why, self._next_s = why, ended_s + max(self.every_s, rest_s)


class Waits(NamedTuple):
    """Where requests wait beside the listed topics."""

    retries: Waiting
    lanes: Callable[[], Collection[str]] = tuple  # returns the partitions of lanes that may have unread messages


def facts_of(settings: Settings, pulsar: Pulsar, waits: Waits, metrics: Metrics, clock: Clock) -> list[Fact]:
    """Return the service's facts."""
    registry = metrics.registry
    retries_shown = partial(_show_retries, settings.state_dir, waits.retries, registry, clock)
    return [
        Fact("the waiting retries", retries_shown, 30),
        Fact("the backlog", partial(_show_backlog, settings, pulsar, waits.lanes, registry, clock), 60),
        Fact("the waiting dead letters", partial(_show_dead_letters, settings, pulsar, registry, clock), 60),
        Fact("the last audit", partial(show_audit, output_of(settings, None), metrics, clock), 60),
        Fact("the last snapshot audit", partial(_show_snapshots, output_of(settings, None, SNAPSHOTS), registry), 60),
    ]


def reading(facts: Sequence[Fact]) -> Beside:
    """Return the thread that reads the facts."""

    def run() -> None:
        for fact in facts:
            fact.read_if_due()

    on_failure = logged("reading facts for metrics", _POLL_S)
    return Beside(Work(name="facts", run=run, every_s=_POLL_S, on_failure=on_failure))


def _show_retries(state_dir: str, retries: Waiting, registry: Registry, clock: Clock) -> None:
    now_ms = clock.now_ms()
    count = due = 0
    for times in waiting.times(state_dir, retries.done_ms):
        count += len(times)
        due += pc.sum(pc.less_equal(times, now_ms)).as_py() or 0
    registry.set(table.RETRIES_WAITING, count)
    registry.set(table.RETRIES_DUE, due)
    registry.set(table.RETRIES_READ, now_ms / 1000)


def _show_backlog(
    settings: Settings, pulsar: Pulsar, lanes: Callable[[], Collection[str]], registry: Registry, clock: Clock
) -> None:
    unread = unread_of(settings, pulsar, most_entries=_ENTRIES)
    unread |= unread_in_lanes(settings, pulsar, lanes(), most_entries=_ENTRIES).topics
    # times of topics without a series of their own can't be added up: is_sum=False leaves them out
    oldest = {topic: each.oldest_ms / 1000 for topic, each in unread.items() if each.oldest_ms is not None}
    registry.show(table.BACKLOG, {topic: each.messages for topic, each in unread.items()})
    registry.show(table.BACKLOG_OLDEST, oldest, is_sum=False)
    registry.set(table.BACKLOG_READ, clock.now_ms() / 1000)


def _show_dead_letters(settings: Settings, pulsar: Pulsar, registry: Registry, clock: Clock) -> None:
    letters = waiting_letters(settings, pulsar, _LETTERS)
    registry.show(table.DEAD_LETTERS, letters.by_reason)
    registry.set(table.DEAD_LETTERS_OLDEST, (letters.oldest_ms or 0) / 1000)
    registry.set(table.DEAD_LETTERS_READ, clock.now_ms() / 1000)


def show_audit(output: Output, metrics: Metrics, clock: Clock) -> None:
    """Show the newest audit and the newest measurement of `space` in a folder. Raises UnavailableError."""
    registry = metrics.registry
    _show_space(output, registry)
    try:
        newest = result.remembered(output)
    except ConfigError:  # there is no audit yet
        return
    past = audits.read(output)
    complete_ms = max((each.at_ms for each in past if each.complete), default=0)
    registry.set(table.AUDIT_TIMESTAMP, newest.ended_ms / 1000)
    registry.set(table.AUDIT_COMPLETE_TIMESTAMP, complete_ms / 1000)
    registry.set(table.AUDIT_COMPLETE, int(newest.certificate.is_complete))
    registry.set(table.AUDIT_DURATION, (newest.ended_ms - newest.started_ms) / 1000)
    classes = {name: each for name, each in newest.totals.items() if isinstance(each, dict)}
    registry.show(table.AUDIT_FINDINGS, {name: each["count"] for name, each in classes.items()})
    missing = classes.get(FindingClass.MISSING, {}).get("count", 0)
    lost = count_of(missing, "ledger or object", "ledgers or objects")
    alarm = f"DATA MISSING: {lost}, according to audit {newest.audit_id}; see its report"
    metrics.health.alarm("audit", alarm if missing else "")
    registry.show(table.AUDIT_FINDING_BYTES, {name: each["bytes"] for name, each in classes.items()})
    registry.show(
        table.AUDIT_LISTED, {name: each for name, each in newest.totals.items() if isinstance(each, int | float)}
    )
    registry.set(table.AUDIT_READ, clock.now_ms() / 1000)


def _show_space(output: Output, registry: Registry) -> None:
    if newest := spaces.newest(output):
        _show_all(registry, table.SPACE_BYTES, {cause: one for cause, (one, _stored) in newest.causes.items()})
        _show_all(registry, table.SPACE_STORED_BYTES, {cause: each for cause, (_one, each) in newest.causes.items()})
        registry.set(table.SPACE_TIMESTAMP, newest.at_ms / 1000)
        registry.set(table.SPACE_COMPLETE, int(newest.complete))


def _show_all(registry: Registry, metric: Metric, values: dict[str, float]) -> None:
    registry.show(metric, {str(name): value for name, value in values.items()})


def _show_snapshots(output: Output, registry: Registry) -> None:
    try:
        newest = result.remembered(output)
    except ConfigError:  # there is no audit yet
        return
    registry.set(table.SNAPSHOT_AUDIT_TIMESTAMP, newest.ended_ms / 1000)
    registry.set(table.SNAPSHOT_AUDIT_COMPLETE, int(newest.certificate.is_complete))
    classes = {name: each["count"] for name, each in newest.totals.items() if isinstance(each, dict)}
    registry.show(table.SNAPSHOT_FINDINGS, classes)
