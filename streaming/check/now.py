"""The facts that `status` shows: running processes, waiting requests, and holds.

It reads the records of the service, its watcher and operators, and the positions of the topics. It judges nothing:
`check` does that. `unknown` names facts that can't be read, and the others are shown.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import pyarrow.dataset as ds

from streaming.clients import CommandClients
from streaming.config.settings import Settings
from streaming.coordination.live_store import migration
from streaming.coordination.lock import WATCH, Holder, holder_of, lock_path
from streaming.coordination.pause import Pause
from streaming.errors import ReaperError
from streaming.limits.breaker import Breaker, breaker_path
from streaming.limits.tenants import TenantHolds, tenant_holds_path
from streaming.ports import MetadataStore
from streaming.reconcile.backlog_count import backlog_of
from streaming.state import receipts, waiting
from streaming.state.notes import hold, parked_queries, watcher_note
from streaming.state.notes.parked_queries import ParkedQuery
from streaming.state.notes.watcher_note import WatcherNote
from udfs import columns as c
from udfs.units import HOUR_MS

_RESUME = "ledger-reaper resume"
_RESUME_LIMIT = f"{_RESUME} --limit"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hold:
    """A reason why nothing, or nothing of a tenant, is deleted."""

    what: str
    why: str
    do: str = ""  # the command that ends the hold; "" if it ends by itself, or if `why` shows what to do


@dataclass(frozen=True, slots=True)
class WaitingRetries:
    """The waiting retries."""

    waiting: int
    next_ms: int | None  # when the next retry is due, in ms since 1970; None: none waits


@dataclass(frozen=True, slots=True)
class Finished:
    """Receipts of the last hour."""

    outcomes: Mapping[str, int]
    newest_ms: int | None  # when the newest receipt was written, in ms since 1970; None: no receipt


@dataclass(slots=True, kw_only=True)
class Now:
    """All facts. A field that is None could not be read if `unknown` names it; otherwise there is nothing to show."""

    at_ms: int
    name: str
    service: Holder | None = None  # holder of the service's lock
    watcher: Holder | None = None  # holder of the watcher's lock
    watched: WatcherNote | None = None  # the watcher's last complete scan
    holds: list[Hold] | None = None
    parked: list[ParkedQuery] | None = None
    waiting: Mapping[str, int] | None = None  # topic -> unprocessed messages, including `retries` if they are known
    retries: WaitingRetries | None = None
    last_hour: Finished | None = None
    unknown: dict[str, str] = field(default_factory=dict)  # field -> why it could not be read
    exit_code: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        fields = asdict(self)
        del fields["exit_code"]
        for holder in ("service", "watcher"):
            if fields[holder] is not None:
                del fields[holder]["token"]
        return fields


def read_now(
    settings: Settings,
    clients: CommandClients,
    now_ms: int,
    no_state: ReaperError | None = None,
    lanes: Callable[[], Collection[str]] = lambda: (),
) -> Now:
    """Read all facts. A server that can't be reached is no error here, but sets exit_code.

    Args:
        settings: of the service.
        clients: of the command.
        now_ms: the time, in ms since 1970.
        no_state: why the state directory can't be read, if so.
        lanes: returns the partitions of lanes that may have unread messages.
    """
    now = Now(at_ms=now_ms, name=settings.service.name)
    root, name, state_dir = settings.zookeeper.own_root, settings.service.name, settings.state_dir

    def read(fact: str, of: Callable[[], T], fault: ReaperError | None = None) -> T | None:
        try:
            if fault is not None:
                raise fault
            return of()
        except ReaperError as error:
            now.unknown[fact] = str(error)
            now.exit_code = max(now.exit_code, error.exit_code)
            return None

    now.service = read("service", lambda: holder_of(clients.store, lock_path(root, name)))
    now.watcher = read("watcher", lambda: holder_of(clients.store, lock_path(root, name + WATCH)))
    now.watched = read("watched", lambda: watcher_note.noted(state_dir), no_state)
    now.holds = read("holds", lambda: _holds(settings, clients))
    now.parked = read("parked", lambda: list(parked_queries.noted(state_dir).values()), no_state)

    def count_retries() -> int:
        if no_state is not None:
            return 0
        now.retries = _retries(state_dir)
        return now.retries.waiting

    now.waiting = read(
        "waiting", lambda: _waiting(now, backlog_of(settings, clients.pulsar, count_retries, lanes=lanes()))
    )
    if now.retries is None:
        now.retries = read("retries", lambda: _retries(state_dir), no_state)
    now.last_hour = read("last_hour", lambda: _finished(state_dir, now_ms - HOUR_MS), no_state)
    return now


def _waiting(now: Now, backlog: Mapping[str, Any]) -> dict[str, int]:
    if count := backlog["lanes_not_counted"]:
        now.unknown["lanes"] = f"{count} partitions of lanes are not counted: too many, or not readable"
    return dict(backlog["topics"])


def holds_of(settings: Settings, store: MetadataStore) -> list[Hold]:
    """Return the holds of the service, each with the command that ends it. Raises UnavailableError."""
    root, name = settings.zookeeper.own_root, settings.service.name
    holds = []
    if why := Pause(store, root).reason():
        holds.append(Hold("paused", why, _RESUME))
    if why := migration(store):
        holds.append(Hold("metadata store", why))
    if why := Breaker(store, breaker_path(root, name)).reason():
        holds.append(Hold("limit reached", why, _RESUME_LIMIT))
    tenants = TenantHolds(store, tenant_holds_path(root, name)).read()
    commands = {tenant: f"{_RESUME} --tenant {shlex.quote(tenant)}" for tenant in tenants}
    return holds + [Hold(f"tenant {tenant} held", tenants[tenant], commands[tenant]) for tenant in sorted(tenants)]


def _holds(settings: Settings, clients: CommandClients) -> list[Hold]:
    holds = holds_of(settings, clients.store)
    if not holds and (noted := hold.noted(settings.state_dir)[0]):
        holds.append(Hold("held", f"{noted} (the service's last note; it may have continued since)"))
    return holds


def _retries(state_dir: str) -> WaitingRetries:
    due = [int(row[c.READY_MS]) for row in waiting.outstanding(state_dir)]  # bounded, whatever delay the sender gave
    return WaitingRetries(len(due), min(due, default=None))


def _finished(state_dir: str, since_ms: int) -> Finished:
    outcomes: Counter[str] = Counter()
    newest_ms = None
    for row in receipts.counted(state_dir, ds.field(c.AT_MS) >= since_ms):
        outcomes[row[c.OUTCOME]] += row["count"]
        newest_ms = max(newest_ms or 0, row["newest_ms"])
    return Finished(dict(sorted(outcomes.items())), newest_ms)
