"""What `status` tells of this moment: what runs, what waits, and what holds it.

It reads what the service, its watcher and an operator have written down, and how far the topics are. It judges nothing:
`check` does that. What can't be read is named in `unknown`, and the rest is told all the same.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import pyarrow.dataset as ds

from streaming.clients import CommandClients
from streaming.config.settings import Settings
from streaming.coordination.lock import WATCH, Holder, holder_of, lock_path
from streaming.coordination.pause import Pause
from streaming.errors import ReaperError
from streaming.limits.breaker import Breaker, breaker_path
from streaming.limits.tenants import TenantHolds, tenant_holds_path
from streaming.ports import MetadataStore
from streaming.reconcile.backlog import backlog_of
from streaming.state import hold, parked_queries, receipts, waiting, watcher_note
from streaming.state.parked_queries import ParkedQuery
from streaming.state.watcher_note import WatcherNote
from udfs import columns as c
from udfs.units import HOUR_MS

_RESUME = "ledger-reaper resume"
_RESUME_LIMIT = f"{_RESUME} --limit"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hold:
    """Why nothing is deleted, or nothing of some. do: the command that ends it, "" where it ends by itself."""

    what: str
    why: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Retries:
    """How many retries wait, and when the next one is due (ms since 1970; None: none waits)."""

    waiting: int
    next_ms: int | None


@dataclass(frozen=True, slots=True)
class Finished:
    """Receipts of the last hour by outcome, and when the newest of them was written (ms since 1970; None: none)."""

    outcomes: Mapping[str, int]
    newest_ms: int | None


@dataclass(slots=True)
class Now:
    """All of it. at_ms: of this look. service, watcher: who holds their locks. watched: the watcher's last whole look.

    waiting: messages in no finished batch, by topic; with those read from RETRY where `retries` is known. A field
    that is None was not to be read where `unknown` names it, and is none otherwise. unknown: field -> why.
    """

    at_ms: int
    name: str
    service: Holder | None = None
    watcher: Holder | None = None
    watched: WatcherNote | None = None
    holds: list[Hold] | None = None
    parked: list[ParkedQuery] | None = None
    waiting: Mapping[str, int] | None = None
    retries: Retries | None = None
    last_hour: Finished | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        said = asdict(self)
        del said["exit_code"]
        for who in ("service", "watcher"):
            if said[who] is not None:
                del said[who]["token"]
        return said


def look(settings: Settings, clients: CommandClients, now_ms: int, no_state: ReaperError | None = None) -> Now:
    """Look at it all. A service that can't be reached is no error here, but exit_code says it.

    no_state: why the state directory can't be read, if it can't.
    """
    now = Now(now_ms, settings.service.name)
    root, name, state_dir = settings.zookeeper.own_root, settings.service.name, settings.state_dir

    def read(what: str, of: Callable[[], T], fault: ReaperError | None = None) -> T | None:
        try:
            if fault is not None:
                raise fault
            return of()
        except ReaperError as error:
            now.unknown[what] = str(error)
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

    now.waiting = read("waiting", lambda: dict(backlog_of(settings, clients.pulsar, count_retries)["topics"]))
    if now.retries is None:
        now.retries = read("retries", lambda: _retries(state_dir), no_state)
    now.last_hour = read("last_hour", lambda: _finished(state_dir, now_ms - HOUR_MS), no_state)
    return now


def holds_of(settings: Settings, store: MetadataStore) -> list[Hold]:
    """Return what holds the service now, each with the command that ends it. Raises UnavailableError."""
    root, name = settings.zookeeper.own_root, settings.service.name
    found = []
    if why := Pause(store, root).reason():
        found.append(Hold("paused", why, _RESUME))
    if why := Breaker(store, breaker_path(root, name)).reason():
        found.append(Hold("limit reached", why, _RESUME_LIMIT))
    tenants = TenantHolds(store, tenant_holds_path(root, name)).read()
    commands = {tenant: f"{_RESUME} --tenant {shlex.quote(tenant)}" for tenant in tenants}
    return found + [Hold(f"tenant {tenant} held", tenants[tenant], commands[tenant]) for tenant in sorted(tenants)]


def _holds(settings: Settings, clients: CommandClients) -> list[Hold]:
    found = holds_of(settings, clients.store)
    if not found and (noted := hold.noted(settings.state_dir)[0]):
        found.append(Hold("held", f"{noted} (as the service noted last; it may have gone on since)"))
    return found


def _retries(state_dir: str) -> Retries:
    due = [int(row[c.READY_MS]) for row in waiting.outstanding(state_dir)]  # bounded, whatever the sender wrote
    return Retries(len(due), min(due, default=None))


def _finished(state_dir: str, since_ms: int) -> Finished:
    outcomes: Counter[str] = Counter()
    newest_ms = None
    for row in receipts.counted(state_dir, ds.field(c.AT_MS) >= since_ms):
        outcomes[row[c.OUTCOME]] += row["count"]
        newest_ms = max(newest_ms or 0, row["newest_ms"])
    return Finished(dict(sorted(outcomes.items())), newest_ms)
