"""The line of `check` about snapshots: whether every namespace with segments has something that keeps them."""

from contextlib import closing

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.audit import columns as a
from streaming.audit.options import FindingFilters
from streaming.check.preflight import Line, Status
from streaming.clients import CommandClients, admin_for
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import MetadataStore
from streaming.snapshots import columns as s
from streaming.snapshots.facts import segments_topics
from streaming.snapshots.read import namespaces_with_snapshots
from udfs import columns as c

_WHAT = "guards of snapshots"
_NAMED = 5


def guard_line(settings: Settings, clients: CommandClients) -> Line:
    """Look whether each namespace with segments has a guard, or retention without limit. Raises no ReaperError."""
    try:
        with closing(admin_for(settings)) as admin:
            return line_of(clients.store, admin)
    except ReaperError as error:
        return Line(_WHAT, Status.NOTE, f"not known: {error}", "repair what the lines above say, then check again")


def line_of(store: MetadataStore, admin: PulsarAdmin) -> Line:
    """The same with these clients. Raises UnavailableError."""
    namespaces, problems = namespaces_with_snapshots(store, FindingFilters())
    rows = segments_topics(store, admin, namespaces)
    without = [row for row in rows if row.get(s.GUARD_LEDGER) is None and not row[s.KEEPS_ALL]]
    if without:
        names = ", ".join(str(row[a.NAMESPACE]) for row in without[:_NAMED])
        more = f" and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
        why = next((f" ({row[c.DETAIL]})" for row in without if row[c.DETAIL]), "")
        says = f"{len(without)} of {len(rows)} namespaces with segments have none: {names}{more}{why}"
        do = "`ledger-reaper snapshots guard`, or set snapshots.guard_every_seconds: else topics may not load again"
        return Line(_WHAT, Status.NOTE, says, do)
    if problems:
        return Line(_WHAT, Status.NOTE, f"{problems[0][0]}: {problems[0][1]}", "let this service list the topics")
    return Line(_WHAT, Status.OK, f"{len(rows)} namespaces with segments, all guarded" if rows else "no segments")
